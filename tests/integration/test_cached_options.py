"""What ``@cached`` makes of its options: what they are called with, what they refuse, and what it says then."""

from __future__ import annotations

import asyncio
import enum
import functools
import logging
import re
import warnings
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import cachetools
import pytest
from cachetools.keys import hashkey

from echomq_tasks import Connection, cached
from echomq_tasks.cache import PlainCodec, Table
from echomq_tasks.caching import CacheWarning
from echomq_tasks.errors import InvalidArgument, InvalidId, InvalidName, Unencodable
from echomq_tasks.identity import brand

USER = brand("USR", 7)


# key= and tags= get the arguments as the function does.


def test_key_gets_the_arguments_by_position_with_the_defaults() -> None:
    got: set[Any] = set()

    def identified(x: int, y: int) -> tuple[int, int]:
        got.add((x, y))
        return x, y

    @cached(l2=False, key=identified)
    def total(first: int, second: int = 2) -> list[int]:
        return [first, second]

    calls: list[Callable[[], list[int]]] = [
        lambda: total(1),
        lambda: total(1, 2),
        lambda: total(first=1),
        lambda: total(second=2, first=1),
    ]
    assert [call() for call in calls] == [[1, 2]] * 4
    assert got == {(1, 2)}
    assert total.cache_info()[:2] == (3, 1)
    assert total.key_for(1) == total.key_for(1, second=2) != total.key_for(1, 3)


def test_tags_get_them_too_in_every_verb(standalone: Connection, queue_name: str) -> None:
    @cached(name=queue_name, connection=standalone, tags=lambda c, y: [f"customer:{c}", f"year:{y}"])
    def turnover(customer: int, *years: int, currency: str = "EUR") -> str:
        return currency

    @cached(name=queue_name, connection=standalone, tags=lambda c, *, full: [f"customer:{c}:{full}"])
    def orders(customer: int, *, full: bool = False) -> list[int]:
        return [customer]

    assert orders(customer=7) == [7]
    assert orders.peek(customer=7) == [7]
    orders.invalidate_tags("customer:7:False")
    assert orders.peek(7) is None
    assert orders.put(7, [8], full=True)
    assert orders.peek(7, full=True) == [8]
    orders.invalidate_tags("customer:7:True")
    assert orders.peek(7, full=True) is None
    with pytest.raises(TypeError):
        turnover(7, 2026)  # of any number of them there is nothing to check before


def test_key_and_tags_of_methods_begin_with_the_object(queue_name: str) -> None:
    class Shop:
        def __init__(self, name: str) -> None:
            self.name = name

        @cached(l2=False, key=lambda shop, s, n: (shop.name, s, n), tags=lambda shop, *rest: [shop.name])
        def stock(self, sku: str, number: int = 1) -> str:
            return f"{self.name} {sku} {number}"

        @cached(l2=False, key=lambda c, s: (c.__name__, s))
        @classmethod
        async def hours(cls, day: str = "Monday") -> str:
            return f"{cls.__name__} {day}"

    one, two = Shop("one"), Shop("two")
    assert [one.stock(sku="a"), one.stock("a", 1), two.stock("a")] == ["one a 1", "one a 1", "two a 1"]
    assert Shop.stock(one, "a") == "one a 1"
    assert one.stock.cache_info()[:2] == (2, 2)
    one.stock.invalidate_tags("one")
    assert (one.stock.peek("a"), two.stock.peek(number=1, sku="a")) == (None, "two a 1")
    assert asyncio.run(Shop.hours()) == asyncio.run(Shop.hours("Monday")) == "Shop Monday"
    assert Shop.hours.cache_info()[:2] == (1, 1)


@pytest.mark.parametrize("option", ["key", "tags"])
@pytest.mark.parametrize(
    "given", [lambda x: (x,), lambda x, y: (x,), lambda x, y, z, *, full: (), lambda *, x, y, full: ()]
)
def test_what_cannot_take_them_is_refused_when_the_function_is_decorated(option: str, given: Any) -> None:
    def total(x: int, y: int = 1, *, full: bool = False) -> int:
        return x

    with pytest.raises(InvalidArgument, match=rf"^{option}= of .*total\(\) .*\(x, y, full=\)"):
        cached(l2=False, **{option: given})(total)


def test_keys_that_take_anything_or_do_not_tell_are_taken() -> None:
    @cached(l2=False, key=functools.partial(hashkey, "total"))
    def total(x: int, y: int = 1) -> int:
        return x

    @cached(l2=False, key=str)
    def text(x: int) -> int:
        return x

    assert (total(1), total(1, 1), total(x=1), total.cache_info()[:2]) == (1, 1, 1, (2, 1))
    assert (text(1), text(x=1), text.cache_info()[:2]) == (1, 1, (1, 1))
    with pytest.raises(TypeError, match=r"total\(\) cannot be called so"):
        total(1, 2, 3)  # type: ignore[call-arg]


# Methods without arguments.


def test_a_method_whose_objects_are_not_told_apart_is_warned_of() -> None:
    with pytest.warns(CacheWarning, match=r"size\(\) has no argument but self.*key=") as warned:

        class Box:
            @cached(l2=False)
            def size(self) -> int:
                return 1

    assert warned[0].filename == __file__
    with pytest.warns(CacheWarning, match="other"):

        class Other:
            @cached(l2=False, ignore=["session"])
            async def other(self, session: object) -> int:
                return 1


def test_nothing_is_said_of_others() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        class Box:
            @cached(l2=False, key=lambda self: id(self))
            def own(self) -> int:
                return 1

            @cached(l2=False)
            def given(self, *sizes: int) -> int:
                return 1

            @cached(l2=False)
            @classmethod
            def of_class(cls) -> int:
                return 1

            @cached(l2=False)
            @staticmethod
            def static() -> int:
                return 1

            @property
            @cached(l2=False, key=lambda self: 1)
            def size(self) -> int:
                return 1

        @cached(l2=False)
        def none() -> int:
            return 1

    assert [Box().own(), Box().given(), Box.of_class(), Box.static(), Box().size, none()] == [1] * 6


# kind=


@pytest.mark.parametrize("id", [brand("ACC", 7), "alice", 7, None, USER[:-1]])
def test_a_function_of_ids_refuses_what_is_none_before_either_layer(
    standalone: Connection, queue_name: str, id: Any
) -> None:
    loads: list[Any] = []

    @cached(name=queue_name, kind="USR", connection=standalone)
    def user(id: Any = None, session: object = None) -> Any:
        raise AssertionError("it has two arguments")

    @cached(name=queue_name, kind="USR", connection=standalone, ignore=["session"])
    def name_of(id: Any = None, session: object = None) -> Any:
        loads.append(id)
        return {"id": id}

    @cached(name=f"{queue_name}-key", kind="USR", connection=standalone, key=lambda id: id)
    async def age_of(id: Any) -> int:
        loads.append(id)
        return 7

    assert user.key_for(id).id.startswith("USR")
    shown = re.escape(repr(id))
    for call in (name_of, name_of.key_for, name_of.peek, name_of.invalidate, name_of.refresh, age_of.key_for):
        with pytest.raises(InvalidId, match=rf"ids of the kind USR.*{shown}.*identity\.brand\('USR'"):
            call(id)
    with pytest.raises(InvalidId, match="leave kind= out"):
        asyncio.run(age_of(id))
    assert loads == []
    assert not list(standalone.client.scan_iter(match=f"ecc:{{{queue_name}*"))
    assert name_of(USER) == name_of(id=USER) == {"id": USER}


def test_a_table_with_the_plain_codec_shares_the_rows_of_a_function(standalone: Connection, queue_name: str) -> None:
    @cached(name=queue_name, kind="USR", connection=standalone)
    def user(id: str) -> dict[str, str]:
        return {"name": "Ada"}

    def never() -> Any:
        raise AssertionError("it is there")

    table = Table(queue_name, "USR", standalone, codec=PlainCodec())
    assert user(USER) == {"name": "Ada"}
    assert table.fetch(USER, never) == {"name": "Ada"}
    table.put(USER, {"name": "Bob"})
    assert user(USER) == {"name": "Bob"}


def test_a_table_refuses_an_async_loader_where_it_cannot_be_awaited() -> None:
    table = Table("any", "USR", l2=False)

    async def load() -> int:
        return 7

    for verb in ("fetch", "refresh"):
        with pytest.raises(InvalidArgument, match=rf"async: await a{verb}\(\)"):
            getattr(table, verb)(USER, load)
    assert asyncio.run(table.afetch(USER, load)) == 7


# Values that have no bytes.


class Model:
    """Something that no codec keeps."""


def test_a_process_alone_keeps_an_object_without_an_encoded_form_if_it_may_be_shared() -> None:
    made: list[Model] = []

    @cached(l2=False, isolate=False)
    def model(name: str) -> Model:
        made.append(Model())
        return made[-1]

    @cached(l2=False, isolate=False)
    async def amodel(name: str) -> Model:
        return model.__wrapped__(name)

    assert model("a") is model("a") is made[0]
    assert len(made) == 1
    other = Model()
    model.put("a", other)
    assert (model("a"), model.peek("a")) == (other, other)

    async def twice() -> bool:
        return await amodel("a") is await amodel("a")

    assert asyncio.run(twice())


def test_what_nobody_can_change_is_kept_by_a_process_alone_without_asking() -> None:
    loads: list[int] = []

    @cached(l2=False)
    def pattern(text: str) -> re.Pattern[str]:
        loads.append(1)
        return re.compile(text)

    assert pattern("a") is pattern("a")
    assert loads == [1]


def test_what_is_not_kept_is_logged_with_the_way_out(
    standalone: Connection, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    @cached(l2=False)
    def alone(name: str) -> Model:
        return Model()

    @cached(name=queue_name, connection=standalone, isolate=False)
    def shared(name: str) -> Model:
        return Model()

    assert alone("a") is not alone("a")
    (record,) = caplog.records
    assert "isolate=False" in record.message
    with pytest.raises(Unencodable, match="isolate=False"):
        alone.put("a", Model())
    # Others could not have it: there it is no way out.
    caplog.clear()
    assert shared("a") is not shared("a")
    assert "isolate" not in caplog.records[0].message


def test_the_log_names_the_codec_that_knows_a_class(caplog: pytest.LogCaptureFixture) -> None:
    class Color(enum.Enum):
        RED = 1

    @cached(l2=False)
    def paint(name: str) -> Any:
        return [Color.RED]

    paint("a")
    assert "codec=TypedCodec(types=[" in caplog.text


# Refused, and what it says.


def test_a_property_goes_above() -> None:
    for kind in (property, functools.cached_property):
        with pytest.raises(InvalidArgument, match=f"put @{kind.__name__} above @cached"):
            cached(l2=False)(kind(lambda self: 1))  # type: ignore[call-overload]


def test_an_unknown_coherence_is_refused_without_a_function() -> None:
    with pytest.raises(InvalidArgument, match=r"^coherence= is .*\"lane\".*'foo'"):
        cached(coherence="foo")  # type: ignore[call-overload]


@pytest.mark.parametrize("bound", [{"max_entries": 5}, {"max_bytes": 5}])
def test_a_mapping_of_ones_own_has_its_own_bounds(bound: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument, match="l1= is a mapping that sets its own bounds"):
        cached(l1=cachetools.LRUCache[Any, Any](5), l2=False, **bound)(len)  # type: ignore[call-overload]


class Broken(dict[Any, Any]):
    """A mapping in which one thing fails, once it is filled."""

    failing = ""

    def _fail(self, what: str) -> None:
        if self.failing == what:
            raise RuntimeError("broken")

    def get(self, key: Any, default: Any = None) -> Any:
        self._fail("get")
        return super().get(key, default)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._fail("set")
        super().__setitem__(key, value)

    def __contains__(self, key: Any) -> bool:
        self._fail("contains")
        return super().__contains__(key)

    def __len__(self) -> int:
        self._fail("len")
        return super().__len__()

    def pop(self, *args: Any) -> Any:
        self._fail("pop")
        return super().pop(*args)


@pytest.mark.parametrize("failing", ["get", "set", "contains", "len", "pop"])
def test_what_a_mapping_raises_reaches_no_caller_and_what_was_dropped_stays_so(
    failing: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows, worth = Broken(), [Decimal(1)]

    @cached(l1=rows, l2=False)
    def price(sku: str) -> Decimal:
        return worth[-1]

    assert price("a") == 1
    rows.failing = failing
    worth.append(Decimal(2))
    assert price("a") in (1, 2)
    assert price("b") == 2
    price.invalidate("a")
    assert price("a") == 2
    price.put("a", Decimal(3))
    assert price("a") in (2, 3)
    price.cache_clear()
    worth.append(Decimal(4))
    assert price("a") == 4
    price.cache_info()
    rows.failing = ""
    assert price("a") == price("a") == 4
    said = [record for record in caplog.records if "l1=" in record.message]
    assert len(said) == 1
    assert said[0].levelno == logging.ERROR


def test_tags_that_are_given_as_they_are_need_no_signature() -> None:
    tags: Iterable[str] = iter(["a", "b"])

    @cached(l2=False, tags=tags)
    def price(sku: str) -> int:
        return 1

    assert price("a") == 1
    price.invalidate_tags("b")
    assert price.peek("a") is None


@pytest.mark.parametrize("answer", ["abc", None, 5])
def test_a_function_of_tags_that_answers_no_tags_is_refused_by_every_verb(answer: Any) -> None:
    @cached(l2=False, tags=lambda x: answer)
    def total(x: int) -> int:
        return x

    verbs: list[Callable[[], object]] = [
        lambda: total(1),
        lambda: total.put(1, 2),
        lambda: total.refresh(1),
    ]
    for verb in verbs:
        with pytest.raises(InvalidName, match="tags are several texts"):
            verb()
    assert total.cache_info().currsize == 0


@pytest.mark.parametrize(
    "option",
    [
        {"connection": "valkey://localhost"},
        {"connection": 5},
        {"tags": 5},
        {"tags": "abc"},
        {"ignore": 5},
        {"l2": "no"},
        {"isolate": "x"},
    ],
)
def test_an_option_of_another_type_is_refused_at_decoration(option: dict[str, Any]) -> None:
    with pytest.raises((InvalidArgument, InvalidName), match=next(iter(option))):

        @cached(**option)
        def total(x: int) -> int:
            return x
