"""Codecs: a value comes back as the same type, and whatever else is in a row is undecodable, never a wrong value."""

from __future__ import annotations

import enum
import functools
import io
import json
import os
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field, make_dataclass
from datetime import date, datetime
from decimal import Decimal, localcontext
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sameness import same
from support.valuesamples import CLASSES, VALUES, Colour, Money, MyZone, OfUnhashable, Order, Point, Sku

from echomq_tasks.cache.pickled import PickleCodec
from echomq_tasks.cache.values import Codec, PlainCodec, TypedCodec
from echomq_tasks.errors import InvalidArgument, Undecodable, Unencodable

CODECS = st.sampled_from(
    [
        TypedCodec(types=CLASSES),
        TypedCodec(types=CLASSES, compress_above=0),
        TypedCodec(types=CLASSES, compress_above=None),
        PickleCodec(b"0123456789abcdef"),
        PickleCodec(b"0" * 200, compress_above=0),
    ]
)


@given(VALUES, CODECS)
def test_a_value_comes_back_as_the_same_type(value: Any, codec: Codec) -> None:
    found = codec.decode(codec.encode(value))
    assert same(found, value)
    if not codec.immutable(value):
        assert codec.decode(codec.encode(value)) is not found


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("~dec"), inner, max_size=3),
    max_leaves=8,
)


@given(PLAIN)
def test_plain_json_comes_back_and_is_what_others_read(value: Any) -> None:
    data = PlainCodec().encode(value)
    assert same(json.loads(data), value)
    assert same(PlainCodec().decode(data), value)


@given(VALUES)
def test_plain_json_takes_nothing_that_it_would_not_give_back(value: Any) -> None:
    try:
        data = PlainCodec().encode(value)
    except Unencodable:
        return
    assert same(PlainCodec().decode(data), value)


@pytest.mark.parametrize(
    "value",
    [(1,), {1: 2}, {1}, b"x", float("nan"), float("inf"), "\ud800", Decimal(1), 10**5000, date(2026, 1, 1), Point(1)],
    ids=lambda value: type(value).__name__,
)
def test_plain_json_refuses_what_others_could_not_read(value: Any) -> None:
    with pytest.raises(Unencodable):
        PlainCodec().encode([value])


def test_a_number_comes_back_that_cannot_be_printed() -> None:
    codec, huge = TypedCodec(), 10**5000
    with pytest.raises(ValueError, match="4300"):
        str(huge)
    assert codec.decode(codec.encode([huge, -huge])) == [huge, -huge]


@pytest.mark.parametrize("key", ["~dec", "~", "~data", "~other"])
def test_a_dict_that_looks_like_a_tag_comes_back_as_the_dict_it_is(key: str) -> None:
    codec = TypedCodec()
    for value in ({key: "1"}, ({key: "1"},), [{key: ["Order", {}]}, b""], {"a": {key: 1, "b": 2}}):
        assert same(codec.decode(codec.encode(value)), value)


def test_a_decimal_comes_back_whatever_the_context() -> None:
    codec = TypedCodec()
    with localcontext() as context:
        context.prec, context.capitals = 2, 0
        for value in (Decimal("1234567E+40"), Decimal("sNaN12"), Decimal("-0.00"), Decimal("-Infinity")):
            assert same(codec.decode(codec.encode(value)), value)


# -- the form on the wire -----------------------------------------------------------------------------------------


def test_the_form_of_a_row_is_the_one_of_every_release_before() -> None:
    codec = TypedCodec(Order, types=[Colour])
    value = {
        "a": Order(
            1, (Decimal("9.90"), Colour.RED), [datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))]
        )
    }
    assert codec.encode([1, "é"]) == b"J" + codec.encode(None)[1:9] + '[1,"é"]'.encode()
    assert codec.encode(value)[:9].hex() == "5430250ef6c7a192ca"
    assert codec.encode(value)[9:] == (
        b'{"a":{"~data":["Order",{"number":1,"note":{"~tup":[{"~dec":"9.90"},{"~enum":["Colour","RED"]}]},'
        b'"tags":[{"~dt":["2026-10-25T02:30:00",1,"Europe/Berlin"]}]}]}}'
    )


def test_a_member_is_kept_by_name_whatever_it_is_worth() -> None:
    odd = enum.Enum("Odd", {"HERE": object()})
    codec = TypedCodec(types=[odd])
    assert codec.decode(codec.encode(odd["HERE"])) is odd["HERE"]


def test_a_large_value_is_compressed_when_that_helps() -> None:
    codec = TypedCodec(compress_above=100)
    large, noise = ["a" * 50] * 50, os.urandom(500).hex()
    assert codec.encode("a" * 90)[:1] == b"J"
    assert codec.encode(large)[:1] == b"j"
    assert codec.encode(tuple(large))[:1] == b"t"
    assert len(codec.encode(large)) < 200
    assert codec.decode(codec.encode(large)) == large
    assert codec.decode(codec.encode(noise)) == noise
    assert TypedCodec(compress_above=0).encode("abc")[:1] == b"J"
    assert TypedCodec(compress_above=None).encode(large)[:1] == b"J"


@pytest.mark.parametrize("size", [-1, "1", 1.5, True])
def test_a_size_that_is_none_is_refused(size: Any) -> None:
    with pytest.raises(InvalidArgument, match="compress_above"):
        TypedCodec(compress_above=size)
    with pytest.raises(InvalidArgument, match="compress_above"):
        PickleCodec(b"0123456789abcdef", compress_above=size)


# -- what cannot be kept ------------------------------------------------------------------------------------------


class SubOrder(Order):
    pass


@dataclass
class WithExtra:
    number: int

    def __post_init__(self) -> None:
        self.lock = 1

    @functools.cached_property
    def double(self) -> int:
        return self.number * 2


@dataclass
class OfDict(dict):  # type: ignore[type-arg]
    number: int = 1


UNENCODABLE: dict[str, Callable[[], Any]] = {
    "str subclass": lambda: Sku("a"),
    "subclass of a known dataclass": lambda: SubOrder(1),
    "unknown dataclass": lambda: make_dataclass("Made", ["x"])(1),
    "attribute that is no field": lambda: WithExtra(1),
    "dataclass that is a dict": OfDict,
    "defaultdict": lambda: defaultdict(list),
    "zone of one's own": lambda: datetime(2026, 1, 1, tzinfo=MyZone()),
    "zone without a key": lambda: ZoneInfo.from_file(zone_file()),
    "function": lambda: len,
    "class": lambda: dict,
    "lock": threading.Lock,
    "object": object,
    "generator": lambda: (x for x in ()),
    "path": lambda: PurePosixPath("a"),
    "exception": ValueError,
    "unhashable class": OfUnhashable,
}


def zone_file() -> io.BytesIO:
    return io.BytesIO(files("tzdata").joinpath("zoneinfo/Asia/Tokyo").read_bytes())


@pytest.mark.parametrize("name", UNENCODABLE)
def test_what_would_not_come_back_the_same_is_refused_with_advice(name: str) -> None:
    codec = TypedCodec(types=[*CLASSES, WithExtra, OfDict])
    value = UNENCODABLE[name]()
    for held in (value, [{"a": (value,)}]):
        with pytest.raises(Unencodable) as caught:
            codec.encode(held)
        assert " at 0x" not in str(caught.value)


def test_a_class_that_is_not_known_is_named_with_what_to_do() -> None:
    with pytest.raises(Unencodable, match=r"\.Money is not known here: .* return annotation, or .*types="):
        TypedCodec().encode(Money(1))


def test_a_value_that_contains_itself_or_is_nested_too_deep_is_refused() -> None:
    ring: list[Any] = []
    ring += [ring, ring]
    order = Order(1)
    order.note = [order]
    deep: Any = []
    for _ in range(101):
        deep = [deep]
    for codec in (TypedCodec(types=CLASSES), PlainCodec()):
        for value, says in (
            (ring, "contains itself"),
            (order, "contains itself|not known"),
            (deep, "more than 100 deep"),
        ):
            with pytest.raises(Unencodable, match=says):
                codec.encode(value)
        assert codec.decode(codec.encode(deep[0][0])) == deep[0][0]


def test_a_property_that_raises_is_unencodable_too() -> None:
    @dataclass
    class Odd:
        @property
        def x(self) -> int:  # type: ignore[override]
            raise OSError("away")

    Odd.__dataclass_fields__ = Order.__dataclass_fields__ | {}  # type: ignore[attr-defined]
    Odd.number = property(lambda self: 1 / 0)  # type: ignore[attr-defined]
    with pytest.raises(Unencodable, match="ZeroDivisionError"):
        TypedCodec(types=[Odd]).encode(Odd())


# -- dataclasses --------------------------------------------------------------------------------------------------


def test_a_dataclass_comes_back_as_it_was_and_not_as_it_was_made() -> None:
    ran = []

    @dataclass
    class Price:
        net: Decimal
        gross: Decimal = field(init=False)
        vat: InitVar[Decimal] = Decimal("1.2")

        def __post_init__(self, vat: Decimal) -> None:
            ran.append(1)
            self.gross = self.net * vat
            self.net = self.net + 1

        @functools.cached_property
        def text(self) -> str:
            return str(self.net)

    codec = TypedCodec(types=[Price])
    price = Price(Decimal(10))
    assert price.text == "11"
    found = codec.decode(codec.encode(price))
    assert found == price
    assert (found.net, found.gross, ran) == (11, 12, [1])
    assert found.text == "11"


def test_a_field_without_a_value_is_refused() -> None:
    order = Order(1)
    del order.number
    with pytest.raises(Unencodable):
        TypedCodec(types=CLASSES).encode(order)


# -- rows that are none of ours -----------------------------------------------------------------------------------


@given(VALUES, CODECS, st.data())
def test_a_damaged_row_is_undecodable_or_another_value_but_never_an_error(value: Any, codec: Codec, data: Any) -> None:
    row = bytearray(codec.encode(value))
    place = data.draw(st.integers(0, len(row) - 1))
    match data.draw(st.sampled_from(["cut", "flip", "more"])):
        case "cut":
            del row[place:]
        case "flip":
            row[place] ^= 1 << data.draw(st.integers(0, 7))
        case "more":
            row[place:place] = data.draw(st.binary(min_size=1, max_size=4))
    if isinstance(codec, PickleCodec):
        with pytest.raises(Undecodable):
            codec.decode(bytes(row))
        return
    try:
        codec.decode(bytes(row))
    except Undecodable:
        pass


TAGS = st.sampled_from(
    "~dec ~dt ~date ~time ~td ~tz ~zone ~uuid ~bytes ~barr ~cplx ~frac ~tup ~set ~fset ~odict ~count ~deque ~int "
    "~float ~dict ~enum ~ntup ~data ~other".split()
)
NAMES = st.sampled_from(["Order", "Colour", "Point", "Rights", "dict"])
FOREIGN = st.recursive(
    PLAIN, lambda inner: st.dictionaries(TAGS, inner | st.tuples(NAMES, inner), max_size=1), max_leaves=6
)


def row_of(tree: Any) -> bytes:
    """A row that claims to be ours, with any JSON in it."""
    return b"T" + TypedCodec(types=CLASSES).encode(None)[1:9] + json.dumps(tree).encode()


@given(st.binary() | FOREIGN.map(row_of))
def test_a_row_of_anybody_is_undecodable_or_a_value_but_never_an_error(row: bytes) -> None:
    for codec in (TypedCodec(types=CLASSES), PlainCodec(), PickleCodec(b"0123456789abcdef")):
        try:
            codec.decode(row)
        except Undecodable:
            pass


def test_no_class_is_taken_from_the_wire() -> None:
    codec = TypedCodec(types=[Order])
    head = b"T" + codec.encode(None)[1:9]
    good = head + b'{"~data":["Order",{"number":1,"note":2,"tags":3}]}'
    assert codec.decode(good) == Order(1, 2, 3)
    for body in (
        b'{"~data":["os:system",{}]}',
        b'{"~data":["Money",{"amount":1,"currency":"x"}]}',
        b'{"~data":["Order",{"number":1,"note":2}]}',
        b'{"~data":["Order",{"number":1,"note":2,"tags":3,"__class__":4}]}',
        b'{"~data":["Order",[["number",1]]]}',
        b'{"~ntup":["Order",[1,2,3]]}',
        b'{"~enum":["Order","number"]}',
        b'{"~new":1}',
        b"NaN",
        b"[1,",
        b"",
        b"\xff",
        b"[" * 100_000,
    ):
        with pytest.raises(Undecodable):
            codec.decode(head + body)


def test_a_compressed_row_that_is_cut_or_has_more_behind_it_is_undecodable() -> None:
    codec = TypedCodec(compress_above=0)
    row = codec.encode(["a"] * 1000)
    assert row[:1] == b"j"
    for broken in (row[:-1], row + b"x", row[:9], row[:9] + zlib.compress(b"[1") + b""):
        with pytest.raises(Undecodable):
            codec.decode(broken)


def test_a_row_that_would_fill_the_memory_is_undecodable(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = TypedCodec(compress_above=0)
    bomb = codec.encode("a" * 10_001)
    monkeypatch.setattr("echomq_tasks.cache.squeezing.LARGEST", 10_000)
    assert codec.decode(codec.encode("a" * 9_000))
    with pytest.raises(Undecodable, match="more than 10000 bytes"):
        codec.decode(bomb)
    # So it is not written like that either.
    assert codec.decode(codec.encode("a" * 10_001)) == "a" * 10_001


def test_threads_share_a_codec() -> None:
    codec = TypedCodec(types=CLASSES)
    failed: list[Any] = []

    def work(number: int) -> None:
        value = Order((number, [Money(Decimal(number))]), {"a": {number}})
        for _ in range(200):
            if codec.decode(codec.encode(value)) != value:
                failed.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
