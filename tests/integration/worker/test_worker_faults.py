"""Faults under the worker: exceptions thrown into its threads, lost answers, cut lines, restarts, flushes, kills."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from chaos.crew import PATIENCE, Processes, watching
from dramatiq import Message
from dramatiq.middleware import TimeLimitExceeded
from dramatiq.middleware.threading import raise_thread_exception
from support.eventually import eventually
from support.proxy import DroppingProxy
from support.servers import ServerProcess

from echomq_tasks.connection import Connection
from echomq_tasks.scripts.loader import load_scripts

Shops = Callable[..., Any]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echomq_tasks.worker.outage._MOST", 0.1)


def idle(shop: Any) -> bool:
    """Whether nothing is held, by anybody."""
    return all(
        all(pool.free == pool.capacity for pool in worker._pump._pools) and not shop.broker.leases.holding  # noqa: SLF001
        for worker in shop.workers
    )


def test_exceptions_thrown_into_threads_at_any_moment_lose_no_job_and_no_thread(
    open_shop: Shops, standalone: Connection, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    # Thrown between the lock of a log handler and its release, it would hang whoever logs from then on.
    caplog.set_level("CRITICAL", logger="echomq_tasks")
    shop = open_shop(connection=standalone)
    run = shop.actor(lambda number: None, queue_name, max_retries=None)
    worker = shop.work(threads=4)
    jobs = 1500
    shop.broker.enqueue_many([run.message(number) for number in range(jobs)])
    queue, chance = shop.queue(queue_name), random.Random(7)
    thrown = 0
    while queue.counts().unfinished:
        # A moment apart, at no moment in particular.
        threading.Event().wait(chance.uniform(0, 0.002))
        thread = chance.choice(worker.workers)
        raise_thread_exception(thread.ident, TimeLimitExceeded)  # type: ignore[no-untyped-call]
        thrown += 1
    assert thrown > 10
    assert queue.counts().completed == jobs
    assert all(thread.is_alive() for thread in worker.workers)
    eventually(lambda: idle(shop))
    # They work on, all of them.
    met = threading.Barrier(4, timeout=PATIENCE)
    meet = shop.actor(lambda: met.wait() and None, queue_name, "meet")
    for _ in range(4):
        meet.send()
    shop.finished(queue_name)
    assert not met.broken


def test_an_exception_that_comes_between_two_jobs_is_told_of_and_ends_nothing(
    open_shop: Shops, standalone: Connection, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop = open_shop(connection=standalone)
    ran: list[int] = []
    run = shop.actor(ran.append, queue_name)
    worker = shop.work(threads=1)
    for number in range(5):
        raise_thread_exception(worker.workers[0].ident, TimeLimitExceeded)  # type: ignore[no-untyped-call]
        run.send(number)
        shop.finished(queue_name)
    assert ran == list(range(5))
    assert caplog.text.count("TimeLimitExceeded was thrown into") == 5
    assert shop.queue(queue_name).counts().failed == 0


@pytest.mark.parametrize("script", ["job_claim", "job_complete"])
def test_an_answer_that_is_lost_runs_nothing_twice(
    open_shop: Shops, proxy: DroppingProxy, queue_name: str, script: str
) -> None:
    shop = open_shop(url=proxy.url)
    ran: list[int] = []
    run = shop.actor(ran.append, queue_name)
    shop.broker.enqueue_many([run.message(number) for number in range(60)])
    proxy.drop_reply(load_scripts()[script].sha.encode(), times=7)
    shop.work(threads=3)
    shop.finished(queue_name)
    assert proxy.counts.dropped_replies == 7
    assert sorted(ran) == list(range(60))


def test_lines_that_are_cut_again_and_again_lose_nothing(
    open_shop: Shops, proxy: DroppingProxy, server: ServerProcess, queue_name: str
) -> None:
    shop = open_shop(url=proxy.url)
    ran: list[int] = []

    def run(number: int) -> None:
        if number % 20 == 0:
            proxy.cut_all()
        ran.append(number)

    actor = shop.actor(run, queue_name)
    shop.broker.enqueue_many([actor.message(number) for number in range(200)])
    shop.work(threads=3)
    with watching(server.url, queue_name) as queue:
        eventually(lambda: queue.counts().completed == 200, PATIENCE)
    assert sorted(ran) == list(range(200))


def test_flushed_scripts_are_loaded_again(open_shop: Shops, connection: Connection, queue_name: str) -> None:
    shop = open_shop(connection=connection)
    client: Any = connection.client
    ran: list[int] = []

    def run(number: int) -> None:
        if number % 10 == 0:
            client.script_flush()
        ran.append(number)

    actor = shop.actor(run, queue_name)
    shop.broker.enqueue_many([actor.message(number) for number in range(50)])
    shop.work(threads=2)
    shop.finished(queue_name)
    assert sorted(ran) == list(range(50))


def test_a_restarted_server_is_told_what_ended_meanwhile_and_nothing_runs_twice(
    open_shop: Shops, own_server: ServerProcess, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    shop = open_shop(url=own_server.url, lease=60.0)
    gate, started, ran = threading.Event(), [], []

    def run(number: int) -> None:
        started.append(number)
        gate.wait(PATIENCE)
        ran.append(number)

    actor = shop.actor(run, queue_name)
    for number in range(6):
        actor.send(number)
    shop.work(threads=3)
    # Not only claimed: the answer to the claim might be lost.
    eventually(lambda: len(started) == 3)
    own_server.kill()
    gate.set()
    eventually(lambda: len(ran) == 3)
    eventually(lambda: "Talking to the server failed" in caplog.text, PATIENCE)
    own_server.start()
    with watching(own_server.url, queue_name) as queue:
        eventually(lambda: queue.counts().completed == 6, PATIENCE)
    assert sorted(ran) == list(range(6))
    assert caplog.text.count("Talking to the server failed and") == 1, "one line at each change"
    eventually(lambda: "Talking to the server succeeds again" in caplog.text)


def test_a_worker_that_starts_before_its_server_serves_it_when_it_comes(
    open_shop: Shops, own_server: ServerProcess, queue_name: str
) -> None:
    own_server.kill()
    shop = open_shop(url=own_server.url)
    ran = threading.Event()
    actor = shop.actor(ran.set, queue_name)
    shop.work(threads=1)
    own_server.start()
    eventually(lambda: queue_is_up(shop, queue_name), PATIENCE)
    actor.send()
    assert ran.wait(PATIENCE)


def queue_is_up(shop: Any, name: str) -> bool:
    return name in shop.workers[0]._pump.lines  # noqa: SLF001


def test_a_queue_that_cannot_be_served_costs_the_others_nothing(
    open_shop: Shops, standalone: Connection, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop = open_shop(connection=standalone)
    broken, good = f"{queue_name}-a", f"{queue_name}-b"
    ran: list[int] = []
    shop.actor(lambda: None, broken, "never")
    run = shop.actor(ran.append, good)
    client: Any = standalone.client
    client.set(f"emq:{{{broken}}}:pending", "no zset")
    worker = shop.work(threads=2)
    for number in range(20):
        run.send(number)
    shop.finished(good)
    assert sorted(ran) == list(range(20))
    eventually(lambda: f"Serving queue {broken!r} failed" in caplog.text)
    # Where a node of a cluster is away, nobody can stand there, and the worker would take that for an outage of all.
    eventually(lambda: list(worker._pump._lookout.at) == [good])  # noqa: SLF001
    client.delete(f"emq:{{{broken}}}:pending")
    seen = threading.Event()
    shop.actor(seen.set, broken, "seen").send()
    assert seen.wait(PATIENCE)


def test_the_late_end_of_a_lost_job_is_dropped_and_its_other_run_counts(
    open_shop: Shops, standalone: Connection, queue_name: str, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, other = (open_shop(connection=standalone, lease=0.3) for _ in range(2))
    # The first one's leases are not renewed, as if its process had hung.
    monkeypatch.setattr(shop.broker.leases, "_run", lambda stop: None)
    runs: list[str] = []

    def first() -> None:
        runs.append("first")
        gate.wait(PATIENCE)

    shop.actor(first, queue_name).send()
    shop.work(threads=1)
    eventually(lambda: runs == ["first"])
    other.actor(lambda: runs.append("second"), queue_name)
    other.work(threads=1)
    other.finished(queue_name)
    gate.set()
    eventually(lambda: idle(shop))
    counts = shop.queue(queue_name).counts()
    assert runs == ["first", "second"]
    assert (counts.completed, counts.unfinished) == (1, 0)


@pytest.fixture
def processes(server: ServerProcess, queue_name: str) -> Iterator[Processes]:
    server.flush()
    crew = Processes(server.url, queue_name, lease=1.0, threads=3)
    crew.environ["CHAOS_WORKER"] = "own"
    yield crew
    crew.close()


@pytest.mark.chaos
def test_no_more_jobs_run_again_after_a_kill_than_the_worker_had_threads(
    server: ServerProcess, queue_name: str, processes: Processes
) -> None:
    client = server.client()
    starts, ends = f"chaos:{queue_name}:starts", f"chaos:{queue_name}:ends"
    with watching(server.url, queue_name) as queue:
        queue.enqueue_many([Message(queue_name, "run", (number, 0.001), {}, {}).encode() for number in range(600)])
        killed = 0
        for _ in range(3):
            process = processes.start()
            before = client.llen(ends)
            eventually(lambda before=before: client.llen(ends) > before + 60, PATIENCE)
            processes.kill(process.pid)
            killed += 1
        processes.start()
        eventually(lambda: queue.counts().completed == 600, PATIENCE)
    runs = Counter(entry.split()[0] for entry in client.lrange(starts, 0, -1))
    assert len(runs) == 600
    again = sum(count - 1 for count in runs.values())
    assert again <= killed * processes.threads
