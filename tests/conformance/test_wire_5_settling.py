"""Wire §5, how a claim ends: complete, retry, release."""

from __future__ import annotations

import pytest
from conformance.scenarios import (
    LANE,
    A,
    B,
    C,
    Instant,
    Start,
    scenario,
    seen,
    then,
    unlocked,
)
from wire.handwriting import Wire

from echomq_tasks.errors import StaleToken
from echomq_tasks.queue import Job, Queue, State, Verdict

# -- complete -----------------------------------------------------------------------------------------------------


@scenario("5.09.1", "`ZREM active`; `DEL` row; `HINCRBY metrics:completed count 1`")
def test_a_completed_job_leaves_only_its_count(start: Start, queue: Queue, wire: Wire) -> None:
    job = start.running(A, token=2)
    start.waiting(B)
    wire.do("HSET", "metrics:completed", "count", 41)
    wire.do("RPUSH", f"job:{A}:logs", "a line")
    before = wire.everything()
    assert queue.complete(job) is Verdict.OK
    changes = {name: None for name in before if name.startswith(f"job:{A}")}
    assert wire.everything() == then(before, changes | {"active": None, "metrics:completed": {"count": "42"}})
    assert queue.state(A) is State.ABSENT


@scenario("5.09.2", "lane: `gactive-1`, dropped at 0")
def test_a_completed_job_is_counted_down_in_its_lane(start: Start, queue: Queue, wire: Wire) -> None:
    first, second = start.running(A, group=LANE), start.running(B, group=LANE)
    assert queue.complete(first) is Verdict.OK
    assert wire.running() == {LANE: 1}
    assert queue.complete(second) is Verdict.OK
    assert wire.everything() == {"metrics:completed": {"count": "2"}}


@scenario("5.09.3", "lane: rule 6, so a lane that was at its limit is served again and a worker woken")
def test_a_completed_job_brings_its_lane_back_into_the_ring(start: Start, queue: Queue, wire: Wire) -> None:
    job = start.running(A, group=LANE)
    wire.do("HSET", "glimit", LANE, 1)
    start.waiting(B, group=LANE)
    wire.do("DEL", "ring")  # a lane at its limit is not there
    before = wire.everything()
    assert queue.complete(job) is Verdict.OK
    changes = {name: None for name in before if name.startswith(f"job:{A}")} | {
        "active": None, "gactive": None, "ring": [LANE], "wake": ["1"], "metrics:completed": {"count": "1"},
    }  # fmt: skip
    assert wire.everything() == then(before, changes)


@scenario("5.09.4", "row gone → gone")
def test_completing_a_job_whose_row_is_gone_changes_nothing(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(B)
    before = wire.everything()
    assert queue.complete(Job(A, b"p", 1)) is Verdict.GONE
    assert wire.everything() == before


@scenario("5.09.5", "token → EMQSTALE")
@pytest.mark.parametrize("token", [1, 3])
def test_completing_under_another_token_is_refused(start: Start, queue: Queue, wire: Wire, token: int) -> None:
    start.running(A, token=2, group=LANE)
    before = wire.everything()
    with pytest.raises(StaleToken):
        queue.complete(Job(A, b"p", token, LANE))
    assert queue.complete_many([Job(A, b"p", token, LANE)]) == [Verdict.STALE]
    assert wire.everything() == before


@scenario("5.09.6", "a job that was already reaped back is also removed from where it waits")
@pytest.mark.parametrize("group", [None, LANE])
def test_a_job_that_was_reaped_back_is_completed_where_it_waits(
    start: Start, queue: Queue, wire: Wire, group: str | None
) -> None:
    job = start.running(A, group=group)
    wire.expire(A)
    assert start.queue.reap() == 1
    wire.do("DEL", "wake")
    assert queue.complete(job) is Verdict.OK
    assert wire.everything() == {"metrics:completed": {"count": "1"}}


# -- retry --------------------------------------------------------------------------------------------------------


@scenario("5.10.1", "as complete's release; `last_error`; tries left: `state=scheduled`, `ZADD schedule now+delay`")
def test_a_failure_with_tries_left_is_scheduled_after_its_delay(start: Start, queue: Queue, wire: Wire) -> None:
    job = start.running(A, group=LANE)
    start.waiting(B, group=LANE)
    start.scheduled(C, at=1)
    before, now = seen(wire), Instant(wire)
    assert queue.retry(job, "boom", delay=60, max_retries=1) is Verdict.SCHEDULED
    changes = unlocked(before, A, state="scheduled", last_error="boom", failures="1") | {
        "active": None, "gactive": None, "schedule": {C: 1, A: now + 60_000},
    }  # fmt: skip
    assert seen(wire) == then(before, changes)


@scenario("5.10.2", "else `state=dead`, `ZADD dead 0`, `metrics:failed` +1")
def test_a_failure_without_tries_left_goes_to_the_dead(start: Start, queue: Queue, wire: Wire) -> None:
    job = start.running(A, group=LANE)
    wire.do("HSET", "metrics:failed", "count", 41)
    before = seen(wire)
    assert queue.retry(job, "boom", max_retries=0) is Verdict.DEAD
    changes = unlocked(before, A, state="dead", last_error="boom", failures="1") | {
        "active": None, "gactive": None, "dead": {A: 0}, "metrics:failed": {"count": "42"},
    }  # fmt: skip
    assert seen(wire) == then(before, changes)
    assert queue.state(A) is State.DEAD


@scenario("5.10.3", "as complete's release: a lane that was at its limit is served again")
@pytest.mark.parametrize("limit", [0, None])
def test_a_failed_job_brings_its_lane_back_into_the_ring(
    start: Start, queue: Queue, wire: Wire, limit: int | None
) -> None:
    job = start.running(A, group=LANE)
    wire.do("HSET", "glimit", LANE, 1)
    start.waiting(B, group=LANE)
    wire.do("DEL", "ring")
    queue.retry(job, "boom", delay=60, max_retries=limit)
    assert (wire.ring(), wire.running(), wire.ids(f"g:{LANE}:pending")) == ([LANE], {}, [B])
    assert wire.wakes() >= 1


@scenario("5.10.4", "token → EMQSTALE")
@pytest.mark.parametrize("token", [1, 3])
def test_failing_under_another_token_is_refused(start: Start, queue: Queue, wire: Wire, token: int) -> None:
    start.running(A, token=2)
    before = seen(wire)
    with pytest.raises(StaleToken):
        queue.retry(Job(A, b"p", token), "boom", max_retries=0)
    assert seen(wire) == before


@scenario("5.10.5", "row gone → EMQSTALE")
def test_failing_a_job_whose_row_is_gone_is_refused(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(B)
    with pytest.raises(StaleToken):
        queue.retry(Job(A, b"p", 1), "boom")


@scenario("5.10.6", "row gone: nothing is written for it")
@pytest.mark.parametrize("limit", [0, None])
def test_failing_a_job_whose_row_is_gone_writes_nothing(
    start: Start, queue: Queue, wire: Wire, limit: int | None
) -> None:
    start.waiting(B)
    before = seen(wire)
    try:
        assert queue.retry(Job(A, b"p", 1), "boom", max_retries=limit) not in (Verdict.SCHEDULED, Verdict.DEAD)
    except StaleToken:
        pass
    assert seen(wire) == before


@scenario("5.10.7", "as complete's release: a job that was already reaped back is taken from where it waits")
@pytest.mark.parametrize("group", [None, LANE])
def test_a_job_that_was_reaped_back_fails_where_it_waits(
    start: Start, queue: Queue, wire: Wire, group: str | None
) -> None:
    job = start.running(A, group=group)
    wire.expire(A)
    assert start.queue.reap() == 1
    wire.do("DEL", "wake")
    before = seen(wire)
    assert queue.retry(job, "boom", max_retries=0) is Verdict.DEAD
    changes = unlocked(before, A, state="dead", last_error="boom", failures="1")
    changes |= {"pending": None, f"g:{LANE}:pending": None, "ring": None}
    assert seen(wire) == then(before, changes | {"dead": {A: 0}, "metrics:failed": {"count": "1"}})


# -- release ------------------------------------------------------------------------------------------------------


@scenario("5.11.1", "goes back where it waits: `ZREM active`, `state=pending`; nothing counted as a failure")
def test_a_released_job_waits_again_at_its_priority(start: Start, queue: Queue, wire: Wire) -> None:
    job = start.running(A, token=3, priority=5)
    start.waiting(B)
    before = wire.everything()
    assert queue.release(job) is Verdict.OK
    changes = unlocked(before, A, state="pending") | {"active": None, "pending": {B: 0, A: 5}, "wake": ["1"]}
    assert wire.everything() == then(before, changes)
    assert "failures" not in wire.row(A)
    assert wire.row(A)["attempts"] == "3"


@scenario("5.11.2", "lane release: back to its lane, `gactive-1`, rule 6")
def test_a_released_job_waits_again_in_its_lane(start: Start, queue: Queue, wire: Wire) -> None:
    job = start.running(A, group=LANE)
    wire.do("HSET", "glimit", LANE, 1)
    before = wire.everything()
    assert queue.release(job) is Verdict.OK
    found = wire.everything()
    assert set(found.pop("wake")) == {"1"}
    changes = unlocked(before, A, state="pending")
    changes |= {"active": None, "gactive": None, f"g:{LANE}:pending": {A: 0}, "ring": [LANE]}
    assert found == then(before, changes)


@scenario("5.11.3", "token → EMQSTALE; row gone → gone")
def test_releasing_what_is_not_held_changes_nothing(start: Start, queue: Queue, wire: Wire) -> None:
    start.running(A, token=2)
    before = wire.everything()
    with pytest.raises(StaleToken):
        queue.release(Job(A, b"p", 1))
    assert queue.release(Job(B, b"p", 1)) is Verdict.GONE
    assert wire.everything() == before
