"""``@cached`` on methods: the object is no part of the key, and is not kept alive."""

from __future__ import annotations

import asyncio
import gc
import inspect
import pickle
import weakref
from abc import ABC, abstractmethod
from typing import Any

import pytest
from support.eventually import eventually

from echomq_tasks import Connection, cached
from echomq_tasks.caching import AsyncCachedFunction, CachedFunction
from echomq_tasks.errors import InvalidArgument, UnstableKey
from echomq_tasks.identity import brand

USER = brand("USR", 7)


#: Of this process alone: these tests need no server.
local = cached(l2=False)


class Shop:
    """All of its methods note that they were called, each in a list of the class."""

    calls: list[Any] = []  # noqa: RUF012 - the tests empty it

    def __init__(self, name: str = "shop") -> None:
        self.name = name

    @local
    def method(self, sku: str, number: int = 1) -> str:
        """A method."""
        self.calls.append(("method", self.name))
        return f"{self.name} {sku} {number}"

    @cached(l2=False, ttl=5)
    def single(self, sku: str) -> str:
        self.calls.append(("single", self.name))
        return f"{self.name} {sku}"

    @cached(l2=False, key=lambda self, sku: (self.name, sku))
    def own(self, sku: str) -> str:
        self.calls.append(("own", self.name))
        return f"{self.name} {sku}"

    @cached(l2=False, ignore=("self", "session"))
    def ignoring(self, session: object, sku: str) -> str:
        self.calls.append(("ignoring", self.name))
        return sku

    @local
    @classmethod
    def of_class(cls, sku: str) -> str:
        """A class method."""
        cls.calls.append(("of_class", cls.__name__))
        return f"{cls.__name__} {sku}"

    @classmethod
    @local
    def of_class_below(cls, sku: str) -> str:
        cls.calls.append(("of_class_below", cls.__name__))
        return f"{cls.__name__} {sku}"

    @local
    @staticmethod
    def static(sku: str) -> str:
        Shop.calls.append(("static",))
        return sku

    @staticmethod
    @local
    def static_below(sku: str) -> str:
        Shop.calls.append(("static_below",))
        return sku

    @local
    async def later(self, sku: str) -> str:
        self.calls.append(("later", self.name))
        return f"{self.name} {sku}"

    @local
    @classmethod
    async def of_class_later(cls, sku: str) -> str:
        cls.calls.append(("of_class_later", cls.__name__))
        return f"{cls.__name__} {sku}"


class Branch(Shop):
    pass


@pytest.fixture(autouse=True)
def calls() -> list[Any]:
    Shop.calls.clear()
    for name in vars(Shop):
        each = getattr(Shop, name)
        if isinstance(each, CachedFunction | AsyncCachedFunction):
            each.table.clear()
    return Shop.calls


@pytest.mark.parametrize("name", ["of_class", "of_class_below"])
def test_classes_of_one_name_in_two_modules_are_two_to_a_class_method(calls: list[Any], name: str) -> None:
    other = type("Branch", (Shop,), {"__module__": "another.module"})
    assert other.__qualname__ == Branch.__qualname__
    for each in (Branch, other, Branch, other):
        assert getattr(each, name)("a") == "Branch a"
    assert calls == [(name, "Branch")] * 2


def test_a_class_whose_class_method_was_cached_is_not_kept(calls: list[Any]) -> None:
    class Same(type):
        def __eq__(cls, other: object) -> bool:
            return True

    one, two = Same("One", (Shop,), {}), Same("Two", (Shop,), {})
    assert [one.of_class("a"), two.of_class("a"), one.of_class("a")] == ["One a", "Two a", "One a"]
    gone = weakref.ref(two)
    del two
    gc.collect()
    assert gone() is None
    assert one.of_class("a") == "One a"


def test_the_object_is_not_in_the_key(calls: list[Any]) -> None:
    one, two = Shop("one"), Branch("two")
    assert [one.method("a"), two.method("a"), one.method("a", 1), two.method(number=1, sku="a")] == ["one a 1"] * 4
    assert Shop.method(two, "a") == Branch.method(two, "a") == "one a 1"
    assert [two.single("a"), one.single(sku="a"), one.single("a"), Shop.single(one, "a")] == ["two a"] * 4
    assert calls == [("method", "one"), ("single", "two")]
    assert one.method.cache_info()[:2] == Shop.method.cache_info()[:2]


def test_it_is_when_that_is_asked_for(calls: list[Any]) -> None:
    one, two = Shop("one"), Shop("two")
    assert [one.own("a"), two.own("a"), one.own("a"), two.own(sku="a")] == ["one a", "two a", "one a", "two a"]
    assert calls == [("own", "one"), ("own", "two")]


def test_a_parameter_is_ignored_with_or_without_self(calls: list[Any]) -> None:
    assert [Shop("one").ignoring(object(), "a"), Shop("two").ignoring(session=1, sku="a")] == ["a", "a"]
    assert len(calls) == 1
    assert Shop().ignoring.key_for(1, "a") == Shop().ignoring.key_for(2, sku="a")


def test_a_class_method_has_rows_for_each_class_and_a_static_one_does_not(calls: list[Any]) -> None:
    for name in ("of_class", "of_class_below"):
        values = [getattr(each, name)("a") for each in (Shop, Shop(), Branch, Branch("x"), Shop)]
        assert values == ["Shop a", "Shop a", "Branch a", "Branch a", "Shop a"]
    for name in ("static", "static_below"):
        assert [getattr(each, name)("a") for each in (Shop, Shop(), Branch, Branch("x"))] == ["a"] * 4
    assert [each[0] for each in calls] == [
        "of_class", "of_class", "of_class_below", "of_class_below", "static", "static_below"
    ]  # fmt: skip


def test_async_methods(calls: list[Any]) -> None:
    async def main() -> None:
        one, two = Shop("one"), Branch("two")
        assert inspect.iscoroutinefunction(one.later)
        assert inspect.iscoroutinefunction(Shop.later)
        assert [await one.later("a"), await two.later(sku="a"), await Shop.later(one, "a")] == ["one a"] * 3
        assert [await Shop.of_class_later("a"), await two.of_class_later("a")] == ["Shop a", "Branch a"]
        assert await two.later.refresh("a") == "two a"
        assert await one.later.peek("a") == "two a"
        assert await one.later.put("a", "put")
        assert await two.later("a") == "put"

    asyncio.run(main())
    assert len(calls) == 4


def test_a_bound_method_looks_like_the_method() -> None:
    one = Shop("one")
    for bound, unbound in ((one.method, Shop.method), (one.of_class, None)):
        assert isinstance(bound, CachedFunction)
        assert bound.__wrapped__.__module__ == __name__
        assert unbound is None or isinstance(unbound, CachedFunction)
    assert (one.method.__name__, one.method.__qualname__) == ("method", "Shop.method")
    assert (one.method.__doc__, Shop.of_class.__doc__) == ("A method.", "A class method.")
    assert str(inspect.signature(one.method)) == "(sku: 'str', number: 'int' = 1) -> 'str'"
    assert str(inspect.signature(Shop.method)) == "(self, sku: 'str', number: 'int' = 1) -> 'str'"
    assert str(inspect.signature(Shop.of_class)) == "(sku: 'str') -> 'str'"
    assert str(inspect.signature(one.static)) == "(sku: 'str') -> 'str'"
    assert one.method.__wrapped__("a") == "one a 1"
    assert Shop.method.__wrapped__(one, "a") == "one a 1"
    assert Branch.of_class.__wrapped__("a") == "Branch a"
    assert one.method.table is Shop.method.table
    assert repr(one.method) == "<cached method Shop.method>"
    assert one.method == one.method
    assert hash(one.method) == hash(one.method)
    assert one.method != Shop("two").method
    assert not hasattr(one.method, "nothing_like_it")
    assert pickle.loads(pickle.dumps(Shop.method)) is Shop.method
    copied = pickle.loads(pickle.dumps(one.method))
    assert copied.__wrapped__("a") == "one a 1"


def test_the_verbs_of_a_bound_method_take_no_self(calls: list[Any]) -> None:
    one, two = Shop("one"), Shop("two")
    assert one.method.peek("a") is None
    assert one.method("a") == "one a 1"
    assert two.method.peek("a") == Shop.method.peek(two, "a") == "one a 1"
    assert two.method.refresh("a") == "two a 1"
    assert one.method("a") == "two a 1"
    one.method.put("a", "put")
    assert two.method("a", 1) == "put"
    one.method.invalidate("a")
    assert two.method.peek("a") is None
    Shop.of_class.put("a", "put")
    assert (Shop().of_class("a"), Branch.of_class("a")) == ("put", "Branch a")
    Branch.of_class.invalidate("a")
    assert (Shop.of_class.peek("a"), Branch.of_class.peek("a")) == ("put", None)
    assert one.method.key_for("a") == Shop.method.key_for(two, "a", number=1)


def test_the_object_is_not_kept_alive() -> None:
    shop = Shop("one")
    shop.method("a")
    shop.single("a")
    shop.own("a")
    shop.method.refresh("a")
    asyncio.run(shop.later("a"))
    gone = weakref.ref(shop)
    del shop
    gc.collect()
    assert gone() is None
    assert Shop("two").method("a") == "one a 1"


def test_an_object_whose_class_has_slots_or_no_hash_has_cached_methods_too() -> None:
    class Narrow:
        __slots__ = ()
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            raise AssertionError("nobody compares it")

        @cached
        def method(self, x: int) -> int:
            return x

    assert Narrow().method(1) == Narrow().method(1) == 1
    assert Narrow.method.cache_info().hits == 1
    narrow = Narrow()
    assert narrow.method == narrow.method != Narrow().method
    assert hash(narrow.method) == hash(narrow.method)


def test_a_method_that_is_abstract_or_called_by_a_subclass() -> None:
    class Base(ABC):
        @cached
        @abstractmethod
        def method(self, x: int) -> int:
            return x

    class Real(Base):
        @cached
        def method(self, x: int) -> int:
            return 10 * super().method(x)

    with pytest.raises(TypeError, match="abstract"):
        Base()  # type: ignore[abstract]
    assert Real().method(2) == 20
    assert Real.method.table is not Base.method.table


def test_a_function_that_is_put_into_a_class_later_is_a_method_there() -> None:
    @cached
    def named(self: Any, x: int) -> str:
        return f"{self} {x}"

    class Thing:
        def __repr__(self) -> str:
            return "thing"

    Thing.named = named  # type: ignore[attr-defined]
    assert Thing().named(1) == "thing 1"  # type: ignore[attr-defined]
    assert named("self", 1) == "self 1"


def test_below_a_property_the_object_is_an_argument_like_others() -> None:
    class Thing:
        @property
        @cached
        def plain(self) -> int:
            return 1

        @property
        @cached(ignore=("self",))
        def ignoring(self) -> int:
            return 2

    assert Thing().ignoring == 2
    with pytest.raises(UnstableKey, match=r"ignore=\('self',\)"):
        Thing().plain  # noqa: B018


def test_a_method_of_one_branded_id_shares_its_row(connection: Connection, queue_name: str) -> None:
    class Users:
        @cached(name=queue_name, kind="USR", connection=connection)
        def user(self, id: str) -> dict[str, str]:
            return {"name": "Ann"}

    assert Users.user.__get__(Users()).key_for(USER) == (USER, b"")
    assert Users().user(USER) == {"name": "Ann"}
    frame = connection.client.get(f"ecc:{{{queue_name}}}:{USER}")
    assert frame is not None
    assert frame[14:] == b'{"name":"Ann"}'
    assert Users().user.invalidate(USER)
    eventually(lambda: connection.client.get(f"ecc:{{{queue_name}}}:{USER}") is None)


def test_two_methods_of_one_id_must_not_have_one_table(standalone: Connection, queue_name: str) -> None:
    options: dict[str, Any] = {"name": queue_name, "kind": "USR", "connection": standalone}
    with pytest.raises((InvalidArgument, RuntimeError)) as caught:

        class Users:
            @cached(**options)
            def name(self, id: str) -> str:
                return ""

            @cached(**options)
            def age(self, id: str) -> int:
                return 7

    # Before Python 3.12 what is raised when a class is made comes wrapped.
    assert "would have the same rows" in str(caught.value.__cause__ or caught.value)
