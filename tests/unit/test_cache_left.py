"""Flights whose leaders leave: interrupted, with an event loop that is gone, or without a thread; and their errors."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import linecache
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest
from support.children import in_child
from support.eventually import eventually

from echomq_tasks import cached
from echomq_tasks.cache import flight as flight_module
from echomq_tasks.cache import flights as flights_module
from echomq_tasks.cache import hands as hands_module
from echomq_tasks.cache import leases as leases_module
from echomq_tasks.cache import pilot as pilot_module
from echomq_tasks.cache import reader as reader_module
from echomq_tasks.cache.flight import Flight, Late
from echomq_tasks.cache.flights import Flights
from echomq_tasks.cache.freshness import Freshness
from echomq_tasks.cache.hands import Hands, NoHand
from echomq_tasks.cache.leases import Leases
from echomq_tasks.cache.row import Row
from echomq_tasks.cache.table import Table
from echomq_tasks.identity import brand

KEY = brand("ROW", 1)
PATIENCE = 20.0
WATCHED = {
    module.__file__
    for module in (flight_module, flights_module, hands_module, leases_module, pilot_module, reader_module)
}
#: The end of such a block is told as its first line once more. Python itself throws nothing in between there.
LOCKS = re.compile(r"\s*with [\w.]*\b(_?lock|_change):")


class Stop(BaseException):
    """As a time limit throws it into a thread, wherever that is."""


def alone(**options: Any) -> Table:
    return Table("left", "ROW", l2=False, **{"jitter": 0.0, "wait": 0.05, **options})


def flights_of(table: Table) -> dict[str, Flight]:
    return table._parts.flights._flights  # noqa: SLF001 - nothing else tells


async def one() -> int:
    return 1


# Interrupted.


class Interruption:
    """Raises :class:`Stop` in this thread before the n-th line of the cache's that it comes by."""

    def __init__(self, at: int) -> None:
        self.left = at
        self._before: Any = None

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in WATCHED:
            return None
        if event == "line" and not LOCKS.match(linecache.getline(frame.f_code.co_filename, frame.f_lineno)):
            self.left -= 1
            if self.left == 0:
                raise Stop
        return self._trace

    def __enter__(self) -> Interruption:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)


def at_each_line(call: Callable[[], object], then: Callable[[int], object]) -> int:
    """Interrupt ``call`` before each of its lines, one after the other; ``then`` follows each. How many there were."""
    for at in range(1, 2000):
        with Interruption(at) as interruption:
            try:
                call()
            except Stop:
                pass
        then(at)
        if interruption.left > 0:
            return at - 1
    raise AssertionError("it does not end")


def test_a_leader_may_be_interrupted_at_any_line_and_nobody_follows_what_is_left() -> None:
    table = alone()

    def then(at: int) -> None:
        assert not flights_of(table), at
        assert table.fetch(KEY, lambda: 2) in (1, 2), at
        table.invalidate(KEY)

    assert at_each_line(lambda: table.fetch(KEY, lambda: 1), then) > 30


@pytest.mark.parametrize("verb", ["refresh", "stale", "fails"])
def test_the_same_of_a_refresh_of_one_in_the_background_and_of_a_loader_that_fails(verb: str) -> None:
    table = alone(ttl=1e-9, stale=3600) if verb == "stale" else alone()

    def call() -> None:
        if verb == "refresh":
            table.refresh(KEY, lambda: 1)
        elif verb == "stale":
            table.fetch(KEY, lambda: 1)
        else:
            with pytest.raises(ZeroDivisionError):
                table.fetch(KEY, lambda: 1 / 0)

    def then(at: int) -> None:
        # One in the background may be on its way.
        eventually(lambda: not flights_of(table))
        assert table.fetch(KEY, lambda: 2) in (1, 2), at
        if verb != "stale":
            table.invalidate(KEY)

    assert at_each_line(call, then) > 20


def test_who_waits_for_a_leader_that_is_interrupted_at_any_line_asks_again() -> None:
    table = alone(wait=PATIENCE)
    with ThreadPoolExecutor(1) as pool:
        waiting: list[Any] = []

        def loader() -> int:
            # Traced it would count too, and the pool is none of what is looked at.
            waiting.append(pool.submit(table.fetch, KEY, lambda: 2))
            eventually(lambda: flights_of(table)[KEY].waiters == 2)
            return 1

        def then(at: int) -> None:
            while waiting:
                assert waiting.pop().result(PATIENCE) in (1, 2), at
            assert not flights_of(table), at
            table.invalidate(KEY)

        assert at_each_line(lambda: table.fetch(KEY, loader), then) > 30


# Thrown in between the two steps of making a coroutine and running it, as Python then says.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_threads_that_are_stopped_at_any_moment_leave_no_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    table = alone()
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def run(going: threading.Event) -> None:
        going.set()
        try:
            while True:
                table.fetch(KEY, int)
                table.invalidate(KEY)
        except Stop:
            pass

    for _ in range(80):
        going = threading.Event()
        thread = threading.Thread(target=run, args=(going,))
        thread.start()
        assert going.wait(PATIENCE)
        stop = ctypes.pythonapi.PyThreadState_SetAsyncExc
        assert stop(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Stop)) == 1
        thread.join(PATIENCE)
        assert not flights_of(table)


def test_a_recursion_that_goes_too_deep_leaves_no_flight_and_the_next_call_answers() -> None:
    @cached(l2=False, wait=0.05)
    def same(number: int) -> int:
        return number

    def deep(left: int, number: int) -> int:
        return deep(left - 1, number) if left else same(number)

    limit = sys.getrecursionlimit()
    reached = 0
    for depth in range(limit - 200, limit):
        try:
            deep(depth, depth)
            reached += 1
        except RecursionError:
            pass
    assert 0 < reached < 200
    assert not flights_of(same.table)
    assert [same(depth) for depth in range(limit - 200, limit)] == list(range(limit - 200, limit))


def test_a_cached_function_calls_itself_sixty_times() -> None:
    @cached(l2=False)
    def count(number: int) -> int:
        return number and 1 + count(number - 1)

    # In a thread of its own, whose stack is not the test runner's.
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(count, 60).result(PATIENCE) == 60


# Event loops that are gone.


def left_behind(table: Table, *, closed: bool) -> asyncio.AbstractEventLoop:
    """A loop that has stopped amid a load."""
    loop = asyncio.new_event_loop()

    async def main() -> None:
        begun = asyncio.Event()

        async def forever() -> None:
            begun.set()
            await asyncio.Event().wait()

        table.leading = asyncio.ensure_future(table.afetch(KEY, forever))  # type: ignore[attr-defined]  # held
        await begun.wait()

    loop.run_until_complete(main())
    table.leading._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - as it is meant
    if closed:
        loop.close()
    return loop


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("who", ["thread", "task"])
def test_a_loop_that_is_gone_amid_a_load_is_waited_for_by_nobody(closed: bool, who: str) -> None:
    table = alone()
    loop = left_behind(table, closed=closed)
    assert KEY in flights_of(table)
    if who == "thread":
        assert table.fetch(KEY, lambda: 1) == 1
    else:
        assert asyncio.run(table.afetch(KEY, one)) == 1
    assert not flights_of(table)
    loop.close()


@pytest.mark.parametrize("who", ["thread", "task"])
def test_who_waits_already_when_a_loop_stops_asks_again(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_module, "_LOOK", 0.01)
    table = alone(wait=PATIENCE)
    loop = asyncio.new_event_loop()

    async def main() -> None:
        async def forever() -> None:
            await asyncio.Event().wait()

        table.leading = asyncio.ensure_future(table.afetch(KEY, forever))  # type: ignore[attr-defined]  # held
        await asyncio.to_thread(eventually, lambda: KEY in flights_of(table) and flights_of(table)[KEY].waiters == 2)

    with ThreadPoolExecutor(1) as pool:

        def ask() -> int:
            eventually(lambda: KEY in flights_of(table))
            return table.fetch(KEY, lambda: 1) if who == "thread" else asyncio.run(table.afetch(KEY, one))

        asking = pool.submit(ask)
        loop.run_until_complete(main())
        assert asking.result(PATIENCE) == 1
    table.leading._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - as it is meant
    loop.close()


def test_a_loop_that_goes_on_later_goes_on_with_its_load() -> None:
    table = alone()
    loop = asyncio.new_event_loop()
    go = asyncio.Event()

    async def slow() -> int:
        await go.wait()
        return 7

    async def begin() -> asyncio.Task[int]:
        task = asyncio.create_task(table.afetch(KEY, slow))
        while KEY not in flights_of(table):  # noqa: ASYNC110 - it is no event
            await asyncio.sleep(0)
        return task

    async def end(task: asyncio.Task[int]) -> list[int]:
        go.set()
        return [await task, await table.afetch(KEY, one)]

    task = loop.run_until_complete(begin())
    assert loop.run_until_complete(end(task)) == [7, 7]
    loop.close()


def test_a_background_load_whose_loop_was_closed_is_begun_anew() -> None:
    table, count = alone(ttl=1e-9, stale=3600), 0

    async def load() -> int:
        nonlocal count
        count += 1
        if count == 2:
            await asyncio.Event().wait()
        return count

    loop = asyncio.new_event_loop()
    assert [loop.run_until_complete(table.afetch(KEY, load)) for _ in range(2)] == [1, 1]
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert count == 2

    async def main() -> None:
        await table.afetch(KEY, load)
        while flights_of(table):  # noqa: ASYNC110 - it is no event
            await asyncio.sleep(0)

    asyncio.run(main())
    assert count == 3


def test_a_task_that_is_cancelled_before_it_began_leaves_no_flight() -> None:
    table = alone(ttl=1e-9, stale=3600)

    async def main() -> None:
        await table.afetch(KEY, one)
        await table.afetch(KEY, one)
        # It is about to begin in the background.
        flight = flights_of(table)[KEY]
        assert flight.task is not None
        flight.task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert flight.done
        assert not flights_of(table)

    asyncio.run(main())


def test_tasks_of_closed_loops_are_held_no_longer_than_until_another_loop_loads() -> None:
    table = alone()
    task = weakref.ref(left_behind(table, closed=True))
    del table.leading  # type: ignore[attr-defined]
    asyncio.run(alone().afetch(KEY, one))
    del table
    gc.collect()
    assert task() is None


# Errors.


class Odd(Exception):
    """One that cannot be made of its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_each_who_follows_has_an_exception_of_his_own_and_the_leader_has_the_first() -> None:
    table, first = alone(wait=PATIENCE), ValueError("bad")
    first.code = 7  # type: ignore[attr-defined]
    first.add_note("noted")

    def ask() -> ValueError:
        with pytest.raises(ValueError, match="bad") as raised:
            table.fetch(KEY, loader)
        return raised.value

    def loader() -> None:
        eventually(lambda: flights_of(table)[KEY].waiters == 5)
        raise first

    with ThreadPoolExecutor(5) as pool:
        errors = [each.result(PATIENCE) for each in [pool.submit(ask) for _ in range(5)]]
    assert len({id(error) for error in errors}) == 5
    assert first in errors
    assert {(error.code, *error.__notes__) for error in errors} == {(7, "noted")}  # type: ignore[attr-defined]


def test_an_exception_that_cannot_be_copied_reaches_all_without_the_frames_of_the_others() -> None:
    flight, error = Flight(KEY, b""), Odd(1, 2)
    flight.fail(error)
    depths = []
    for _ in range(3):
        with pytest.raises(Odd) as raised:
            flight.wait(0)
        assert raised.value is error
        depths.append(len(raised.traceback))
    assert len(set(depths)) == 1


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("how", ["thread", "task", "refresh"])
def test_no_frame_of_a_loader_that_has_failed_is_kept(how: str) -> None:
    class Big:
        pass

    table, kept = alone(), []

    def loader() -> None:
        big = Big()
        kept.append(weakref.ref(big))
        raise ZeroDivisionError

    async def aloader() -> None:
        loader()

    def ask() -> None:
        try:
            (table.fetch if how == "thread" else table.refresh)(KEY, loader)
        except ZeroDivisionError:
            pass

    async def aask() -> None:
        try:
            await table.afetch(KEY, aloader)
        except ZeroDivisionError:
            pass
        # The task that has led ends a little later.
        for _ in range(3):
            await asyncio.sleep(0)
        assert kept[0]() is None

    if how == "task":
        asyncio.run(aask())
    else:
        ask()
    assert kept[0]() is None


# Threads that cannot be started.


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on no thread of the cache's can be started, until the test calls what this answers."""
    real = threading.Thread.start

    def start(self: threading.Thread) -> None:
        if self.name.startswith("echomq-cache"):
            raise RuntimeError("can't start new thread")
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr("echomq_tasks.cache.drive.HANDS", Hands())
    return lambda: monkeypatch.setattr(threading.Thread, "start", real)


def test_without_threads_leases_are_not_renewed_until_there_are_some_again(no_threads: Callable[[], None]) -> None:
    leases, first, second = Leases(), threading.Event(), threading.Event()
    with leases.held(0.03, lambda: first.set() is None):
        no_threads()
        # The next one finds a thread, which sees to both.
        with leases.held(0.03, lambda: second.set() is None):
            assert first.wait(PATIENCE)
            assert second.wait(PATIENCE)


def test_a_thread_that_died_with_the_leases_is_replaced() -> None:
    leases, renewed = Leases(), threading.Event()
    leases._thread = threading.Thread()  # noqa: SLF001 - as one that was killed before it began
    with leases.held(0.03, lambda: renewed.set() is None):
        assert renewed.wait(PATIENCE)


def test_without_threads_a_load_with_a_time_limit_has_none_and_a_stale_value_serves(
    no_threads: Callable[[], None],
) -> None:
    assert alone(loader_timeout=PATIENCE).fetch(KEY, lambda: 1) == 1
    table = alone(ttl=1e-9, stale=3600)
    assert [table.fetch(KEY, lambda number=number: number) for number in range(3)] == [0, 0, 0]
    assert not flights_of(table)
    no_threads()
    assert table.fetch(KEY, lambda: 7) == 0
    eventually(lambda: table.peek(KEY) == 7)


def test_hands_say_when_there_is_none_and_those_that_there_are_do_what_can_wait(no_threads: Callable[[], None]) -> None:
    hands, few, gate = Hands(), Hands(5), threading.Event()
    with pytest.raises(NoHand):
        hands.submit(int)
    with pytest.raises(NoHand):
        few.submit(int)
    no_threads()
    assert hands.submit(int).result(PATIENCE) == 0
    held = few.submit(gate.wait, PATIENCE)
    threading.Thread.start, real = _cannot, threading.Thread.start  # type: ignore[method-assign]
    try:
        waits = few.submit(int)
    finally:
        threading.Thread.start = real  # type: ignore[method-assign]
    gate.set()
    assert held.result(PATIENCE)
    assert waits.result(PATIENCE) == 0


def _cannot(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_few_hands_do_much_and_are_never_more() -> None:
    few, running, most = Hands(3), [], []

    def work(number: int) -> int:
        running.append(number)
        most.append(len(running))
        running.remove(number)
        return number

    assert [each.result(PATIENCE) for each in [few.submit(work, number) for number in range(500)]] == list(range(500))
    assert len(few) <= 3
    assert max(most) <= 3
    few.submit(int).result(PATIENCE)
    assert in_child(lambda: few.submit(int).result(PATIENCE)) == 0


def test_hands_that_were_woken_for_nothing_do_what_comes_next() -> None:
    hands = Hands(1)
    hands.submit(int).result(PATIENCE)
    eventually(lambda: hands._idle)  # noqa: SLF001 - it waits
    (wake,) = hands._idle  # noqa: SLF001 - as one that was interrupted between two steps has left it
    hands._idle.clear()  # noqa: SLF001
    wake.release()
    assert hands.submit(int).result(PATIENCE) == 0


# What is over before it is given.


def test_a_value_whose_time_is_over_before_the_call_returns_is_given_and_loaded_once() -> None:
    table, count = alone(ttl=1e-9, jitter=0.1), iter(range(100))
    assert [table.fetch(KEY, count.__next__) for _ in range(5)] == [0, 1, 2, 3, 4]
    stats = table.stats()
    assert (stats.loads, stats.stale) == (5, 0)


def test_where_nothing_is_served_stale_jitter_makes_nothing_stale() -> None:
    fresh = Freshness(100.0, jitter=0.5)
    assert all(times.until == times.expires for times in (fresh.loaded(100.0, 0.0) for _ in range(50)))
    assert all(times.until == times.expires for times in (fresh.found(50.0, None, 0.0) for _ in range(50)))


def test_a_row_leaves_aliases_that_are_just_being_cleared() -> None:
    class Clearing(dict[Any, Row]):
        def get(self, name: Any, default: Any = None) -> Any:
            found = super().get(name, default)
            self.clear()
            return found

    row, aliases = Row(KEY, b"", brand("ROW", 9), "v", None, size=1, early=0, until=0, expires=0), Clearing()
    row.alias(aliases, "call")
    row.leave()
    assert not aliases


def test_who_joins_a_flight_and_is_late_is_not_missed_any_more() -> None:
    flights, leader = Flights(), Flight(KEY, b"")
    assert flights.join(leader) is leader
    late = Flight(KEY, b"")
    assert flights.join(late) is leader
    with pytest.raises(Late):
        leader.wait(0)
    for _ in range(2):
        flights.leave(late)
    assert leader.waiters == 1
    flights.leave(leader)
    assert leader.done
    assert not len(flights)
