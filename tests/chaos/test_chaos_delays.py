"""Delayed jobs wait in the server: never early, and on time whichever workers come, go or are busy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from chaos.crew import PATIENCE, App, Record, watching
from support.eventually import eventually
from support.servers import ServerProcess
from support.workers import places

from echomq_tasks.queue import NewJob, Queue

#: Milliseconds, half of a worker's beat: a job that waits for its worker's next look, and not for its time, is mostly
#: later than this. How much earlier it is on time is for the benchmarks to say.
LATE = 2_500


@pytest.fixture
def watched(server: ServerProcess, queue_name: str) -> Iterator[Queue]:
    server.flush()
    with watching(server.url, queue_name) as queue:
        yield queue


@pytest.fixture
def clock(watched: Queue) -> Callable[[], int]:
    """The server's clock, unix ms."""

    def now() -> int:
        seconds, micros = watched.connection.client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    return now


class Arrivals:
    """When each job started, by the server's clock."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.at: dict[Any, int] = {}
        self._clock = clock

    def note(self, number: Any) -> None:
        self.at[number] = self._clock()


@pytest.fixture
def arrivals(clock: Callable[[], int]) -> Arrivals:
    return Arrivals(clock)


def send(app: App, clock: Callable[[], int], number: int, delay: int) -> int:
    """Send a job with a delay in ms; answers when it is due, unix ms, at the earliest."""
    due = clock() + delay
    app.run.send_with_options(args=(number,), delay=delay)
    return due


def parked(queue: Queue) -> int:
    """How many consumers stand waiting on the server."""
    return sum("b" in client["flags"] for client in queue.connection.client.client_list())


def untaken(queue: Queue) -> int:
    """How many wake tokens nobody has taken yet."""
    return int(queue.connection.client.llen(f"emq:{{{queue.name}}}:wake"))


def test_an_idle_worker_starts_a_delayed_job_on_time(
    server: ServerProcess,
    watched: Queue,
    clock: Callable[[], int],
    arrivals: Arrivals,
    make_app: Callable[..., App],
    record_property: Callable[[str, object], None],
) -> None:
    app = make_app(server.url, arrivals.note, lease=30.0)
    app.work()
    eventually(lambda: parked(watched) == 1, PATIENCE)
    dues = {number: send(app, clock, number, delay) for number, delay in enumerate([300, 700, 701, 1_500])}
    eventually(lambda: len(arrivals.at) == len(dues), PATIENCE)
    late = [arrivals.at[number] - due for number, due in dues.items()]
    record_property("late_ms", late)
    assert all(0 <= ms <= LATE for ms in late), late


def test_an_earlier_job_overtakes_the_one_that_is_waited_for(
    server: ServerProcess, watched: Queue, clock: Callable[[], int], arrivals: Arrivals, make_app: Callable[..., App]
) -> None:
    app = make_app(server.url, arrivals.note, lease=30.0)
    app.work()
    far = send(app, clock, 1, 1_500)
    eventually(lambda: parked(watched) == 1 and not untaken(watched), PATIENCE)
    near = send(app, clock, 2, 300)
    eventually(lambda: len(arrivals.at) == 2, PATIENCE)
    assert 0 <= arrivals.at[2] - near <= LATE
    assert 0 <= arrivals.at[1] - far <= LATE


@pytest.mark.parametrize("elsewhere", [False, True], ids=["busy with the same queue", "busy with another queue"])
def test_a_worker_that_knew_the_time_may_become_busy(
    server: ServerProcess,
    watched: Queue,
    clock: Callable[[], int],
    arrivals: Arrivals,
    make_app: Callable[..., App],
    worker_kind: str,
    elsewhere: bool,
) -> None:
    release = threading.Event()
    first = make_app(server.url, arrivals.note, lease=30.0)
    first.actor(lambda: release.wait(PATIENCE), first.queue_name, "same")
    first.actor(lambda: release.wait(PATIENCE), first.queue_name + ".other", "other")
    second = make_app(server.url, arrivals.note, lease=30.0)
    second.actor(lambda: release.wait(PATIENCE), second.queue_name, "same")
    try:
        first.work(threads=1)
        eventually(lambda: parked(watched) == places(worker_kind, 2), PATIENCE)
        due = send(second, clock, 1, 1_000)
        eventually(lambda: not untaken(watched), PATIENCE, "it knows the time")
        first.broker.get_actor("other" if elsewhere else "same").send()
        name = watched.name + ".other" if elsewhere else watched.name
        eventually(lambda: first.broker.queue(name).counts().active == 1, PATIENCE)
        second.work(threads=1)
        eventually(lambda: arrivals.at, PATIENCE)
        assert 0 <= arrivals.at[1] - due <= LATE
    finally:
        release.set()


def test_of_two_idle_workers_the_one_that_did_not_know_the_time_takes_over(
    server: ServerProcess,
    watched: Queue,
    clock: Callable[[], int],
    arrivals: Arrivals,
    make_app: Callable[..., App],
    worker_kind: str,
) -> None:
    release = threading.Event()
    apps = [make_app(server.url, arrivals.note, lease=30.0) for _ in range(2)]
    for app in apps:
        app.actor(lambda: release.wait(PATIENCE), app.queue_name + ".other", "other")
    try:
        # Tokens go to whoever parked first, which is thereby the first app.
        apps[0].work(threads=1)
        eventually(lambda: parked(watched) == places(worker_kind, 2), PATIENCE)
        # Only the first can become busy with the other queue.
        apps[1].work(threads=1, queues={watched.name})
        eventually(lambda: parked(watched) == places(worker_kind, 2) + 1, PATIENCE)
        due = send(apps[0], clock, 1, 1_000)
        eventually(lambda: parked(watched) == places(worker_kind, 2) + 1 and not untaken(watched), PATIENCE)
        # It alone took the token of the schedule, and becomes busy.
        apps[0].broker.get_actor("other").send()
        eventually(lambda: apps[0].broker.queue(watched.name + ".other").counts().active == 1, PATIENCE)
        eventually(lambda: arrivals.at, PATIENCE)
        assert 0 <= arrivals.at[1] - due <= LATE
    finally:
        release.set()


def test_two_thousand_jobs_due_at_once_all_run_once_and_not_early(
    server: ServerProcess, watched: Queue, clock: Callable[[], int], make_app: Callable[..., App], record: Record
) -> None:
    early: list[int] = []

    def body(number: int) -> None:
        record.end(number)
        if clock() < due:
            early.append(number)

    app = make_app(server.url, body)
    message = app.run.message(0)
    due = clock() + 1_500
    payloads = [message.copy(args=(number,)).encode() for number in range(2_000)]
    watched.enqueue_many([NewJob(payload=payload, at=due / 1000) for payload in payloads])
    app.work(threads=4)
    eventually(lambda: watched.counts().unfinished == 0, PATIENCE)
    assert record.ends == dict.fromkeys(range(2_000), 1)
    assert early == []
