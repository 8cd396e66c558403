"""A row that another runtime or a hand has spoilt stops no script halfway and takes no other job along."""

from __future__ import annotations

from typing import Any

import pytest
from wire.handwriting import Wire

from echomq_tasks.queue import Complete, Job, Queue, Retry, State, Verdict

LANE = "GRP0NgWEfAEJfs"
IDS = [f"JOB0NgWEfAEJ0{letter}" for letter in "ABCDE"]
SPOILT = IDS[1]
FIELDS = ["attempts", "failures", "stalled", "priority", "wrong type"]
VALUES = ["x", "1.5", "nan", "inf", ""]


@pytest.fixture(params=[None, LANE])
def filled(request: pytest.FixtureRequest, queue: Queue) -> Queue:
    for job_id in IDS:
        queue.enqueue(job_id, id=job_id, group=request.param)
    return queue


def spoil(wire: Wire, field: str, value: str) -> None:
    if field == "wrong type":
        wire.do("DEL", f"job:{SPOILT}")
        wire.do("LPUSH", f"job:{SPOILT}", value)
    else:
        wire.do("HSET", f"job:{SPOILT}", field, value)


def claimed(queue: Queue) -> dict[str, Job]:
    return {job.id: job for job in queue.claim(10).jobs}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", VALUES)
def test_a_spoilt_row_is_claimed_or_dropped_and_the_others_run(
    filled: Queue, wire: Wire, field: str, value: str
) -> None:
    spoil(wire, field, value)
    jobs = claimed(filled)
    assert set(jobs) >= set(IDS) - {SPOILT}
    for job in jobs.values():
        assert filled.state(job.id) is State.ACTIVE
        assert filled.complete(job) is Verdict.OK
    assert filled.counts().unfinished == 0


@pytest.mark.parametrize("verb", ["retry", "release", "reap", "sweep"])
@pytest.mark.parametrize("field", FIELDS)
def test_a_row_spoilt_while_it_runs_leaves_the_others_their_way_back(
    filled: Queue, wire: Wire, field: str, verb: str
) -> None:
    jobs = claimed(filled)
    spoil(wire, field, "x")
    assert len(filled.extend_many(list(jobs.values()))) == (field in ("attempts", "wrong type"))
    if verb == "retry":
        filled.settle([Retry(job, "boom") for job in jobs.values()])
    elif verb == "release":
        for job in jobs.values():
            if job.id != SPOILT:
                assert filled.release(job) is Verdict.OK
    else:
        wire.expire(*IDS)
        reaped: Any = filled.reap() if verb == "reap" else filled.sweep_stalled()
        assert reaped
    others = set(IDS) - {SPOILT}
    assert set(claimed(filled)) >= others


def test_a_spoilt_job_due_on_the_schedule_does_not_hold_up_the_others(queue: Queue, wire: Wire) -> None:
    for job_id in IDS:
        queue.enqueue("p", id=job_id, delay=60)
    wire.do("HSET", f"job:{SPOILT}", "priority", "high")
    wire.come_due(*IDS)
    assert queue.promote() == 5
    assert sorted(claimed(queue)) == IDS


def test_spoilt_counts_of_a_lane_are_no_reason_to_stop(queue: Queue, wire: Wire) -> None:
    queue.enqueue("flat", id=IDS[0])
    queue.enqueue("p", id=IDS[1], group=LANE)
    queue.enqueue("p", id=IDS[2], group=LANE)
    for key in ("gweight", "gactive"):
        wire.do("HSET", key, LANE, "x")
    jobs = claimed(queue)
    assert sorted(jobs) == IDS[:3]
    assert set(queue.settle([Complete(job) for job in jobs.values()])) == {Verdict.OK}
    assert wire.read("gactive") is None


def test_a_flow_parent_whose_count_is_lost_is_held_and_not_run_early(queue: Queue, wire: Wire) -> None:
    wire.do("HSET", f"job:{IDS[0]}", "state", "awaiting_children", "attempts", 0, "payload", "parent")
    wire.do("HSET", f"job:{IDS[1]}", "state", "pending", "attempts", 0, "payload", "child", "parent", IDS[0])
    wire.do("ZADD", "pending", 0, IDS[1])
    queue.complete(queue.claim().jobs[0])
    assert queue.state(IDS[0]) is State.AWAITING_CHILDREN


@pytest.mark.parametrize("verb", ["sweep", "drain", "remove"])
def test_room_under_the_concurrency_ceiling_wakes_a_worker_however_it_was_made(
    queue: Queue, wire: Wire, verb: str
) -> None:
    wire.do("HSET", "meta", "concurrency", 1)
    queue.enqueue("p", id=IDS[0])
    queue.enqueue("p", id=IDS[1])
    assert len(queue.claim(2)) == 1
    assert not queue.claim(2)
    assert wire.wakes() == 0
    wire.expire(IDS[0])
    if verb == "sweep":
        assert queue.sweep_stalled(max_stalled=1).dead == (IDS[0],)
    elif verb == "drain":
        queue.drain("active")
    else:
        wire.do("HDEL", f"job:{IDS[0]}", "lock")
        wire.do("DEL", f"job:{IDS[0]}:lock")
        queue.remove(IDS[0])
    assert wire.wakes() == 1
    assert len(queue.claim(2)) == 1
