"""What must not reach the callers of a cache: races, circles of processes, and what others leave on the server."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from support.caches import PATIENCE, Source, following, joined, tables
from support.eventually import eventually

from echomq_tasks.cache.table import Table
from echomq_tasks.cache.values import TypedCodec
from echomq_tasks.connection import Connection
from echomq_tasks.identity import brand
from echomq_tasks.keyspace import coherence_channel, wake_channel
from echomq_tasks.queue.waiting import Waiting
from echomq_tasks.scripts import Scripts

KEY = brand("ROW", 1)


class Raced(deque[Any]):
    """One from which another thread takes the last whenever somebody has seen that there is one."""

    def __bool__(self) -> bool:
        there = len(self) > 0
        if len(self) == 1:
            self.clear()
        return there


def test_idle_connections_are_closed_by_several_threads_at_once(standalone: Connection) -> None:
    closed: list[int] = []
    for number, (companion, wire) in enumerate(
        [
            (Scripts.of(standalone), lambda n: (0.0, SimpleNamespace(close=lambda: closed.append(n)))),
            (Waiting.of(standalone), lambda n: SimpleNamespace(disconnect=lambda: closed.append(n))),
        ]
    ):
        closed.clear()
        wires = Raced([wire(1), wire(2)])
        companion._idle = {"": wires} if number else wires  # type: ignore[attr-defined]  # noqa: SLF001
        companion.close()
        assert closed == [2, 1]


class Odd(TypedCodec):
    """Cannot tell what may be shared, which is asked after the load."""

    def encode(self, value: Any) -> bytes:
        return super().encode(value)

    def immutable(self, value: Any) -> bool:
        raise ValueError


@pytest.mark.parametrize("what", ["text", "immutable", "l1"])
def test_what_fails_after_a_load_leaves_no_lease_behind(standalone: Connection, what: str) -> None:
    class Text(TypedCodec):
        def encode(self, value: Any) -> Any:
            return "text"

    codec = {"text": Text(), "immutable": Odd()}.get(what)
    with tables(standalone, 2, lease=600.0, wait=PATIENCE, codec=codec) as [one, two]:
        if what == "l1":
            one._parts.l1.put = _fail  # type: ignore[method-assign]  # noqa: SLF001
            with pytest.raises(KeyError):
                one.fetch(KEY, lambda: ["one"])
        else:
            assert one.fetch(KEY, lambda: ["one"]) == ["one"]
        found = two.fetch(KEY, lambda: ["two"])
        assert found == (["two"] if what == "text" else ["one"])


def _fail(*args: Any, **options: Any) -> bool:
    raise KeyError


def test_a_lease_is_given_back_when_storing_fails_in_an_unknown_way(
    standalone: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tables(standalone, 2, lease=600.0, wait=PATIENCE) as [one, two]:
        monkeypatch.setattr("echomq_tasks.cache.store.Store.fill", _fail)
        with pytest.raises(KeyError):
            one.fetch(KEY, lambda: 1)
        monkeypatch.undo()
        assert two.fetch(KEY, lambda: 2) == 2


def test_garbage_is_logged_once_a_channel(standalone: Connection, caplog: pytest.LogCaptureFixture) -> None:
    with tables(standalone, 1) as [table]:
        table.fetch(KEY, lambda: 1)
        client: Any = standalone.client
        channels = coherence_channel(table.name), wake_channel(table.name)
        for number in range(5):
            for channel in channels:
                client.publish(channel, b"garbage %d" % number)

        def told() -> list[str]:
            return [each.getMessage() for each in caplog.records if "no message of ours" in each.getMessage()]

        eventually(lambda: len(told()) >= 2, PATIENCE)
        # The last message of all has been heard when this has.
        with tables(standalone, 1, name=table.name) as [other]:
            other.invalidate(KEY)
        eventually(lambda: table.peek(KEY) is None, PATIENCE)
        assert len(told()) == 2


def test_loaders_of_two_processes_that_wait_for_each_other_go_on(standalone: Connection) -> None:
    """Each holds the lease that the other one waits for."""
    with (
        tables(standalone, 2, lease=0.2, wait=PATIENCE) as [a_here, a_there],
        tables(standalone, 2, lease=0.2, wait=PATIENCE) as [b_here, b_there],
        ThreadPoolExecutor(2) as pool,
    ):
        here, there = Source(), Source()
        here.hold()
        there.hold()

        def outer(mine: Table, other: Table, source: Source, inner: str) -> Any:
            return mine.fetch(KEY, lambda: (source(), other.fetch(KEY, lambda: inner)))

        one = pool.submit(outer, a_here, b_here, here, "inner b")
        two = pool.submit(outer, b_there, a_there, there, "inner a")
        here.started()
        there.started()
        here.go()
        following(b_here, KEY)
        there.go()
        # Whoever loads the inner value by itself first, the other one may be given what comes of it.
        assert [each.result(PATIENCE)[0] for each in (one, two)] == [1, 1]


def test_a_loader_that_joins_here_who_waits_for_another_process_goes_on(standalone: Connection) -> None:
    with (
        tables(standalone, 1) as [outer],
        tables(standalone, 2, lease=0.2, wait=PATIENCE) as [here, there],
        ThreadPoolExecutor(3) as pool,
    ):
        source = Source()
        source.hold()
        held = pool.submit(there.fetch, KEY, source)
        source.started()
        waits = pool.submit(here.fetch, KEY, lambda: "none")
        following(here, KEY)
        nested = pool.submit(outer.fetch, KEY, lambda: here.fetch(KEY, lambda: "nested"))
        joined(here, KEY, 2)
        assert nested.result(PATIENCE) == "nested"
        assert not waits.done()
        source.go()
        assert (held.result(PATIENCE), waits.result(PATIENCE)) == (1, 1)
