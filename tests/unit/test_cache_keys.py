"""Keys of calls: equal calls have equal keys, in every process, and no others do."""

from __future__ import annotations

import copy
import enum
import functools
import io
import json
import os
import socket
import subprocess
import sys
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal, localcontext
from hashlib import blake2b
from importlib.machinery import ModuleSpec
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import freezegun
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.callsamples import Colour, Level, Money, Point, Sku, forms
from support.sameness import same
from support.valuesamples import MyZone, OfUnhashable

from echomq_tasks.cache.canonical import MAX_DEPTH, canonical
from echomq_tasks.cache.keys import Key, KeyMaker
from echomq_tasks.errors import InvalidArgument, InvalidId, UnstableKey
from echomq_tasks.identity import MAX_SNOWFLAKE, is_branded, snowflake

USR = "USR0KHTOWnGLuC"

# -- values of the kinds that Python holds equal, in small numbers, so that two draws are often the same ---------------

LOOKALIKES: list[Any] = [
    None, False, True, 0, 1, -1, 2**70, 0.0, -0.0, 1.0, 1.5, float("nan"), float("inf"), 1j, "", "1", "a", "True",
    "\ud800", b"", b"1", b"a", Decimal("1"), Decimal("1.0"), Decimal("1.00"), Level.LOW, Colour.RED, Sku("1"),
    datetime(2026, 10, 25, 2, 30), datetime(2026, 10, 25, 2, 30, fold=1),
    datetime(2026, 10, 25, 1, 30, tzinfo=UTC), datetime(2026, 10, 25, 1, 30, tzinfo=timezone(timedelta(0), "Z")),
    datetime(2026, 10, 25, 2, 30, tzinfo=timezone(timedelta(hours=1))),
    datetime(2026, 10, 25, 1, 30, tzinfo=UTC, fold=1), int, float, (), Point(1, 1), (1, 1),
]  # fmt: skip
SCALARS = st.sampled_from(LOOKALIKES)
HASHABLE = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2).map(tuple) | st.frozensets(inner, max_size=2), max_leaves=4
)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.sets(HASHABLE, max_size=3)
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.builds(Money, st.just(Decimal(1)), inner, inner)
    ),
    max_leaves=6,
)


@given(VALUES, VALUES)
def test_two_values_have_one_form_exactly_when_they_are_the_same(left: Any, right: Any) -> None:
    for value in (left, right):
        if isinstance(value, Money):
            value.session = None
    assert (canonical(left) == canonical(right)) == same(left, right)


@given(st.dictionaries(HASHABLE, HASHABLE, max_size=5), st.randoms())
def test_the_order_of_a_dict_or_a_set_does_not_count(value: dict[Any, Any], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert canonical(dict(items)) == canonical(value)
    assert canonical({key for key, _ in items}) == canonical(set(value))


def test_the_order_of_an_ordered_dict_counts() -> None:
    assert canonical(OrderedDict(a=1, b=2)) != canonical(OrderedDict(b=2, a=1))
    assert canonical(OrderedDict(a=1)) != canonical({"a": 1})
    assert canonical(defaultdict(list)) != canonical(defaultdict(set))


# -- the same in every process ------------------------------------------------------------------------------------

VECTORS = {
    "none": "N",
    "true": "T",
    "false": "F",
    "int": "i1;",
    "int -1": "i-1;",
    "int large": "i10000000000000000;",
    "float": "f?ð\x00\x00\x00\x00\x00\x00",
    "float -0": "f\x80\x00\x00\x00\x00\x00\x00\x00",
    "float nan": "f\x7fø\x00\x00\x00\x00\x00\x00",
    "float inf": "f\x7fð\x00\x00\x00\x00\x00\x00",
    "complex": "cf?ð\x00\x00\x00\x00\x00\x00fÀ\x00\x00\x00\x00\x00\x00\x00",
    "str": "s1:1",
    "str empty": "s0:",
    "str beyond": "s6:ð\x9f\x98\x80Ã©",
    "str surrogate": "s3:í³¿",
    "bytes": "b1:1",
    "bytearray": "B1:1",
    "tuple": "t2:i1;t2:i2;s1:3",
    "list": "l2:i1;l2:i2;s1:3",
    "set": "S8:Nb1:xi1;s5:key-0s5:key-1s5:key-2s5:key-3s5:key-4",
    "frozenset": "Z5:s5:key-0s5:key-1s5:key-2s5:key-3s5:key-4",
    "dict": "d3:i7;Ns1:ad2:s1:cl1:i2;s1:di1;s1:bi1;",
    "ordered dict": "O2:s1:bi1;s1:ai2;",
    "defaultdict": "DC13:builtins:listd1:s1:al1:i1;",
    "deque": "qi3;l2:i1;i2;",
    "ellipsis": ".",
    "range": "krange.3:i1;i9;i2;",
    "datetime": "kdatetime.3:s26:2026-10-25T02:30:00.000000i0;N",
    "datetime fold": "kdatetime.3:s26:2026-10-25T02:30:00.000000i1;t1:s13:Europe/Berlin",
    "datetime utc": "kdatetime.3:s26:2026-10-25T02:30:01.000005i0;t2:i0;s3:UTC",
    "date": "kdate.1:s10:2026-10-25",
    "time": "ktime.3:s15:02:30:00.000000i0;t2:i-283baec00;s3:BRT",
    "timedelta": "ktimedelta.3:i-1;i0;i5;",
    "timezone": "ktimezone.2:i0;s3:UTC",
    "zone": "kzoneinfo.1:s10:Asia/Tokyo",
    "decimal": "kdecimal.1:s3:1.0",
    "decimal 2": "kdecimal.1:s4:1.00",
    "decimal big": "kdecimal.1:s5:1E+40",
    "fraction": "kfraction.2:i1;i3;",
    "uuid": "kuuid.1:b16:\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x05",
    "path": "kpureposixpath.1:s9:/srv/data",
    "pattern": "kpattern.2:s2:a+i22;",
    "ipv4": "kipv4.1:b4:\n\x00\x00\x01",
    "ipv6": "kipv6.2:b16:\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00ÿÿ\n\x00\x00\x01N",
    "network": "kipv4net.2:b4:\n\x00\x00\x00i8;",
    "class": "C13:builtins:dict",
    "enum": "e26:support.callsamples:Colours3:RED",
    "enum object": "e26:support.callsamples:Colours4:BLUE",
    "int enum": "e25:support.callsamples:Levels3:LOW",
    "flag": "e26:support.callsamples:Rightsi3;",
    "named tuple": "x25:support.callsamples:Pointt2:i1;i2;d0:",
    "str subclass": "x23:support.callsamples:Skus1:1d0:",
    "dataclass": "o25:support.callsamples:Moneyd2:s6:amountkdecimal.1:s4:9.90s8:currencys3:EUR",
    "call one": "USR1GmsnHFKekG 8d82683fca136a86ceef6fb4d7d56d03",
    "call all": "USR33ZywTa6U5A 8f81cb15d957f0740be5081ef746e1c4",
    "call id": "USR0KHTOWnGLuC ",
    "call no id": "USR6ExL5v7dxlM 277a4d4ad73df7a1b2d6e152463741b2",
    "call other kind": "USR9qFZUev9qzj bcb922a6ab6fb4ff76861660178840c9",
}


def test_the_forms_are_the_ones_of_every_release_before() -> None:
    assert forms() == VECTORS


def test_a_key_is_the_digest_of_the_wire() -> None:
    # By hand, from the wire's own words: 24 bytes of BLAKE2b, the first 8 the number, the other 16 the rest.
    data = b"1c" + b"s8:accounts" + b"s4:user" + b"s7:user_id" + b"s1:a"

    def user(user_id: str) -> None: ...

    user.__module__, user.__qualname__ = "accounts", "user"
    digest = blake2b(data, digest_size=24).digest()
    key = KeyMaker(user, "USR").key(("a",), {})
    assert snowflake(key.id) == int.from_bytes(digest[:8], "big") & MAX_SNOWFLAKE
    assert key.rest == digest[8:]


@pytest.mark.parametrize("seed", ["0", "4242"])
def test_another_process_with_another_hash_seed_makes_the_same_keys(seed: str) -> None:
    code = "import json; from support.callsamples import forms; print(json.dumps(forms()))"
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), str(root / "tests"), *sys.path])
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert json.loads(done.stdout) == VECTORS


# -- what has no stable form --------------------------------------------------------------------------------------


class Plain:
    pass


class FakeString:
    """Says it is a str, as a mock with a spec does."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return str


UNSTABLE: dict[str, Callable[[], Any]] = {
    "object": object,
    "instance": Plain,
    "function": lambda: test_two_values_have_one_form_exactly_when_they_are_the_same,
    "lambda": lambda: lambda: None,
    "builtin": lambda: len,
    "method": lambda: Plain().__repr__,
    "partial": lambda: functools.partial(int),
    "lock": threading.Lock,
    "file": io.BytesIO,
    "generator": lambda: (number for number in ()),
    "iterator": lambda: iter([1]),
    "memoryview": lambda: memoryview(b"a"),
    "local class": lambda: make_dataclass("Made", []),
    "module": lambda: sys,
    "exception": lambda: ValueError("x"),
    "fake string": FakeString,
    "unhashable class": OfUnhashable,
    "zone of one's own": lambda: datetime(2026, 1, 1, tzinfo=MyZone()),
    "defaultdict of a lambda": lambda: defaultdict(lambda: 1),
    "dict view": lambda: {}.keys(),
}


@pytest.mark.parametrize("name", UNSTABLE)
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [{"a": (value,)}]], ids=["bare", "inside"])
def test_what_no_other_process_knows_is_refused_with_advice(name: str, wrap: Callable[[Any], Any]) -> None:
    def price(sku: str, session: Any) -> None: ...

    maker = KeyMaker(price, "PRC")
    value = wrap(UNSTABLE[name]())
    with pytest.raises(
        UnstableKey, match=r"price\(\) has no key for its argument 'session': .*ignore=\('session',\).*key="
    ) as caught:
        maker.key(("a", value), {})
    assert " at 0x" not in str(caught.value)


def test_a_class_is_known_by_its_name_only_when_the_name_leads_to_it() -> None:
    assert canonical(socket.socket) == b"C13:socket:socket"

    class Point:
        pass

    Point.__qualname__, Point.__module__ = "Point", "support.callsamples"
    with pytest.raises(UnstableKey, match="cannot be found by its name"):
        canonical(Point)


@pytest.mark.parametrize("kind", [list, dict, Money])
def test_a_value_that_contains_itself_is_refused(kind: type) -> None:
    value: Any = kind() if kind is not Money else Money(Decimal(1), "EUR")
    if kind is list:
        value += [value, value]
    elif kind is dict:
        value["self"] = [value]
    else:
        value.currency = (value,)
    with pytest.raises(UnstableKey, match="contains itself"):
        canonical(value)


def test_a_value_nested_too_deep_is_refused_and_one_that_is_not_has_a_form() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = (value,)
    assert canonical(value)
    with pytest.raises(UnstableKey, match="more than 100 deep"):
        canonical([value])

    def one(x: Any) -> None: ...

    assert KeyMaker(one, "ONE").fast((value,), {}) is None


def test_the_same_list_twice_is_not_one_that_contains_itself() -> None:
    inner = [1]
    assert canonical([inner, inner]) == canonical([[1], [1]])


def test_no_code_of_a_value_runs() -> None:
    def hostile(*args: Any) -> Any:
        raise AssertionError("ran")

    names = ["__eq__", "__hash__", "__iter__", "__len__", "__repr__", "__str__", "__format__"]
    names += ["encode", "__index__", "__int__", "__float__", "__bool__", "items", "__getitem__", "__reduce_ex__"]
    values: list[Any] = []
    for base, content in (
        (str, "a"),
        (int, 7),
        (float, 1.5),
        (bytes, b"a"),
        (tuple, (1,)),
        (list, [1]),
        (dict, {1: 2}),
    ):
        kind: Any = type(f"Hostile{base.__name__}", (base,), dict.fromkeys(names, hostile))
        values.append(base.__new__(kind, content))
        if base is list:
            list.__init__(values[-1], content)
        if base is dict:
            dict.update(values[-1], content)

    def one(x: Any) -> None: ...

    maker = KeyMaker(one, "ONE")
    forms = set()
    for value in values:
        assert maker.fast((value,), {}) is None
        forms.add(canonical(value))
        assert maker.key((value,), {}) == maker.key((value,), {})
    assert len(forms) == len(values)


def test_a_subclass_differs_from_its_base_and_its_attributes_count() -> None:
    class Tagged(str):
        tag: str

    class Slotted(list):  # type: ignore[type-arg]
        __slots__ = ("extra",)

    left, right = Tagged("a"), Tagged("a")
    assert canonical(left) != canonical("a")
    assert canonical(left) == canonical(right)
    right.tag = "x"
    assert canonical(left) != canonical(right)
    one, other = Slotted([1]), Slotted([1])
    other.extra = 1
    assert canonical(one) != canonical(other)
    right.tag = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(UnstableKey):
        canonical(right)


def test_the_fields_that_a_dataclass_compares_count_and_no_cache_in_it_does() -> None:
    @dataclass
    class Order:
        number: int
        note: str = field(default="", compare=False)

        @functools.cached_property
        def double(self) -> int:
            return self.number * 2

    @dataclass
    class Rush(Order):
        pass

    class Loose(Order):
        pass

    order = Order(1, "x")
    form = canonical(order)
    assert order.double == 2
    assert canonical(order) == form == canonical(Order(1, "y"))
    assert len({form, canonical(Order(2)), canonical(Rush(1)), canonical(Loose(1))}) == 4
    loose = Loose(1)
    loose.more = 1  # type: ignore[attr-defined]
    assert canonical(loose) != canonical(Loose(1))
    del order.number
    with pytest.raises(UnstableKey, match="no value in its field 'number'"):
        canonical(order)


def test_the_zone_and_the_fold_of_a_moment_count() -> None:
    def moment(zone: tzinfo | None, fold: int = 0) -> bytes:
        return canonical(datetime(2026, 10, 25, 2, 30, tzinfo=zone, fold=fold))

    zones = [
        None,
        UTC,
        ZoneInfo("UTC"),
        ZoneInfo("Europe/Berlin"),
        ZoneInfo("Europe/Paris"),
        timezone(timedelta(0), "Z"),
    ]
    assert len({moment(zone, fold) for zone in zones for fold in (0, 1)}) == 12
    assert moment(ZoneInfo.no_cache("Europe/Berlin")) == moment(ZoneInfo("Europe/Berlin"))


def test_a_decimal_has_one_form_in_every_context() -> None:
    with localcontext() as context:
        context.capitals = 0
        assert canonical(Decimal("1E+40")) == VECTORS["decimal big"].encode()


def test_a_huge_number_has_a_form_although_it_cannot_be_printed() -> None:
    huge = 10**5000
    with pytest.raises(ValueError, match="4300"):
        str(huge)
    assert canonical(huge) != canonical(huge + 1)
    assert canonical([-huge]) == canonical([-huge])


def test_a_frozen_clock_changes_no_key() -> None:
    moment = datetime(2026, 10, 25, 2, 30)
    form = canonical(moment)

    def one(x: Any) -> None: ...

    maker = KeyMaker(one, "ONE")
    fast = maker.fast((moment,), {})
    with freezegun.freeze_time("2026-10-25"):
        assert canonical(moment) == form
        assert canonical(datetime.now())
        assert maker.key((moment,), {}) == maker.key((moment,), {})
    assert maker.fast((moment,), {}) == fast


# -- calls --------------------------------------------------------------------------------------------------------


def simple(a: Any, b: Any = 1, c: Any = "x") -> None: ...
def single(a: Any = 1) -> None: ...
def keyword_only(a: Any, *, b: Any = 1) -> None: ...
def positional_only(a: Any, b: Any = 1, /, **options: Any) -> None: ...
def anything(a: Any = 1, *args: Any, b: Any = 1, **kwargs: Any) -> None: ...
def nothing() -> None: ...


FUNCTIONS: list[Callable[..., Any]] = [simple, single, keyword_only, positional_only, anything, nothing]
ARGUMENTS = st.lists(st.sampled_from([1, 1.0, True, "1", "x", 0.0, -0.0, None, (1,), (True,), [1]]), max_size=3).map(
    tuple
)
NAMED = st.dictionaries(st.sampled_from("abcz"), st.sampled_from([1, 1.0, True, "x", "1", [1], (1,)]), max_size=2)
CALLS = st.tuples(ARGUMENTS, NAMED)


@given(
    st.sampled_from(FUNCTIONS),
    CALLS,
    CALLS,
    st.sampled_from([(), ("a",), ("b",), ("args",), ("kwargs", "a"), ("options",)]),
)
def test_equal_calls_have_equal_keys_and_no_others_do(
    function: Callable[..., Any], left: Any, right: Any, ignore: tuple[str, ...]
) -> None:
    shape = signature(function)
    ignore = tuple(name for name in ignore if name in shape.parameters)
    maker = KeyMaker(function, "FUN", ignore=ignore)
    bound = []
    for args, kwargs in (left, right):
        try:
            binding = shape.bind(*args, **kwargs)
        except TypeError:
            with pytest.raises(TypeError, match=rf"^{function.__name__}\(\) cannot be called so: "):
                maker.key(args, kwargs)
            return
        binding.apply_defaults()
        bound.append({name: value for name, value in binding.arguments.items() if name not in ignore})
    equal = same(*bound)
    assert (maker.key(*left) == maker.key(*right)) == equal
    fast = maker.fast(*left)
    if fast is not None and fast == maker.fast(*right):
        assert equal, "a fast key lied"
    if left == right and same(left, right):
        assert maker.fast(*left) == maker.fast(*right)


@given(st.sampled_from([simple, single, anything]), VALUES, VALUES)
def test_a_fast_key_never_lies(function: Callable[..., Any], left: Any, right: Any) -> None:
    maker = KeyMaker(function, "FUN")
    for first, second in [
        (((left,), {}), ((right,), {})),
        (((), {"a": left}), ((right,), {})),
        (((), {"a": left}), ((), {"a": right})),
    ]:
        fast = maker.fast(*first)
        if fast is not None and fast == maker.fast(*second):
            assert maker.key(*first) == maker.key(*second)
    if maker.fast((left,), {}) is not None:
        hash(maker.fast((left,), {}))


@pytest.mark.parametrize("function", [single, anything])
def test_no_two_values_that_look_alike_have_one_fast_key(function: Callable[..., Any]) -> None:
    maker = KeyMaker(function, "FUN")
    for wrap in (lambda value: value, lambda value: (value,), lambda value: ("a", (value,))):
        keys: dict[Any, Any] = {}
        for value in LOOKALIKES:
            fast = maker.fast((wrap(value),), {})
            if fast is not None:
                assert same(keys.setdefault(fast, value), value), "a fast key lied"
        assert len(keys) > 20


def test_an_argument_by_name_is_none_by_position() -> None:
    maker = KeyMaker(anything, "FUN")
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        (("z", 1), {"b": 2}),
        ((), {"z": 1, "b": 2}),
        (("z",), {"b": 2}),
        (("z", 1, "b", 2), {}),
        ((dict, 0, "z", 1), {}),
        ((dict, 2, "z", 1), {"b": 2}),
    ]
    assert len({maker.fast(*call) for call in calls}) == len(calls)
    assert len({maker.key(*call) for call in calls}) == len(calls)


def test_arguments_of_equal_value_and_other_types_are_other_calls() -> None:
    maker = KeyMaker(single, "ONE")
    values = [1, 1.0, True, "1", b"1", Decimal(1), (1,), (True,), 1 + 0j, Level.LOW, Sku("1"), None, 0.0, -0.0]
    assert len({maker.key((value,), {}) for value in values}) == len(values)
    fast = [maker.fast((value,), {}) for value in values]
    assert len({key for key in fast if key is not None}) == len(values) - fast.count(None)
    assert None not in fast[:8]


def test_common_arguments_have_a_fast_key() -> None:
    maker = KeyMaker(simple, "ONE")
    for value in (
        "a",
        1,
        None,
        True,
        1.5,
        0.0,
        b"x",
        Decimal("1.5"),
        datetime(2026, 1, 1, tzinfo=UTC),
        ("a", (1,)),
        Colour.RED,
        int,
    ):
        assert maker.fast((value, "b"), {}) is not None
        assert maker.fast(("a",), {"b": value}) is not None


CONTAINERS: list[Any] = [[1, "a"], {"a": 1, "b": [1, 2.5]}, {1, 2}, frozenset({1}), ([{"a": {1}}],), [], {}, set()]


@pytest.mark.parametrize("value", CONTAINERS, ids=repr)
@pytest.mark.parametrize("function", [single, simple])
def test_what_could_be_changed_is_in_a_fast_key_as_it_was(function: Callable[..., Any], value: Any) -> None:
    maker, value = KeyMaker(function, "ONE"), copy.deepcopy(value)
    before, was_empty = maker.fast((value,), {}), not value
    assert before is not None
    assert maker.fast((copy.deepcopy(value),), {}) == before
    assert maker.fast((), {"a": copy.deepcopy(value)}) == maker.fast((), {"a": value}) is not None
    if isinstance(value, (list, dict, set)):
        value.clear()
        assert (maker.fast((value,), {}) == before) == was_empty


def test_containers_of_other_types_have_other_fast_keys() -> None:
    maker = KeyMaker(single, "ONE")
    pairs = [[], (), {}, set(), frozenset(), [1], (1,), {1: 1}, {1}, frozenset({1}), [1, 1], [[1], 1], {True}, [True]]
    assert len({maker.fast((value,), {}) for value in pairs} - {None}) == len(pairs)


def test_what_is_large_or_deep_has_no_fast_key() -> None:
    maker, deep = KeyMaker(single, "ONE"), []
    for _ in range(10):
        deep = [deep]
    itself: list[Any] = []
    itself.append(itself)
    for value in (list(range(33)), set(range(33)), dict.fromkeys(range(33)), frozenset(range(33)), deep, itself):
        assert maker.fast((value,), {}) is None
        assert maker.fast(([value],), {}) is None


def test_a_changed_default_is_another_call() -> None:
    history: list[int] = []

    def price(sku: str, history: list[int] = history) -> None: ...

    maker = KeyMaker(price, "PRC")
    first = maker.key(("a",), {})
    assert first == maker.key(("a", []), {})
    history.append(1)
    assert maker.key(("a",), {}) != first
    assert maker.fast(("a",), {}) is None, "a fast key would still find the row of before"


def test_a_default_without_a_form_stands_for_itself() -> None:
    missing = object()

    def price(sku: str, vat: Any = missing) -> None: ...

    maker = KeyMaker(price, "PRC")
    assert maker.key(("a",), {}) == maker.key(("a", missing), {})
    assert maker.key(("a",), {}) != maker.key(("a", None), {})
    assert maker.fast(("a",), {}) is not None
    with pytest.raises(UnstableKey):
        maker.key(("a", object()), {})


def test_ignored_arguments_are_in_no_key_and_not_kept() -> None:
    def price(session: Any, sku: str, log: Any = None) -> None: ...

    maker = KeyMaker(price, "PRC", ignore=["session", "log"])
    calls = [
        ((object(), "a"), {}),
        ((threading.Lock(), "a", 1), {}),
        ((), {"sku": "a", "session": []}),
        ((1,), {"sku": "a", "log": 2}),
    ]
    assert len({maker.key(args, kwargs) for args, kwargs in calls}) == 1
    assert all(maker.fast(args, kwargs) is not None for args, kwargs in calls)
    assert maker.fast((object(), "a"), {}) == "a", "the session is kept"
    assert maker.key((1, "a"), {}) != maker.key((1, "b"), {})


def test_ignored_arguments_of_any_number_are_not_kept() -> None:
    maker = KeyMaker(anything, "FUN", ignore=["args", "kwargs"])
    held = object()
    assert maker.fast((1, held, held), {"c": held, "b": 2}) == maker.fast((1,), {"b": 2})
    assert maker.key((1, held, held), {"c": held, "b": 2}) == maker.key((1,), {"b": 2})
    assert maker.fast((1, held), {}) == maker.fast((1,), {}) is not None


def test_an_ignored_positional_name_may_be_an_option_too() -> None:
    def price(session: Any, /, **options: Any) -> None: ...

    maker = KeyMaker(price, "PRC", ignore=["session"])
    assert maker.key((1,), {"session": 2}) != maker.key((1,), {"session": 3})
    assert maker.fast((1,), {"session": 2}) != maker.fast((1,), {"session": 3})


def test_a_key_function_decides_alone() -> None:
    tenant = ["a"]

    def price(user: Any, sku: str) -> None: ...

    maker = KeyMaker(price, "USR", key=lambda user, sku: (tenant[0], sku))
    key, fast = maker.key((Plain(), "x"), {}), maker.fast((Plain(), "x"), {})
    assert (maker.key((), {"user": 1, "sku": "x"}), maker.fast((1, "x"), {})) == (key, fast)
    tenant[0] = "b"
    assert maker.key((Plain(), "x"), {}) != key
    assert maker.fast((Plain(), "x"), {}) != fast
    with pytest.raises(UnstableKey, match=r"key= of .*price\(\) answered what is no key"):
        KeyMaker(price, "USR", key=lambda user, sku: user).key((Plain(), "x"), {})
    assert KeyMaker(price, "USR", key=lambda user, sku: bytearray(b"x")).fast((1, "x"), {}) is None
    assert KeyMaker(price, "USR", key=lambda user, sku: None).fast((1, "x"), {}) is not None


@pytest.mark.parametrize("options", [{}, {"key": lambda x: x}])
def test_two_functions_of_one_table_do_not_share_rows(options: dict[str, Any]) -> None:
    def by_mail(x: str) -> None: ...
    def by_phone(x: str) -> None: ...

    key = KeyMaker(by_mail, "USR", **options).key(("a",), {})
    assert key != KeyMaker(by_phone, "USR", **options).key(("a",), {})
    by_mail.__module__ = "another.module"
    assert key != KeyMaker(by_mail, "USR", **options).key(("a",), {})


@pytest.mark.parametrize("run", ["__main__", "__mp_main__"])
def test_a_script_that_is_run_is_the_module_that_it_is_imported_as(monkeypatch: pytest.MonkeyPatch, run: str) -> None:
    def price(x: str) -> None: ...

    price.__module__ = "shop"
    imported = KeyMaker(price, "PRC").key(("a",), {})
    price.__module__ = run
    for about in ({"__file__": "/srv/shop.py"}, {"__spec__": ModuleSpec("shop", None)}):
        main = ModuleType(run)
        vars(main).update(about)
        monkeypatch.setitem(sys.modules, run, main)
        assert KeyMaker(price, "PRC").key(("a",), {}) == imported
    monkeypatch.setitem(sys.modules, run, ModuleType(run))
    assert KeyMaker(price, "PRC").key(("a",), {}) != imported


def test_swapped_parameters_are_another_call() -> None:
    def before(a: Any, b: Any) -> None: ...
    def after(b: Any, a: Any) -> None: ...

    after.__qualname__ = before.__qualname__
    assert KeyMaker(before, "FUN").key((1, 2), {}) != KeyMaker(after, "FUN").key((1, 2), {})


# -- rows that other runtimes share -------------------------------------------------------------------------------


def user(user_id: str) -> None: ...
def session_user(session: Any, user_id: str) -> None: ...


@pytest.mark.parametrize(
    ("maker", "args", "kwargs"),
    [
        (KeyMaker(user, "USR"), (USR,), {}),
        (KeyMaker(user, "USR"), (), {"user_id": USR}),
        (KeyMaker(user, "USR"), (Sku(USR),), {}),
        (KeyMaker(session_user, "USR", ignore=["session"]), (object(), USR), {}),
        (KeyMaker(session_user, "USR", key=lambda session, user_id: user_id), (object(), USR), {}),
    ],
)
def test_the_one_argument_that_is_an_id_of_the_kind_is_the_key(maker: KeyMaker, args: Any, kwargs: Any) -> None:
    assert maker.shares
    key = maker.key(args, kwargs)
    assert key == Key(USR, b"")
    assert type(key.id) is str


@pytest.mark.parametrize(
    "value", ["ORD0KHTOWnGLuC", "USR0KHTOWnGLu", "USRzzzzzzzzzzz", b"USR0KHTOWnGLuC", 1, None, "USR0KHTOWnGLuC\n"]
)
def test_any_other_argument_gets_an_id_of_the_kind(value: Any) -> None:
    key = KeyMaker(user, "USR").key((value,), {})
    assert is_branded(key.id, "USR")
    assert len(key.rest) == 16


@pytest.mark.parametrize("function", [session_user, simple, anything, nothing])
def test_a_function_of_more_than_one_argument_shares_no_row(function: Callable[..., Any]) -> None:
    maker = KeyMaker(function, "USR")
    assert not maker.shares
    if function is not nothing:
        assert maker.key((USR, USR), {}).rest


# -- what cannot be decorated -------------------------------------------------------------------------------------


class Repo:
    def get(self, sku: str) -> None: ...
    def loose(*args: Any) -> None: ...  # noqa: N805, RUF100 - self among the rest, as some write it


def test_a_method_has_no_self_in_its_key() -> None:
    maker = KeyMaker(Repo.get, "PRC", bound=True)
    assert maker.key(("a",), {}) == maker.key((), {"sku": "a"})
    assert maker.fast(("a",), {}) == "a"
    assert maker.key(("a",), {}) != KeyMaker(Repo.loose, "PRC", bound=True).key(("a",), {})
    with pytest.raises(TypeError):
        maker.key((Repo(), "a"), {})


@pytest.mark.parametrize(
    ("function", "options", "error", "says"),
    [
        (simple, {"ignore": "a"}, InvalidArgument, "list of parameter names"),
        (simple, {"ignore": [1]}, InvalidArgument, "list of parameter names"),
        (simple, {"ignore": 1}, InvalidArgument, "list of parameter names"),
        (simple, {"ignore": ["d"]}, InvalidArgument, r"no parameter 'd' to ignore; it has: a, b, c"),
        (simple, {"ignore": ["a"], "key": repr}, InvalidArgument, "not both"),
        (simple, {"key": "a"}, InvalidArgument, "a function as key="),
        (nothing, {"bound": True}, InvalidArgument, "a method without self"),
        (functools.partial(simple, 1), {}, InvalidArgument, "has no name"),
        (dict.fromkeys, {"kind": "usr"}, InvalidId, "three letters"),
        (vars(int)["__add__"], {"kind": "US"}, InvalidId, "three letters"),
        (min, {}, InvalidArgument, "does not tell its parameters"),
    ],
)
def test_what_cannot_be_keyed_is_refused_at_once(
    function: Any, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        KeyMaker(function, **{"kind": "FUN", **options})


def test_a_function_that_tells_no_parameters_can_have_a_key_function() -> None:
    maker = KeyMaker(min, "FUN", key=lambda *numbers: sorted(numbers))
    assert maker.key((1, 2), {}) == maker.key((2, 1), {})


def test_a_decorated_function_has_the_keys_of_the_one_inside() -> None:
    @functools.wraps(simple)
    def outer(*args: Any, **kwargs: Any) -> None: ...

    assert KeyMaker(outer, "FUN").key((1,), {"c": 2}) == KeyMaker(simple, "FUN").key((1, 1, 2), {})


def test_members_of_an_enumeration_are_known_by_name() -> None:
    class Local(enum.Enum):
        A = 1
        B = 2
        ALIAS = 1  # noqa: PIE796 - this is what is tested

    assert canonical(Local.A) == canonical(Local.ALIAS) != canonical(Local.B)
