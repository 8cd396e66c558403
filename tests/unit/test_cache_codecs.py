"""A codec of a user's: whatever it does, callers get their values, and nothing worse happens than to load again."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from support.eventually import eventually

from echomq_tasks.cache.row import OVERHEAD, Row
from echomq_tasks.cache.table import Table
from echomq_tasks.cache.values import TypedCodec
from echomq_tasks.cache.weighing import weight
from echomq_tasks.errors import InvalidArgument, LoadTimeout, Undecodable, Unencodable
from echomq_tasks.identity import brand

PATIENCE = 20.0
KEY = brand("ROW", 1)


class Broken(TypedCodec):
    """Fails at one thing."""

    def __init__(self, verb: str, error: Exception | None) -> None:
        super().__init__()
        self.verb, self.error = verb, error

    def _at(self, verb: str, good: Callable[[], Any]) -> Any:
        if verb != self.verb:
            return good()
        if self.error is not None:
            raise self.error
        return "text"

    def encode(self, value: Any) -> bytes:
        return self._at("encode", lambda: super(Broken, self).encode(value))  # type: ignore[no-any-return]

    def decode(self, data: bytes) -> Any:
        return self._at("decode", lambda: super(Broken, self).decode(data))

    def immutable(self, value: Any) -> bool:
        return self._at("immutable", lambda: False)  # type: ignore[no-any-return]


def alone(**options: Any) -> Table:
    return Table("codecs", "ROW", l2=False, **{"jitter": 0.0, **options})


@pytest.mark.parametrize("verb", ["encode", "decode", "immutable"])
@pytest.mark.parametrize("error", [ValueError("x"), KeyError("x"), MemoryError(), TypeError("x")], ids=repr)
def test_a_codec_that_fails_costs_a_load_and_is_logged_once(
    verb: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    table = alone(codec=Broken(verb, error))
    for number in range(4):
        assert table.fetch(KEY, lambda: ["value"]) == ["value"], number
        assert asyncio.run(table.afetch(brand("ROW", 2), aload)) == ["value"]
    assert table.peek(KEY, "none") == (["value"] if verb == "immutable" else "none")
    told = [each for each in caplog.records if f"the {verb}() of its codec" in each.getMessage()]
    assert len(told) == 1
    assert type(error).__name__ in told[0].getMessage()


async def aload() -> Any:
    return ["value"]


def test_what_is_no_bytes_is_not_kept() -> None:
    table = alone(codec=Broken("encode", None))
    assert [table.fetch(KEY, lambda number=number: number) for number in range(2)] == [0, 1]
    with pytest.raises(Unencodable, match="returns bytes, not str"):
        table.put(KEY, 1)


def test_a_put_of_what_the_codec_fails_at_changes_nothing() -> None:
    codec = Broken("none", ValueError("x"))
    table = alone(codec=codec)
    table.put(KEY, "old")
    codec.verb = "encode"
    with pytest.raises(Unencodable):
        table.put(KEY, "new")
    assert table.peek(KEY) == "old"


def test_a_loader_that_raises_undecodable_is_run_once_and_tells_its_caller() -> None:
    table, runs = alone(), []

    def load() -> Any:
        runs.append(1)
        raise Undecodable("mine")

    async def again() -> Any:
        return load()

    with pytest.raises(Undecodable, match="mine"):
        table.fetch(KEY, load)
    with pytest.raises(Undecodable, match="mine"):
        asyncio.run(table.afetch(KEY, again))
    assert len(runs) == 2


@pytest.mark.parametrize("verb", ["fetch", "refresh", "afetch", "arefresh"])
def test_what_is_no_loader_is_refused(verb: str) -> None:
    async def ask() -> None:
        answer = getattr(table, verb)(KEY, None)
        if verb.startswith("a"):
            await answer

    table = alone()
    with pytest.raises(InvalidArgument, match="a loader is a function"):
        asyncio.run(ask())
    assert table.stats().loads == 0


# What is held in memory.


def test_a_value_that_l1_holds_as_it_is_counts_before_compression() -> None:
    table = alone(max_bytes=1_000_000)
    for number in range(10):
        table.fetch(brand("ROW", number), lambda: "y" * 300_000)
        table.put(brand("ROW", 100 + number), ("y" * 300_000,))
    stats = table.stats()
    assert (stats.entries, stats.evictions) == (3, 17)
    assert 900_000 < stats.bytes <= 1_000_000


def test_the_weight_of_a_value_counts_what_it_holds_once_and_ends() -> None:
    circle: list[Any] = ["y" * 1000]
    circle.append(circle)
    assert 1000 < weight(circle) < 1500
    assert weight({"a": ("b", ["y" * 1000])}) > 1000
    assert weight(("y" * 1000,) * 1000, 5000) > 5000
    assert weight("") < OVERHEAD


@pytest.mark.parametrize(
    "name",
    ["x" * 2000, b"x" * 2000, ("x" * 2000,), tuple(range(1000)), (dict, 1, "a", "x" * 2000), 10**5000],
    ids=["text", "bytes", "nested", "long", "named", "number"],
)
def test_a_large_argument_is_not_held_in_memory(name: Any) -> None:
    aliases: dict[Any, Row] = {}
    table = alone()
    table.fetch(KEY, lambda: 1)
    table.alias(aliases, name, KEY)
    assert not aliases
    table.alias(aliases, ("x" * 200, 1, None, (float, 1.5)), KEY)
    assert len(aliases) == 1


# A hard time limit.


@pytest.mark.parametrize("how", ["slow", "deaf", "fails"])
def test_an_async_loader_that_does_not_end_when_it_is_cancelled_holds_nobody_up(how: str) -> None:
    table = alone(loader_timeout=0.02)
    ended: list[asyncio.Event] = []

    async def load(go: asyncio.Event) -> str:
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            await go.wait()
            ended[0].set()
            if how == "deaf":
                return "late"
            raise ValueError if how == "fails" else asyncio.CancelledError from None
        return "never"

    async def main() -> None:
        go = asyncio.Event()
        ended.append(asyncio.Event())
        with pytest.raises(LoadTimeout, match="hard loader_timeout"):
            async with asyncio.timeout(PATIENCE):
                await table.afetch(KEY, lambda: load(go))
        assert not ended[0].is_set()
        # Nobody but the cache holds it.
        gc.collect()
        assert await table.afetch(KEY, aload) == ["value"]
        go.set()
        await asyncio.wait_for(ended[0].wait(), PATIENCE)
        assert table.peek(KEY) == ["value"]

    asyncio.run(main())


def test_who_is_cancelled_does_not_wait_for_a_loader_that_does_not_end() -> None:
    table = alone(loader_timeout=PATIENCE)

    async def main() -> None:
        go, begun = asyncio.Event(), asyncio.Event()

        async def load() -> str:
            begun.set()
            while not go.is_set():
                try:
                    await go.wait()
                except asyncio.CancelledError:
                    pass
            return "late"

        task = asyncio.create_task(table.afetch(KEY, load))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(PATIENCE):
                await task
        go.set()

    asyncio.run(main())


def test_a_load_with_a_time_limit_that_a_closed_loop_leaves_behind_is_closed() -> None:
    table, closed = alone(loader_timeout=PATIENCE), threading.Event()

    async def load() -> None:
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            closed.set()

    loop = asyncio.new_event_loop()
    task = loop.create_task(table.afetch(KEY, load))
    gone = weakref.ref(task)
    for _ in range(5):
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert table.fetch(KEY, lambda: "next") == "next"
    eventually(closed.is_set, PATIENCE)
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - its loop is gone
    del task
    gc.collect()
    assert gone() is None
