"""The hook of flows in complete, retry and sweep, over more than one child and more than one level."""

from __future__ import annotations

from itertools import pairwise

import pytest
from wire.handwriting import Wire

from echomq_tasks.queue import Job, Queue, State, Verdict

TOP, MIDDLE, LEAF, SISTER, BROTHER = (f"JOB0NgWEfAEJ0{letter}" for letter in "TMLSB")
LANE = "GRP0NgWEfAEJfs"


def parent(wire: Wire, job_id: str, children: int, **fields: str) -> None:
    words = [word for field in fields.items() for word in field]
    wire.do("HSET", f"job:{job_id}", "state", "awaiting_children", "attempts", 0, "payload", job_id, *words)
    wire.do("SET", f"job:{job_id}:dependencies", children)


def child(wire: Wire, job_id: str, of: str, **fields: str) -> None:
    words = [word for field in fields.items() for word in field]
    wire.do("HSET", f"job:{job_id}", "state", "pending", "attempts", 0, "payload", job_id, "parent", of, *words)
    wire.do("ZADD", "pending", 0, job_id)


def take(queue: Queue, job_id: str) -> Job:
    jobs = [job for job in queue.claim(10) if job.id == job_id]
    assert jobs, f"{job_id} was not to be had"
    return jobs[0]


def test_a_parent_waits_for_every_child_and_then_runs(queue: Queue, wire: Wire) -> None:
    parent(wire, TOP, 2)
    child(wire, LEAF, TOP)
    child(wire, SISTER, TOP)
    assert queue.state(TOP) is State.AWAITING_CHILDREN
    first, second = queue.claim(5).jobs
    queue.complete(first, "one")
    assert queue.state(TOP) is State.AWAITING_CHILDREN
    assert wire.read(f"job:{TOP}:dependencies") == "1"
    assert not queue.claim(5)
    queue.complete(second, "two")
    assert wire.read(f"job:{TOP}:processed") == {LEAF: "one", SISTER: "two"}
    top = take(queue, TOP)
    assert queue.complete(top) is Verdict.OK
    assert wire.everything() == {"metrics:completed": {"count": "3"}}


def test_children_settled_in_one_batch_count_each(queue: Queue, wire: Wire) -> None:
    parent(wire, TOP, 2)
    child(wire, LEAF, TOP)
    child(wire, SISTER, TOP)
    assert queue.complete_many(queue.claim(5)) == [Verdict.OK, Verdict.OK]
    assert queue.state(TOP) is State.PENDING


def test_a_parent_with_a_lane_and_a_priority_waits_there_once_its_children_are_done(queue: Queue, wire: Wire) -> None:
    parent(wire, TOP, 1, group=LANE, priority="-3")
    child(wire, LEAF, TOP)
    queue.complete(take(queue, LEAF))
    assert wire.read(f"g:{LANE}:pending") == {TOP: -3}
    assert wire.ring() == [LANE]
    assert wire.wakes() >= 1


def test_three_levels_finish_from_the_bottom_up(queue: Queue, wire: Wire) -> None:
    parent(wire, TOP, 1)
    parent(wire, MIDDLE, 1, parent=TOP)
    child(wire, LEAF, MIDDLE)
    queue.complete(take(queue, LEAF), "leaf")
    assert queue.state(TOP) is State.AWAITING_CHILDREN
    queue.complete(take(queue, MIDDLE), "middle")
    assert wire.read(f"job:{TOP}:processed") == {MIDDLE: "middle"}
    queue.complete(take(queue, TOP))
    assert queue.counts().completed == 3


def test_a_death_goes_up_level_by_level_and_each_parent_knows_its_child(queue: Queue, wire: Wire) -> None:
    parent(wire, TOP, 1)
    parent(wire, MIDDLE, 1, parent=TOP, parent_policy="fp")
    child(wire, LEAF, MIDDLE)
    assert queue.retry(take(queue, LEAF), "boom", max_retries=0) is Verdict.DEAD
    assert set(wire.ids("dead")) == {LEAF, MIDDLE, TOP}
    assert wire.read(f"job:{MIDDLE}:failed") == {LEAF: "boom"}
    ((told, reason),) = wire.read(f"job:{TOP}:failed").items()
    assert told == MIDDLE
    assert "boom" in reason
    assert queue.counts().failed == 3


def test_a_death_stops_going_up_at_a_parent_that_is_satisfied_with_it(queue: Queue, wire: Wire) -> None:
    parent(wire, TOP, 1)
    parent(wire, MIDDLE, 1, parent=TOP, parent_policy="id")
    child(wire, LEAF, MIDDLE)
    queue.retry(take(queue, LEAF), "boom", max_retries=0)
    assert set(wire.ids("dead")) == {LEAF, MIDDLE}
    assert list(wire.read(f"job:{TOP}:unsuccessful")) == [MIDDLE]
    assert queue.state(TOP) is State.PENDING


def test_a_death_goes_up_across_queues_through_the_outbox(queue: Queue, wire: Wire) -> None:
    parent(wire, MIDDLE, 1, parent=TOP, parent_queue="elsewhere", parent_policy="id")
    child(wire, LEAF, MIDDLE)
    queue.retry(take(queue, LEAF), "boom", max_retries=0)
    assert set(wire.ids("dead")) == {LEAF, MIDDLE}
    (entry,) = wire.read("flow:outbox")
    assert entry.split("\x00")[:6] == ["", "fail", "elsewhere", TOP, MIDDLE, "id"]
    assert "boom" in entry.split("\x00", 6)[6]


def test_eight_levels_all_fall_with_their_deepest_child(queue: Queue, wire: Wire) -> None:
    levels = [f"JOB0NgWEfAEJ0{number}" for number in range(8)]
    parent(wire, levels[0], 1)
    for above, job_id in pairwise(levels[:-1]):
        parent(wire, job_id, 1, parent=above)
    child(wire, levels[-1], levels[-2])
    queue.retry(take(queue, levels[-1]), "boom", max_retries=0)
    assert wire.ids("dead") == levels


@pytest.mark.parametrize("late", ["complete", "bury"])
def test_a_child_that_ends_after_its_parent_died_is_recorded_and_wakes_no_dead(
    queue: Queue, wire: Wire, late: str
) -> None:
    parent(wire, TOP, 2)
    child(wire, LEAF, TOP)
    child(wire, SISTER, TOP)
    first, second = queue.claim(5).jobs
    queue.retry(first, "boom", max_retries=0)
    assert queue.state(TOP) is State.DEAD
    if late == "complete":
        queue.complete(second, "late")
        assert wire.read(f"job:{TOP}:processed") == {second.id: "late"}
    else:
        queue.retry(second, "too", max_retries=0)
        assert wire.read(f"job:{TOP}:failed") == {first.id: "boom", second.id: "too"}
    assert queue.state(TOP) is State.DEAD
    assert queue.counts().failed == (2 if late == "complete" else 3)
    assert not queue.claim(5)


def test_one_child_of_three_that_failed_does_not_hold_a_satisfied_parent(queue: Queue, wire: Wire) -> None:
    parent(wire, TOP, 3)
    for job_id in (LEAF, SISTER, BROTHER):
        child(wire, job_id, TOP, parent_policy="id")
    one, two, three = queue.claim(5).jobs
    queue.complete(one, "1")
    queue.retry(two, "boom", max_retries=0)
    assert queue.state(TOP) is State.AWAITING_CHILDREN
    queue.complete(three, "3")
    assert queue.state(TOP) is State.PENDING
    assert wire.read(f"job:{TOP}:unsuccessful") == {two.id: "boom"}
    assert wire.read(f"job:{TOP}:processed") == {one.id: "1", three.id: "3"}


def test_a_child_that_is_reaped_and_completed_late_counts_once(queue: Queue, wire: Wire) -> None:
    parent(wire, TOP, 2)
    child(wire, LEAF, TOP)
    old = take(queue, LEAF)
    wire.expire(LEAF)
    queue.reap()
    assert queue.complete(old) is Verdict.OK
    assert queue.complete(old) is Verdict.GONE
    assert wire.read(f"job:{TOP}:dependencies") == "1"


@pytest.mark.parametrize("policy", ["fp", "id"])
def test_a_child_that_dies_without_its_parent_writes_nothing_for_it(queue: Queue, wire: Wire, policy: str) -> None:
    child(wire, LEAF, TOP, parent_policy=policy)
    assert queue.retry(take(queue, LEAF), "boom", max_retries=0) is Verdict.DEAD
    assert [suffix for suffix in wire.keys() if suffix.startswith(f"job:{TOP}")] == []
    assert wire.ids("dead") == [LEAF]


def test_the_last_child_does_not_revive_a_parent_that_somebody_buried(queue: Queue, wire: Wire) -> None:
    parent(wire, TOP, 1)
    child(wire, LEAF, TOP)
    wire.do("HSET", f"job:{TOP}", "state", "dead")
    wire.do("ZADD", "dead", 0, TOP)
    assert queue.complete(take(queue, LEAF)) is Verdict.OK
    assert (wire.row(TOP)["state"], wire.ids("dead"), wire.ids("pending")) == ("dead", [TOP], [])
