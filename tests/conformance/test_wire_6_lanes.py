"""Wire §6, lanes: pause, limit, weight, depth, drain, move, reap; and what a group is."""

from __future__ import annotations

import pytest
from conformance.scenarios import (
    LANE,
    OTHER,
    ROW,
    A,
    B,
    C,
    D,
    Start,
    scenario,
    then,
    unlocked,
)
from wire.handwriting import Wire

from echomq_tasks.errors import Held, InvalidId, WrongState
from echomq_tasks.queue import Queue, Verdict

# -- a lane: pause, resume ----------------------------------------------------------------------------------------


@scenario("6.07.1", "per lane: pause puts the group into `paused` and its lane out of the ring")
def test_a_paused_lane_is_out_of_the_ring_with_its_backlog(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(A, group=LANE)
    start.waiting(B, group=OTHER)
    before = wire.everything()
    assert queue.lane(LANE).pause()
    assert wire.everything() == then(before, {"paused": {LANE}, "ring": [OTHER]})
    assert [job.id for job in queue.claim(9)] == [B]
    assert not queue.lane(LANE).pause()


@scenario("6.07.2", "per lane: resume takes it out of `paused`, and rule 6")
@pytest.mark.parametrize("by_hand", [True, False], ids=["paused by hand", "paused by verb"])
def test_a_resumed_lane_is_served_again(start: Start, queue: Queue, wire: Wire, by_hand: bool) -> None:
    start.waiting(A, group=LANE)
    before = wire.everything()
    if by_hand:
        wire.do("SADD", "paused", LANE)
        wire.do("LREM", "ring", 0, LANE)
    else:
        queue.lane(LANE).pause()
    assert queue.lane(LANE).resume()
    assert wire.everything() == then(before, {"wake": ["1"]})
    assert not queue.lane(LANE).resume()


@scenario("6.07.3", "per lane: resume, and rule 6: an empty lane, or one at its limit, stays out of the ring")
def test_a_resumed_lane_that_cannot_be_served_stays_out_of_the_ring(start: Start, queue: Queue, wire: Wire) -> None:
    start.running(A, group=LANE)
    start.waiting(B, group=LANE)
    wire.do("HSET", "glimit", LANE, 1)
    wire.do("DEL", "ring")
    before = wire.everything()
    wire.do("SADD", "paused", LANE, OTHER)
    assert queue.lane(LANE).resume()
    assert queue.lane(OTHER).resume()
    assert wire.everything() == before


# -- a lane: limit, weight ----------------------------------------------------------------------------------------


@scenario("6.08.1", "per lane: limit is `glimit`; the lane leaves the ring at it")
def test_a_limit_at_what_runs_takes_the_lane_out_of_the_ring(start: Start, queue: Queue, wire: Wire) -> None:
    start.running(A, group=LANE)
    start.waiting(B, group=LANE)
    start.waiting(C, group=OTHER)
    before = wire.everything()
    queue.lane(LANE).limit(1)
    assert wire.everything() == then(before, {"glimit": {LANE: "1"}, "ring": [OTHER]})
    assert [job.id for job in queue.claim(9)] == [C]


@scenario("6.08.2", "per lane: a limit raised or taken away brings the lane back by rule 6")
@pytest.mark.parametrize("limit", [2, None])
def test_a_higher_limit_brings_the_lane_back(start: Start, queue: Queue, wire: Wire, limit: int | None) -> None:
    start.running(A, group=LANE)
    start.waiting(B, C, group=LANE)
    wire.do("HSET", "glimit", LANE, 1)
    wire.do("DEL", "ring")
    queue.lane(LANE).limit(limit)
    assert wire.read("glimit") == (None if limit is None else {LANE: "2"})
    assert (wire.ring(), wire.wakes() >= 1) == ([LANE], True)
    assert [job.id for job in queue.claim(9)] == ([B, C] if limit is None else [B])


@scenario("6.08.3", "per lane: a limit does not bring a paused lane back")
def test_a_limit_does_not_resume_a_paused_lane(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(A, group=LANE)
    wire.do("SADD", "paused", LANE)
    wire.do("DEL", "ring")
    queue.lane(LANE).limit(5)
    queue.lane(LANE).limit(None)
    assert (wire.ring(), wire.wakes()) == ([], 0)


@scenario("6.09.1", "per lane: weight is `gweight`, and how many heads the lane gives in its turn")
def test_a_weight_is_a_field_and_the_next_claims_heed_it(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(A, B, C, group=LANE)
    start.waiting(D, group=OTHER)
    before = wire.everything()
    queue.lane(LANE).weight(2)
    assert wire.everything() == then(before, {"gweight": {LANE: "2"}})
    assert [job.id for job in queue.claim(4)] == [A, B, D, C]
    queue.lane(LANE).weight(None)
    assert wire.read("gweight") is None


# -- a lane: depth, drain, move, reap -----------------------------------------------------------------------------


@scenario("6.10.1", "per lane: depth")
def test_the_depth_of_a_lane_is_what_waits_in_it(start: Start, queue: Queue, wire: Wire) -> None:
    start.running(A, group=LANE)
    start.waiting(B, C, group=LANE)
    start.waiting(D, group=OTHER)
    before = wire.everything()
    assert [queue.lane(group).depth() for group in (LANE, OTHER, "nobody's")] == [2, 1, 0]
    assert wire.everything() == before


@scenario("6.11.1", "per lane: drain; its rows and logs go, and it leaves the ring; what runs and other lanes stay")
def test_a_drained_lane_leaves_the_ring_and_the_others_alone(start: Start, queue: Queue, wire: Wire) -> None:
    start.running(A, group=LANE)
    start.waiting(B, C, group=LANE)
    start.waiting(D, group=OTHER)
    wire.do("RPUSH", f"job:{B}:logs", "a line")
    before = wire.everything()
    assert queue.lane(LANE).drain() == 2
    gone = {name: None for name in before if name.startswith((f"job:{B}", f"job:{C}"))}
    assert wire.everything() == then(before, gone | {f"g:{LANE}:pending": None, "ring": [OTHER]})
    assert queue.lane(LANE).drain() == 0


@scenario("6.12.1", "per lane: move a pending job to another lane; its row's `group` is rewritten")
def test_a_moved_job_waits_in_its_new_lane_at_its_priority(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(A, group=LANE, priority=4)
    start.waiting(B, group=LANE)
    before = wire.everything()
    assert queue.lane(OTHER).move(A) is Verdict.OK
    row = before[f"job:{A}"] | {"group": OTHER}
    changes = {f"job:{A}": row, f"g:{LANE}:pending": {B: 0}, f"g:{OTHER}:pending": {A: 4}, "ring": [LANE, OTHER]}
    assert wire.everything() == then(before, changes | {"wake": ["1"]})


@scenario("6.12.2", "per lane: move, and rule 6: an emptied lane leaves the ring, one that is paused does not join it")
def test_a_move_empties_one_lane_and_does_not_wake_a_paused_one(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(A, group=LANE)
    wire.do("SADD", "paused", OTHER)
    assert queue.lane(OTHER).move(A) is Verdict.OK
    assert (wire.ring(), wire.read(f"g:{LANE}:pending"), wire.ids(f"g:{OTHER}:pending")) == ([], None, [A])
    assert wire.wakes() == 0
    assert not queue.claim(9)


@scenario("6.12.3", "per lane: move a pending job: from the flat queue too")
def test_a_flat_job_is_moved_into_a_lane(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(A, B)
    before = wire.everything()
    assert queue.lane(LANE).move(A) is Verdict.OK
    changes = {
        f"job:{A}": before[f"job:{A}"] | {"group": LANE}, "pending": {B: 0}, f"g:{LANE}:pending": {A: 0},
        "ring": [LANE], "wake": ["1"],
    }  # fmt: skip
    assert wire.everything() == then(before, changes)


@scenario("6.12.4", "per lane: move, of a job that does not wait: EMQSTATE, or EMQLOCK when held; row gone → gone")
@pytest.mark.parametrize("where", ["running", "scheduled", "dead", "nowhere"])
def test_only_a_job_that_waits_is_moved(start: Start, queue: Queue, wire: Wire, where: str) -> None:
    match where:
        case "running":
            start.running(A)
        case "scheduled":
            start.scheduled(A)
        case "dead":
            start.dead(A)
    before = wire.everything()
    if where == "nowhere":
        assert queue.lane(LANE).move(A) is Verdict.GONE
    else:
        with pytest.raises(Held if where == "running" else WrongState):
            queue.lane(LANE).move(A)
    assert wire.everything() == before
    with pytest.raises(InvalidId):
        queue.lane(LANE).move("EVT000xY9Wvvcd")


@scenario("6.13.1", "per lane: reap one group only")
def test_a_lanes_reap_brings_back_its_own_expired_jobs_only(start: Start, queue: Queue, wire: Wire) -> None:
    start.running(A)
    start.running(B, group=LANE)
    start.running(C, group=OTHER)
    start.running(D, group=LANE)
    wire.expire(A, B, C)
    before = wire.everything()
    assert queue.lane(LANE).reap() == 1
    found = wire.everything()
    assert found.pop("wake")
    changes = unlocked(before, B, state="pending") | {
        "active": then(before["active"], {B: None}), f"g:{LANE}:pending": {B: 0},
        "gactive": {LANE: "1", OTHER: "1"}, "ring": [LANE],
    }  # fmt: skip
    assert found == then(before, changes)


# -- groups -------------------------------------------------------------------------------------------------------


@scenario("6.14.1", "a group is a branded id; additive: any other string maps to a stable `GRP` id, named in `gnames`")
@pytest.mark.parametrize(
    ("name", "group"),
    # BLAKE2b of the UTF-8, 8 bytes, big-endian, top bit cleared, in base62: computed apart from this package.
    [("acme", "GRP48IbgTeK9Cr"), (LANE, LANE), ("TEN0NgWEfAEJfs", "TEN0NgWEfAEJfs")],
)
def test_a_name_is_its_group_id_on_the_wire(start: Start, queue: Queue, wire: Wire, name: str, group: str) -> None:
    start.waiting(B)
    before = wire.everything()
    queue.enqueue("p", id=A, group=name)
    row = ROW | {"group": group} | ({"group_name": name} if name != group else {})
    changes = {
        f"job:{A}": row, f"g:{group}:pending": {A: 0}, "ring": [group], "wake": ["1"],
        "gnames": {group: name} if name != group else None,
    }  # fmt: skip
    assert wire.everything() == then(before, changes)
    assert (queue.lane(name).group, queue.lane(name).depth()) == (group, 1)


@scenario("6.14.2", "`gnames` is for people: a lane of another runtime's naming is shown by it")
def test_a_lane_is_shown_by_the_name_that_is_kept(start: Start, queue: Queue, wire: Wire) -> None:
    start.running(A, group=LANE)
    start.waiting(B, C, group=LANE)
    wire.do("HSET", "gnames", LANE, "acme & sons")
    wire.do("HSET", "glimit", LANE, 3)
    wire.do("HSET", "gweight", LANE, 2)
    (lane,) = queue.lanes()
    assert (lane.name, lane.group, lane.depth, lane.active) == ("acme & sons", LANE, 2, 1)
    assert (lane.limit, lane.weight, lane.paused) == (3, 2, False)


@scenario("6.14.3", "inside a lane, too, a job's score is its priority, 0 by default")
def test_a_score_in_a_lane_is_a_priority(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(A, group=LANE, priority=2)
    start.waiting(B, group=LANE)
    queue.enqueue("p", id=C, group=LANE, priority=-5)
    assert wire.read(f"g:{LANE}:pending") == {C: -5, B: 0, A: 2}
