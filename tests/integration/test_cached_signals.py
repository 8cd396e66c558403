"""The signals of cached functions: what each call was, and each load."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.clocks import Clock
from support.eventually import eventually

from echomq_tasks import Connection, cached, signals
from echomq_tasks.events import CACHE_EVENTS, CacheEvent


class Received:
    """Keeps who sent what."""

    def __init__(self, *names: str) -> None:
        self.signals = [signals.namespace[name] for name in names or CACHE_EVENTS]
        self.sent: list[tuple[Any, CacheEvent]] = []
        for signal in self.signals:
            signal.connect(self.take)

    def take(self, sender: Any, event: CacheEvent) -> None:
        self.sent.append((sender, event))

    def stop(self) -> None:
        for signal in self.signals:
            signal.disconnect(self.take)

    def told(self) -> list[str]:
        """What was told since the last call, in short."""
        sent, self.sent = self.sent, []
        return [event.event.removeprefix("cache_") + (f" {event.layer}" if event.layer else "") for _, event in sent]


@pytest.fixture
def received() -> Iterator[Received]:
    every = Received()
    yield every
    every.stop()
    assert not any(signals.namespace[name].receivers for name in CACHE_EVENTS), "a test left a receiver behind"


def test_hits_misses_and_loads_are_told(standalone: Connection, queue_name: str, received: Received) -> None:
    def function(x: str) -> str:
        if x == "bad":
            raise KeyError(x)
        return x

    one, two = (cached(name=queue_name, connection=standalone)(function) for _ in range(2))
    one("a")
    assert [sender for sender, _ in received.sent] == [one, one]
    miss, load = (event for _, event in received.sent)
    assert (miss.event, miss.layer, miss.duration) == ("cache_miss", None, None)
    assert (load.event, load.table, load.id, load.error) == ("cache_load", queue_name, one.key_for("a").id, None)
    assert load.duration is not None
    assert load.at >= miss.at > 1_700_000_000
    assert received.told() == ["miss", "load"]

    one("a")
    one(x="a")
    assert received.told() == ["hit l1", "hit l1"]
    two("a")
    two("a")
    assert [sender for sender, _ in received.sent] == [two, two]
    assert received.told() == ["hit l2", "hit l1"]

    with pytest.raises(KeyError):
        one("bad")
    error = received.sent[-1][1].error
    assert isinstance(error, KeyError)
    assert received.told() == ["miss", "load"]
    one.refresh("a")
    assert received.told() == ["load"]


def test_those_of_async_functions_and_methods(received: Received) -> None:
    class Thing:
        @cached
        async def method(self, x: int) -> int:
            return x

    async def main() -> None:
        thing = Thing()
        assert await thing.method(1) == await thing.method(1) == 1
        assert [sender for sender, _ in received.sent] == [Thing.method] * 3
        assert received.told() == ["miss", "load", "hit l1"]
        await asyncio.gather(*(thing.method(2) for _ in range(3)))
        assert sorted(received.told()) == ["load", "miss", "miss", "miss"]

    asyncio.run(main())


def test_who_waits_for_another_ones_load_has_missed(received: Received) -> None:
    go = threading.Event()

    @cached
    def function(x: str) -> str:
        assert go.wait(20)
        return x

    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(function, "a") for _ in range(3)]
        flights = function.table._parts.flights._flights  # noqa: SLF001 - nothing else tells who waits
        eventually(lambda: any(flight.waiters == 3 for flight in flights.values()))
        go.set()
        assert [each.result() for each in asked] == ["a"] * 3
    assert sorted(received.told()) == ["load", "miss", "miss", "miss"]


def test_a_stale_value_is_a_hit_and_its_refresh_only_a_load(
    received: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)

    @cached(ttl=10, stale=10, jitter=0)
    def function(x: str) -> str:
        return x

    function("a")
    clock.advance(11)
    assert received.told() == ["miss", "load"]
    function("a")
    eventually(lambda: len(received.sent) == 2)
    assert sorted(received.told()) == ["hit stale", "load"]
    eventually(lambda: function.table.holds(function.key_for("a")))


def test_a_function_whose_loader_calls_another_one_tells_of_both(received: Received) -> None:
    @cached
    def inner(x: str) -> str:
        return x

    @cached
    def outer(x: str) -> str:
        return inner(x)

    outer("a")
    names = {inner: "inner", outer: "outer"}
    assert [(names[sender], event.event) for sender, event in received.sent] == [
        ("outer", "cache_miss"), ("inner", "cache_miss"), ("inner", "cache_load"), ("outer", "cache_load")
    ]  # fmt: skip


def test_hits_are_told_from_when_somebody_listens_until_nobody_does() -> None:
    @cached
    def function(x: str) -> str:
        return x

    function("a")
    function("a")
    for _ in range(20):
        hits = Received("cache_hit")
        assert [function("a"), function("a")] == ["a", "a"]
        assert hits.told() == ["hit l1", "hit l1"]
        hits.stop()
        assert [function("a"), function("a")] == ["a", "a"]
        assert hits.told() == []
    # All of them were counted, told or not.
    assert function.cache_info()[:2] == (81, 1)


def test_a_receiver_may_listen_to_one_function(received: Received) -> None:
    received.stop()

    @cached
    def one(x: str) -> str:
        return x

    @cached
    def two(x: str) -> str:
        return x

    heard: list[str] = []

    def take(sender: Any, event: CacheEvent) -> None:
        heard.append(event.event)

    signals.cache_miss.connect(take, sender=one)
    one("a")
    two("a")
    signals.cache_miss.disconnect(take)
    assert heard == ["cache_miss"]


def test_a_receiver_that_raises_changes_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    def broken(sender: Any, event: CacheEvent) -> None:
        raise RuntimeError("cannot take it")

    @cached
    def function(x: str) -> str:
        return x

    for name in CACHE_EVENTS:
        signals.namespace[name].connect(broken)
    try:
        with caplog.at_level(logging.ERROR, "echomq_tasks.signals"):
            assert [function("a"), function("a")] == ["a", "a"]
    finally:
        for name in CACHE_EVENTS:
            signals.namespace[name].disconnect(broken)
    assert len(caplog.records) == 3


def test_without_receivers_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    # By its module: the package's attribute of this name is the decorator.
    watching = sys.modules["echomq_tasks.caching.watching"]
    monkeypatch.setattr(watching, "CacheEvent", lambda *args: pytest.fail("one was made"))
    monkeypatch.setattr(watching.Watched, "__enter__", lambda self: pytest.fail("it is watched"))

    @cached
    def function(x: str) -> str:
        return x

    assert [function("a"), function("a"), function.refresh("a")] == ["a"] * 3
