"""Stopping with coroutines in hand, and what may befall them: a loop that is ended, forks, cut lines, thrown things."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
from chaos.crew import PATIENCE
from dramatiq import Middleware
from dramatiq import middleware as stock
from dramatiq.asyncio import get_event_loop_thread
from dramatiq.middleware import MiddlewareError
from dramatiq.middleware.threading import raise_thread_exception
from support.eventually import eventually
from support.proxy import DroppingProxy

from echomq_tasks.connection import Connection
from echomq_tasks.middleware import Retries
from echomq_tasks.queue import State
from echomq_tasks.scripts.loader import load_scripts
from echomq_tasks.worker import Worker

Shops = Callable[..., Any]


@pytest.fixture
def shop(open_shop: Shops, standalone: Connection) -> Any:
    return open_shop(connection=standalone)


def idle(worker: Any) -> bool:
    """Whether nothing is in hand, and all places are free."""
    return not worker._tasks.running and all(pool.free == pool.capacity for pool in worker._pump._pools)  # noqa: SLF001


def test_a_stop_waits_for_what_runs_gives_back_the_rest_and_leaves_no_thread(shop: Any, queue_name: str) -> None:
    before = set(threading.enumerate())
    started, go = threading.Semaphore(0), threading.Event()
    ran: list[int] = []

    async def run(number: int) -> None:
        started.release()
        await asyncio.to_thread(go.wait, PATIENCE)
        ran.append(number)

    class Slow(Middleware):
        def after_process_message(
            self, broker: Any, message: Any, *, result: Any = None, exception: Any = None
        ) -> None:
            """Of a class that nobody knows, so a thread calls it."""

    shop.broker.add_middleware(Slow())
    made = shop.actor(run, queue_name)
    shop.broker.enqueue_many([made.message(number) for number in range(5)])
    worker = shop.work(threads=1, async_concurrency=2)
    for _ in range(2):
        assert started.acquire(timeout=PATIENCE)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    eventually(lambda: worker._pump._finishing)  # noqa: SLF001
    go.set()
    stopping.join(PATIENCE)
    counts = shop.queue(queue_name).counts()
    assert (counts.completed, counts.active, counts.pending) == (2, 0, 3)
    assert sorted(ran) == [0, 1]
    left = {thread.name for thread in set(threading.enumerate()) - before}
    # What to_thread has started ends with the interpreter, and leases are the broker's.
    assert not [name for name in left if not name.startswith(("asyncio_", "echomq-leases"))]


def test_a_boot_hook_that_refuses_the_start_leaves_no_loop_and_once_it_does_not_its_client_serves_the_jobs(
    shop: Any, queue_name: str
) -> None:
    before = set(threading.enumerate())
    seen: list[Any] = []

    class Client(Middleware):
        async def open(self) -> None:
            if not seen:
                seen.append("refused")
                raise MiddlewareError("no database")
            self.loop = asyncio.get_running_loop()

        async def close(self) -> None:
            seen.append("closed" if asyncio.get_running_loop() is self.loop else "elsewhere")

        def before_worker_boot(self, broker: Any, worker: Any) -> None:
            get_event_loop_thread().run_coroutine(self.open())

        def after_worker_shutdown(self, broker: Any, worker: Any) -> None:
            get_event_loop_thread().run_coroutine(self.close())

    client = Client()

    async def run() -> None:
        seen.append(asyncio.get_running_loop() is client.loop)

    shop.broker.add_middleware(stock.AsyncIO())
    shop.broker.add_middleware(client)
    shop.actor(run, queue_name).send()
    worker = Worker(shop.broker)
    with pytest.raises(MiddlewareError, match="no database"):
        worker.start()
    assert not [thread for thread in set(threading.enumerate()) - before if not thread.daemon]
    assert get_event_loop_thread() is None
    worker.start()
    shop.finished(queue_name)
    worker.stop()
    assert seen == ["refused", True, "closed"]


def test_a_stop_that_has_no_more_time_leaves_coroutines_to_their_end(
    shop: Any, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    started, go = threading.Event(), asyncio.Event()

    async def run() -> None:
        started.set()
        await go.wait()

    shop.actor(run, queue_name).send()
    worker = shop.work(threads=1)
    assert started.wait(PATIENCE)
    worker.stop(timeout=50)
    assert "1 job still runs" in caplog.text
    assert shop.queue(queue_name).counts().active == 1
    loop_thread = worker._tasks._loop_thread  # noqa: SLF001
    loop_thread.loop.call_soon_threadsafe(go.set)
    shop.finished(queue_name)
    eventually(lambda: not loop_thread.is_alive(), message="nothing is left for the loop to do")


@pytest.mark.parametrize("how", ["at its await", "blocking the loop", "swallowing it"])
def test_a_coroutine_that_runs_is_given_back_at_once_loses_no_retry_and_is_cancelled(
    shop: Any, open_shop: Shops, standalone: Connection, queue_name: str, gate: threading.Event, how: str
) -> None:
    runs: list[str] = []
    cancelled = threading.Event()

    async def first() -> None:
        runs.append("first")
        if how == "blocking the loop":
            gate.wait(PATIENCE)  # what a coroutine must not do
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            if how == "swallowing it":
                await asyncio.to_thread(gate.wait, PATIENCE)
            raise

    async def second() -> None:
        runs.append("second")

    message = shop.actor(first, queue_name).send()
    worker = shop.work(threads=1)
    eventually(lambda: runs == ["first"])
    assert worker.abandon() == 1
    info = shop.queue(queue_name).get(message.job_id)
    assert (info.state, info.failures, info.stalled) == (State.PENDING, 0, 0)
    other = open_shop(connection=standalone)
    other.actor(second, queue_name)
    other.work(threads=1)
    other.finished(queue_name)
    gate.set()
    assert cancelled.wait(PATIENCE)
    assert runs == ["first", "second"]
    counts = shop.queue(queue_name).counts()
    assert (counts.completed, counts.failed) == (1, 0)


def test_a_paused_worker_waits_for_its_coroutines_and_a_resumed_one_goes_on(shop: Any, queue_name: str) -> None:
    ran: list[int] = []
    started, go = threading.Event(), asyncio.Event()

    async def run(number: int) -> None:
        started.set()
        await go.wait()
        ran.append(number)

    made = shop.actor(run, queue_name)
    worker = shop.work(threads=1, async_concurrency=1)
    made.send(0)
    assert started.wait(PATIENCE)
    made.send(1)
    pausing = threading.Thread(target=worker.pause)
    pausing.start()
    eventually(lambda: not worker._pump.claiming)  # noqa: SLF001
    worker._tasks._loop_thread.loop.call_soon_threadsafe(go.set)  # noqa: SLF001
    pausing.join(PATIENCE)
    counts = shop.queue(queue_name).counts()
    assert (counts.completed, counts.pending) == (1, 1)
    worker.resume()
    shop.finished(queue_name)
    assert ran == [0, 1]


def test_tasks_that_jobs_leave_behind_are_cancelled_in_the_end(shop: Any, queue_name: str) -> None:
    ends: list[str] = []
    kept: list[Any] = []

    async def background() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("background")

    async def ticks() -> Any:
        try:
            while True:
                yield 1
        finally:
            ends.append("generator")

    async def run() -> None:
        kept.append(asyncio.create_task(background()))
        kept.append(ticks())
        await anext(kept[1])

    shop.actor(run, queue_name).send()
    worker = shop.work(threads=1)
    shop.finished(queue_name)
    assert not ends
    worker.stop()
    assert ends == ["background", "generator"]


def test_jobs_on_a_loop_that_somebody_ends_are_given_back_and_run_on_another(
    open_shop: Shops, standalone: Connection, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop = open_shop(connection=standalone, middleware=[Retries()])
    # Dramatiq's loop, but of a worker that is not this one.
    theirs = stock.AsyncIO()
    theirs.before_worker_boot(shop.broker, None)
    loops: list[Any] = []

    async def run(number: int) -> None:
        loops.append(asyncio.get_running_loop())
        if len(loops) <= 3:
            await asyncio.Event().wait()

    made = shop.actor(run, queue_name)
    for number in range(3):
        made.send(number)
    worker = shop.work(threads=1)
    eventually(lambda: len(loops) == 3)
    theirs.after_worker_shutdown(shop.broker, None)
    made.send(3)
    shop.finished(queue_name)
    assert len(set(loops)) == 2
    assert len(loops) == 7
    assert "given back" in caplog.text
    assert shop.queue(queue_name).counts().completed == 4
    eventually(lambda: idle(worker))


def test_coroutines_that_the_end_of_their_loop_cuts_off_are_given_back_by_the_stop(
    open_shop: Shops, standalone: Connection, queue_name: str
) -> None:
    shop = open_shop(connection=standalone, middleware=[stock.AsyncIO(), Retries()])
    started = threading.Event()

    async def run() -> None:
        started.set()
        await asyncio.Event().wait()

    message = shop.actor(run, queue_name).send()
    worker = shop.work(threads=1)
    assert started.wait(PATIENCE)
    worker.stop(timeout=50)
    eventually(lambda: shop.queue(queue_name).state(message.job_id) is State.PENDING)
    assert dramatiq.asyncio.get_event_loop_thread() is None
    shop.workers.clear()


def test_a_coroutine_that_forks_and_does_not_exit_runs_no_job_of_its_parent(
    shop: Any, queue_name: str, tmp_path: Any
) -> None:
    log = tmp_path / "log"

    async def run(number: int) -> None:
        if number == 0:
            os.fork()
        await asyncio.sleep(0)
        with log.open("a") as file:
            file.write(f"{os.getpid()} {number}\n")

    made = shop.actor(run, queue_name, max_retries=0)
    shop.broker.enqueue_many([made.message(number) for number in range(40)])
    shop.work(threads=1, async_concurrency=10)
    shop.finished(queue_name)

    def reaped() -> bool:
        # The child's only thread was that of the loop, which ends, and the process with it.
        pid, status = os.waitpid(-1, os.WNOHANG)
        return pid != 0 and status == 0

    eventually(reaped, PATIENCE)
    lines = [line.split() for line in log.read_text().splitlines()]
    assert sorted(int(number) for pid, number in lines if int(pid) == os.getpid()) == list(range(40))
    assert {number for pid, number in lines if int(pid) != os.getpid()} <= {"0"}


def test_answers_that_are_lost_run_no_coroutine_twice(open_shop: Shops, proxy: DroppingProxy, queue_name: str) -> None:
    shop = open_shop(url=proxy.url)
    ran: list[int] = []

    async def run(number: int) -> None:
        await asyncio.sleep(0)
        ran.append(number)

    made = shop.actor(run, queue_name)
    shop.broker.enqueue_many([made.message(number) for number in range(120)])
    for script in ("job_claim", "job_complete"):
        proxy.drop_reply(load_scripts()[script].sha.encode(), times=3)
    shop.work(threads=1, async_concurrency=10)
    shop.finished(queue_name)
    assert sorted(ran) == list(range(120))


def test_whatever_is_thrown_into_the_threads_of_hooks_loses_no_job_and_no_thread(
    open_shop: Shops, standalone: Connection, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    # Thrown between the lock of a log handler and its release, it would hang whoever logs from then on.
    caplog.set_level("CRITICAL", logger="echomq_tasks")

    class Slow(Middleware):
        def before_process_message(self, broker: Any, message: Any) -> None:
            sum(range(200))

        def after_process_message(
            self, broker: Any, message: Any, *, result: Any = None, exception: Any = None
        ) -> None:
            sum(range(200))

        def after_ack(self, broker: Any, message: Any) -> None:
            sum(range(200))

    shop = open_shop(connection=standalone, middleware=[Slow(), Retries(min_backoff=1, max_backoff=5)])

    async def run(number: int) -> None:
        await asyncio.sleep(0)

    made = shop.actor(run, queue_name, max_retries=None)
    shop.broker.enqueue_many([made.message(number) for number in range(1000)])
    worker = shop.work(threads=1, async_concurrency=20)
    threads = eventually(lambda: worker._tasks._steps.threads)  # noqa: SLF001
    queue, chance = shop.queue(queue_name), random.Random(11)
    thrown = 0
    while queue.counts().unfinished:
        threading.Event().wait(chance.uniform(0, 0.002))
        thread = chance.choice(threads)
        if thread.ident is not None:
            raise_thread_exception(thread.ident, stock.TimeLimitExceeded)
            thrown += 1
    assert thrown > 10
    assert queue.counts().completed == 1000
    eventually(lambda: idle(worker))
    assert all(thread.is_alive() for thread in threads)


def test_whatever_coroutines_do_each_job_ends_once_and_gives_its_place_back(
    open_shop: Shops, connection: Connection, queue_name: str
) -> None:
    shop = open_shop(connection=connection)
    ends: Counter[str] = Counter()
    chance = random.Random(5)

    async def run(what: str) -> None:
        ends[what] += 1
        match what:
            case "fail":
                raise ValueError(what)
            case "exit":
                raise SystemExit(what)
            case "cancel":
                task: Any = asyncio.current_task()
                task.cancel()
                await asyncio.sleep(0)
            case "skip":
                raise stock.SkipMessage(what)
            case "sleep":
                await asyncio.sleep(0.002)
            case "group":
                async with asyncio.TaskGroup() as group:
                    for _ in range(3):
                        group.create_task(asyncio.sleep(0))
            case "generator":
                await asyncio.gather(*(asyncio.sleep(0) for _ in range(3)))

    made = shop.actor(run, queue_name, max_retries=0)
    kinds = ["fail", "exit", "cancel", "skip", "sleep", "group", "generator", "nothing"]
    sent = [chance.choice(kinds) for _ in range(300)]
    shop.broker.enqueue_many([made.message(what) for what in sent])
    worker = shop.work(threads=1, async_concurrency=16)
    shop.finished(queue_name)
    assert ends == Counter(sent)
    died = sum(ends[what] for what in ("fail", "exit", "cancel"))
    counts = shop.queue(queue_name).counts()
    assert (counts.dead, counts.completed) == (died, 300 - died)
    eventually(lambda: idle(worker))
    eventually(lambda: not shop.broker.leases.holding)
