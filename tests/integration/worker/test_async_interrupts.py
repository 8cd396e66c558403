"""What interrupts a coroutine: time limits, a shutdown, a cancel, a lost lease, and what else is raised on the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from chaos.crew import PATIENCE
from dramatiq import Middleware
from dramatiq.middleware import Shutdown, ShutdownNotifications, TimeLimit, TimeLimitExceeded
from support.eventually import eventually

from echomq_tasks import actor, current_job
from echomq_tasks.connection import Connection
from echomq_tasks.errors import JobCancelled
from echomq_tasks.middleware import Retries
from echomq_tasks.queue import State

Shops = Callable[..., Any]


class Endings(Middleware):
    """Notes what the hooks are told of each end."""

    def __init__(self) -> None:
        self.seen: list[BaseException | None] = []

    def after_process_message(self, broker: Any, message: Any, *, result: Any = None, exception: Any = None) -> None:
        self.seen.append(exception)

    @property
    def kinds(self) -> list[str]:
        return [type(each).__name__ for each in self.seen]


@pytest.fixture
def endings() -> Endings:
    return Endings()


@pytest.fixture
def shop(open_shop: Shops, standalone: Connection, endings: Endings, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("echomq_tasks.worker.interrupts._LOOK", 0.02)
    middleware = [TimeLimit(interval=20), ShutdownNotifications(), Retries(min_backoff=1, max_backoff=5), endings]
    return open_shop(connection=standalone, middleware=middleware)


def alive(shop: Any, queue_name: str) -> bool:
    """Whether the loop still runs jobs, in the thread that it had."""
    (worker,) = shop.workers
    before = worker._tasks._loop_thread  # noqa: SLF001
    ran: list[str] = []

    async def run() -> None:
        await asyncio.sleep(0)
        ran.append(threading.current_thread().name)

    shop.actor(run, queue_name, "alive").send()
    shop.finished(queue_name)
    return ran == ["echomq-loop"] and worker._tasks._loop_thread is before  # noqa: SLF001


@pytest.mark.parametrize("where", ["actor", "message", "middleware"])
def test_a_coroutine_that_runs_for_too_long_is_cancelled_at_its_await(
    shop: Any, queue_name: str, endings: Endings, where: str
) -> None:
    seen: list[Any] = []

    async def innermost() -> None:
        await asyncio.Event().wait()

    async def run() -> None:
        try:
            await innermost()
        except asyncio.CancelledError:
            seen.append(type(current_job().interrupted))
            raise
        finally:
            seen.append("cleaned up")

    options: dict[str, Any] = {"time_limit": 50} if where == "actor" else {}
    if where == "middleware":
        shop.broker.middleware[0].time_limit = 50
    made = shop.actor(run, queue_name, max_retries=0, **options)
    message = made.send_with_options(**({"time_limit": 50} if where == "message" else {}))
    shop.work(threads=1)
    shop.finished(queue_name)
    assert seen == [TimeLimitExceeded, "cleaned up"]
    assert endings.kinds == ["TimeLimitExceeded"]
    info = shop.queue(queue_name).get(message.job_id)
    assert info.last_error.startswith("TimeLimitExceeded")
    assert "in innermost" in info.last_error, "it shows where it hung"
    shop.broker.middleware[0].time_limit = 60_000
    assert alive(shop, queue_name)


def test_a_time_limit_that_is_no_limit_interrupts_nothing(shop: Any, queue_name: str, endings: Endings) -> None:
    quick = asyncio.Event()

    async def run(limit: str) -> None:
        if limit == "short":
            await asyncio.Event().wait()
        await quick.wait()

    made = shop.actor(run, queue_name, max_retries=0)
    made.send_with_options(args=("inf",), time_limit=float("inf"))
    made.send_with_options(args=("short",), time_limit=30)
    worker = shop.work(threads=1)
    eventually(lambda: endings.kinds == ["TimeLimitExceeded"])
    worker._tasks._loop_thread.loop.call_soon_threadsafe(quick.set)  # noqa: SLF001
    shop.finished(queue_name)
    assert endings.kinds == ["TimeLimitExceeded", "NoneType"]


def test_a_coroutine_that_swallows_its_cancellation_has_ended_as_it_says(
    shop: Any, queue_name: str, endings: Endings
) -> None:
    async def run() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)  # longer than the next looks: it is interrupted once
        async with asyncio.timeout(PATIENCE):
            await asyncio.sleep(0)
        return "partial"

    shop.actor(run, queue_name, time_limit=30).send()
    shop.work(threads=1)
    shop.finished(queue_name)
    assert endings.kinds == ["NoneType"]
    assert shop.queue(queue_name).counts().completed == 1


def test_what_a_coroutine_raises_in_the_place_of_its_cancellation_counts(
    shop: Any, queue_name: str, endings: Endings
) -> None:
    async def run() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("half done") from None

    shop.actor(run, queue_name, time_limit=30, max_retries=0).send()
    shop.work(threads=1)
    shop.finished(queue_name)
    assert endings.kinds == ["ValueError"]


@pytest.mark.parametrize(
    ("shape", "outcome"),
    [
        ("own timeout", "TimeoutError"),
        ("within a timeout", "TimeLimitExceeded"),
        ("within a group", "TimeLimitExceeded"),
        ("waiting for a group", "TimeLimitExceeded"),
        ("gather", "TimeLimitExceeded"),
        ("wait_for", "TimeLimitExceeded"),
        ("failing child", "ExceptionGroup"),
        ("cancels itself", "CancelledError"),
        ("awaits a cancelled task", "CancelledError"),
    ],
)
def test_timeouts_and_groups_in_a_coroutine_mean_what_they_mean_elsewhere(
    shop: Any, queue_name: str, endings: Endings, shape: str, outcome: str
) -> None:
    cleaned: list[str] = []

    async def child() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("child")

    async def fail() -> None:
        raise ValueError("child")

    async def run() -> None:
        if shape == "own timeout":
            async with asyncio.timeout(0.02):
                await child()
        elif shape == "within a timeout":
            async with asyncio.timeout(PATIENCE):
                await child()
        elif shape in ("within a group", "waiting for a group"):
            async with asyncio.TaskGroup() as group:
                group.create_task(child())
                if shape == "within a group":
                    await asyncio.Event().wait()
        elif shape == "gather":
            await asyncio.gather(child(), asyncio.Event().wait())
        elif shape == "wait_for":
            await asyncio.wait_for(child(), PATIENCE)
        elif shape == "failing child":
            async with asyncio.TaskGroup() as group:
                group.create_task(child())
                await asyncio.sleep(0)
                group.create_task(fail())
        elif shape == "cancels itself":
            me: Any = asyncio.current_task()
            me.cancel()
            await child()
        else:
            task = asyncio.create_task(child())
            await asyncio.sleep(0)
            task.cancel()
            await task

    shop.actor(run, queue_name, time_limit=60, max_retries=0).send()
    shop.work(threads=1)
    shop.finished(queue_name)
    assert endings.kinds == [outcome]
    assert cleaned == ["child"]
    assert alive(shop, queue_name)


def test_a_shutdown_interrupts_those_that_want_to_be_told_and_waits_for_the_others(
    shop: Any, queue_name: str, endings: Endings
) -> None:
    told, started = asyncio.Event(), threading.Semaphore(0)

    async def stubborn() -> None:
        started.release()
        await told.wait()

    async def polite() -> None:
        started.release()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert isinstance(current_job().interrupted, Shutdown)
            told.set()
            raise

    shop.actor(stubborn, queue_name, "stubborn").send()
    message = shop.actor(polite, queue_name, "polite", notify_shutdown=True, min_backoff=60_000).send()
    worker = shop.work(threads=1)
    for _ in range(2):
        assert started.acquire(timeout=PATIENCE)
    worker.stop(timeout=20_000)
    assert sorted(endings.kinds) == ["NoneType", "Shutdown"]
    counts = shop.queue(queue_name).counts()
    assert (counts.completed, counts.active) == (1, 0)
    assert shop.queue(queue_name).state(message.job_id) is State.SCHEDULED


def test_a_cancelled_job_is_cancelled_at_its_await_and_leaves_nothing(
    open_shop: Shops, standalone: Connection, queue_name: str, endings: Endings
) -> None:
    shop = open_shop(connection=standalone, middleware=[Retries(), endings], lease=0.5)
    started = threading.Event()

    async def run() -> None:
        started.set()
        await asyncio.Event().wait()

    message = shop.actor(run, queue_name).send()
    shop.work(threads=1)
    assert started.wait(PATIENCE)
    shop.queue(queue_name).cancel(message.job_id)
    shop.finished(queue_name)
    assert [type(each) for each in endings.seen] == [JobCancelled]
    assert shop.queue(queue_name).state(message.job_id) is State.ABSENT


def test_a_coroutine_that_has_asked_and_knows_it_is_cancelled_is_left_to_clean_up(
    open_shop: Shops, standalone: Connection, queue_name: str, endings: Endings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echomq_tasks.worker.interrupts._LOOK", 0.01)
    shop = open_shop(connection=standalone, middleware=[Retries(), endings])
    started = threading.Event()
    looks: list[int] = []

    async def run() -> None:
        job = current_job()
        started.set()
        for _ in range(1000):
            if await asyncio.to_thread(lambda: job.cancelled):
                break
            await asyncio.sleep(0.02)
        job.tell_cancelled()  # as the renewal of its lease does
        for look in range(10):
            looks.append(look)
            await asyncio.sleep(0.01)

    message = shop.actor(run, queue_name).send()
    shop.work(threads=1)
    assert started.wait(PATIENCE)
    shop.queue(queue_name).cancel(message.job_id)
    shop.finished(queue_name)
    assert looks == list(range(10))
    assert endings.kinds == ["NoneType"]


def test_a_coroutine_whose_lease_was_lost_is_interrupted_and_its_end_is_told_to_nobody(
    shop: Any, queue_name: str, endings: Endings
) -> None:
    started, outcome = threading.Event(), []

    async def run() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            outcome.append(type(current_job().interrupted))
            raise

    shop.actor(run, queue_name).send()
    worker = shop.work(threads=1)
    assert started.wait(PATIENCE)
    (work,) = worker._tasks.running  # noqa: SLF001
    shop.queue(queue_name).drain("active")
    shop.broker.leases.ask([work])
    eventually(lambda: outcome == [JobCancelled])
    worker.join()
    assert shop.queue(queue_name).counts().failed == 0


def test_leases_are_renewed_while_a_coroutine_blocks_the_loop(
    open_shop: Shops, standalone: Connection, queue_name: str, gate: threading.Event
) -> None:
    shop = open_shop(connection=standalone, lease=0.4)
    runs: list[int] = []

    async def run() -> None:
        runs.append(1)
        gate.wait(PATIENCE)  # what a coroutine must not do

    shop.actor(run, queue_name).send()
    worker = shop.work(threads=1)
    eventually(lambda: runs == [1])
    (work,) = worker._tasks.running  # noqa: SLF001
    first = work.held_until
    eventually(lambda: work.held_until > first + 0.8, PATIENCE)
    gate.set()
    shop.finished(queue_name)
    assert runs == [1]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["coroutine", "child", "callback"])
def test_an_exit_that_is_raised_on_the_loop_ends_neither_the_loop_nor_other_jobs(
    shop: Any,
    queue_name: str,
    endings: Endings,
    caplog: pytest.LogCaptureFixture,
    kind: type[BaseException],
    where: str,
) -> None:
    def leave() -> None:
        raise kind("away")

    async def child() -> None:
        leave()

    go, waits = asyncio.Event(), threading.Event()

    async def run() -> None:
        if where == "coroutine":
            leave()
        elif where == "child":
            await asyncio.create_task(child())
        else:
            asyncio.get_running_loop().call_soon(leave)
            await asyncio.sleep(0.01)
            raise kind("away")

    async def other() -> None:
        waits.set()
        await go.wait()

    shop.actor(other, queue_name, "other").send()
    worker = shop.work(threads=1)
    assert waits.wait(PATIENCE)
    message = shop.actor(run, queue_name, max_retries=0).send()
    eventually(lambda: shop.queue(queue_name).counts().dead == 1)
    worker._tasks._loop_thread.loop.call_soon_threadsafe(go.set)  # noqa: SLF001
    shop.finished(queue_name)
    assert shop.queue(queue_name).get(message.job_id).last_error.startswith(kind.__name__)
    assert sorted(endings.kinds) == sorted([kind.__name__, "NoneType"])
    assert alive(shop, queue_name)
    assert (where == "coroutine") == ("A task on the worker's event loop ended it" not in caplog.text)


def test_a_coroutine_that_cancels_all_tasks_there_are_loses_none_of_their_jobs(shop: Any, queue_name: str) -> None:
    runs: list[int] = []

    async def run(number: int) -> None:
        runs.append(number)
        if number == 0 and runs.count(0) == 1:
            # Those that come with it have not had their first step.
            for task in asyncio.all_tasks():
                task.cancel()

    made = shop.actor(run, queue_name, priority=0)
    shop.broker.enqueue_many([made.message(number) for number in range(20)])
    shop.work(threads=1)
    shop.finished(queue_name)
    assert sorted(set(runs)) == list(range(20))
    assert shop.queue(queue_name).counts().completed == 20


def test_a_batch_has_the_time_limit_of_its_actor(shop: Any, queue_name: str, endings: Endings) -> None:
    @actor(broker=shop.broker, queue_name=queue_name, batch=3, batch_wait=0.01, time_limit=40, max_retries=0)
    async def parse(items: list[int]) -> None:
        await asyncio.Event().wait()

    for item in range(3):
        parse.send(item)
    shop.work(threads=1)
    shop.finished(queue_name)
    assert endings.kinds == ["TimeLimitExceeded"] * 3


def test_a_middleware_that_throws_by_itself_is_told_of_and_throws_into_no_loop(
    open_shop: Shops, standalone: Connection, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    class MyLimit(TimeLimit):
        def before_process_message(self, broker: Any, message: Any) -> None:
            super().before_process_message(broker, message)

    mine = MyLimit(interval=10)
    shop = open_shop(connection=standalone, middleware=[mine, Retries()])
    mine.after_process_boot(shop.broker)

    async def run() -> None:
        await asyncio.sleep(0.1)

    shop.actor(run, queue_name, time_limit=20).send()
    worker = shop.work(threads=1)
    shop.finished(queue_name)
    assert shop.queue(queue_name).counts().completed == 1
    assert "MyLimit" in caplog.text
    loop_thread = worker._tasks._loop_thread  # noqa: SLF001
    assert loop_thread.ident not in mine.manager.deadlines  # type: ignore[union-attr]
