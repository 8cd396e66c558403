"""The server crashes, hangs, forgets its scripts or runs out of memory while a worker drains a queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from chaos.crew import PATIENCE, App, Record, watching
from dramatiq.errors import ConnectionClosed
from support.eventually import eventually
from support.servers import ServerProcess

from echomq_tasks.errors import ServerOutOfMemory
from echomq_tasks.queue import Queue

pytestmark = pytest.mark.chaos

JOBS = 300


@pytest.fixture
def watched(own_server: ServerProcess, queue_name: str) -> Iterator[Queue]:
    with watching(own_server.url, queue_name) as queue:
        yield queue


@pytest.fixture
def slowly(record: Record) -> Callable[[int], None]:
    """An actor's body that takes a few milliseconds."""

    pause = threading.Event()

    def body(number: int) -> None:
        record.start(number)
        pause.wait(0.005)
        record.end(number)

    return body


def finished(queue: Queue) -> bool:
    return queue.counts().unfinished == 0


@pytest.mark.slow
def test_a_server_that_is_killed_twice_loses_nothing_and_no_job_runs_three_times(
    own_server: ServerProcess,
    queue_name: str,
    make_app: Callable[..., App],
    record: Record,
    slowly: Callable[..., None],
) -> None:
    app = make_app(own_server.url, slowly, lease=2.0)
    for number in range(JOBS):
        app.run.send(number)
    app.work(threads=4)
    for done in (JOBS // 5, JOBS // 2):
        eventually(lambda done=done: len(record.ends) >= done, PATIENCE)
        own_server.kill()
        with pytest.raises(ConnectionClosed):
            app.run.send(-1)
        own_server.start()
    with watching(own_server.url, queue_name) as watched:
        eventually(lambda: finished(watched), PATIENCE, "everything done")
        counts = watched.counts()
    assert (counts.completed, counts.dead, counts.active) == (JOBS, 0, 0)
    assert record.ends.keys() == set(range(JOBS))
    assert max(record.starts.values()) <= 2


def test_scripts_that_are_flushed_again_and_again_are_not_noticed(
    own_server: ServerProcess, watched: Queue, make_app: Callable[..., App], record: Record, slowly: Callable[..., None]
) -> None:
    app = make_app(own_server.url, slowly)
    for number in range(JOBS):
        app.run.send(number)
    app.work(threads=4)
    flushes = 0
    while not finished(watched):
        own_server.client().script_flush()
        flushes += 1
        seen = len(record.ends)
        eventually(lambda seen=seen: len(record.ends) > seen or finished(watched), PATIENCE)
    assert flushes > 10
    assert record.starts == dict.fromkeys(range(JOBS), 1)
    assert watched.counts().completed == JOBS


def test_a_server_that_hangs_for_longer_than_the_timeout_loses_nothing(
    own_server: ServerProcess, watched: Queue, make_app: Callable[..., App], record: Record, slowly: Callable[..., None]
) -> None:
    app = make_app(own_server.url, slowly, timeout=0.5, lease=2.0)
    for number in range(JOBS):
        app.run.send(number)
    app.work(threads=4)
    eventually(lambda: len(record.ends) >= JOBS // 4, PATIENCE)
    own_server.pause(1_200)
    with pytest.raises(ConnectionClosed):
        app.run.send(JOBS)  # in doubt: it was sent, and may be in
    eventually(lambda: finished(watched), PATIENCE, "everything done")
    assert record.ends.keys() - {JOBS} == set(range(JOBS))
    assert max(record.starts.values()) <= 2
    assert watched.counts().dead == 0


def test_a_full_server_refuses_new_jobs_while_workers_drain_and_retry_what_is_there(
    own_server: ServerProcess, watched: Queue, make_app: Callable[..., App], record: Record
) -> None:
    def fails_once(number: int) -> None:
        if record.start(number) == 1 and number % 10 == 0:
            raise RuntimeError("once")
        record.end(number)

    app = make_app(own_server.url, fails_once)
    for number in range(50):
        app.run.send(number)
    own_server.client().config_set("maxmemory", 1)
    with pytest.raises(ServerOutOfMemory, match="maxmemory"):
        app.run.send(50)
    with pytest.raises(ServerOutOfMemory):
        app.run.send_with_options(args=(50,), delay=10)
    app.work(threads=4)
    eventually(lambda: finished(watched), PATIENCE, "drained while full")
    assert record.ends == dict.fromkeys(range(50), 1)
    assert sum(record.starts.values()) == 55
    own_server.client().config_set("maxmemory", 0)
    app.run.send(50)
    eventually(lambda: record.ends[50] == 1, PATIENCE)
