"""A process that is short of something, interrupted or slow to reach its server: no fault of the loader's or the
server's."""

from __future__ import annotations

import asyncio
import errno
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from support.caches import PATIENCE, Source, following, tables
from support.children import in_child
from support.clocks import Clock
from support.eventually import eventually

from echomq_tasks import cached
from echomq_tasks.cache import drive as driving
from echomq_tasks.cache import hands as handing
from echomq_tasks.cache.hands import Hands
from echomq_tasks.cache.reach import short_of
from echomq_tasks.cache.store import Store
from echomq_tasks.cache.table import Table
from echomq_tasks.connection import Connection
from echomq_tasks.errors import ServerUnavailable
from echomq_tasks.identity import brand
from echomq_tasks.keyspace import cache_key

KEY, OTHER = brand("ROW", 1), brand("ROW", 2)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def never() -> Any:
    raise AssertionError("nothing is to be loaded")


def flights_of(table: Table) -> Any:
    return table._parts.flights._flights  # noqa: SLF001 - nothing else tells


def breaker_of(table: Table) -> Any:
    return table._parts.reach.shared.breaker  # type: ignore[union-attr]  # noqa: SLF001


# Many tasks.


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Hands:
    """All requests of tasks, with so many threads."""
    made = Hands(request.param)
    monkeypatch.setattr(driving, "REQUESTS", made)
    monkeypatch.setattr(handing, "REQUESTS", made)
    return made


@pytest.mark.parametrize("hands", [4], indirect=True)
def test_many_tasks_that_find_nothing_take_few_threads_and_all_is_stored(connection: Connection, hands: Hands) -> None:
    count = 300

    async def main(table: Table) -> list[int]:
        async def load(number: int) -> int:
            await asyncio.sleep(0)
            return number

        return await asyncio.gather(
            *(table.afetch(brand("ROW", number), lambda number=number: load(number)) for number in range(count))
        )

    with tables(connection, 1) as (table,):
        assert asyncio.run(main(table)) == list(range(count))
        assert len(hands) <= 4
        stats = table.stats()
        assert (stats.loads, stats.skipped, stats.away) == (count, 0, False)
        client: Any = connection.client
        assert client.exists(*(cache_key(table.name, brand("ROW", number)) for number in range(count))) == count


@pytest.mark.parametrize("hands", [1], indirect=True)
def test_requests_never_wait_for_each_other_so_that_one_thread_is_enough(
    standalone: Connection, hands: Hands, clock: Clock
) -> None:
    """Loads, followers in another process, refreshes, drops that are owed, and loaders that ask for each other."""

    async def main(one: Table, two: Table) -> list[int]:
        async def inner() -> int:
            await asyncio.sleep(0)
            return 1

        async def outer(number: int) -> int:
            return await two.afetch(brand("ROW", number), inner) + await one.afetch(brand("ROW", number + 1), inner)

        for table in (one, two):
            table._parts.reach.owed.row(brand("ROW", 77), brand("ROW", 7))  # type: ignore[union-attr]  # noqa: SLF001
        asked = [
            table.afetch(brand("ROW", 100 * n), lambda n=n: outer(100 * n + 1))
            for n in range(9)
            for table in (one, two)
        ]
        values = await asyncio.gather(*asked, *(table.arefresh(KEY, inner) for table in (one, two)))
        return values

    with tables(standalone, refresh_ahead=0.5, stale=60) as (one, two):
        assert asyncio.run(asyncio.wait_for(main(one, two), PATIENCE)) == [2] * 18 + [1] * 2
        clock.advance(45)
        assert asyncio.run(asyncio.wait_for(main(one, two), PATIENCE)) == [2] * 18 + [1] * 2
        assert len(hands) == 1


def test_without_a_thread_to_ask_the_server_tasks_load_by_themselves(
    standalone: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def one() -> int:
        return 1

    with tables(standalone, 1) as (table,):
        table.fetch(OTHER, int)
        real, short = threading.Thread.start, True

        def start(self: threading.Thread) -> None:
            if short and self.name.startswith("echomq-cache"):
                raise RuntimeError("can't start new thread")
            real(self)

        monkeypatch.setattr(threading.Thread, "start", start)
        for module in (driving, handing):
            monkeypatch.setattr(module, "REQUESTS", Hands(2))
        assert asyncio.run(table.afetch(KEY, one)) == 1
        assert (table.stats().skipped, table.stats().away) == (1, False)
        # What must not be left out is done all the same.
        assert asyncio.run(table.arefresh(KEY, one)) == 1
        short = False
        assert asyncio.run(table.afetch(brand("ROW", 3), one)) == 1
        assert table.stats().skipped == 2
        assert table._parts.reach.ask(lambda store: store.version(brand("ROW", 3)))  # type: ignore[union-attr]  # noqa: SLF001


# Short of connections.


def chained(*errors: BaseException) -> BaseException:
    """The last of them, each raised from the one before."""
    for cause, error in itertools.pairwise(errors):
        error.__cause__ = cause
    return errors[-1]


def timed_out() -> BaseException:
    try:
        try:
            raise BlockingIOError(errno.EAGAIN, "not yet")
        except BlockingIOError:
            raise redis.TimeoutError("no answer") from None
    except redis.TimeoutError as error:
        return chained(error, ServerUnavailable("failed"))


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (OSError(errno.EMFILE, "too many open files"), True),
        (chained(BlockingIOError(errno.EAGAIN, "again"), redis.ConnectionError("x"), ServerUnavailable("y")), True),
        (chained(OSError(errno.EADDRNOTAVAIL, "no port"), redis.ConnectionError("x"), ServerUnavailable("y")), True),
        (chained(redis.MaxConnectionsError("Too many connections"), ServerUnavailable("y")), True),
        (chained(RuntimeError("can't start new thread"), ServerUnavailable("y")), True),
        (chained(ConnectionRefusedError(errno.ECONNREFUSED, "no"), ServerUnavailable("y")), False),
        (chained(TimeoutError("timed out"), ServerUnavailable("y")), False),
        (timed_out(), False),
        (ServerUnavailable("y"), False),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_this_process_has_not_is_told_from_what_the_server_does_not(error: BaseException, short: bool) -> None:
    assert short_of(error) is short


def test_a_shortage_of_connections_costs_one_call_its_server_and_no_other(
    standalone: Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with tables(standalone, 1) as (table,):
        table.fetch(OTHER, int)

        def claim(*_: object, **__: object) -> Any:
            raise chained(OSError(errno.EMFILE, "too many open files"), ServerUnavailable("cannot use it"))

        with monkeypatch.context() as patch:
            patch.setattr(Store, "claim", claim)
            assert [table.fetch(brand("ROW", 5 + number), lambda: 1) for number in range(3)] == [1] * 3
        assert (table.stats().skipped, table.stats().away) == (3, False)
        assert len(caplog.records) == 1
        assert "no further connection" in caplog.text
        assert table.fetch(KEY, lambda: 1) == 1
        assert table.stats().skipped == 3


# Interrupted.


def test_an_observer_that_is_interrupted_leaves_no_flight_and_no_lease(standalone: Connection, source: Source) -> None:
    def observer(what: str, id: str) -> None:
        raise KeyboardInterrupt(what)

    with tables(standalone, wait=0.05, lease=3600.0) as (one, two):
        one.fetch(OTHER, int)
        two.fetch(OTHER, int)
        assert one.fetch(KEY, source) == 1
        # Found on the server, and to be loaded.
        for key, loader in ((KEY, never), (brand("ROW", 3), source)):
            two.observe(observer)
            with pytest.raises(KeyboardInterrupt):
                two.fetch(key, loader)
            two.observe(None)
            assert not flights_of(two)
            assert two.fetch(key, source) in (1, 2)
        # Who asks in another process is told, and does not wait for the lease.
        assert source.count == 2


def test_a_loop_that_was_closed_amid_a_load_gives_up_its_lease(standalone: Connection, source: Source) -> None:
    async def main(table: Table) -> None:
        begun = asyncio.Event()

        async def forever() -> None:
            begun.set()
            await asyncio.Event().wait()

        held.append(asyncio.ensure_future(table.afetch(KEY, forever)))
        await begun.wait()

    held: list[Any] = []
    with tables(standalone, lease=3600.0) as (one, two), ThreadPoolExecutor(1) as pool:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main(one))
        held[0]._log_destroy_pending = False  # noqa: SLF001 - as it is meant
        waiting = pool.submit(two.fetch, KEY, source)
        following(two, KEY)
        loop.close()
        assert one.fetch(KEY, source) in (1, 2)
        assert waiting.result(PATIENCE) in (1, 2)


def test_the_lease_of_a_load_whose_loop_does_not_run_is_not_renewed(standalone: Connection, source: Source) -> None:
    async def main(table: Table) -> None:
        begun = asyncio.Event()

        async def forever() -> None:
            begun.set()
            await asyncio.Event().wait()

        held.append(asyncio.ensure_future(table.afetch(KEY, forever)))
        await begun.wait()

    held: list[Any] = []
    with tables(standalone, lease=0.3) as (one, two):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main(one))
        assert two.fetch(KEY, source) == 1
        held[0]._log_destroy_pending = False  # noqa: SLF001 - as it is meant
        loop.close()


def test_a_recursion_that_goes_too_deep_on_the_way_to_the_server_raises_and_no_more(standalone: Connection) -> None:
    """The server's client ends the interpreter where no frame is left for it, so it is not asked there."""

    def child() -> list[int]:
        @cached(ttl=60, connection=standalone, name="deep")
        def count(number: int) -> int:
            return number and 1 + count(number - 1)

        def deep(left: int) -> int:
            return deep(left - 1) if left else count(1000)

        for frames in range(15):
            with pytest.raises(RecursionError):
                deep(frames)
        assert not flights_of(count.table)
        return [count(5), count(0)]

    assert in_child(child) == [5, 0]


# A server that is slow to be tried again.


def test_nobody_waits_while_it_is_tried_whether_the_server_is_back(
    standalone: Connection, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    tries, go = [], threading.Event()
    real: Callable[..., Any] = Store.version

    def version(self: Store, *args: Any) -> Any:
        tries.append(threading.current_thread())
        assert go.wait(PATIENCE)
        return real(self, *args)

    with tables(standalone, 1) as (table,):
        table.fetch(OTHER, int)
        monkeypatch.setattr(Store, "version", version)
        breaker_of(table).failed(OSError("gone"))
        for number in range(3):
            clock.advance(10)
            assert table.fetch(brand("ROW", 5 + number), lambda number=number: number) == number
            assert not table.invalidate(KEY)
            eventually(lambda: tries)
        assert len(tries) == 1
        assert tries[0] is not threading.current_thread()
        assert table.stats().away
        go.set()
        eventually(lambda: not table.stats().away)
        assert table.invalidate(KEY)
