"""Lanes when a job leaves active: the count goes down and away, and the lane is served again by one rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from wire.handwriting import Wire

from echomq_tasks.queue import Job, NewJob, Queue, Verdict

LANE, OTHER = "GRP0NgWEfAEJ0x", "GRP0NgWEfAEJ0y"

Leave = Callable[[Queue, Wire, Job], None]


def _complete(queue: Queue, wire: Wire, job: Job) -> None:
    assert queue.complete(job) is Verdict.OK


def _retry(queue: Queue, wire: Wire, job: Job) -> None:
    assert queue.retry(job, delay=60) is Verdict.SCHEDULED


def _bury(queue: Queue, wire: Wire, job: Job) -> None:
    assert queue.retry(job, max_retries=0) is Verdict.DEAD


def _release(queue: Queue, wire: Wire, job: Job) -> None:
    assert queue.release(job) is Verdict.OK


def _reap(queue: Queue, wire: Wire, job: Job) -> None:
    wire.expire(job.id)
    assert queue.reap() == 1


def _sweep(queue: Queue, wire: Wire, job: Job) -> None:
    wire.expire(job.id)
    assert queue.sweep_stalled(max_stalled=9).recovered == (job.id,)


def _stall(queue: Queue, wire: Wire, job: Job) -> None:
    wire.expire(job.id)
    assert queue.sweep_stalled(max_stalled=1).dead == (job.id,)


#: Every way out of active, and whether the job waits in its lane again afterwards.
LEAVES: dict[str, tuple[Leave, bool]] = {
    "complete": (_complete, False),
    "retry": (_retry, False),
    "bury": (_bury, False),
    "release": (_release, True),
    "reap": (_reap, True),
    "sweep": (_sweep, True),
    "stall": (_stall, False),
}


def busy(queue: Queue, wire: Wire, *, limit: int | None, active: int, waiting: int) -> list[Job]:
    """A lane with jobs that run and jobs that wait."""
    queue.enqueue_many([NewJob(payload="p", group=LANE)] * (active + waiting))
    if limit is not None:
        wire.do("HSET", "glimit", LANE, limit)
    jobs = list(queue.claim(active))
    assert len(jobs) == active
    wire.do("DEL", "wake")
    return jobs


@pytest.mark.parametrize("verb", LEAVES)
def test_the_running_count_goes_down_and_is_dropped_at_zero(queue: Queue, wire: Wire, verb: str) -> None:
    first, second = busy(queue, wire, limit=None, active=2, waiting=0)
    assert wire.running() == {LANE: 2}
    LEAVES[verb][0](queue, wire, first)
    assert wire.running() == {LANE: 1}
    LEAVES[verb][0](queue, wire, second)
    assert wire.read("gactive") is None


@pytest.mark.parametrize("verb", LEAVES)
def test_a_lane_at_its_limit_is_served_again_and_a_worker_woken(queue: Queue, wire: Wire, verb: str) -> None:
    first, _ = busy(queue, wire, limit=2, active=2, waiting=3)
    assert (wire.ring(), wire.wakes()) == ([], 0)
    LEAVES[verb][0](queue, wire, first)
    assert wire.ring() == [LANE]
    assert wire.wakes() >= 1
    assert len(queue.claim(9)) == 1
    assert (wire.ring(), wire.running()) == ([], {LANE: 2})


@pytest.mark.parametrize("verb", LEAVES)
def test_a_lane_still_above_its_limit_stays_out_of_the_ring(queue: Queue, wire: Wire, verb: str) -> None:
    first, *_ = busy(queue, wire, limit=3, active=3, waiting=1)
    wire.do("HSET", "glimit", LANE, 1)  # lowered meanwhile
    LEAVES[verb][0](queue, wire, first)
    assert (wire.ring(), wire.running()) == ([], {LANE: 2})


@pytest.mark.parametrize("verb", LEAVES)
def test_a_paused_lane_stays_out_of_the_ring_and_keeps_its_jobs(queue: Queue, wire: Wire, verb: str) -> None:
    leave, waits_again = LEAVES[verb]
    first, _ = busy(queue, wire, limit=2, active=2, waiting=1)
    wire.do("SADD", "paused", LANE)
    leave(queue, wire, first)
    assert (wire.ring(), wire.running()) == ([], {LANE: 1})
    assert len(wire.ids(f"g:{LANE}:pending")) == 1 + waits_again
    assert not queue.claim(9)


@pytest.mark.parametrize("verb", LEAVES)
def test_an_empty_lane_joins_the_ring_only_when_its_job_comes_back(queue: Queue, wire: Wire, verb: str) -> None:
    leave, waits_again = LEAVES[verb]
    (only,) = busy(queue, wire, limit=None, active=1, waiting=0)
    leave(queue, wire, only)
    assert wire.ring() == ([LANE] if waits_again else [])


@pytest.mark.parametrize("verb", LEAVES)
def test_a_lane_that_is_in_the_ring_is_not_added_twice_nor_moved(queue: Queue, wire: Wire, verb: str) -> None:
    first, _ = busy(queue, wire, limit=None, active=2, waiting=2)
    queue.enqueue("p", group=OTHER)
    before = wire.ring()
    LEAVES[verb][0](queue, wire, first)
    assert wire.ring() == before == [LANE, OTHER]


@pytest.mark.parametrize("verb", LEAVES)
def test_a_flat_job_touches_no_lane(queue: Queue, wire: Wire, verb: str) -> None:
    busy(queue, wire, limit=2, active=2, waiting=1)
    queue.enqueue("flat")
    (flat,) = queue.claim()
    LEAVES[verb][0](queue, wire, flat)
    assert (wire.ring(), wire.running()) == ([], {LANE: 2})


def test_a_promoted_job_goes_to_its_lane_by_the_same_rule(queue: Queue, wire: Wire) -> None:
    ids = [queue.enqueue("p", group=lane, delay=60).id for lane in (LANE, OTHER)]
    wire.do("SADD", "paused", OTHER)
    wire.come_due(*ids)
    assert queue.promote() == 2
    assert wire.ring() == [LANE]
    assert wire.ids(f"g:{OTHER}:pending") == [ids[1]]
