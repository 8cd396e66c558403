"""The verbs of lanes: after each the ring holds exactly the lanes that can be served now."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from wire.handwriting import Wire

from echomq_tasks.errors import Held, InvalidArgument, InvalidId, InvalidName, WrongState
from echomq_tasks.identity import group_id
from echomq_tasks.queue import LaneInfo, NewJob, Queue, State, Verdict

LANE, OTHER = "GRP0NgWEfAEJ0x", "GRP0NgWEfAEJ0y"
ABSENT = "JOB0NgWEfAEJ0L"


def in_lane(queue: Queue, wire: Wire, group: str, count: int) -> list[str]:
    """So many jobs wait in a lane, and no wake token lies there."""
    ids = [answer.id for answer in queue.enqueue_many([NewJob(payload="p", group=group)] * count)]
    wire.do("DEL", "wake")
    return ids


# --- pause and resume


def test_a_paused_lane_leaves_the_ring_and_comes_back_with_a_token_a_job(queue: Queue, wire: Wire) -> None:
    lane = queue.lane(LANE)
    ids = in_lane(queue, wire, LANE, 3)
    in_lane(queue, wire, OTHER, 1)
    assert lane.pause()
    assert (wire.read("paused"), wire.ring()) == ({LANE}, [OTHER])
    assert wire.ids(f"g:{LANE}:pending") == ids
    assert not lane.pause()
    assert [job.group for job in queue.claim(9)] == [OTHER]
    assert lane.resume()
    assert (wire.read("paused"), wire.ring(), wire.wakes()) == (None, [LANE], 3)
    assert not lane.resume()
    assert wire.ring() == [LANE]
    assert len(queue.claim(9)) == 3


def test_a_paused_lane_that_gets_a_job_stays_out_of_the_ring(queue: Queue, wire: Wire) -> None:
    queue.lane(LANE).pause()
    in_lane(queue, wire, LANE, 2)
    assert wire.ring() == []
    assert not queue.claim(9)
    queue.lane(LANE).resume()
    assert wire.ring() == [LANE]


def test_an_empty_lane_that_is_resumed_stays_out_of_the_ring(queue: Queue, wire: Wire) -> None:
    queue.lane(LANE).pause()
    assert queue.lane(LANE).resume()
    assert wire.everything() == {}


def test_a_lane_at_its_limit_that_is_resumed_stays_out_of_the_ring(queue: Queue, wire: Wire) -> None:
    lane = queue.lane(LANE)
    lane.limit(1)
    in_lane(queue, wire, LANE, 2)
    (job,) = queue.claim(9)
    lane.pause()
    lane.resume()
    assert (wire.ring(), wire.wakes()) == ([], 0)
    queue.complete(job)
    assert wire.ring() == [LANE]


# --- limit and weight


def test_a_limit_holds_and_what_it_cuts_off_is_served_when_one_ends(queue: Queue, wire: Wire) -> None:
    lane = queue.lane(LANE)
    in_lane(queue, wire, LANE, 5)
    lane.limit(2)
    assert wire.read("glimit") == {LANE: "2"}
    jobs = queue.claim(9).jobs
    assert (len(jobs), wire.ring()) == (2, [])
    queue.complete(jobs[0])
    assert len(queue.claim(9)) == 1


def test_a_raised_or_removed_limit_brings_the_lane_back_and_wakes_for_the_room(queue: Queue, wire: Wire) -> None:
    lane = queue.lane(LANE)
    lane.limit(1)
    in_lane(queue, wire, LANE, 6)
    queue.claim(9)
    wire.do("DEL", "wake")
    lane.limit(3)
    assert (wire.ring(), wire.wakes()) == ([LANE], 2)
    assert len(queue.claim(9)) == 2
    wire.do("DEL", "wake")
    lane.limit(None)
    assert wire.read("glimit") is None
    assert (wire.ring(), wire.wakes()) == ([LANE], 3)
    assert len(queue.claim(9)) == 3


def test_a_limit_lowered_to_what_runs_takes_the_lane_out_of_the_ring(queue: Queue, wire: Wire) -> None:
    lane = queue.lane(LANE)
    in_lane(queue, wire, LANE, 5)
    jobs = queue.claim(3).jobs
    assert wire.ring() == [LANE]
    lane.limit(2)
    assert wire.ring() == []
    for job in jobs[:2]:
        assert not queue.claim(9)
        queue.complete(job)
    assert wire.ring() == [LANE]


def test_a_limit_changes_nothing_about_a_paused_lane(queue: Queue, wire: Wire) -> None:
    lane = queue.lane(LANE)
    in_lane(queue, wire, LANE, 2)
    lane.pause()
    lane.limit(5)
    assert (wire.ring(), wire.wakes()) == ([], 0)


def test_a_lane_keeps_its_place_in_the_ring_when_its_limit_changes(queue: Queue, wire: Wire) -> None:
    for group in (LANE, OTHER):
        in_lane(queue, wire, group, 2)
    queue.lane(LANE).limit(5)
    queue.lane(LANE).limit(None)
    assert wire.ring() == [LANE, OTHER]


def test_a_weight_is_how_many_heads_each_turn_serves(queue: Queue, wire: Wire) -> None:
    for group in (LANE, OTHER):
        in_lane(queue, wire, group, 6)
    queue.lane(LANE).weight(3)
    assert wire.read("gweight") == {LANE: "3"}
    assert [job.group for job in queue.claim(8)] == [LANE] * 3 + [OTHER] + [LANE] * 3 + [OTHER]
    queue.lane(LANE).weight(None)
    assert wire.read("gweight") is None


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "3", 2**60])
def test_a_limit_or_weight_that_is_none_is_refused(queue: Queue, wire: Wire, count: object) -> None:
    with pytest.raises(InvalidArgument):
        queue.lane(LANE).limit(count)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        queue.lane(LANE).weight(count)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="1 to 1000"):
        queue.lane(LANE).weight(1001)
    assert wire.everything() == {}


# --- names, and looking


@pytest.mark.parametrize("name", ["", None, 7, "\ud800", b"acme"])
def test_a_lane_without_a_name_is_refused(queue: Queue, name: object) -> None:
    with pytest.raises(InvalidName):
        queue.lane(name)  # type: ignore[arg-type]


Setting = Callable[[Queue], object]


@pytest.mark.parametrize(
    "use",
    [
        lambda queue: queue.lane("acme").limit(2),
        lambda queue: queue.lane("acme").weight(2),
        lambda queue: queue.lane("acme").pause(),
        lambda queue: queue.enqueue("p", group="acme"),
        lambda queue: queue.lane("acme").move(queue.enqueue("p").id),
    ],
)
def test_the_name_of_a_derived_group_is_kept_by_whatever_names_it_first(queue: Queue, wire: Wire, use: Setting) -> None:
    use(queue)
    lane = queue.lane("acme")
    assert (lane.name, lane.group) == ("acme", group_id("acme"))
    assert wire.read("gnames") == {lane.group: "acme"}
    assert [info.name for info in queue.lanes()] == ["acme"]
    assert queue.lane(lane.group).info().name == "acme"


def test_a_branded_id_names_itself(queue: Queue, wire: Wire) -> None:
    queue.lane(LANE).limit(2)
    assert wire.read("gnames") is None
    assert queue.lane(LANE).info().name == LANE


def test_looking_at_a_lane_that_nobody_has_used_writes_nothing(queue: Queue, wire: Wire) -> None:
    lane = queue.lane("acme")
    assert lane.info() == LaneInfo("acme", lane.group, 0, 0, None, 1, False)
    assert (lane.depth(), lane.drain(), lane.reap(), lane.resume()) == (0, 0, 0, False)
    assert queue.lanes() == []
    assert wire.everything() == {}


def test_every_lane_with_a_job_or_a_setting_is_listed_by_name(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many([NewJob(payload="p", group="full")] * 3)
    queue.lane("full").limit(2)
    queue.claim(2)
    queue.enqueue("p", group="waits")
    queue.lane("paused").pause()
    queue.lane("heavy").weight(4)
    expected = {
        "full": (1, 2, 2, 1, False),
        "heavy": (0, 0, None, 4, False),
        "paused": (0, 0, None, 1, True),
        "waits": (1, 0, None, 1, False),
    }
    assert queue.lanes() == [LaneInfo(name, group_id(name), *expected[name]) for name in sorted(expected)]
    assert queue.lane("full").depth() == 1


def test_hundreds_of_lanes_are_listed(queue: Queue) -> None:
    names = sorted(f"customer {number}" for number in range(1100))
    queue.enqueue_many([NewJob(payload="p", group=name) for name in names])
    infos = queue.lanes()
    assert [info.name for info in infos] == names
    assert {(info.depth, info.active) for info in infos} == {(1, 0)}


def test_what_another_hand_wrote_into_the_settings_hides_no_lane(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p", group=LANE)
    wire.do("SADD", "paused", "by hand", b"\xff")
    wire.do("HSET", "glimit", LANE, "many")
    wire.do("HSET", "gweight", LANE, "much")
    wire.do("HSET", "gnames", LANE, b"\xff")
    infos = {info.group: info for info in queue.lanes()}
    assert infos.keys() == {LANE, "by hand", "\ufffd"}
    assert infos[LANE] == LaneInfo("\ufffd", LANE, 1, 0, None, 1, False)
    assert infos["by hand"].paused


# --- drain


def test_a_drained_lane_leaves_the_ring_and_nothing_of_its_jobs_is_left(queue: Queue, wire: Wire) -> None:
    lane = queue.lane(LANE)
    queue.enqueue("flat")
    other = in_lane(queue, wire, OTHER, 1)
    before = wire.everything()
    for job_id in in_lane(queue, wire, LANE, 3):
        queue.add_log(job_id, "a line")
    assert lane.drain() == 3
    assert wire.everything() == before
    assert (wire.ring(), wire.ids(f"g:{OTHER}:pending")) == ([OTHER], other)
    assert lane.drain() == 0


def test_a_drain_leaves_what_runs_and_what_is_scheduled(queue: Queue, wire: Wire) -> None:
    lane = queue.lane(LANE)
    in_lane(queue, wire, LANE, 3)
    (job,) = queue.claim()
    scheduled = queue.enqueue("p", group=LANE, delay=60).id
    assert lane.drain() == 2
    assert (wire.ids("active"), wire.ids("schedule"), wire.running()) == ([job.id], [scheduled], {LANE: 1})
    assert queue.complete(job) is Verdict.OK


def test_a_paused_lane_can_be_drained_and_stays_paused(queue: Queue, wire: Wire) -> None:
    lane = queue.lane(LANE)
    in_lane(queue, wire, LANE, 3)
    lane.pause()
    assert lane.drain() == 3
    assert wire.everything() == {"paused": {LANE}}


def test_a_long_lane_is_drained_in_steps(queue: Queue, wire: Wire) -> None:
    in_lane(queue, wire, LANE, 1203)
    assert queue.lane(LANE).drain() == 1203
    assert wire.everything() == {}


def test_an_id_whose_row_is_gone_is_drained_too(queue: Queue, wire: Wire) -> None:
    ids = in_lane(queue, wire, LANE, 2)
    wire.do("DEL", f"job:{ids[0]}")
    wire.do("SET", f"job:{ids[0]}", "not a row")
    assert queue.lane(LANE).drain() == 2
    assert wire.everything() == {}


# --- move


@pytest.mark.parametrize("start", [None, OTHER])
def test_a_job_is_moved_into_a_lane_with_its_priority(queue: Queue, wire: Wire, start: str | None) -> None:
    (first,) = in_lane(queue, wire, LANE, 1)
    job_id = queue.enqueue("p", group=start, priority=-7).id
    wire.do("DEL", "wake")
    assert queue.lane(LANE).move(job_id) is Verdict.OK
    assert wire.row(job_id) == {"state": "pending", "attempts": "0", "payload": "p", "priority": "-7", "group": LANE}
    assert wire.read(f"g:{LANE}:pending") == {job_id: -7.0, first: 0.0}
    assert (wire.read("pending"), wire.read(f"g:{OTHER}:pending")) == (None, None)
    assert wire.ring() == [LANE], "the lane that is empty now has left it"
    assert wire.wakes() > 0
    jobs = queue.claim(9).jobs
    assert [(job.id, job.group) for job in jobs] == [(job_id, LANE), (first, LANE)]
    assert wire.running() == {LANE: 2}
    queue.complete_many(jobs)
    assert wire.running() == {}


def test_a_job_is_moved_out_of_its_lane(queue: Queue, wire: Wire) -> None:
    first, second = in_lane(queue, wire, LANE, 2)
    assert queue.move(first, None) is Verdict.OK
    assert "group" not in wire.row(first)
    assert (wire.ids("pending"), wire.ids(f"g:{LANE}:pending"), wire.ring()) == ([first], [second], [LANE])
    assert wire.wakes() == 1
    assert queue.move(second, None) is Verdict.OK
    assert (wire.ids("pending"), wire.ring()) == ([first, second], [])
    assert [job.group for job in queue.claim(9)] == [None, None]


def test_a_move_to_where_it_waits_changes_nothing(queue: Queue, wire: Wire) -> None:
    ids = in_lane(queue, wire, LANE, 1)
    in_lane(queue, wire, OTHER, 1)
    flat = queue.enqueue("flat").id
    wire.do("LPUSH", "wake", *["1"] * 63)
    before = wire.everything()
    assert queue.lane(LANE).move(ids[0]) is Verdict.OK
    assert queue.move(flat, None) is Verdict.OK
    assert wire.everything() == before


@pytest.mark.parametrize("why", ["paused", "full"])
def test_a_job_moved_into_a_lane_that_cannot_be_served_waits_there(queue: Queue, wire: Wire, why: str) -> None:
    lane = queue.lane(LANE)
    if why == "paused":
        lane.pause()
    else:
        lane.limit(1)
        in_lane(queue, wire, LANE, 1)
        queue.claim()
    job_id = queue.enqueue("p").id
    wire.do("DEL", "wake")
    assert lane.move(job_id) is Verdict.OK
    assert (wire.ring(), wire.wakes(), wire.ids(f"g:{LANE}:pending")) == ([], 0, [job_id])
    assert not queue.claim()


def test_a_job_moved_out_of_a_paused_lane_is_served(queue: Queue, wire: Wire) -> None:
    (job_id,) = in_lane(queue, wire, LANE, 1)
    queue.lane(LANE).pause()
    assert queue.lane("acme").move(job_id) is Verdict.OK
    assert [job.id for job in queue.claim()] == [job_id]


def test_only_a_job_that_waits_can_be_moved(queue: Queue, wire: Wire) -> None:
    lane = queue.lane(LANE)
    in_lane(queue, wire, OTHER, 2)
    running, dead = queue.claim(2).jobs
    queue.retry(dead, max_retries=0)
    scheduled = queue.enqueue("p", delay=60).id
    wire.do("HSET", f"job:{ABSENT}", "state", "awaiting_children", "attempts", 0)
    before = wire.dumps()
    with pytest.raises(Held):
        lane.move(running.id)
    for job_id, state in ((dead.id, "dead"), (scheduled, "scheduled"), (ABSENT, "awaiting_children")):
        with pytest.raises(WrongState, match=f"{job_id} is {state}"):
            lane.move(job_id)
    wire.do("HDEL", f"job:{running.id}", "lock")
    wire.do("DEL", f"job:{running.id}:lock")
    with pytest.raises(WrongState, match="is active"):
        lane.move(running.id)
    assert wire.dumps().keys() - before.keys() == set()
    assert wire.running() == {OTHER: 1}
    assert queue.state(running.id) is State.ACTIVE


def test_a_job_that_is_gone_or_is_no_job_is_not_moved(queue: Queue, wire: Wire) -> None:
    assert queue.lane("acme").move(ABSENT) is Verdict.GONE
    with pytest.raises(InvalidId):
        queue.lane("acme").move("USR0NgWEfAEJfs")
    with pytest.raises(InvalidName):
        queue.move(ABSENT, "")
    assert wire.everything() == {}


@pytest.mark.parametrize("form", ["key", "field"])
def test_a_waiting_job_that_another_runtime_has_locked_is_not_moved(queue: Queue, wire: Wire, form: str) -> None:
    (job_id,) = in_lane(queue, wire, LANE, 1)
    if form == "key":
        wire.do("SET", f"job:{job_id}:lock", 1)
    else:
        wire.do("HSET", f"job:{job_id}", "lock", 1)
    before = wire.dumps()
    with pytest.raises(Held):
        queue.move(job_id, None)
    assert wire.dumps() == before


# --- reap


def test_only_expired_jobs_of_the_lane_are_reaped(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many([NewJob(payload="p", group=group) for group in (LANE, OTHER, None) for _ in range(3)])
    jobs = queue.claim(9).jobs
    mine = [job.id for job in jobs if job.group == LANE]
    wire.expire(*(job.id for job in jobs if job.id != mine[0]))
    wire.do("DEL", "wake")
    assert queue.lane(LANE).reap() == 2
    assert wire.ids(f"g:{LANE}:pending") == mine[1:]
    assert (wire.running(), wire.ring()) == ({LANE: 1, OTHER: 3}, [LANE])
    assert wire.wakes() >= 1
    assert queue.counts().active == 7
    assert queue.lane(LANE).reap() == 0


def test_a_lanes_reap_takes_no_more_than_asked_and_looks_past_those_of_others(
    queue: Queue, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echomq_tasks.queue.lanes._STEP", 2)
    queue.enqueue_many([NewJob(payload="p", group=OTHER)] * 7 + [NewJob(payload="p", group=LANE)] * 5)
    jobs = queue.claim(12).jobs
    for place, job in enumerate(sorted(jobs, key=lambda job: (job.group == LANE, job.id)), 1):
        wire.do("ZADD", "active", place, job.id)
    lane = queue.lane(LANE)
    assert [lane.reap(2), lane.reap(1), lane.reap(), lane.reap()] == [2, 1, 2, 0]
    assert wire.running() == {OTHER: 7}
    wire.expire(*(job.id for job in queue.claim(5)))
    for place, job_id in enumerate(wire.ids("active")[::-1], 1):
        wire.do("ZADD", "active", place, job_id)
    assert lane.reap() == 5, "those that went are not passed over"
    with pytest.raises(InvalidArgument):
        lane.reap(0)


def test_an_admission_that_changes_a_lanes_limit_leaves_the_ring_as_it_must_be(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many([NewJob(payload="p", group="acme", group_limit=1) for _ in range(3)])
    assert len(queue.claim(3)) == 1
    assert wire.ring() == []
    queue.enqueue("p", group="acme", group_limit=2)
    assert wire.ring() == [queue.lane("acme").group]
    queue.enqueue("p", group="acme", group_limit=1)
    assert wire.ring() == []
