"""Wire §5, deadlines: promote, reap, sweep stalled, extend."""

from __future__ import annotations

import pytest
from conformance.scenarios import (
    FAR,
    LANE,
    OTHER,
    A,
    B,
    C,
    D,
    E,
    Instant,
    Start,
    scenario,
    seen,
    then,
    unlocked,
)
from wire.handwriting import Wire

from echomq_tasks.errors import StaleToken
from echomq_tasks.queue import Job, Queue, Verdict

# -- promote ------------------------------------------------------------------------------------------------------


@scenario("5.12.1", "due on `schedule`: back to `pending` at its priority or to its lane by rule 6; `state=pending`")
def test_due_jobs_go_where_they_wait(start: Start, queue: Queue, wire: Wire) -> None:
    start.scheduled(A, at=1)
    start.scheduled(B, at=1, priority=-4)
    start.scheduled(C, at=1, group=LANE)
    start.scheduled(D, at=1, group=OTHER, priority=7)
    start.scheduled(E)
    wire.do("SADD", "paused", OTHER)
    before = wire.everything()
    assert queue.promote() == 4
    rows = {f"job:{job_id}": before[f"job:{job_id}"] | {"state": "pending"} for job_id in (A, B, C, D)}
    changes = {
        "schedule": {E: FAR}, "pending": {B: -4, A: 0}, f"g:{LANE}:pending": {C: 0}, f"g:{OTHER}:pending": {D: 7},
        "ring": [LANE], "wake": ["1"] * 4,
    }  # fmt: skip
    assert wire.everything() == then(before, rows | changes)


@scenario("5.12.2", "up to n, the earliest first; count")
def test_no_more_are_promoted_than_asked_for(start: Start, queue: Queue, wire: Wire) -> None:
    for at, job_id in ((3, A), (1, B), (2, C)):
        start.scheduled(job_id, at=at)
    assert queue.promote(2) == 2
    assert (wire.ids("pending"), wire.ids("schedule"), wire.wakes()) == ([B, C], [A], 2)
    assert (queue.promote(2), queue.promote(2)) == (1, 0)


@scenario("5.12.3", "a claim promotes what is due by the same rule; every promotion pushes a token (§2)")
def test_a_claim_promotes_what_is_due_and_wakes_others_for_the_rest(start: Start, queue: Queue, wire: Wire) -> None:
    start.scheduled(A, B, C, at=1)
    start.scheduled(D, at=1, group=LANE)
    start.scheduled(E)
    assert len(queue.claim(1)) == 1
    assert wire.ids("schedule") == [E]
    assert len(wire.ids("pending")) + len(wire.ids(f"g:{LANE}:pending")) == 3
    assert wire.read("wake") == ["1"] * 3


# -- reap ---------------------------------------------------------------------------------------------------------


@scenario("5.13.1", "expired on `active`: back to pending or its lane, `gactive-1`, `state=pending`")
def test_jobs_whose_lease_is_over_wait_again(start: Start, queue: Queue, wire: Wire) -> None:
    start.running(A, token=2)
    start.running(B, group=LANE)
    start.running(C, group=LANE)
    wire.expire(A, B)
    before = wire.everything()
    assert queue.reap() == 2
    found = wire.everything()
    assert len(found.pop("wake")) >= 2
    changes = unlocked(before, A, state="pending") | unlocked(before, B, state="pending")
    changes |= {"active": {C: before["active"][C]}, "pending": {A: 0}, f"g:{LANE}:pending": {B: 0}}
    assert found == then(before, changes | {"gactive": {LANE: "1"}, "ring": [LANE]})


@scenario("5.13.2", "at most 100 a call")
def test_a_reap_is_bounded(start: Start, queue: Queue, wire: Wire) -> None:
    ids = [queue.enqueue("p").id for _ in range(101)]
    assert len(queue.claim(200)) == 101
    start.running(A)
    wire.expire(A, *ids)
    assert (queue.reap(), queue.reap(), queue.reap()) == (100, 2, 0)
    assert set(wire.ids("pending")) == {A, *ids}


# -- sweep stalled ------------------------------------------------------------------------------------------------


@scenario("5.14.1", "as reap, and `stalled+1`")
def test_a_swept_job_waits_again_and_counts_the_death(start: Start, queue: Queue, wire: Wire) -> None:
    start.running(A, token=2)
    start.running(B, group=LANE)
    wire.do("HSET", f"job:{B}", "stalled", 4)
    wire.expire(A, B)
    before = seen(wire)
    swept = queue.sweep_stalled(max_stalled=9)
    assert (set(swept.recovered), swept.dead) == ({A, B}, ())
    found = seen(wire)
    assert len(found.pop("wake")) >= 2
    changes = unlocked(before, A, state="pending", stalled="1") | unlocked(before, B, state="pending", stalled="5")
    changes |= {"active": None, "pending": {A: 0}, f"g:{LANE}:pending": {B: 0}, "gactive": None, "ring": [LANE]}
    assert found == then(before, changes)


@scenario("5.14.2", "at `max_stalled` → dead with `last_error=stalled`, `metrics:failed` +1; recovered ids, dead ids")
@pytest.mark.parametrize("group", [None, LANE])
def test_a_job_that_stalled_too_often_goes_to_the_dead(
    start: Start, queue: Queue, wire: Wire, group: str | None
) -> None:
    start.running(A, group=group)
    start.running(B, group=group)
    wire.do("HSET", f"job:{A}", "stalled", 1)
    wire.expire(A, B)
    before = seen(wire)
    swept = queue.sweep_stalled(max_stalled=2)
    assert (swept.recovered, swept.dead) == ((B,), (A,))
    found = seen(wire)
    assert found.pop("wake")
    changes = unlocked(before, A, state="dead", stalled="2", last_error="stalled")
    changes |= unlocked(before, B, state="pending", stalled="1")
    changes |= {f"g:{group}:pending" if group else "pending": {B: 0}, "ring": [LANE] if group else None}
    changes |= {"active": None, "gactive": None, "dead": {A: 0}, "metrics:failed": {"count": "1"}}
    assert found == then(before, changes)


# -- extend -------------------------------------------------------------------------------------------------------


@scenario("5.15.1", "`ZADD active now+lease`, and the lock with it (§2)")
def test_an_extension_moves_the_deadline_and_the_lock(start: Start, queue: Queue, wire: Wire) -> None:
    job = start.running(A, group=LANE)
    before, now = wire.everything(), Instant(wire)
    assert queue.extend(job, lease=500) is Verdict.OK
    found = wire.everything()
    ttls = [wire.do("PTTL", f"job:{A}:lock"), *wire.do("HPTTL", f"job:{A}", "FIELDS", 1, "lock")]
    assert 500_000 < max(ttls) <= 1_000_000
    for state in (before, found):
        state[f"job:{A}"].pop("lock", None)
        state.pop(f"job:{A}:lock", None)
    assert found == then(before, {"active": {A: now + 500_000}})


@scenario("5.15.2", "many: one `TIME`, one round trip for all ids; ids that could not be extended")
def test_many_leases_get_one_deadline_and_the_lost_ones_are_named(start: Start, queue: Queue, wire: Wire) -> None:
    first, second = start.running(A, group=LANE), start.running(B)
    now, gone, stale = Instant(wire), Job(C, b"p", 1), Job(A, b"p", 7)
    assert queue.extend_many([first, gone, stale, second], lease=500) == [gone, stale]
    assert wire.read("active") == {A: now + 500_000, B: now + 500_000}
    assert len(set(wire.read("active").values())) == 1


@scenario("5.15.3", "token → EMQSTALE; row gone → gone")
def test_extending_what_is_not_held_changes_nothing(start: Start, queue: Queue, wire: Wire) -> None:
    start.running(A, token=2)
    before = wire.everything()
    with pytest.raises(StaleToken):
        queue.extend(Job(A, b"p", 1))
    assert queue.extend(Job(B, b"p", 1)) is Verdict.GONE
    assert wire.everything() == before
