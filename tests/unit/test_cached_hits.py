"""Hits of cached functions whose arguments, or values, could be changed: by a short way, and never a wrong one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from echomq_tasks.cache.keys import Key, KeyMaker
from echomq_tasks.cache.table import Table
from echomq_tasks.caching import cached
from echomq_tasks.errors import Undecodable


def refused(*_: Any, **__: Any) -> Any:
    raise AssertionError("that is the long way")


def test_a_call_with_a_dict_or_a_list_is_found_without_its_canonical_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    @cached(l2=False)
    def total(prices: dict[str, list[int]], *more: set[int]) -> int:
        return sum(map(sum, prices.values())) + sum(map(sum, more))

    assert total({"a": [1, 2]}, {3}) == 6
    monkeypatch.setattr(KeyMaker, "key", refused)
    assert total({"a": [1, 2]}, {3}) == 6
    for other in ({"a": [1, 3]}, {"b": [1, 2]}, {"a": [True, 2]}):
        with pytest.raises(AssertionError, match="long way"):
            total(other, {3})


def test_a_list_that_changes_while_its_keys_are_made_is_found_under_none(monkeypatch: pytest.MonkeyPatch) -> None:
    @cached(l2=False)
    def first(items: list[int]) -> list[int]:
        return list(items)

    items, key = [1], KeyMaker.key

    def changing(self: KeyMaker, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Key:
        # As another thread would.
        items[0] = 2
        return key(self, args, kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(KeyMaker, "key", changing)
        assert first(items) == [2]
    assert first([1]) == [1]
    assert first([2]) == [2]


def test_a_function_that_changes_its_argument_is_found_under_what_it_was_called_with() -> None:
    calls = []

    @cached(l2=False)
    def pop(items: list[int]) -> int:
        calls.append(list(items))
        return items.pop()

    assert [pop([1, 2]), pop([1, 2]), pop([1]), pop([1, 2])] == [2, 2, 1, 2]
    assert calls == [[1, 2], [1]]


@pytest.fixture(params=[False, True], ids=["function", "coroutine"])
def stock(request: pytest.FixtureRequest) -> Callable[..., Callable[[str], Any]]:
    """A cached function of a list that its callers could change, which a coroutine function may be."""

    def make(**options: Any) -> Callable[[str], Any]:
        count = iter(range(1, 100))
        if not request.param:
            return cached(l2=False, **options)(lambda sku: [sku, next(count)])

        @cached(l2=False, **options)
        async def stock(sku: str) -> list[Any]:
            return [sku, next(count)]

        def call(sku: str) -> Any:
            return asyncio.run(stock(sku))

        call.table = stock.table  # type: ignore[attr-defined]
        return call

    return make


def test_each_caller_gets_a_value_of_his_own_by_the_short_way(
    stock: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = stock()
    assert call("a") == ["a", 1]
    monkeypatch.setattr(Table, "fetch", refused)
    monkeypatch.setattr(Table, "afetch", refused)
    one, other = call("a"), call("a")
    one.append("changed")
    assert (other, call("a")) == (["a", 1], ["a", 1])
    assert call.table.stats().hits == 3


def test_what_was_dropped_is_not_found_by_the_short_way(stock: Callable[..., Any]) -> None:
    call = stock()
    assert [call("a"), call("a")] == [["a", 1]] * 2
    call.table.clear()
    assert [call("a"), call("a")] == [["a", 2]] * 2


def test_what_is_stale_is_not_found_by_the_short_way(stock: Callable[..., Any]) -> None:
    call = stock(ttl=1e-6, stale=0)
    assert call("a") == ["a", 1]
    assert call("a") == ["a", 2]


def test_what_is_suspect_is_not_found_by_the_short_way(
    stock: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = stock()
    assert call("a") == ["a", 1]
    call.table._parts.l1.suspect()  # noqa: SLF001 - as when messages were missed
    monkeypatch.setattr(Table, "fetch", refused)
    monkeypatch.setattr(Table, "afetch", refused)
    with pytest.raises(AssertionError, match="long way"):
        call("a")


def test_what_cannot_be_read_is_loaded_anew(stock: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    class Forgetful:
        reads = 0

        def encode(self, value: Any) -> bytes:
            return repr(value).encode()

        def decode(self, data: bytes) -> Any:
            self.reads += 1
            if self.reads > 1:
                raise Undecodable("it is damaged")
            return eval(data)

        def immutable(self, value: Any) -> bool:
            return False

    call = stock(codec=Forgetful())
    assert [call("a"), call("a")] == [["a", 1]] * 2
    assert call("a") == ["a", 2]
    assert "cannot be read again" in caplog.text
