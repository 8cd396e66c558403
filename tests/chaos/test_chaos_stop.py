"""A worker that is told to stop finishes what runs and gives back the rest at once, at nobody's cost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from chaos.crew import PATIENCE, App, Processes, Record, watching
from support.eventually import eventually
from support.servers import ServerProcess

from echomq_tasks.queue import Queue, State

pytestmark = pytest.mark.chaos


@pytest.fixture
def watched(server: ServerProcess, queue_name: str) -> Iterator[Queue]:
    server.flush()
    with watching(server.url, queue_name) as queue:
        yield queue


@pytest.fixture
def gated(record: Record, gate: threading.Event) -> Callable[[int], None]:
    def body(number: int) -> None:
        record.start(number)
        assert gate.wait(PATIENCE)
        record.end(number)

    return body


def stopping(app: App) -> threading.Thread:
    """Stop the workers from another thread; answers it once the stop has begun."""
    worker = app.workers[0]
    thread = threading.Thread(target=app.rest)
    thread.start()
    eventually(lambda: not any(child.running for child in worker.workers), PATIENCE)
    return thread


def untouched(queue: Queue, state: State = State.PENDING) -> list[tuple[int, int]]:
    """Failures and stalls of each job that is there."""
    infos = [info for info in queue.get_many(queue.browse(state)) if info is not None]
    return [(info.failures, info.stalled) for info in infos]


def test_running_jobs_finish_and_waiting_ones_are_not_touched(
    server: ServerProcess,
    watched: Queue,
    make_app: Callable[..., App],
    gated: Callable[..., None],
    gate: threading.Event,
    record: Record,
) -> None:
    app = make_app(server.url, gated)
    for number in range(6):
        app.run.send(number)
    app.work(threads=2)
    eventually(lambda: record.starts.total() == 2, PATIENCE)
    thread = stopping(app)
    gate.set()
    thread.join(PATIENCE)
    counts = watched.counts()
    assert (counts.completed, counts.active, counts.pending, counts.scheduled) == (2, 0, 4, 0)
    assert untouched(watched) == [(0, 0)] * 4


def test_claimed_jobs_that_no_thread_had_started_come_back_at_once(
    server: ServerProcess, watched: Queue, make_app: Callable[..., App], record: Record
) -> None:
    app = make_app(server.url, record.start, lease=60.0)
    worker = app.work(threads=4)
    for thread in worker.workers:
        thread.pause()
    for thread in worker.workers:
        assert thread.paused_event.wait(PATIENCE)
    for number in range(10):
        app.run.send(number)
    eventually(lambda: watched.counts().active == 4, PATIENCE, "claimed, and no more than there are threads")
    app.rest()
    counts = watched.counts()
    assert (counts.active, counts.pending) == (0, 10)
    assert untouched(watched) == [(0, 0)] * 10
    assert not record.starts
    app.work(threads=4)
    eventually(lambda: watched.counts().completed == 10, PATIENCE)
    assert record.starts == dict.fromkeys(range(10), 1)


def test_a_worker_that_stops_claims_nothing_more_while_its_last_job_runs(
    server: ServerProcess, watched: Queue, make_app: Callable[..., App], gated: Callable[..., None], record: Record
) -> None:
    leaving = make_app(server.url, gated)
    leaving.run.send(0)
    leaving.work(threads=4)
    eventually(lambda: record.starts[0] == 1, PATIENCE)
    stopping(leaving)
    staying = make_app(server.url, lambda number: record.end(number))
    staying.work(threads=1)
    for number in range(1, 9):
        staying.run.send(number)
    eventually(lambda: watched.counts().completed == 8, PATIENCE, "the other worker had them all")
    assert watched.counts().active == 1
    assert record.ends == dict.fromkeys(range(1, 9), 1)


def test_jobs_that_could_not_be_given_back_come_back_with_their_lease(
    own_server: ServerProcess, queue_name: str, make_app: Callable[..., App], record: Record
) -> None:
    app = make_app(own_server.url, record.start, lease=1.0)
    worker = app.work(threads=2)
    for thread in worker.workers:
        thread.pause()
    for thread in worker.workers:
        assert thread.paused_event.wait(PATIENCE)
    app.run.send(1)
    app.run.send(2)
    eventually(lambda: app.queue.counts().active == 2, PATIENCE)
    own_server.kill()
    app.rest()
    own_server.start()
    # The same process goes on, with another worker; a lease that is still renewed would never end.
    app.work(threads=2)
    with watching(own_server.url, queue_name) as watched:
        eventually(lambda: watched.counts().completed == 2, PATIENCE)
    assert record.starts == {1: 1, 2: 1}


COMMANDS = {"dramatiq": ["dramatiq"], "own": ["echomq_tasks", "worker"]}


@pytest.mark.slow
def test_the_command_finishes_what_runs_on_sigterm_and_exits_with_0(
    server: ServerProcess, queue_name: str, watched: Queue, make_app: Callable[..., App], worker_kind: str
) -> None:
    app = make_app(server.url, lambda number, seconds: None)
    for number in range(6):
        app.run.send(number, 1.0)
    crew = Processes(server.url, queue_name, lease=30.0, threads=2)
    try:
        process = crew.start("-m", *COMMANDS[worker_kind], "chaos.shift:broker", "--processes", "1", "--threads", "2")
        # Started: what is only claimed would be given back.
        eventually(lambda: server.client().llen(f"chaos:{queue_name}:starts") == 2, PATIENCE)
        process.send_signal(signal.SIGTERM)
        assert crew.wait(process) == 0
    finally:
        crew.close()
    starts = server.client().lrange(f"chaos:{queue_name}:starts", 0, -1)
    ends = server.client().lrange(f"chaos:{queue_name}:ends", 0, -1)
    assert sorted(starts) == sorted(ends)
    counts = watched.counts()
    assert (counts.active, counts.completed, counts.pending) == (0, len(ends), 6 - len(ends))
    assert 2 <= len(ends) < 6
    assert untouched(watched) == [(0, 0)] * (6 - len(ends))
