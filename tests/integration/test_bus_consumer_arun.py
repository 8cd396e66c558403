"""Consumers in an asyncio app: handlers on the caller's own loop, and what a cancellation does."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.consuming import append, pending, running
from support.eventually import eventually

from echomq_tasks.bus import Consumer, Delivery, Log, Record
from echomq_tasks.bus.hands import OnLoop
from echomq_tasks.bus.holding import Holding
from echomq_tasks.bus.loops import LoopThread
from echomq_tasks.connection import Connection
from echomq_tasks.errors import InvalidArgument, WrongState

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant")


@pytest.fixture
def log(standalone: Connection, queue_name: str) -> Log:
    return Log(queue_name, "audit", standalone)


def member(log: Log, **options: Any) -> Consumer:
    """A consumer that looks for the dead often, and takes nothing from the living."""
    return Consumer(log, "billing", **{"start": "head", "beat": 0.05, **options})


async def true(predicate: Callable[[], object]) -> None:
    """Wait for a condition without holding up the loop."""
    await asyncio.to_thread(eventually, predicate)


def left_for_others(log: Log, count: int) -> list[tuple[str, int]]:
    """What another member is given at once."""
    given: list[tuple[str, int]] = []
    with running(member(log, handler=lambda each: given.append((each.fields["n"], each.deliveries)))):
        eventually(lambda: len(given) == count)
    return given


class Slow:
    """A handler that waits to be let go."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.done: list[str] = []
        self.leave = asyncio.Event()

    async def __call__(self, delivery: Delivery) -> None:
        self.started.append(delivery.fields["n"])
        await self.leave.wait()
        self.done.append(delivery.fields["n"])


def test_handlers_run_on_the_callers_loop_in_the_callers_context(connection: Connection, queue_name: str) -> None:
    log = Log(queue_name, "audit", connection)
    append(log, 20)

    async def main() -> tuple[list[Any], int]:
        # It belongs to this loop: awaited on another one it would raise.
        pool = asyncio.Semaphore(1)
        seen: list[Any] = []
        tenant.set("acme")

        async def handler(delivery: Delivery) -> None:
            async with pool:
                await asyncio.sleep(0)
                seen.append((delivery.fields["n"], asyncio.get_running_loop() is loop, tenant.get()))

        loop = asyncio.get_running_loop()
        consumer = member(log, concurrency=4)
        work = asyncio.create_task(consumer.arun(handler))
        await true(lambda: consumer.tally.handled == 20)
        consumer.stop()
        await work
        return seen, threading.active_count()

    before = threading.active_count()
    seen, after = asyncio.run(main())
    assert sorted(seen) == sorted((str(number), True, "acme") for number in range(20))
    assert pending(log) == []
    eventually(lambda: threading.active_count() == before)
    # The looks at conditions had a thread, and it is still there then.
    assert after <= before + 2


def test_a_plain_function_does_not_hold_up_the_loop(log: Log) -> None:
    entered, leave = threading.Event(), threading.Event()
    threads: list[int] = []

    def handler(delivery: Delivery) -> None:
        threads.append(threading.get_ident())
        entered.set()
        assert leave.wait(20)

    async def main() -> None:
        consumer = member(log)
        work = asyncio.create_task(consumer.arun(handler))
        await true(entered.is_set)
        leave.set()
        await true(lambda: consumer.tally.handled == 1)
        consumer.stop()
        await work

    append(log, 1)
    asyncio.run(main())
    assert threads != [threading.get_ident()]


async def cancelled(consumer: Consumer, slow: Slow, started: int) -> asyncio.Task[None]:
    """A run that was cancelled while so many handlers were at work, and that knows of it."""
    work = asyncio.create_task(consumer.arun(slow))
    await true(lambda: len(slow.started) == started)
    work.cancel()
    await true(lambda: consumer.stopping)
    assert not work.done()
    return work


def test_a_cancellation_lets_handlers_finish_and_gives_the_rest_back(log: Log) -> None:
    async def main() -> Slow:
        slow, consumer = Slow(), member(log, concurrency=2)
        work = await cancelled(consumer, slow, 2)
        slow.leave.set()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert (consumer.tally.handled, consumer.tally.failed) == (2, 0)
        return slow

    append(log, 5)
    slow = asyncio.run(main())
    assert sorted(slow.done) == ["0", "1"]
    assert left_for_others(log, 3) == [("2", 1), ("3", 1), ("4", 1)]
    assert pending(log) == []


def test_a_second_cancellation_cancels_the_handlers_and_gives_their_entries_back(log: Log) -> None:
    async def main() -> None:
        slow, consumer = Slow(), member(log, concurrency=2)
        work = await cancelled(consumer, slow, 2)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert slow.done == []
        assert (consumer.tally.handled, consumer.tally.failed) == (0, 0)

    append(log, 3)
    asyncio.run(main())
    assert sorted(left_for_others(log, 3)) == [("0", 1), ("1", 1), ("2", 1)]


def test_an_app_that_ends_under_a_consumer_ends_it_and_loses_nothing(log: Log) -> None:
    """As with a task that nobody awaits: its loop cancels it, and the handlers with it."""

    async def main() -> Consumer:
        slow = Slow()
        consumer = member(log, handler=slow)
        work = asyncio.create_task(consumer.arun())
        await true(lambda: len(slow.started) == 1)
        assert not work.done()
        return consumer

    append(log, 2)
    consumer = asyncio.run(main())
    assert consumer.stopping
    assert consumer.tally.handled == 0
    assert {row["message_id"].decode() for row in pending(log)} <= {record.stream_id for record in log.read()}
    given: list[str] = []
    with running(member(log, handler=lambda each: given.append(each.fields["n"]), min_idle=0.05)):
        eventually(lambda: sorted(given) == ["0", "1"])


def test_what_waiting_cannot_mend_is_raised_where_it_is_awaited(log: Log) -> None:
    async def main(consumer: Consumer, handler: Callable[[Delivery], Awaitable[None]] | None) -> None:
        await consumer.arun(handler)

    async def twice() -> None:
        consumer = member(log, handler=Slow())
        work = asyncio.create_task(consumer.arun())
        await true(lambda: consumer.info() is not None)
        with pytest.raises(InvalidArgument, match="runs already"):
            await consumer.arun()
        consumer.stop()
        await work

    with pytest.raises(InvalidArgument, match="without a handler"):
        asyncio.run(main(member(log), None))
    asyncio.run(twice())
    log.connection.client.delete(log.key)
    log.connection.client.set(log.key, "not a stream")
    with pytest.raises(WrongState, match="holds no log"):
        asyncio.run(main(member(log), Slow()))


def test_a_loop_that_could_not_run_the_handlers_is_refused(log: Log) -> None:
    async def blocks() -> None:
        member(log).run(Slow(), loop=asyncio.get_running_loop())

    with pytest.raises(InvalidArgument, match=r"await consumer\.arun"):
        asyncio.run(blocks())
    closed = asyncio.new_event_loop()
    closed.close()
    for wrong in (closed, "a loop"):
        with pytest.raises(InvalidArgument, match="runs in another thread"):
            member(log).run(print, loop=wrong)  # type: ignore[arg-type]


def test_a_run_on_a_loop_of_another_thread_ends_when_that_loop_does(log: Log) -> None:
    thread = LoopThread("somebody's")
    loops: list[asyncio.AbstractEventLoop] = []

    async def handler(delivery: Delivery) -> None:
        loops.append(asyncio.get_running_loop())

    consumer = member(log)
    append(log, 1)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            consumer.run(handler, loop=thread.loop)
        except RuntimeError as error:
            failures.append(error)

    runs = threading.Thread(target=run)
    runs.start()
    eventually(lambda: consumer.tally.handled == 1)
    assert thread.close()
    append(log, 1, first=1)
    runs.join(20)
    assert not runs.is_alive()
    assert "closed" in str(failures[0])
    assert loops == [thread.loop]
    given: list[str] = []
    with running(member(log, handler=lambda each: given.append(each.fields["n"]), min_idle=0.05)):
        eventually(lambda: given == ["1"])


def test_a_coroutine_that_is_cancelled_before_its_first_step_is_finished_all_the_same() -> None:
    async def handler(delivery: Delivery) -> None:
        raise AssertionError("it never began")

    async def main() -> list[BaseException | None]:
        holding = Holding()
        hands = OnLoop(handler, 1, holding, asyncio.get_running_loop())
        held = holding.take(Delivery(Record.of("1700000000000-1", [b"n", b"1"], None), "q", "audit", "billing"), 0.0)
        assert held is not None
        hands.start(held)
        hands.cancel()
        await true(lambda: hands.running() == 0)
        hands.close()
        return [each.error for each in holding.finished]

    (error,) = asyncio.run(main())
    assert isinstance(error, asyncio.CancelledError)
