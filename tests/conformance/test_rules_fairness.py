"""Fairness, counted and not timed: who is served between two jobs of a lane, and how often."""

from __future__ import annotations

from collections import Counter

import pytest
from wire.handwriting import Wire

from echomq_tasks.connection import Connection
from echomq_tasks.identity import group_id
from echomq_tasks.queue import Job, NewJob, Queue

GREEDY, MODEST, THIRD = (group_id(name) for name in ("greedy", "modest", "third"))
NAMES = {GREEDY: "greedy", MODEST: "modest", THIRD: "third"}


def fill(queue: Queue, name: str, count: int, **fields: int) -> None:
    queue.enqueue_many([NewJob(payload="p", group=name, **fields) for _ in range(count)])  # type: ignore[arg-type]


def served(queue: Queue, claims: int, size: int, *, settle: bool = True) -> list[Job]:
    """The jobs of so many claims, in the order in which they were handed out."""
    found: list[Job] = []
    for _ in range(claims):
        jobs = list(queue.claim(size))
        if settle:
            queue.complete_many(jobs)
        found += jobs
    return found


@pytest.mark.parametrize("size", [1, 8, 64])
def test_fifty_thousand_jobs_of_one_lane_do_not_delay_the_single_job_of_another(
    standalone: Connection, queue_name: str, size: int
) -> None:
    queue = Queue(queue_name, standalone)
    fill(queue, "greedy", 50_000)
    served(queue, 3, size)
    lonely = queue.enqueue("q", group="modest").id
    # One rotation: at most one turn of the greedy lane before it.
    assert lonely in [job.id for job in served(queue, 2, 1)]


@pytest.mark.parametrize("size", [1, 2, 5, 8, 64])
def test_weights_of_three_to_one_are_served_three_to_one(queue: Queue, size: int) -> None:
    queue.lane("greedy").weight(3)
    fill(queue, "greedy", 1500)
    fill(queue, "modest", 1500)
    shares = Counter(job.group for job in served(queue, 640 // size, size))
    assert shares[GREEDY] / shares[MODEST] == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize("size", [1, 7])
def test_weights_hold_while_other_lanes_come_and_go(queue: Queue, size: int) -> None:
    queue.lane("greedy").weight(3)
    fill(queue, "greedy", 2000)
    fill(queue, "modest", 2000)
    shares: Counter[str | None] = Counter()
    for turn in range(600 // size):
        # A lane that is emptied and filled again joins the ring at its end each time.
        queue.enqueue("p", group=f"visitor {turn % 5}")
        shares.update(job.group for job in served(queue, 1, size))
        shares.update(job.group for job in served(queue, 1, 1))
    assert shares[GREEDY] / shares[MODEST] == pytest.approx(3, rel=0.05)


def test_weights_hold_for_claimers_that_do_not_settle_between(queue: Queue) -> None:
    queue.lane("greedy").weight(4)
    fill(queue, "greedy", 200)
    fill(queue, "modest", 200)
    shares = Counter(job.group for job in served(queue, 200, 1, settle=False))
    assert shares[GREEDY] / shares[MODEST] == pytest.approx(4, rel=0.05)


def test_a_weight_does_not_reach_past_a_limit(queue: Queue) -> None:
    queue.lane("greedy").weight(10)
    queue.lane("greedy").limit(2)
    fill(queue, "greedy", 50)
    fill(queue, "modest", 50)
    first = served(queue, 12, 1, settle=False)
    assert Counter(job.group for job in first) == {GREEDY: 2, MODEST: 10}


@pytest.mark.parametrize("size", [1, 3, 64])
def test_nobody_starves_flat_or_in_a_lane(queue: Queue, size: int) -> None:
    queue.enqueue_many(["p"] * 400)
    fill(queue, "greedy", 400)
    fill(queue, "modest", 400)
    fill(queue, "third", 400)
    found = served(queue, 384 // size, size)
    shares = Counter(job.group for job in found)
    # Flat and ring in turn, so the flat queue has half; the lanes share the other.
    assert shares[None] == pytest.approx(len(found) / 2, abs=size + 2)
    for lane in (GREEDY, MODEST, THIRD):
        assert shares[lane] == pytest.approx(len(found) / 6, abs=size + 2)


def test_a_priority_orders_its_own_lane_and_crosses_none(queue: Queue, wire: Wire) -> None:
    fill(queue, "greedy", 3, priority=-100)
    fill(queue, "modest", 2, priority=7)
    urgent = queue.enqueue("q", group="modest", priority=-1).id
    flat = queue.enqueue("p", priority=50).id
    queue.enqueue("p", priority=60)
    jobs = served(queue, 8, 1)
    lanes = [NAMES[job.group] for job in jobs if job.group]
    # The lanes take turns whatever the priorities in them, and so do they and the flat queue.
    assert lanes[:4] == ["greedy", "modest", "greedy", "modest"]
    assert next(job.id for job in jobs if job.group == MODEST) == urgent
    assert next(job.id for job in jobs if job.group is None) == flat
    assert [bool(job.group) for job in jobs[:4]] in ([False, True, False, True], [True, False, True, False])
