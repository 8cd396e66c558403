"""Wire §5, claims: flat, by the ring, weighted, and many at once."""

from __future__ import annotations

import pytest
from conformance.scenarios import (
    LANE,
    LEASE,
    OTHER,
    ROW,
    A,
    B,
    C,
    D,
    E,
    Instant,
    Start,
    scenario,
    then,
)
from wire.handwriting import Wire

from echomq_tasks.queue import Job, Queue

# -- claim (flat) -------------------------------------------------------------------------------------------------


@scenario("5.05.1", "`meta.paused` → empty")
def test_a_paused_queue_gives_nothing_and_keeps_its_backlog(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(A)
    wire.do("HSET", "meta", "paused", 1)
    before = wire.everything()
    assert not queue.claim(9)
    assert wire.everything() == before


@scenario("5.05.2", "`ZPOPMIN pending`; `HINCRBY attempts 1`; `state=active`; `ZADD active now+lease id`")
def test_a_claim_takes_the_head_counts_the_attempt_and_leases_it(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(A, B)
    before, now = wire.everything(), Instant(wire)
    (job,) = queue.claim(lease=45)
    assert job == Job(A, b"p", 1)
    row = {"state": "active", "attempts": "1", "payload": "p"}
    # Something waits still, so a token for the next worker is there.
    found = wire.everything()
    assert found.pop("wake", None) == ["1"]
    lock = found[f"job:{A}"].pop("lock", None) or found.pop(f"job:{A}:lock", None)
    assert lock == "1"
    assert found == then(before, {f"job:{A}": row, "pending": {B: 0}, "active": {A: now + 45_000}})


@scenario("5.05.3", "the token is the row's `attempts` after this claim; fields of others stay")
def test_a_claim_counts_on_from_what_the_row_has(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(A)
    others = {"stalled": "2", "last_error": "boom", "progress": "50", "de": "x"}
    wire.do("HSET", f"job:{A}", "attempts", 6, *(word for field in others.items() for word in field))
    (job,) = queue.claim()
    assert (job.token, job.stalled) == (7, 2)
    assert then(wire.row(A), {"lock": None}) == ROW | others | {"state": "active", "attempts": "7"}


@scenario("5.05.4", "byte order is mint order, so FIFO (§2)")
def test_claims_come_in_mint_order_whatever_the_order_of_admission(start: Start, queue: Queue) -> None:
    start.waiting(C, A)
    queue.enqueue("p", id=D)
    queue.enqueue("p", id=B)
    assert [queue.claim().jobs[0].id for _ in range(4)] == [A, B, C, D]


@scenario("5.05.5", "the lock marker: value = token, TTL = 2 leases (§2)")
def test_a_claim_marks_the_job_as_held_for_two_leases(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(A)
    queue.claim(lease=30)
    if "lock" in wire.row(A):
        assert wire.row(A)["lock"] == "1"
        (ttl,) = wire.do("HPTTL", f"job:{A}", "FIELDS", 1, "lock")
    else:
        assert wire.read(f"job:{A}:lock") == "1"
        ttl = wire.do("PTTL", f"job:{A}:lock")
    assert LEASE < ttl <= 2 * LEASE


@scenario("5.05.6", "nothing waits → empty; a claim that finds nothing waiting may delete the wake key (§2)")
@pytest.mark.parametrize("where", ["nowhere", "running", "scheduled", "dead"])
def test_a_claim_that_finds_nothing_takes_the_tokens_away_and_changes_nothing_else(
    start: Start, queue: Queue, wire: Wire, where: str
) -> None:
    if where != "nowhere":
        start.put(where, A)
    before = wire.everything()
    wire.do("LPUSH", "wake", 1, 1)
    claimed = queue.claim()
    assert (len(claimed), bool(claimed)) == (0, False)
    assert wire.everything() == before


# -- claim (ring) -------------------------------------------------------------------------------------------------


@scenario("5.06.1", "rotate the ring one step, pop that lane's head, claim it, `HINCRBY gactive group 1`")
def test_a_claim_serves_the_lane_at_the_head_of_the_ring(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(A, B, group=LANE)
    start.waiting(C, D, group=OTHER)
    before, now = wire.everything(), Instant(wire)
    (job,) = queue.claim()
    assert job == Job(A, b"p", 1, LANE)
    found = wire.everything()
    assert found.pop("wake") == ["1"]
    del found[f"job:{A}"]["lock"]
    changes = {
        f"job:{A}": ROW | {"state": "active", "attempts": "1", "group": LANE},
        f"g:{LANE}:pending": {B: 0}, "ring": [OTHER, LANE], "gactive": {LANE: "1"}, "active": {A: now + LEASE},
    }  # fmt: skip
    assert found == then(before, changes)
    assert [queue.claim().jobs[0].id for _ in range(3)] == [C, B, D]


@scenario("5.06.2", "leave the ring when the lane is empty")
def test_a_lane_that_was_emptied_leaves_the_ring(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(A, group=LANE)
    start.waiting(B, C, group=OTHER)
    assert [job.id for job in queue.claim()] == [A]
    assert (wire.ring(), wire.read(f"g:{LANE}:pending"), wire.running()) == ([OTHER], None, {LANE: 1})


@scenario("5.06.3", "leave the ring when the lane is at its limit")
def test_a_lane_that_reached_its_limit_leaves_the_ring_with_its_backlog(start: Start, queue: Queue, wire: Wire) -> None:
    start.running(A, group=LANE)
    start.waiting(B, C, group=LANE)
    wire.do("HSET", "glimit", LANE, 2)
    assert [job.id for job in queue.claim(9)] == [B]
    assert (wire.ring(), wire.ids(f"g:{LANE}:pending"), wire.running()) == ([], [C], {LANE: 2})


@scenario("5.06.4", "`meta.paused` → empty, and the ring does not turn")
def test_a_paused_queue_does_not_turn_its_ring(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(A, group=LANE)
    start.waiting(B, group=OTHER)
    wire.do("HSET", "meta", "paused", 1)
    before = wire.everything()
    assert not queue.claim(9)
    assert wire.everything() == before


@scenario("5.06.5", "a lane's head is its lowest score, then its oldest: inside a lane, too, a score is a priority")
def test_a_lanes_head_is_its_lowest_priority(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(A, group=LANE, priority=5)
    start.waiting(B, C, group=LANE)
    queue.enqueue("p", id=D, group=LANE, priority=-1)
    assert wire.read(f"g:{LANE}:pending") == {D: -1, B: 0, C: 0, A: 5}
    assert [queue.claim().jobs[0].id for _ in range(4)] == [D, B, C, A]


# -- claim (weighted) ---------------------------------------------------------------------------------------------


@scenario("5.07.1", "serve up to `gweight` heads of the rotated lane under one deadline")
def test_a_weight_is_how_many_heads_a_lane_gives_in_its_turn(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(A, B, C, group=LANE)
    start.waiting(D, E, group=OTHER)
    wire.do("HSET", "gweight", LANE, 2)
    assert [job.id for job in queue.claim(3)] == [A, B, D]
    assert len(set(wire.read("active").values())) == 1
    assert (wire.running(), wire.ring()) == ({LANE: 2, OTHER: 1}, [LANE, OTHER])


@scenario("5.07.2", "up to the lane's depth")
def test_a_weight_above_the_depth_takes_what_there_is(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(A, B, group=LANE)
    start.waiting(C, group=OTHER)
    wire.do("HSET", "gweight", LANE, 50)
    assert [job.id for job in queue.claim(9)] == [A, B, C]
    assert (wire.running(), wire.ring()) == ({LANE: 2, OTHER: 1}, [])


@scenario("5.07.3", "up to the lane's limit headroom")
def test_a_weight_above_the_headroom_takes_what_the_limit_leaves(start: Start, queue: Queue, wire: Wire) -> None:
    start.running(A, group=LANE)
    start.waiting(B, C, D, group=LANE)
    wire.do("HSET", "gweight", LANE, 50)
    wire.do("HSET", "glimit", LANE, 3)
    assert [job.id for job in queue.claim(9)] == [B, C]
    assert (wire.running(), wire.ring(), wire.ids(f"g:{LANE}:pending")) == ({LANE: 3}, [], [D])


# -- claim many ---------------------------------------------------------------------------------------------------


@scenario("5.08.1", "up to n in one script and one `TIME`; a list, maybe shorter than n")
def test_a_claim_for_many_takes_as_many_as_there_are_under_one_deadline(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(A, B, C)
    now = Instant(wire)
    assert [job.id for job in queue.claim(2, lease=9)] == [A, B]
    assert wire.read("active") == {A: now + 9_000, B: now + 9_000}
    assert len(set(wire.read("active").values())) == 1
    assert [job.id for job in queue.claim(1000)] == [C]
    assert wire.read("pending") is None


@scenario("5.08.2", "one call serves flat pending and ring in turn")
@pytest.mark.parametrize("each", [1, 2, 5])
def test_flat_jobs_and_lanes_take_turns_within_and_between_claims(start: Start, queue: Queue, each: int) -> None:
    start.waiting(A, B, C)
    start.waiting(D, E, group=LANE)
    order = [job.id for _ in range(5) for job in queue.claim(each)]
    assert sorted(order) == [A, B, C, D, E]
    assert [job_id in (D, E) for job_id in order] == [False, True, False, True, False]


@scenario("5.08.3", "checks `max`: jobs spent in this window are counted in `limiter`, with a TTL")
def test_a_claim_stops_at_the_rate_ceiling(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(A, B, C)
    start.waiting(D, group=LANE)
    wire.do("HSET", "meta", "max", 3)
    wire.do("SET", "limiter", 1, "PX", 60_000)  # one was spent elsewhere
    assert len(queue.claim(9)) == 2
    assert (wire.read("limiter"), len(queue.claim(9))) == ("3", 0)
    assert 0 < wire.do("PTTL", "limiter") <= 60_000


@scenario("5.08.4", "checks `concurrency`: the ceiling on `active`")
def test_a_claim_stops_at_the_concurrency_ceiling(start: Start, queue: Queue, wire: Wire) -> None:
    job = start.running(A)
    start.waiting(B, C)
    start.waiting(D, group=LANE)
    wire.do("HSET", "meta", "concurrency", 3)
    assert len(queue.claim(9)) == 2
    assert (wire.do("ZCARD", "active"), len(queue.claim(9))) == (3, 0)
    queue.complete(job)
    assert len(queue.claim(9)) == 1


@scenario("5.08.5", "answers also how long until the earliest scheduled job")
@pytest.mark.parametrize("with_jobs", [True, False])
def test_a_claim_answers_when_the_earliest_scheduled_job_is_due(
    start: Start, queue: Queue, wire: Wire, with_jobs: bool
) -> None:
    start.scheduled(A, at=wire.now_ms() + 500_000)
    start.scheduled(B, at=wire.now_ms() + 50_000)
    if with_jobs:
        start.waiting(C)
    claimed = queue.claim()
    assert len(claimed) == with_jobs
    assert claimed.look_again is not None
    assert 0 < claimed.look_again <= 50
