"""A claim among keys and fields that another runtime, or a hand, has left: no job is lost, and its neighbours run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from conformance.scenarios import A, B, C
from wire.handwriting import Wire

from echomq_tasks.errors import ScriptError
from echomq_tasks.identity import group_id
from echomq_tasks.queue import Admission, NewJob, Queue, State, Verdict

LANE = group_id("acme")


def fill(queue: Queue) -> list[str]:
    """Two jobs flat and one in a lane."""
    jobs = [NewJob(payload="p", id=A), NewJob(payload="p", id=B), NewJob(payload="p", id=C, group="acme")]
    return [each.id for each in queue.enqueue_many(jobs)]


@pytest.mark.parametrize(
    ("key", "field", "value"),
    [
        ("repeat", None, "no zset"),
        ("limiter", None, "1.5"),
        ("glimit", LANE, "1.5"),
        ("glimit", LANE, "nan"),
        ("gweight", LANE, "1e400"),
        ("meta", "duration", "1.5"),
        ("meta", "duration", "-3"),
        ("meta", "concurrency", "2.9"),
        ("meta", "max", "1e300"),
        ("meta", "share", "1 nobody"),
    ],
)
def test_an_odd_key_or_number_costs_no_job_its_place(
    queue: Queue, wire: Wire, key: str, field: str | None, value: str
) -> None:
    ids = fill(queue)
    queue.limit_rate(100)
    if field is None:
        wire.do("SET", key, value)
    else:
        wire.do("HSET", key, field, value)
    taken = {job.id for _ in range(5) for job in queue.claim(3)}
    for job_id in ids:
        assert queue.state(job_id) is (State.ACTIVE if job_id in taken else State.PENDING)
    assert len(taken) >= 2


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize(
    "odd", ["JOBzzzzzzzzzzz", "JOBAzL8n0Y58m8", "JOB0KHTOWnGLu", "JOB0KHTOWnGL-C", "USR0KHTOWnGLuC"]
)
def test_what_is_no_id_is_dropped_and_its_neighbours_are_claimed(
    queue: Queue, wire: Wire, odd: str, limited: bool
) -> None:
    fill(queue)
    if limited:
        queue.limit_rate(100)
    wire.do("HSET", f"job:{odd}", "state", "pending", "attempts", 0, "payload", "p")
    wire.do("ZADD", "pending", 0, odd)
    jobs = [job for _ in range(3) for job in queue.claim(3)]
    assert sorted(job.id for job in jobs) == sorted([A, B, C])
    assert queue.complete_many(jobs) == [Verdict.OK] * 3
    assert odd not in wire.ids("pending")


@pytest.mark.parametrize("limited", [False, True])
def test_the_largest_id_of_all_is_claimed(queue: Queue, limited: bool) -> None:
    if limited:
        queue.limit_rate(100)
    queue.enqueue("p", id="JOBAzL8n0Y58m7")
    assert [job.id for job in queue.claim(3)] == ["JOBAzL8n0Y58m7"]


@pytest.mark.parametrize("key", ["wake", "gactive", "limiter"])
def test_a_claim_that_fails_leaves_every_job_in_a_set(queue: Queue, wire: Wire, key: str) -> None:
    ids = fill(queue)
    queue.limit_rate(100)
    wire.do("DEL", key)
    wire.do("SADD", key, "of another type")
    for _ in range(3):
        with contextlib.suppress(ScriptError):
            queue.claim(3)
    assert {queue.state(job_id) for job_id in ids} <= {State.ACTIVE, State.PENDING}
    wire.do("DEL", key)
    for job_id in wire.ids("active"):
        wire.expire(job_id)
    queue.reap()
    assert {job.id for _ in range(5) for job in queue.claim(3)} == set(ids)


@pytest.mark.parametrize("stranger", ["foo", "USR0NgWEfAEJfs", "JOB0NgWEfAEJf!", "JOB0NgWEfAEJfs-and-more"])
def test_what_is_no_job_id_is_dropped_and_its_neighbours_are_served_and_settled(
    queue: Queue, wire: Wire, stranger: str
) -> None:
    queue.enqueue("p", id=A)
    wire.do("HSET", f"job:{stranger}", "state", "pending", "attempts", 0, "payload", "p")
    wire.do("ZADD", "pending", -1, stranger)
    (job,) = queue.claim(5).jobs
    assert job.id == A
    assert queue.complete_many([job]) == [Verdict.OK]
    assert wire.read("pending") is None


@pytest.mark.parametrize("stranger", [b"\xff" * 14, b"acme", b"grp0NgWEfAEJfs"])
def test_what_is_no_group_leaves_the_ring(queue: Queue, wire: Wire, stranger: bytes) -> None:
    fill(queue)
    wire.do("LPUSH", "ring", stranger)
    wire.client.zadd(wire.base.encode() + b"g:" + stranger + b":pending", {A: 0})
    taken = {job.id for _ in range(6) for job in queue.claim(1)}
    assert taken == {A, B, C}
    assert wire.ring() == []


def test_a_window_that_was_left_without_an_end_ends(queue: Queue, wire: Wire) -> None:
    queue.limit_rate(1, per=5)
    queue.enqueue("p")
    wire.do("SET", "limiter", 5)
    assert not queue.claim()
    assert 0 < wire.do("PTTL", "limiter") <= 5000


def test_a_lost_claim_is_not_handed_out_of_a_queue_that_was_paused_meanwhile(queue: Queue, wire: Wire) -> None:
    ids = fill(queue)
    # As of a caller whose answer was lost.
    claim = [3, 30_000, "key", "caller", "1.1"]
    queue.scripts.call("job_claim", queue.base, claim)
    queue.pause()
    assert queue.scripts.call("job_claim", queue.base, [*claim[:-1], "1.2"])[2:] == []
    assert {queue.state(job_id) for job_id in ids} == {State.PENDING}
    queue.resume()
    assert len(queue.claim(3)) == 3


def test_whoever_takes_the_last_job_leaves_word_of_a_repeat_that_is_soon_due(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p")
    queue.repeat("soon", "p", every=60, first_in=3)
    wire.do("DEL", "wake")
    assert len(queue.claim(2)) == 1
    assert wire.wakes() == 1


@pytest.mark.parametrize("size", [1, 7, 60])
def test_a_lanes_weight_is_a_share_among_lanes_and_not_against_the_flat_queue(queue: Queue, size: int) -> None:
    queue.lane("acme").weight(100)
    queue.enqueue_many(["p"] * 300)
    queue.enqueue_many([NewJob(payload="p", group="acme") for _ in range(300)])
    jobs = [job for _ in range(120 // size) for job in queue.claim(size)]
    flat = sum(job.group is None for job in jobs)
    assert abs(flat - len(jobs) / 2) <= 1


@pytest.mark.parametrize("verb", ["sweep", "reap"])
def test_a_lane_whose_running_row_was_deleted_by_hand_is_served_again(queue: Queue, wire: Wire, verb: str) -> None:
    queue.lane("acme").limit(1)
    queue.enqueue("p", id=A, group="acme")
    queue.enqueue("p", id=B, group="acme")
    assert [job.id for job in queue.claim(2)] == [A]
    wire.do("DEL", f"job:{A}")
    wire.expire(A)
    if verb == "sweep":
        queue.sweep_stalled()
    else:
        queue.reap()
    assert wire.running() == {}
    assert [job.id for job in queue.claim(2)] == [B]


@pytest.mark.parametrize(
    "fields",
    [{"failures": "abc"}, {"priority": "nan"}, {"attempts": "1.0"}, {"stalled": ""}, {"died": "inf"}],
    ids=repr,
)
def test_one_odd_row_hides_no_other_dead_job(queue: Queue, wire: Wire, fields: dict[str, str]) -> None:
    for job_id in (A, B):
        wire.do("HSET", f"job:{job_id}", "state", "dead", "attempts", 1, "payload", "p", "last_error", "boom")
        wire.do("ZADD", "dead", 0, job_id)
    wire.do("HSET", f"job:{A}", *(word for pair in fields.items() for word in pair))
    wire.client.hset(f"{wire.base}job:{A}", "group", b"\xff\xfe")
    assert [job.id for job in queue.dead()] == [B, A]
    assert queue.purge_dead() == 2


def test_an_admission_of_a_job_with_a_group_that_ends_leaves_nothing(queue: Queue, wire: Wire) -> None:
    for number in range(20):
        answer = queue.enqueue("p", group=f"order-{number}", group_limit=1)
        assert answer.admission is Admission.ENQUEUED
    while jobs := list(queue.claim(5)):
        queue.complete_many(jobs)
    assert queue.lanes() == []
    assert set(wire.everything()) <= {"metrics:completed", "wake"}
    assert wire.read("gauto") is None


def test_a_lane_that_was_set_by_hand_is_kept_when_it_is_empty(queue: Queue, wire: Wire) -> None:
    queue.lane("acme").weight(3)
    queue.enqueue("p", group="acme", group_limit=2)
    queue.complete(queue.claim().jobs[0])
    (lane,) = queue.lanes()
    assert (lane.name, lane.weight, lane.limit) == ("acme", 3, None)


@pytest.mark.parametrize("by_hand", [1, 5, None])
def test_a_limit_set_by_hand_is_not_overruled_by_the_ones_that_jobs_bring(queue: Queue, by_hand: int | None) -> None:
    lane = queue.lane("acme")
    queue.enqueue("p", group="acme", group_limit=2)
    assert lane.info().limit == 2
    lane.limit(by_hand)
    queue.enqueue("p", group="acme", group_limit=2)
    queue.enqueue("p", group="acme", group_limit=3)
    assert lane.info().limit == by_hand


@pytest.mark.parametrize("by_hand", [1, None])
def test_a_limit_by_hand_holds_also_when_the_lane_was_idle_and_until_it_is_given_back(
    queue: Queue, wire: Wire, by_hand: int | None
) -> None:
    lane = queue.lane("acme")
    lane.limit(by_hand)
    queue.enqueue("p", group="acme", group_limit=3)
    assert lane.info().limit == by_hand
    queue.complete(queue.claim().jobs[0])
    assert [each.name for each in queue.lanes()] == ["acme"]
    lane.limit("auto")
    queue.enqueue("p", group="acme", group_limit=3)
    assert lane.info().limit == 3
    queue.complete(queue.claim().jobs[0])
    assert queue.lanes() == []


WAYS_OUT: dict[str, Callable[[Queue, Wire], object]] = {
    "cancelled": lambda queue, wire: queue.cancel(A),
    "removed": lambda queue, wire: queue.remove(A),
    "drained": lambda queue, wire: queue.drain("scheduled"),
    "promoted and done": lambda queue, wire: (wire.come_due(A), queue.complete(queue.claim().jobs[0])),
}


@pytest.mark.parametrize("way", WAYS_OUT)
def test_a_lane_that_a_job_was_only_scheduled_for_leaves_nothing(queue: Queue, wire: Wire, way: str) -> None:
    queue.enqueue("p", id=A, group="acme", group_limit=2, delay=60)
    WAYS_OUT[way](queue, wire)
    assert queue.lanes() == []
    assert wire.everything().keys() <= {"wake", "metrics:completed"}
    assert wire.read("gauto") is None


@pytest.mark.parametrize("way", ["retry", "release", "reprocess", "delay"])
def test_a_job_that_comes_back_brings_its_lanes_name_along(queue: Queue, wire: Wire, way: str) -> None:
    queue.enqueue("p", id=A, group="acme", delay=60 if way == "delay" else None)
    if way == "delay":
        queue.complete(queue.claim().jobs[0]) if queue.enqueue("p", group="acme") else None
        wire.come_due(A)
    else:
        job = queue.claim().jobs[0]
        if way == "retry":
            queue.retry(job)
        elif way == "release":
            queue.release(job)
        else:
            queue.retry(job, max_retries=0)
            queue.reprocess(A)
    queue.promote()
    assert [lane.name for lane in queue.lanes()] == ["acme"]


def test_a_moved_job_leaves_its_old_lanes_limit_behind(queue: Queue) -> None:
    queue.enqueue("p", id=A, group="slow", group_limit=1)
    queue.lane("fast").move(A)
    queue.release(queue.claim().jobs[0])
    (lane,) = queue.lanes()
    assert (lane.name, lane.limit) == ("fast", None)


@pytest.mark.parametrize("how", ["lowered", "emptied"])
def test_a_turn_that_is_owed_ends_with_its_reason(queue: Queue, wire: Wire, how: str) -> None:
    queue.lane("acme").weight(1000)
    queue.enqueue_many([NewJob(payload="p", group=name) for name in ("acme", "other") for _ in range(60)])
    queue.claim(1)
    queue.lane("acme").weight(None)
    if how == "emptied":
        queue.drain()
        queue.claim(1)
        queue.enqueue_many([NewJob(payload="p", group=name) for name in ("acme", "other") for _ in range(60)])
    served = [job.group for _ in range(20) for job in queue.claim(1)]
    assert 9 <= served.count(LANE) <= 11


def test_a_limit_that_jobs_bring_follows_the_newest_of_them(queue: Queue) -> None:
    for limit in (2, 5, 1):
        queue.enqueue("p", group="acme", group_limit=limit)
        assert queue.lane("acme").info().limit == limit


def test_a_job_that_comes_back_brings_its_lanes_limit_along(queue: Queue, wire: Wire) -> None:
    ids = [queue.enqueue("p", group="acme", group_limit=1, delay=60).id for _ in range(3)]
    ids.append(queue.enqueue("p", group="acme", group_limit=1).id)
    # The lane is empty and idle for a moment, so that nothing of it is kept.
    assert queue.retry(queue.claim().jobs[0], delay=60) is Verdict.SCHEDULED
    assert wire.read("glimit") is None
    wire.come_due(*ids)
    assert len(queue.claim(9)) == 1
