"""Worker processes die without a word: every job still runs, and none more often than the deaths explain."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest
from chaos.crew import PATIENCE, App, Processes, Record, watching
from support.eventually import eventually
from support.servers import ServerProcess

from echomq_tasks.queue import Queue, State

pytestmark = pytest.mark.chaos


@pytest.fixture
def processes(server: ServerProcess, queue_name: str) -> Iterator[Processes]:
    server.flush()
    crew = Processes(server.url, queue_name, lease=1.0, threads=4)
    yield crew
    crew.close()


@pytest.fixture
def watched(server: ServerProcess, queue_name: str) -> Iterator[Queue]:
    with watching(server.url, queue_name) as queue:
        yield queue


def read(queue: Queue, name: str) -> dict[int, list[int]]:
    """The pids that noted a start or an end of each job, in order."""
    found: dict[int, list[int]] = defaultdict(list)
    for line in queue.connection.client.lrange(f"chaos:{queue.name}:{name}", 0, -1):
        number, pid = map(int, line.split())
        found[number].append(pid)
    return found


@pytest.mark.slow
def test_every_job_completes_and_only_killed_workers_explain_a_second_start(
    processes: Processes, watched: Queue, server: ServerProcess, make_app: Callable[..., App]
) -> None:
    chance = random.Random(20261129)
    jobs, kills = 400, 6
    app = make_app(server.url, lambda number, seconds: None)
    for number in range(jobs):
        app.run.send(number, 0.02)
    for _ in range(2):
        processes.start()
    killed: set[int] = set()
    for at in sorted(chance.sample(range(10, jobs - 40), kills)):
        eventually(lambda at=at: len(read(watched, "ends")) >= at, PATIENCE)
        busy = {pid for pids in read(watched, "starts").values() for pid in pids} & processes.running.keys()
        victim = chance.choice(sorted(busy or processes.running))
        processes.kill(victim)
        killed.add(victim)
        processes.start()
    eventually(lambda: watched.counts().unfinished == 0, PATIENCE, "everything done")

    counts = watched.counts()
    assert (counts.active, counts.dead, counts.completed, counts.failed) == (0, 0, jobs, 0)
    starts, ends = read(watched, "starts"), read(watched, "ends")
    assert ends.keys() == set(range(jobs))
    for number, pids in starts.items():
        assert set(pids[:-1]) <= killed, f"job {number} was started by {pids}, of which only {killed} were killed"
    repeats = sum(map(len, starts.values())) - jobs
    assert 0 < repeats <= kills * processes.threads


def test_a_job_that_kills_its_workers_ends_in_dead_and_the_jobs_beside_it_run(
    processes: Processes, watched: Queue, server: ServerProcess, make_app: Callable[..., App]
) -> None:
    sweeper = make_app(server.url, lambda number: None, lease=0.5, max_stalled=2)
    killer = sweeper.actor(lambda: None, sweeper.queue_name, "killer").send()
    process = processes.start()
    assert processes.wait(process) == -9
    # Another worker brings it back; it must not run it, so it has no thread to spare, only a consumer that sweeps.
    consumer = sweeper.broker.consume(sweeper.queue_name, prefetch=1, timeout=100)
    delivery = eventually(lambda: next(consumer), PATIENCE)
    assert delivery.job_id == killer.job_id
    assert delivery.job.stalled == 1
    consumer.requeue([delivery])
    consumer.close()
    process = processes.start()
    assert processes.wait(process) == -9
    sweeper.work(threads=1)
    eventually(lambda: watched.counts().dead == 1, PATIENCE)
    info = watched.get(killer.job_id)
    assert info is not None
    assert (info.state, info.last_error, info.stalled, info.failures) == (State.DEAD, "stalled", 2, 0)
    sweeper.run.send(1)
    eventually(lambda: watched.counts().completed == 1, PATIENCE, "a job after it runs")


def test_ten_thousand_orphans_come_back_and_run(
    server: ServerProcess, watched: Queue, make_app: Callable[..., App], record: Record
) -> None:
    server.flush()
    app = make_app(server.url, record.end)
    orphans = 10_000
    message = app.run.message(0)
    watched.enqueue_many([message.copy(args=(number,)).encode() for number in range(orphans)])
    claimed = sum(len(watched.claim(1000, lease=0.001)) for _ in range(orphans // 1000))
    assert claimed == orphans
    app.work(threads=8)
    eventually(lambda: watched.counts().unfinished == 0, PATIENCE, "all orphans ran")
    assert record.ends == dict.fromkeys(range(orphans), 1)
    assert watched.counts().completed == orphans


def test_a_delayed_job_outlives_the_workers_that_waited_for_it(
    processes: Processes, watched: Queue, server: ServerProcess, make_app: Callable[..., App]
) -> None:
    app = make_app(server.url, lambda number, seconds: None)
    first = processes.start()
    app.run.send(1, 0.0)
    eventually(lambda: watched.counts().completed == 1, PATIENCE, "the worker is up")
    app.run.send_with_options(args=(2, 0.0), delay=800)
    processes.kill(first.pid)
    assert watched.counts().scheduled == 1
    processes.start()
    eventually(lambda: watched.counts().completed == 2, PATIENCE)
    assert len(read(watched, "starts")[2]) == 1
