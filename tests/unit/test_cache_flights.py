"""Flights and what they stand on: who leads, who follows, who waits for whom, and what a breaker lets through."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from support.children import in_child
from support.clocks import Clock
from support.eventually import eventually

from echomq_tasks.cache.breaker import FIRST, MOST, QUIET, Breaker
from echomq_tasks.cache.bridge import settled
from echomq_tasks.cache.failures import pack, unpack
from echomq_tasks.cache.flight import Abandoned, Flight, Late
from echomq_tasks.cache.flights import Flights
from echomq_tasks.cache.frames import Wake
from echomq_tasks.cache.freshness import Freshness
from echomq_tasks.cache.hands import Hands
from echomq_tasks.cache.inside import inside, outside, waiting_for
from echomq_tasks.cache.leases import Leases
from echomq_tasks.cache.row import Row
from echomq_tasks.cache.wakes import Wakes
from echomq_tasks.errors import ConfigError, InvalidArgument, LoadFailed, LoadTimeout
from echomq_tasks.identity import brand

ONE, TWO = brand("ROW", 1), brand("ROW", 2)
PATIENCE = 20.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def join(flights: Flights, id: str, rest: bytes = b"", tags: tuple[str, ...] = (), **how: bool) -> tuple[Flight, bool]:
    """The flight that one more has joined, and whether he is to lead it."""
    flight = flights.join(mine := Flight(id, rest, tags), **how)
    return flight, flight is mine


def row() -> Row:
    return Row(ONE, b"", brand("ROW", 9), "v", None, size=1, early=0, until=0, expires=0)


# Flights.


def test_the_first_leads_and_the_others_follow_until_it_has_landed() -> None:
    flights = Flights()
    flight, leads = join(flights, ONE, b"")
    assert leads
    assert join(flights, ONE, b"") == (flight, False)
    assert join(flights, TWO, b"")[1]
    flights.end(flight)
    flight.land(landed := row())
    assert flight.wait(0) is landed
    assert join(flights, ONE, b"")[1]


def test_followers_of_every_kind_get_what_the_leader_got() -> None:
    flights = Flights()
    for end, expected in ((lambda flight: flight.land(row()), "v"), (lambda flight: flight.fail(KeyError("k")), "k")):
        flight, _ = join(flights, ONE, b"")

        def wait(flight: Flight = flight) -> Any:
            try:
                return flight.wait(PATIENCE).value
            except KeyError as error:
                return error.args[0]

        async def await_(flight: Flight = flight) -> Any:
            try:
                return (await flight.await_(PATIENCE)).value
            except KeyError as error:
                return error.args[0]

        with ThreadPoolExecutor(6) as pool:
            waits = [pool.submit(wait) for _ in range(3)]
            waits += [pool.submit(lambda: asyncio.run(await_())) for _ in range(3)]
            flights.end(flight)
            end(flight)
            assert [each.result() for each in waits] == [expected] * 6


def test_a_flight_lands_once() -> None:
    flight = Flight(ONE, b"")
    flight.land(landed := row())
    flight.fail(KeyError())
    flight.abandon(KeyError())
    assert flight.result() is landed


def test_who_has_waited_long_enough_is_late_and_is_not_told_that_the_loader_timed_out() -> None:
    flight = Flight(ONE, b"")
    with pytest.raises(Late):
        flight.wait(0)
    with pytest.raises(Late):
        asyncio.run(flight.await_(0))
    flight.fail(TimeoutError("the loader's own"))
    with pytest.raises(TimeoutError, match="own"):
        flight.wait(0)


def test_two_keys_that_share_an_id_do_not_share_a_flight() -> None:
    flights = Flights()
    one, _ = join(flights, ONE, b"one")
    two, leads = join(flights, ONE, b"two")
    assert leads
    assert two is not one
    assert join(flights, ONE, b"one") == (one, False)


def test_nobody_joins_a_flight_from_before_a_drop() -> None:
    flights = Flights()
    before, _ = join(flights, ONE, b"")
    flights.detach(ONE)
    after, leads = join(flights, ONE, b"")
    assert before.detached
    assert leads
    assert not after.detached
    flights.end(before)
    assert join(flights, ONE, b"") == (after, False)


def test_a_drop_detaches_what_is_older_or_not_known_to_be_newer() -> None:
    flights = Flights()
    for version, drop, detached in ((3, 2, False), (2, 2, True), (1, 2, True), (None, 2, True)):
        flight, _ = join(flights, ONE, b"", anew=True)
        flight.version = None if version is None else brand("ROW", version)
        flights.detach(ONE, brand("ROW", drop))
        assert flight.detached == detached


def test_the_flights_of_a_tag_are_detached_together() -> None:
    flights = Flights()
    tagged, other = join(flights, ONE, b"", ("TAGa", "TAGb"))[0], join(flights, TWO, b"", ("TAGc",))[0]
    flights.detach_tag("TAGb")
    assert (tagged.detached, other.detached) == (True, False)
    flights.detach_all()
    assert other.detached
    assert len(flights) == 0


def test_a_new_flight_in_any_case_detaches_the_one_that_is_there() -> None:
    flights = Flights()
    old, _ = join(flights, ONE, b"")
    new, leads = join(flights, ONE, b"", anew=True)
    assert leads
    assert old.detached
    assert join(flights, ONE, b"") == (new, False)


def test_a_flight_whose_loop_does_not_run_is_not_kept_should_it_go_on() -> None:
    flights, loop = Flights(), asyncio.new_event_loop()
    lost, mine = Flight("id", b""), Flight("id", b"")
    flights.join(lost)
    lost.loop = loop
    # Nobody finds it there any more, to tell it of a drop.
    assert flights.join(mine) is mine
    assert lost.detached
    assert not mine.detached
    flights.leave(mine)
    loop.close()


def test_a_fork_starts_with_no_flights_even_when_one_was_just_being_joined() -> None:
    flights = Flights()
    flight, _ = join(flights, ONE, b"")
    with flights._lock:  # noqa: SLF001 - as a thread holds it that is joining
        assert in_child(lambda: (join(flights, ONE, b"")[1], flight.mine)) == (True, False)
    assert flight.mine


def test_the_task_that_leads_is_cancelled_when_the_last_who_waits_leaves() -> None:
    flights = Flights()

    async def main() -> None:
        flight, _ = join(flights, ONE, b"")
        task = flight.task = asyncio.create_task(asyncio.Event().wait())
        flight.loop, flight.handed = asyncio.get_running_loop(), True
        flights.join(other := Flight(ONE, b""))
        flights.leave(flight)
        await asyncio.sleep(0)
        assert not task.cancelling()
        await asyncio.to_thread(flights.leave, other)
        assert join(flights, ONE, b"")[1]  # nobody joins what is about to end
        assert flight.detached  # nor would a drop find it
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


# Who waits for whom.


def test_a_loader_does_not_wait_for_itself() -> None:
    flight = Flight(ONE, b"")
    with inside(flight), waiting_for(flight) as free:
        assert not free
    with waiting_for(flight) as free:
        assert free


def test_loaders_that_wait_for_each_other_in_a_ring_are_told_so() -> None:
    one, two, three = Flight(ONE, b""), Flight(TWO, b""), Flight(ONE, b"")
    with entered(one, two) as first, entered(two, three) as second:
        assert (first, second) == (True, True)
        with entered(three, one) as third:
            assert not third
    # Once one of them waits no more, there is no ring.
    with entered(two, three), entered(three, one) as third:
        assert third
    assert not one.waits_for | two.waits_for | three.waits_for


@contextlib.contextmanager
def entered(mine: Flight, other: Flight) -> Iterator[bool]:
    """In the loader of one flight, as another thread is, wait for another one."""
    context = contextvars.Context()
    loader, block = inside(mine), waiting_for(other)
    context.run(loader.__enter__)
    yield context.run(block.__enter__)
    for each in (block, loader):
        context.run(each.__exit__, None, None, None)


def test_a_loader_that_has_ended_is_in_nobodys_way() -> None:
    flight = Flight(ONE, b"")
    with inside(flight):
        flight.land(row())
        with waiting_for(flight) as free:
            assert free


def test_what_is_done_in_the_background_is_in_no_loader() -> None:
    flight = Flight(ONE, b"")

    def free() -> bool:
        with waiting_for(flight) as free:
            return free

    with inside(flight):
        assert outside().run(free)
        assert not free()


# Waiting.


def test_a_task_waits_for_a_future_that_a_thread_completes() -> None:
    future: Future[None] = Future()

    async def main() -> bool:
        assert not await settled(future, 0)
        waiting = asyncio.create_task(settled(future))
        await asyncio.sleep(0)
        await asyncio.to_thread(future.set_exception, KeyError())
        return await waiting

    assert asyncio.run(main())


def test_a_future_that_outlives_its_loop_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    future: Future[None] = Future()

    async def main() -> None:
        await settled(future, 0)

    asyncio.run(main())
    future.set_result(None)
    assert not caplog.records


def test_hands_do_all_that_is_asked_at_once_and_their_threads_are_used_again() -> None:
    hands, gate = Hands(), threading.Event()
    waiting = [hands.submit(gate.wait, PATIENCE) for _ in range(20)]
    gate.set()
    assert [each.result(PATIENCE) for each in waiting] == [True] * 20
    names = {hands.submit(threading.get_ident).result(PATIENCE) for _ in range(50)}
    assert len(names) <= 21
    with pytest.raises(KeyError):
        hands.submit({}.__getitem__, 1).result(PATIENCE)


def test_hands_work_in_the_child_of_a_fork() -> None:
    hands = Hands()
    hands.submit(int).result(PATIENCE)
    assert in_child(lambda: hands.submit(int).result(PATIENCE)) == 0


def test_a_waiter_hears_what_is_said_from_its_last_claim_on() -> None:
    wakes = Wakes()
    waiter = wakes.expect(ONE)
    wakes.heard(Wake(ONE, "filled", "old", b""))
    waiter.forget()
    assert not waiter.woken.done()
    wakes.heard(Wake(TWO, "failed", "a", b""))
    assert not waiter.woken.done()
    wakes.heard(Wake(ONE, "failed", "a", b"why"))
    assert waiter.woken.done()
    assert waiter.of("a") == Wake(ONE, "failed", "a", b"why")
    assert waiter.of("old") is None
    waiter.forget()
    wakes.shake()
    assert waiter.woken.done()
    wakes.done(ONE, waiter)
    waiter.forget()
    wakes.heard(Wake(ONE, "failed", "a", b""))
    assert not waiter.woken.done()


# Leases.


def test_a_lease_is_renewed_as_long_as_it_is_held(clock: Clock) -> None:
    leases, renewed = Leases(), threading.Semaphore(0)

    def renew() -> bool:
        renewed.release()
        return True

    with leases.held(0.03, renew):
        for _ in range(3):
            assert renewed.acquire(timeout=PATIENCE)
    while renewed.acquire(blocking=False):
        pass
    with leases.held(0.03, lambda: False):
        eventually(lambda: not leases._held)  # noqa: SLF001 - nothing tells that it was let go
    assert not renewed.acquire(blocking=False)


def test_a_renewal_that_raises_is_logged_and_ends_that_lease_alone(caplog: pytest.LogCaptureFixture) -> None:
    leases, renewed = Leases(), threading.Semaphore(0)

    def broken() -> bool:
        raise ZeroDivisionError

    with leases.held(0.03, broken), leases.held(0.03, lambda: renewed.release() is None):
        for _ in range(3):
            assert renewed.acquire(timeout=PATIENCE)
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_a_short_lease_is_renewed_in_time_beside_a_long_one() -> None:
    leases, renewed = Leases(), threading.Event()
    with leases.held(3600, lambda: True):
        eventually(lambda: leases._looks_at > 0)  # noqa: SLF001 - its thread waits for the long one
        with leases.held(0.03, lambda: renewed.set() is None):
            assert renewed.wait(PATIENCE)


# The breaker.


def test_a_breaker_leaves_a_server_alone_for_longer_and_longer(clock: Clock) -> None:
    breaker, pause = Breaker("it"), FIRST
    assert breaker.allows()
    breaker.failed(OSError("gone"))
    for _ in range(10):
        assert not breaker.allows()
        clock.advance(pause + 0.05)
        assert breaker.allows()
        assert not breaker.allows()  # one at a time
        breaker.failed(OSError("gone"))
        pause = min(2 * pause, MOST)
    assert pause == MOST
    clock.advance(MOST + 0.05)
    assert breaker.allows()
    assert breaker.passed()
    assert breaker.allows()
    assert breaker.allows()


def test_those_who_fail_together_count_once(clock: Clock) -> None:
    breaker = Breaker()
    for _ in range(50):
        breaker.failed(OSError())
    clock.advance(FIRST + 0.05)
    assert breaker.allows()


def test_a_try_that_never_answers_does_not_close_the_way_for_ever(clock: Clock) -> None:
    breaker = Breaker()
    breaker.failed(OSError())
    clock.advance(FIRST + 0.05)
    assert breaker.allows()
    clock.advance(FIRST + 0.05)
    assert breaker.allows()


def test_signs_that_a_server_is_back_let_one_try_at_once(clock: Clock) -> None:
    breaker = Breaker()
    for _ in range(8):
        breaker.failed(OSError())
        clock.advance(MOST * 2)
        breaker.allows()
    breaker.failed(OSError())
    assert breaker.shut
    breaker.hurry()
    assert not breaker.shut
    assert breaker.allows()
    assert not breaker.allows()


def test_a_breaker_logs_one_line_at_each_change(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    breaker = Breaker("db:6379")
    for _ in range(3):
        breaker.failed(OSError("refused"))
        clock.advance(MOST * 2)
        breaker.allows()
    breaker.passed()
    breaker.passed()
    lines = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert len(lines) == 2
    assert all(level == logging.WARNING for level, _ in lines)
    assert "db:6379" in lines[0][1]
    assert "refused" in lines[0][1]
    assert "db:6379 again" in lines[1][1]


def test_what_a_server_refuses_is_logged_once_while_it_serves_other_things(
    caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    """A user who may read and not write: each look closes the breaker, and each fill opens it."""
    breaker = Breaker("db:6379")
    tries = []
    for turn in range(200):
        clock.advance(0.1)
        if breaker.allows():
            tries.append(turn)
            breaker.passed()
            breaker.failed(ConfigError(f"may not write to {{table{turn}}}: ask for ~ecc:*"))
    # It is tried ever more seldom, although it served in between.
    assert 5 <= len(tries) <= 12
    assert 0.1 * (tries[-1] - tries[-2]) == pytest.approx(MOST, 0.1)
    breaker.failed(ConfigError("may not subscribe"))  # while it is away anyway
    breaker.passed()
    breaker.failed(ConfigError("may not publish"))
    assert [record.getMessage().rpartition("until it serves again: ")[2] for record in caplog.records] == [
        "may not write to {table0}: ask for ~ecc:*", "may not publish"
    ]  # fmt: skip
    caplog.clear()
    breaker.passed()
    clock.advance(QUIET)
    assert caplog.records == []
    breaker.passed()
    breaker.passed()
    assert ["db:6379 again" in record.getMessage() for record in caplog.records] == [True]
    breaker.failed(ConfigError("may not publish"))
    assert len(caplog.records) == 2
    clock.advance(FIRST + 0.05)
    assert breaker.allows()


def test_an_outage_between_two_refusals_is_logged_as_ever(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    breaker = Breaker("db:6379")
    for error in (ConfigError("may not publish"), OSError("gone"), ConfigError("may not publish")):
        breaker.failed(error)
        clock.advance(MOST * 2)
        breaker.allows()
        breaker.passed()
    texts = [record.getMessage() for record in caplog.records]
    assert ["may not publish" in text for text in texts] == [True, False, False]
    assert ["gone" in text for text in texts] == [False, True, False]
    assert ["db:6379 again" in text for text in texts] == [False, False, True]


# Errors of loaders.


class Keeps(Exception):
    """One that can."""

    def __init__(self, code: int, reason: str = "none") -> None:
        super().__init__(code, reason)
        self.code = code


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        KeyError("k"),
        KeyError(7),
        ZeroDivisionError(),
        FileNotFoundError(2, "No such file"),
        ConnectionResetError("reset"),
        TimeoutError("slow"),
        LoadTimeout("late"),
        Keeps(404, "gone"),
        ValueError("\udc80 and \0 and é"),
        RuntimeError(1.5, True, None),
    ],
    ids=repr,
)
def test_an_error_that_can_be_made_again_comes_back_as_itself(error: Exception) -> None:
    found = unpack(pack(error))
    assert type(found) is type(error)
    assert found.args == error.args
    assert str(found) == str(error)
    assert "another process" in found.__notes__[0]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError(object), "ValueError: <class 'object'>"),
        (ValueError(b"bytes"), "ValueError: b'bytes'"),
        (ExceptionGroup("many", [ValueError()]), "ExceptionGroup: many"),
        (ValueError("x" * 100_000), "ValueError: xxx"),
    ],
    ids=["class", "bytes", "group", "long"],
)
def test_an_error_that_cannot_be_made_again_is_told_by_its_text(error: Exception, text: str) -> None:
    found = unpack(pack(error))
    assert type(found) is LoadFailed
    assert text in str(found)
    assert len(str(found)) < 6000


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"not json",
        b"[]",
        b"null",
        b'{"type": 7, "text": "x"}',
        b'{"type": "os:system", "text": "x", "args": ["true"]}',
        b'{"type": "builtins:SystemExit", "text": "1", "args": [1]}',
        b'{"type": "builtins:KeyboardInterrupt", "text": "", "args": []}',
        b'{"type": "antigravity:Error", "text": "x", "args": []}',
        b'{"type": "builtins:ValueError", "text": "other text", "args": ["x"]}',
        b'{"type": "builtins:ValueError.__init__", "text": "x", "args": ["x"]}',
        b'{"type": ":", "text": "x", "args": ["x"]}',
        b'{"type": "builtins:ValueError", "text": "x", "args": ["x"], "state": 7}',
        b'{"type": "builtins:OSError", "text": "x", "args": ["x"], "state": {"filename": "y", "errno": 2}}',
        b'{"type": "builtins:KeyError", "text": "7", "args": [7], "state": {"__traceback__": 7}}',
        b"[" * 100_000,
    ],
)
def test_nothing_on_the_wire_makes_more_than_an_error_that_is_known_here(payload: bytes) -> None:
    assert type(unpack(payload)) is LoadFailed
    assert "antigravity" not in sys.modules


# Freshness.


def test_a_row_is_early_then_stale_then_gone() -> None:
    times = Freshness(100.0, jitter=0.0, stale=50.0, refresh_ahead=0.8).loaded(100.0, 1000.0)
    assert times == pytest.approx((1080.0, 1100.0, 1150.0))


def test_a_row_of_the_server_is_as_fresh_as_it_is_there() -> None:
    fresh = Freshness(100.0, jitter=0.0, stale=50.0, refresh_ahead=0.8)
    assert fresh.found(150.0, None, 0.0) == pytest.approx((80.0, 100.0, 150.0))
    assert fresh.found(70.0, None, 0.0) == pytest.approx((0.0, 20.0, 70.0))
    assert fresh.found(30.0, None, 0.0) == pytest.approx((0.0, 0.0, 30.0))
    assert fresh.found(10.0 + 50.0, 10.0, 0.0) == pytest.approx((8.0, 10.0, 60.0))


def test_jitter_spreads_the_ends_of_rows_and_nothing_else() -> None:
    fresh = Freshness(100.0, jitter=0.1, stale=50.0)
    ends = [fresh.loaded(100.0, 0.0) for _ in range(500)]
    assert all(90.0 <= times.until <= 110.0 for times in ends)
    assert max(ends).until - min(ends).until > 15.0
    assert {times.expires for times in ends} == {150.0}
    assert all(times.early == times.until for times in ends)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ttl": -1},
        {"ttl": "60"},
        {"ttl": True},
        {"ttl": float("nan")},
        {"ttl": float("inf")},
        {"jitter": 1},
        {"jitter": -0.1},
        {"stale": -1},
        {"refresh_ahead": 0},
        {"refresh_ahead": 1},
        {"soft": 1.0},
        {"soft": -1.0, "stale": 1.0},
        {"hard": -1.0},
    ],
)
def test_what_is_out_of_range_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Freshness(**{"ttl": 1.0, **wrong})


def test_a_ttl_that_is_asked_of_the_value_is_looked_at_too() -> None:
    fresh = Freshness(len)
    assert fresh.ttl_of("four", None) == 4.0
    assert fresh.ttl_of("four", 1.0) == 1.0
    with pytest.raises(InvalidArgument):
        fresh.ttl_of("four", lambda value: -1)


def test_abandoned_is_no_error_that_a_caller_sees() -> None:
    assert not issubclass(Abandoned, LoadTimeout)
