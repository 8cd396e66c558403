"""Async actors: they run as tasks on one loop, hooks and all, beside the jobs of threads."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
from chaos.crew import PATIENCE
from dramatiq import Actor, Middleware
from dramatiq import middleware as stock
from dramatiq.errors import Retry
from dramatiq.middleware import CurrentMessage, SkipMessage
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend
from support.eventually import eventually

from echomq_tasks import actor, current_job, flow, signals
from echomq_tasks.connection import Connection
from echomq_tasks.errors import BatchError
from echomq_tasks.middleware import Retries
from echomq_tasks.queue import State

Shops = Callable[..., Any]


@pytest.fixture
def shop(open_shop: Shops, standalone: Connection) -> Any:
    return open_shop(connection=standalone)


class Notes(Middleware):
    """Notes which hooks are called, and where; of a class that nobody knows, so it may block."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.threads: set[str] = set()

    def note(self, hook: str, about: str = "") -> None:
        self.seen.append((hook, about))
        self.threads.add(threading.current_thread().name)

    def before_process_message(self, broker: Any, message: Any) -> None:
        self.note("before_process_message")

    def after_process_message(self, broker: Any, message: Any, *, result: Any = None, exception: Any = None) -> None:
        self.note("after_process_message", repr(result) if exception is None else type(exception).__name__)

    def after_skip_message(self, broker: Any, message: Any) -> None:
        self.note("after_skip_message")

    def before_ack(self, broker: Any, message: Any) -> None:
        self.note("before_ack")

    def after_ack(self, broker: Any, message: Any) -> None:
        self.note("after_ack")

    def before_nack(self, broker: Any, message: Any) -> None:
        self.note("before_nack")

    def after_nack(self, broker: Any, message: Any) -> None:
        self.note("after_nack")


def test_coroutines_run_at_once_on_every_engine_without_a_thread_for_each(
    open_shop: Shops, connection: Connection, queue_name: str
) -> None:
    shop = open_shop(connection=connection)
    here: list[int] = []
    threads: set[str] = set()
    everybody = asyncio.Event()

    async def run(number: int) -> None:
        here.append(number)
        threads.add(threading.current_thread().name)
        if len(here) == 40:
            everybody.set()
        await asyncio.wait_for(everybody.wait(), PATIENCE)

    meet = shop.actor(run, queue_name)
    shop.broker.enqueue_many([meet.message(number) for number in range(40)])
    shop.work(threads=1, async_concurrency=40)
    shop.finished(queue_name)
    assert sorted(here) == list(range(40))
    assert threads == {"echomq-loop"}
    assert shop.queue(queue_name).counts().completed == 40


def test_no_more_is_claimed_than_may_run_at_once(shop: Any, queue_name: str) -> None:
    started, go = threading.Semaphore(0), asyncio.Event()

    async def run() -> None:
        started.release()
        await go.wait()

    wait = shop.actor(run, queue_name)
    for _ in range(9):
        wait.send()
    worker = shop.work(threads=8, async_concurrency=3)
    for _ in range(3):
        assert started.acquire(timeout=PATIENCE)
    counts = shop.queue(queue_name).counts()
    assert (counts.active, counts.pending) == (3, 6)
    worker._tasks._loop_thread.loop.call_soon_threadsafe(go.set)  # noqa: SLF001
    shop.finished(queue_name)


def test_jobs_of_threads_and_tasks_do_not_wait_for_each_other(
    shop: Any, queue_name: str, gate: threading.Event
) -> None:
    ran: list[str] = []
    go = asyncio.Event()

    async def quick() -> None:
        ran.append("async")

    async def slow() -> None:
        await go.wait()

    plain = shop.actor(lambda wait: (gate.wait(PATIENCE) if wait else ran.append("plain")) and None, queue_name)
    task = shop.actor(quick, f"{queue_name}-a", "quick")
    hang = shop.actor(slow, f"{queue_name}-a", "slow")
    worker = shop.work(threads=1, async_concurrency=2)
    plain.send(True)
    eventually(lambda: shop.queue(queue_name).counts().active == 1)
    task.send()
    eventually(lambda: ran == ["async"])
    gate.set()
    hang.send()
    hang.send()
    eventually(lambda: shop.queue(f"{queue_name}-a").counts().active == 2)
    task.send()
    plain.send(False)
    eventually(lambda: ran == ["async", "plain"])
    assert shop.queue(f"{queue_name}-a").counts().pending == 1
    worker._tasks._loop_thread.loop.call_soon_threadsafe(go.set)  # noqa: SLF001
    shop.finished(queue_name, f"{queue_name}-a")


def test_of_a_queue_with_both_kinds_nothing_is_claimed_that_might_not_start(
    shop: Any, queue_name: str, gate: threading.Event
) -> None:
    ran: list[str] = []

    async def quick() -> None:
        ran.append("async")

    plain = shop.actor(lambda: gate.wait(PATIENCE) and ran.append("plain"), queue_name, "plain")
    task = shop.actor(quick, queue_name, "quick")
    shop.work(threads=1, async_concurrency=50)
    task.send()
    eventually(lambda: ran == ["async"])
    for each in (plain, plain, task, plain, task):
        each.send()
    eventually(lambda: shop.queue(queue_name).counts().active == 1)
    # The thread is busy, so the next job may be one that cannot start: what waits may run elsewhere.
    counts = shop.queue(queue_name).counts()
    assert (counts.active, counts.pending) == (1, 4)
    gate.set()
    shop.finished(queue_name)
    assert sorted(ran) == ["async"] * 3 + ["plain"] * 3


def test_a_message_that_comes_by_another_queue_than_its_actors_runs_where_it_belongs(
    shop: Any, queue_name: str, gate: threading.Event
) -> None:
    where: list[str] = []

    async def run() -> None:
        where.append(threading.current_thread().name)

    task = shop.actor(run, f"{queue_name}-a", "task")
    plain = shop.actor(lambda: where.append(threading.current_thread().name), queue_name, "plain")
    shop.work(threads=1, async_concurrency=1)
    shop.broker.enqueue(task.message().copy(queue_name=queue_name))
    shop.broker.enqueue(plain.message().copy(queue_name=f"{queue_name}-a"))
    shop.finished(queue_name, f"{queue_name}-a")
    assert sorted(where) == ["echomq-loop", "echomq-worker-1"]


def test_an_unknown_actor_on_a_queue_of_async_ones_goes_to_dead_while_all_threads_are_busy(
    shop: Any, queue_name: str, gate: threading.Event
) -> None:
    async def run() -> None: ...

    wait = shop.actor(lambda: gate.wait(PATIENCE) and None, f"{queue_name}-plain", "wait")
    shop.actor(run, queue_name)
    shop.work(threads=1, async_concurrency=2)
    wait.send()
    eventually(lambda: shop.queue(f"{queue_name}-plain").counts().active == 1)
    shop.queue(queue_name).enqueue('{"actor_name": "nobody"}')
    shop.finished(queue_name)
    (info,) = shop.queue(queue_name).dead()
    assert info.last_error.startswith("ActorNotFound")
    gate.set()


def test_hooks_before_the_coroutine_and_hooks_after_share_one_context_that_is_nobody_elses(
    shop: Any, queue_name: str
) -> None:
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="none")
    seen: dict[int, list[Any]] = {}
    together = asyncio.Event()

    class Requests(Middleware):
        def before_process_message(self, broker: Any, message: Any) -> None:
            seen[message.args[0]] = [request.get()]
            request.set(f"request {message.args[0]}")

        def after_process_message(
            self, broker: Any, message: Any, *, result: Any = None, exception: Any = None
        ) -> None:
            seen[message.args[0]].append(request.get())

    async def run(number: int) -> None:
        mine = seen[number]
        request.set(request.get() + "!")
        if sum(len(each) == 1 for each in seen.values()) == 12:
            together.set()
        await together.wait()
        await asyncio.sleep(0)
        message: Any = CurrentMessage.get_current_message()
        inside = await asyncio.create_task(asyncio.to_thread(current_job))
        mine += [message.args, message.job_id == current_job().id == inside.id, request.get()]

    shop.broker.add_middleware(Requests())
    each = shop.actor(run, queue_name)
    shop.broker.enqueue_many([each.message(number) for number in range(12)])
    shop.work(threads=1)
    shop.finished(queue_name)
    assert seen == {n: ["none", (n,), True, f"request {n}!", f"request {n}!"] for n in range(12)}


@pytest.mark.parametrize("ending", ["return", "raise", "dead", "skip", "skipped before"])
def test_hooks_come_in_the_order_of_a_threads_job_and_never_in_the_loops_thread(
    open_shop: Shops, standalone: Connection, queue_name: str, ending: str
) -> None:
    class SkipsBefore(Middleware):
        def before_process_message(self, broker: Any, message: Any) -> None:
            if ending == "skipped before":
                raise SkipMessage("not this one")

    def end(run: list[int]) -> str | None:
        run.append(1)
        if ending == "skip":
            raise SkipMessage("not now")
        if ending == "dead" or (ending == "raise" and len(run) == 1):
            raise ValueError("broken")
        return "fine"

    def life(kind: str) -> tuple[list[tuple[str, str]], set[str]]:
        notes = Notes()
        options = {"max_retries": 0} if ending == "dead" else {}
        middleware = [Retries(min_backoff=1, max_backoff=1), notes, SkipsBefore()]
        shop = open_shop(connection=standalone, middleware=middleware)
        runs: list[int] = []

        async def run() -> str | None:
            await asyncio.sleep(0)
            return end(runs)

        made = shop.actor(run if kind == "async" else lambda: end(runs), f"{queue_name}-{kind}", kind, **options)
        made.send()
        # One at a time, or a retry may overtake what the run before it is told.
        worker = shop.work(threads=1, async_concurrency=1)
        shop.finished(f"{queue_name}-{kind}")
        worker.stop()
        return notes.seen, notes.threads

    (plain, _), (tasks, threads) = life("plain"), life("async")
    assert tasks == plain
    assert tasks[-1][0] == ("after_nack" if ending == "dead" else "after_ack")
    assert threads, "they were called"
    assert all(name.startswith("echomq-hooks") for name in threads)


def test_hooks_that_are_known_to_be_quick_need_no_thread(
    open_shop: Shops, standalone: Connection, queue_name: str
) -> None:
    default: list[Any] = [made() for made in stock.default_middleware if made is not stock.Retries]
    shop = open_shop(connection=standalone, middleware=[*default, Retries(), CurrentMessage()])

    async def run() -> None:
        await asyncio.sleep(0)

    each = shop.actor(run, queue_name)
    shop.broker.enqueue_many([each.message() for _ in range(50)])
    worker = shop.work(threads=1)
    shop.finished(queue_name)
    assert worker._tasks._steps.threads == []  # noqa: SLF001
    # The loop's thread is nobody's to throw into.
    _, limit, shutdown, *_ = shop.broker.middleware
    assert (limit.manager.deadlines, shutdown.manager.notifications) == ({}, set())


def test_a_result_that_is_slow_to_be_stored_holds_up_no_other_job(
    shop: Any, queue_name: str, gate: threading.Event
) -> None:
    class SlowBackend(StubBackend):
        def store_result(self, *args: Any) -> Any:
            gate.wait(PATIENCE)
            return super().store_result(*args)

    backend = SlowBackend()
    shop.broker.add_middleware(Results(backend=backend))

    async def double(number: int) -> int:
        return number * 2

    kept = shop.actor(double, queue_name, "kept", store_results=True)
    quick: list[int] = []

    async def note(number: int) -> None:
        quick.append(number)

    other = shop.actor(note, queue_name, "other")
    messages = [kept.send(number) for number in range(3)]
    shop.work(threads=1)
    eventually(lambda: shop.queue(queue_name).counts().active == 3)
    for number in range(20):
        other.send(number)
    eventually(lambda: sorted(quick) == list(range(20)))
    assert shop.queue(queue_name).counts().active >= 3
    gate.set()
    assert [message.get_result(backend=backend, block=True) for message in messages] == [0, 2, 4]
    shop.finished(queue_name)


def test_an_exception_is_retried_and_the_dead_show_where_it_was_raised(shop: Any, queue_name: str) -> None:
    runs: list[int] = []

    async def innermost() -> None:
        await asyncio.sleep(0)
        raise ValueError("broken")

    async def run() -> None:
        runs.append(CurrentMessage.get_current_message().options.get("retries", 0))  # type: ignore[union-attr]
        await innermost()

    message = shop.actor(run, queue_name, max_retries=2).send()
    shop.work(threads=1)
    shop.finished(queue_name)
    assert runs == [0, 1, 2]
    info = shop.queue(queue_name).get(message.job_id)
    assert info.state is State.DEAD
    assert info.last_error.startswith("ValueError: broken")
    assert "in innermost" in info.last_error


def test_a_retry_that_the_coroutine_asks_for_is_one(
    shop: Any, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[int] = []

    async def run() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise Retry("later", delay=1)

    shop.actor(run, queue_name).send()
    shop.work(threads=1)
    shop.finished(queue_name)
    assert len(runs) == 2
    assert "unhandled" not in caplog.text


def test_callbacks_and_pipelines_follow_a_coroutine(open_shop: Shops, standalone: Connection, queue_name: str) -> None:
    shop = open_shop(connection=standalone, middleware=[stock.Callbacks(), stock.Pipelines(), Retries()])
    told: list[Any] = []

    async def double(number: int) -> int:
        return number * 2

    async def tell(message: Any, result: Any) -> None:
        told.append(result)

    twice = shop.actor(double, queue_name, "double")
    telling = shop.actor(tell, queue_name, "tell")
    last = twice.message_with_options(on_success="tell")
    dramatiq.pipeline([twice.message(3), twice.message(), last], broker=shop.broker).run()
    shop.work(threads=1)
    eventually(lambda: told == [24])
    shop.finished(queue_name)
    assert telling.actor_name == "tell"


def test_a_flow_of_coroutines_reads_its_childrens_results(shop: Any, queue_name: str) -> None:
    sums: list[int] = []

    async def child(number: int) -> int:
        await asyncio.sleep(0)
        return number

    async def parent() -> None:
        children = await asyncio.to_thread(current_job().children)
        sums.append(sum(children.results.values()))

    leaf, root = shop.actor(child, queue_name, "child"), shop.actor(parent, queue_name, "parent")
    shop.broker.enqueue_flows([flow(root.message(), [leaf.message(number) for number in (1, 2, 4)])])
    shop.work(threads=1)
    eventually(lambda: sums == [7])
    shop.finished(queue_name)


def test_a_batch_of_an_async_actor_ends_member_by_member(shop: Any, queue_name: str) -> None:
    calls: list[list[int]] = []

    @actor(broker=shop.broker, queue_name=queue_name, batch=4, batch_wait=0.01, max_retries=0)
    async def parse(items: list[int]) -> None:
        calls.append(items)
        await asyncio.sleep(0)
        if 13 in items:
            raise BatchError({items.index(13): ValueError("unlucky")})

    for item in (11, 12, 13, 14):
        parse.send(item)
    shop.work(threads=1, async_concurrency=2)
    shop.finished(queue_name)
    assert calls == [[11, 12, 13, 14]]
    counts = shop.queue(queue_name).counts()
    assert (counts.completed, counts.dead) == (3, 1)


def test_open_batches_in_all_places_start_when_nobody_can_join(shop: Any, queue_name: str) -> None:
    calls: list[str] = []

    def gather(name: str) -> Any:
        async def run(items: list[int]) -> None:
            calls.append(name)

        return actor(broker=shop.broker, queue_name=queue_name, actor_name=name, batch=3, batch_wait=30)(run)

    first, second = gather("first"), gather("second")
    # The place is the first one's, who waits for more and cannot be joined by what comes next.
    first.send(1)
    for number in range(3):
        second.send(number)
    shop.work(threads=1, async_concurrency=1)
    eventually(lambda: sorted(calls) == ["first", "second"])
    shop.finished(queue_name)


def test_signals_of_an_end_come_after_the_verdict_and_not_in_the_loops_thread(shop: Any, queue_name: str) -> None:
    seen: list[tuple[str, int]] = []
    names: set[str] = set()

    def heard(sender: Any, event: Any) -> None:
        seen.append((event.event, shop.queue(queue_name).counts().completed))
        names.add(threading.current_thread().name)

    async def run() -> None: ...

    with signals.started.connected_to(heard), signals.completed.connected_to(heard):
        shop.actor(run, queue_name).send()
        worker = shop.work(threads=1)
        eventually(lambda: seen == [("started", 0), ("completed", 1)])
        worker.join()
    assert all(name.startswith("echomq-hooks") for name in names)


def test_a_job_keeps_its_place_until_those_who_wait_for_its_end_are_told(
    shop: Any, queue_name: str, gate: threading.Event
) -> None:
    class Slow(Middleware):
        def after_ack(self, broker: Any, message: Any) -> None:
            gate.wait(PATIENCE)

    ran: list[int] = []

    async def run(number: int) -> None:
        ran.append(number)

    shop.broker.add_middleware(Slow())
    each = shop.actor(run, queue_name)
    shop.broker.enqueue_many([each.message(number) for number in range(6)])
    worker = shop.work(threads=1, async_concurrency=2)
    eventually(lambda: shop.queue(queue_name).counts().completed == 2)
    assert (len(ran), shop.queue(queue_name).counts().pending) == (2, 4)
    gate.set()
    shop.finished(queue_name)
    worker.join()
    assert sorted(ran) == list(range(6))


def test_the_loop_of_dramatiqs_middleware_is_used_where_there_is_one(
    open_shop: Shops, standalone: Connection, queue_name: str
) -> None:
    shop = open_shop(connection=standalone, middleware=[stock.AsyncIO(), Retries()])
    loops: list[Any] = []

    async def run() -> None:
        loops.append(asyncio.get_running_loop())

    task = shop.actor(run, queue_name, "task")
    # A plain actor may call an async one, as under Dramatiq's worker.
    plain = shop.actor(lambda: task(), queue_name, "plain")
    task.send()
    plain.send()
    worker = shop.work(threads=1)
    shop.finished(queue_name)
    assert loops == [dramatiq.asyncio.get_event_loop_thread().loop] * 2
    worker.stop()
    shop.workers.clear()
    assert dramatiq.asyncio.get_event_loop_thread() is None


def test_outside_of_a_worker_an_async_actor_is_what_dramatiq_makes_of_it(shop: Any, queue_name: str) -> None:
    async def run() -> None: ...

    task = shop.actor(run, queue_name)
    shop.work(threads=1)
    task.send()
    shop.finished(queue_name)
    with pytest.raises(RuntimeError, match="AsyncIO"):
        task()
    assert task.fn.__wrapped__ is run


def test_a_plain_function_that_wraps_a_coroutine_function_runs_in_a_thread(shop: Any, queue_name: str) -> None:
    names: list[str] = []

    async def run() -> None:
        names.append(threading.current_thread().name)

    def by_itself() -> None:
        asyncio.run(run())

    by_itself.__wrapped__ = run  # type: ignore[attr-defined]

    class Calls(Actor[Any, Any]):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            names.append("called")
            return asyncio.run(self.fn.__wrapped__(*args, **kwargs))  # type: ignore[attr-defined]

    shop.actor(by_itself, queue_name, "by_itself").send()
    shop.finished()
    worker = shop.work(threads=1)
    shop.finished(queue_name)
    shop.actor(run, queue_name, "calls", actor_class=Calls).send()
    shop.finished(queue_name)
    worker.join()
    assert names == ["echomq-worker-1", "called", "echomq-worker-1"]
