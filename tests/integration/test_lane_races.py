"""Sixteen workers on one queue with lanes, while its operator changes limits and pauses under them."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pytest
from chaos.crew import PATIENCE
from wire.handwriting import Wire

from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import Held, WrongState
from echomq_tasks.queue import Job, NewJob, Queue, Verdict

CLAIMERS = 16
GROUPS = [None, *(f"GRP0NgWEfAEJ0{letter}" for letter in "vwxyz")]
JOBS = 3000


@dataclass
class Ledger:
    """What the workers hold and have done. Its lock is held over no call to the server."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    held: dict[str, Job] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    failures: list[BaseException] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def take(self, jobs: list[Job]) -> None:
        with self.lock:
            for job in jobs:
                assert job.id not in self.held, f"{job.id} was claimed twice"
                assert job.id not in self.done, f"{job.id} was claimed after it was done"
                self.held[job.id] = job

    def groups(self) -> Counter[str | None]:
        """How many jobs of each group are held."""
        with self.lock:
            return Counter(job.group for job in self.held.values())

    def leave(self, job: Job, *, done: bool) -> None:
        """Before the settlement is sent: from then on another worker may have the job."""
        with self.lock:
            del self.held[job.id]
            if done:
                self.done[job.id] += 1


@contextmanager
def crew(ledger: Ledger, url: str, protocol: int, name: str) -> Iterator[None]:
    """Claimers with connections of their own, until the ledger is over; what they hold then, they keep."""

    def work(number: int) -> None:
        dice = random.Random(number)
        try:
            with connect(url, protocol=protocol) as connection:
                queue = Queue(name, connection)
                while not ledger.over.is_set():
                    jobs = list(queue.claim(dice.randint(1, 8), lease=600))
                    ledger.take(jobs)
                    if not jobs:
                        ledger.over.wait(0.002)
                    for job in jobs:
                        # It takes a while, so that limits matter.
                        if ledger.over.wait(dice.random() * 0.004):
                            return
                        verb = dice.choice(["complete"] * 6 + ["release", "retry"])
                        ledger.leave(job, done=verb == "complete")
                        if verb == "complete":
                            assert queue.complete(job) is Verdict.OK
                        elif verb == "release":
                            assert queue.release(job) is Verdict.OK
                        else:
                            assert queue.retry(job) is Verdict.SCHEDULED
        except BaseException as error:
            ledger.failures.append(error)
            ledger.over.set()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(CLAIMERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ledger.over.set()
        for thread in threads:
            thread.join(PATIENCE)


def invariants(queue: Queue, wire: Wire) -> None:
    """What is true of the queue's keys whenever nobody is at work."""
    rows = {job_id: wire.row(job_id) for job_id in wire.ids("active")}
    running = Counter(row["group"] for row in rows.values() if "group" in row)
    assert wire.running() == running
    serviceable = {
        lane.group
        for lane in queue.lanes()
        if lane.depth and not lane.paused and (lane.limit is None or lane.active < lane.limit)
    }
    ring = wire.ring()
    assert len(ring) == len(set(ring))
    assert set(ring) == serviceable


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_job_is_lost_or_claimed_twice_and_no_limit_exceeded_while_all_of_them_change(
    connection: Connection, queue_name: str
) -> None:
    queue, wire = Queue(queue_name, connection), Wire(connection, queue_name)
    dice, ledger = random.Random(1), Ledger()
    ids = {
        answer.id
        for answer in queue.enqueue_many(
            NewJob(payload="p", group=dice.choice(GROUPS), priority=dice.choice([0, 0, -3, 4])) for _ in range(JOBS)
        )
    }
    config = connection.config
    url = f"valkey{'+cluster' if connection.is_cluster else ''}://{config.nodes[0][0]}:{config.nodes[0][1]}"
    lanes = [queue.lane(group) for group in GROUPS if group]
    looks = 0
    with crew(ledger, url, config.protocol, queue_name):
        deadline = time.monotonic() + PATIENCE
        while len(ledger.done) < JOBS - 200 and not ledger.over.is_set() and time.monotonic() < deadline:
            lane = dice.choice(lanes)
            limit = dice.choice([1, 2, 3])
            ceiling = dice.choice([4, 6])
            lane.limit(limit)
            queue.limit_concurrency(ceiling)
            _hold(ledger, wire, lane.group, limit, ceiling)
            looks += 1
            if dice.random() < 0.5:
                lane.pause()
                _stays_out(wire, lane.group)
                lane.resume()
            if dice.random() < 0.2:
                assert queue.pause()
                _stands_still(wire)
                assert queue.resume()
            if waiting := queue.browse(group=dice.choice(GROUPS), count=5):
                _try_to_move(queue, dice.choice(waiting), dice.choice(GROUPS))
            lane.weight(dice.choice([None, 2, 5]))
            lane.limit(dice.choice([None, 5]))
            queue.limit_concurrency(None)
        while len(ledger.done) < JOBS and not ledger.over.is_set() and time.monotonic() < deadline:
            ledger.over.wait(0.01)
    if ledger.failures:
        raise ledger.failures[0]
    assert looks > 20
    assert ledger.done == dict.fromkeys(ids, 1)
    counts = queue.counts()
    assert (counts.completed, counts.unfinished, counts.dead) == (JOBS, 0, 0)
    assert wire.running() == {}
    invariants(queue, wire)


def _hold(ledger: Ledger, wire: Wire, group: str, limit: int, ceiling: int) -> None:
    """With limits that stay, what runs above them ends, and from then on they hold at each look."""
    settled = False
    for _ in range(15):
        running, active = wire.running().get(group, 0), wire.do("ZCARD", "active")
        if settled:
            assert active <= ceiling
            assert running <= limit
            # And by what the workers have in hand, which a wrong count of the server's could not hide.
            held = ledger.groups()
            assert held[group] <= limit
            assert held.total() <= ceiling
        settled = settled or (running <= limit and active <= ceiling)


def _stays_out(wire: Wire, group: str) -> None:
    """A paused lane gets no more jobs to run: its count only goes down, and the ring is without it."""
    before = wire.running().get(group, 0)
    for _ in range(5):
        now = wire.running().get(group, 0)
        assert now <= before
        assert group not in wire.ring()
        before = now


def _stands_still(wire: Wire) -> None:
    """Of a paused queue no more jobs are handed out."""
    before = set(wire.ids("active"))
    for _ in range(5):
        now = set(wire.ids("active"))
        assert now <= before
        before = now


def _try_to_move(queue: Queue, job_id: str, group: str | None) -> None:
    """It may run, be scheduled or be done by then."""
    with suppress(Held, WrongState):
        assert queue.move(job_id, group) in (Verdict.OK, Verdict.GONE)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_whenever_the_workers_rest_the_ring_and_the_counts_are_exact(connection: Connection, queue_name: str) -> None:
    queue, wire, dice = Queue(queue_name, connection), Wire(connection, queue_name), random.Random(7)
    config = connection.config
    url = f"valkey{'+cluster' if connection.is_cluster else ''}://{config.nodes[0][0]}:{config.nodes[0][1]}"
    for _ in range(4):
        queue.enqueue_many(NewJob(payload="p", group=dice.choice(GROUPS)) for _ in range(400))
        ledger = Ledger()
        with crew(ledger, url, config.protocol, queue_name):
            before = queue.counts().completed
            deadline = time.monotonic() + PATIENCE
            while queue.counts().completed < before + 100 and time.monotonic() < deadline:
                lane = queue.lane(dice.choice(GROUPS[1:]))  # type: ignore[arg-type]
                dice.choice([lane.pause, lane.resume, lane.resume])()
                lane.limit(dice.choice([None, 1, 2]))
        assert ledger.failures == []
        # What they had in hand runs on, some of it in lanes that are full.
        assert set(ledger.held) == set(wire.ids("active"))
        invariants(queue, wire)
        queue.enqueue_many(NewJob(payload="p", group=group) for group in GROUPS)
        invariants(queue, wire)
        for job in ledger.held.values():
            assert queue.release(job) is Verdict.OK
        assert wire.running() == {}
        invariants(queue, wire)
    for info in queue.lanes():
        queue.lane(info.group).resume()
        queue.lane(info.group).limit(None)
    invariants(queue, wire)
    while queue.promote():
        pass
    left = queue.counts().waiting
    assert len(queue.claim(1000)) == min(left, 1000)
