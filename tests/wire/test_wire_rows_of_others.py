"""Rows that another runtime wrote, by hand here and exactly as the wire has them, are served by our queue."""

from __future__ import annotations

import pytest
from wire.handwriting import Wire

from echomq_tasks.queue import Job, Queue, State, Verdict

A, B, C, D = "JOB0NgWEfAEJ0A", "JOB0NgWEfAEJ0B", "JOB0NgWEfAEJ0C", "JOB0NgWEfAEJ0D"
LANE, OTHER_LANE = "GRP0NgWEfAEJfs", "TEN0NgWEfAEJfs"


def admitted(wire: Wire, job_id: str, payload: str = '{"actor_name":"a","args":[]}') -> None:
    wire.do("HSET", f"job:{job_id}", "state", "pending", "attempts", 0, "payload", payload)
    wire.do("ZADD", "pending", 0, job_id)


def in_lane(wire: Wire, job_id: str, group: str) -> None:
    wire.do("HSET", f"job:{job_id}", "state", "pending", "attempts", 0, "payload", "p", "group", group)
    wire.do("ZADD", f"g:{group}:pending", 0, job_id)


def running(wire: Wire, job_id: str, token: int = 1, deadline: int = 4_000_000_000_000, **fields: str) -> Job:
    """A job that another runtime claimed."""
    wire.do("HSET", f"job:{job_id}", "state", "active", "attempts", token, "payload", "p")
    for name, value in fields.items():
        wire.do("HSET", f"job:{job_id}", name, value)
    wire.do("ZADD", "active", deadline, job_id)
    return Job(job_id, b"p", token)


def test_flat_rows_are_claimed_in_mint_order_with_their_payload_and_the_next_token(queue: Queue, wire: Wire) -> None:
    admitted(wire, B)
    admitted(wire, A, '{"actor_name":"first","args":[1]}')
    claimed = queue.claim(5)
    assert [(job.id, job.token, job.group) for job in claimed] == [(A, 1, None), (B, 1, None)]
    assert claimed.jobs[0].payload == b'{"actor_name":"first","args":[1]}'
    assert wire.row(A)["state"] == "active"
    assert set(wire.everything()) == {f"job:{A}", f"job:{B}", "active"}


def test_a_row_that_was_claimed_before_gets_a_token_above_the_old_one(queue: Queue, wire: Wire) -> None:
    admitted(wire, A)
    wire.do("HSET", f"job:{A}", "attempts", 6, "stalled", 2, "last_error", "boom", "progress", "50")
    (job,) = queue.claim()
    assert (job.token, job.stalled, job.failures) == (7, 2, 0)
    assert wire.row(A) | {"lock": ""} == {
        "state": "active", "attempts": "7", "payload": '{"actor_name":"a","args":[]}', "stalled": "2",
        "last_error": "boom", "progress": "50", "lock": "",
    }  # fmt: skip


def test_a_lane_in_the_ring_is_served_counted_and_left_when_empty(queue: Queue, wire: Wire) -> None:
    in_lane(wire, A, LANE)
    wire.do("RPUSH", "ring", LANE)
    (job,) = queue.claim(3)
    assert (job.id, job.group) == (A, LANE)
    assert wire.read("gactive") == {LANE: "1"}
    assert wire.ring() == []
    assert queue.complete(job) is Verdict.OK
    assert wire.everything() == {"metrics:completed": {"count": "1"}}


def test_a_lane_below_its_limit_leaves_the_ring_at_the_limit_and_comes_back_on_complete(
    queue: Queue, wire: Wire
) -> None:
    for job_id in (A, B, C):
        in_lane(wire, job_id, LANE)
    wire.do("RPUSH", "ring", LANE)
    wire.do("HSET", "glimit", LANE, 3)
    wire.do("HSET", "gactive", LANE, 1)  # one job of the lane runs elsewhere
    jobs = queue.claim(10).jobs
    assert [job.id for job in jobs] == [A, B]
    assert (wire.ring(), wire.read("gactive")) == ([], {LANE: "3"})
    assert queue.complete(jobs[0]) is Verdict.OK
    assert (wire.ring(), wire.read("gactive")) == ([LANE], {LANE: "2"})


def test_a_paused_lane_is_not_in_the_ring_and_settling_does_not_bring_it_back(queue: Queue, wire: Wire) -> None:
    in_lane(wire, B, LANE)
    wire.do("SADD", "paused", LANE)
    wire.do("HSET", "gactive", LANE, 1)
    job = running(wire, A, group=LANE)
    assert not queue.claim(5)
    assert queue.release(job) is Verdict.OK
    assert wire.ids(f"g:{LANE}:pending") == [A, B]
    assert (wire.ring(), wire.read("gactive")) == ([], None)


def test_weights_say_how_many_heads_a_lane_gives_in_its_turn(queue: Queue, wire: Wire) -> None:
    for job_id in (A, B, C):
        in_lane(wire, job_id, LANE)
    in_lane(wire, D, OTHER_LANE)
    wire.do("RPUSH", "ring", LANE, OTHER_LANE)
    wire.do("HSET", "gweight", LANE, 2)
    assert [job.id for job in queue.claim(3)] == [A, B, D]


def test_a_due_job_of_the_schedule_is_claimed_and_one_that_is_not_due_stays(queue: Queue, wire: Wire) -> None:
    for job_id, at in ((A, 1_700_000_000_000), (B, 4_000_000_000_000)):
        wire.do("HSET", f"job:{job_id}", "state", "scheduled", "attempts", 0, "payload", "later")
        wire.do("ZADD", "schedule", at, job_id)
    assert [job.id for job in queue.claim(5)] == [A]
    assert wire.read("schedule") == {B: 4_000_000_000_000}


def test_promote_brings_due_jobs_to_pending_and_to_their_lane(queue: Queue, wire: Wire) -> None:
    for job_id in (A, B, C):
        wire.do("HSET", f"job:{job_id}", "state", "scheduled", "attempts", 1, "payload", "later")
        wire.do("ZADD", "schedule", 1_700_000_000_000, job_id)
    wire.do("HSET", f"job:{B}", "group", LANE)
    wire.do("HSET", f"job:{C}", "priority", -4)
    assert queue.promote() == 3
    assert wire.read("pending") == {C: -4, A: 0}
    assert wire.read(f"g:{LANE}:pending") == {B: 0}
    assert wire.ring() == [LANE]
    assert [wire.row(job_id)["state"] for job_id in (A, B, C)] == ["pending"] * 3
    assert wire.read("schedule") is None


@pytest.mark.parametrize("marker", ["field", "key"])
def test_a_job_claimed_elsewhere_is_completed_whichever_lock_marker_it_has(
    queue: Queue, wire: Wire, marker: str
) -> None:
    job = running(wire, A, token=3)
    if marker == "field":
        wire.do("HSET", f"job:{A}", "lock", "3")
    else:
        wire.do("SET", f"job:{A}:lock", "3", "PX", 60_000)
    assert queue.complete(job) is Verdict.OK
    assert wire.everything() == {"metrics:completed": {"count": "1"}}


def test_a_job_claimed_elsewhere_is_retried_and_its_lock_is_given_back(queue: Queue, wire: Wire) -> None:
    job = running(wire, A, token=3)
    wire.do("SET", f"job:{A}:lock", "3", "PX", 60_000)
    before = wire.now_ms()
    assert queue.retry(job, "boom", delay=60) is Verdict.SCHEDULED
    after = wire.now_ms()
    assert before <= wire.read("schedule")[A] - 60_000 <= after
    row = {"state": "scheduled", "attempts": "3", "payload": "p", "failures": "1", "last_error": "boom"}
    assert wire.row(A) == row | {"settled": "3"}
    assert set(wire.everything()) == {f"job:{A}", "schedule", "wake"}


def test_a_lease_that_ran_out_elsewhere_is_reaped_and_its_lane_counted_down(queue: Queue, wire: Wire) -> None:
    running(wire, A, token=2, deadline=1_700_000_000_000)
    running(wire, B, token=5, deadline=1_700_000_000_000, group=LANE)
    running(wire, C)
    wire.do("HSET", "gactive", LANE, 1)
    assert queue.reap() == 2
    assert wire.ids("active") == [C]
    assert wire.read("pending") == {A: 0}
    assert wire.read(f"g:{LANE}:pending") == {B: 0}
    assert (wire.read("gactive"), wire.ring()) == (None, [LANE])
    assert wire.row(B) == {"state": "pending", "attempts": "5", "payload": "p", "group": LANE}
    assert (wire.wakes() >= 2, wire.wakes() <= 64) == (True, True)


def test_a_sweep_counts_on_from_the_rows_own_stalled_field(queue: Queue, wire: Wire) -> None:
    running(wire, A, deadline=1, stalled="1")
    running(wire, B, deadline=1)
    swept = queue.sweep_stalled(max_stalled=2)
    assert (swept.recovered, swept.dead) == ((B,), (A,))
    assert wire.read("dead") == {A: 0}
    row = wire.row(A)
    assert abs(int(row.pop("died")) - wire.now_ms()) < 60_000
    assert row == {"state": "dead", "attempts": "1", "payload": "p", "stalled": "2", "last_error": "stalled"}
    assert wire.row(B)["stalled"] == "1"
    assert wire.read("metrics:failed") == {"count": "1"}


def test_a_queue_paused_elsewhere_gives_nothing_and_keeps_its_backlog(queue: Queue, wire: Wire) -> None:
    admitted(wire, A)
    wire.do("HSET", "meta", "paused", 1)
    before = wire.everything()
    assert not queue.claim(5)
    assert wire.everything() == before
    wire.do("HDEL", "meta", "paused")
    assert [job.id for job in queue.claim(5)] == [A]


def test_the_rate_and_concurrency_ceilings_set_elsewhere_hold(queue: Queue, wire: Wire) -> None:
    for job_id in (A, B, C):
        admitted(wire, job_id)
    wire.do("HSET", "meta", "max", 3, "concurrency", 2)
    wire.do("SET", "limiter", 2, "PX", 60_000)  # two jobs spent in this window
    running(wire, D)
    assert [job.id for job in queue.claim(5)] == [A]  # one is left of the window, and one of the concurrency
    assert wire.read("limiter") == "3"
    assert wire.do("PTTL", "limiter") > 0
    assert not queue.claim(5)


def test_state_counts_browse_and_get_read_what_others_wrote(queue: Queue, wire: Wire) -> None:
    admitted(wire, A)
    in_lane(wire, B, LANE)
    wire.do("RPUSH", "ring", LANE)
    running(wire, C, token=4)
    wire.do("HSET", f"job:{D}", "state", "dead", "attempts", 9, "payload", "p", "last_error", "boom")
    wire.do("ZADD", "dead", 0, D)
    wire.do("HSET", "metrics:failed", "count", 7)
    counts = queue.counts()
    assert (counts.pending, counts.in_lanes, counts.active, counts.dead, counts.failed) == (1, 1, 1, 1, 7)
    states = [State.PENDING, State.PENDING, State.ACTIVE, State.DEAD]
    assert [queue.state(job_id) for job_id in (A, B, C, D)] == states
    assert queue.browse(State.PENDING, group=LANE) == [B]
    assert queue.browse(State.DEAD) == [D]
    dead = queue.get(D)
    assert dead is not None
    assert (dead.attempts, dead.last_error, dead.failures, dead.group) == (9, "boom", 0, None)
