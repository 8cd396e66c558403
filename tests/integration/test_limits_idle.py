"""A queue at its ceiling costs its workers next to nothing, however much waits in it; and they start at once after."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from chaos.crew import PATIENCE, App, Record, watching
from support.eventually import eventually
from support.servers import ServerProcess

from echomq_tasks.queue import Queue

#: With this lease an idle worker looks every five seconds.
LEASE = 30.0
WORKERS = 8
#: Seconds that the commands are counted for.
WATCHED = 2.5
#: A lane that many jobs wait in.
GROUP = "acme"


@pytest.fixture
def watched(own_server: ServerProcess, queue_name: str) -> Iterator[Queue]:
    with watching(own_server.url, queue_name) as queue:
        yield queue


@pytest.fixture
def crew(own_server: ServerProcess, make_app: Callable[..., App], record: Record) -> list[App]:
    """Eight apps, each with a worker of one thread to start."""
    return [make_app(own_server.url, record.end, lease=LEASE) for _ in range(WORKERS)]


def parked(server: ServerProcess) -> int:
    """How many consumers stand waiting on the server."""
    return sum("b" in client["flags"] for client in server.client().client_list())


def calls(server: ServerProcess) -> dict[str, int]:
    """How often each command ran, inside of scripts too."""
    stats = server.client().info("commandstats")
    return {name.removeprefix("cmdstat_"): int(entry["calls"]) for name, entry in stats.items()}


def fill(app: App, jobs: int) -> None:
    """Messages that wait, half of them in a lane."""
    for number in range(jobs):
        app.run.send(number)
    ids = app.queue.browse(count=jobs // 2)
    for job_id in ids:
        app.queue.move(job_id, GROUP)


def at_rest(server: ServerProcess) -> None:
    eventually(lambda: parked(server) == WORKERS, PATIENCE, "all are parked")

    # The last of the tokens make their round before all is quiet.
    def quiet() -> bool:
        before = calls(server).get("evalsha", 0)
        threading.Event().wait(0.3)
        return calls(server)["evalsha"] == before and parked(server) == WORKERS

    eventually(quiet, PATIENCE, "and quiet")


def spent(server: ServerProcess) -> tuple[int, int]:
    """Scripts and waits that ended within a few seconds, in which nobody but the workers does anything."""
    before = calls(server)
    threading.Event().wait(WATCHED)
    after = calls(server)
    scripts, waits = (after.get(name, 0) - before.get(name, 0) for name in ("evalsha", "blpop"))
    return scripts, waits


#: How each ceiling is set, with the number of jobs that it lets through, and how it is lifted.
CEILINGS: dict[str, tuple[Callable[[Queue], object], int, Callable[[Queue], object]]] = {
    "pause": (lambda queue: queue.pause(), 0, lambda queue: queue.resume()),
    "rate": (lambda queue: queue.limit_rate(3, per=3600.0), 3, lambda queue: queue.limit_rate(None)),
    "raised rate": (lambda queue: queue.limit_rate(3, per=3600.0), 3, lambda queue: queue.limit_rate(50, per=3600.0)),
    "window": (lambda queue: queue.limit_rate(3, per=3600.0), 3, lambda queue: queue.limit_rate(50, per=0.001)),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("worker_kind", "ceiling"), [*(("dramatiq", ceiling) for ceiling in CEILINGS), ("own", "raised rate")]
)
def test_workers_at_a_ceiling_park_and_go_on_when_it_is_lifted(
    own_server: ServerProcess, watched: Queue, crew: list[App], record: Record, ceiling: str
) -> None:
    begin, through, end = CEILINGS[ceiling]
    fill(crew[0], 40)
    begin(watched)
    for app in crew:
        app.work(threads=1)
    eventually(lambda: len(record.ends) == through, PATIENCE)
    at_rest(own_server)
    scripts, waits = spent(own_server)
    # One claim and one sweep each, which come every five seconds, and half as much for a machine that is late.
    assert scripts <= 3 * WORKERS
    assert waits <= WORKERS
    assert len(record.ends) == through
    end(watched)
    eventually(lambda: len(record.ends) == 40, 2.5, "woken, not found at the next look")
    assert set(record.ends.values()) == {1}


@pytest.mark.slow
@pytest.mark.parametrize(("worker_kind", "where"), [("dramatiq", "queue"), ("dramatiq", "lane"), ("own", "lane")])
def test_workers_at_a_concurrency_ceiling_park_until_a_job_ends(
    own_server: ServerProcess,
    watched: Queue,
    make_app: Callable[..., App],
    record: Record,
    gate: threading.Event,
    where: str,
) -> None:
    def body(number: int) -> None:
        record.start(number)
        gate.wait(PATIENCE)
        record.end(number)

    crew = [make_app(own_server.url, body, lease=LEASE) for _ in range(WORKERS + 2)]
    fill(crew[0], 40)
    if where == "queue":
        watched.limit_concurrency(2)
    else:
        for job_id in watched.browse(count=100):
            watched.move(job_id, GROUP)
        watched.lane(GROUP).limit(2)
    for app in crew:
        app.work(threads=1)
    eventually(lambda: len(record.starts) == 2, PATIENCE)
    at_rest(own_server)
    scripts, waits = spent(own_server)
    # As above, and the leases of the two that run.
    assert scripts <= 3 * (WORKERS + 2)
    assert waits <= WORKERS + 2
    assert len(record.starts) == 2
    gate.set()
    eventually(lambda: len(record.ends) == 40, PATIENCE)
    assert set(record.ends.values()) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("worker_kind", ["dramatiq", "own"])
def test_a_short_window_costs_each_worker_a_look_a_window_and_no_more(
    own_server: ServerProcess, watched: Queue, crew: list[App], record: Record
) -> None:
    fill(crew[0], 400)
    watched.limit_rate(1, per=1.0)
    for app in crew:
        app.work(threads=1)
    eventually(lambda: len(record.ends) >= 2, PATIENCE)
    done = len(record.ends)
    scripts, _ = spent(own_server)
    windows = len(record.ends) - done + 2
    # For each window and worker a claim that may be told to look again, and one that follows a wake token; a settlement
    # for the job; and the sweeps.
    assert scripts <= windows * (3 * WORKERS + 1) + 2 * WORKERS
    assert len(record.ends) - done <= WATCHED + 2, "no more than the rate"
