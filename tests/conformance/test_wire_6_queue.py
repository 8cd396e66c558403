"""Wire §6, the whole queue: pause, drain, obliterate, counts, and the two gates."""

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
    Start,
    scenario,
    then,
)
from wire.handwriting import Wire

from echomq_tasks.connection import Connection
from echomq_tasks.errors import WrongState
from echomq_tasks.queue import Queue, State, Verdict

HOUR = 3_600_000


def fill(start: Start, wire: Wire) -> None:
    """A queue with a job of each state, two lanes, and everything else that a queue may have."""
    start.running(A)
    start.running(B, group=LANE)
    start.dead("JOB0NgWEfAEJ1D")
    start.waiting("JOB0NgWEfAEJ1P", "JOB0NgWEfAEJ1Q")
    start.waiting("JOB0NgWEfAEJ1L", group=LANE)
    start.waiting("JOB0NgWEfAEJ1M", "JOB0NgWEfAEJ1N", group=OTHER)
    start.scheduled("JOB0NgWEfAEJ1S")
    for job_id in ("JOB0NgWEfAEJ1P", "JOB0NgWEfAEJ1L", "JOB0NgWEfAEJ1S", "JOB0NgWEfAEJ1D"):
        wire.do("RPUSH", f"job:{job_id}:logs", "a line")
    wire.do("HSET", "repeat:nightly", "every_ms", HOUR, "template", "p")
    wire.do("ZADD", "repeat", FAR, "nightly")
    wire.do("HSET", "metrics:completed", "count", 7)


# -- pause, resume ------------------------------------------------------------------------------------------------


@scenario("6.01.1", "pause: `meta.paused`, backlog untouched")
def test_a_pause_is_one_field_and_leaves_the_backlog(start: Start, queue: Queue, wire: Wire) -> None:
    fill(start, wire)
    before = wire.everything()
    assert queue.pause()
    assert wire.read("meta")["paused"] not in ("", "0")
    assert then(wire.everything(), {"meta": None}) == then(before, {"meta": None})
    assert not queue.claim(50)
    assert not queue.pause()


@scenario("6.01.2", "resume: what waits is served again")
@pytest.mark.parametrize("by_hand", [True, False], ids=["paused by hand", "paused by verb"])
def test_a_resume_takes_the_field_away_and_wakes_workers_for_what_waits(
    start: Start, queue: Queue, wire: Wire, by_hand: bool
) -> None:
    start.waiting(A, B)
    before = wire.everything()
    if by_hand:
        wire.do("HSET", "meta", "paused", 1)
    else:
        queue.pause()
    assert queue.resume()
    found = wire.everything()
    assert found.pop("wake") == ["1", "1"]
    assert found == before
    assert [job.id for job in queue.claim(9)] == [A, B]
    assert not queue.resume()


@scenario("6.01.3", "while paused, what runs is settled and jobs are admitted")
def test_a_paused_queue_still_admits_and_settles(start: Start, queue: Queue, wire: Wire) -> None:
    job = start.running(A)
    wire.do("HSET", "meta", "paused", 1)
    assert not queue.enqueue("p", id=B).duplicate
    assert queue.extend(job) is Verdict.OK
    assert queue.complete(job) is Verdict.OK
    assert (queue.state(B), len(queue.claim())) == (State.PENDING, 0)


# -- drain --------------------------------------------------------------------------------------------------------


@scenario("6.02.1", "drain pending: rows, logs go; active and repeats stay")
def test_a_drain_of_pending_leaves_everything_else(start: Start, queue: Queue, wire: Wire) -> None:
    fill(start, wire)
    before = wire.everything()
    assert queue.drain("pending") == 2
    gone = {name: None for name in before if name.startswith(("job:JOB0NgWEfAEJ1P", "job:JOB0NgWEfAEJ1Q"))}
    assert wire.everything() == then(before, gone | {"pending": None})


@scenario("6.02.2", "and schedule on request")
def test_a_drain_takes_the_schedule_on_request_only(start: Start, queue: Queue, wire: Wire) -> None:
    fill(start, wire)
    queue.drain()
    assert wire.ids("schedule") == ["JOB0NgWEfAEJ1S"]
    before = wire.everything()
    assert queue.drain("schedule") == 1
    gone = {name: None for name in before if name.startswith("job:JOB0NgWEfAEJ1S")}
    assert wire.everything() == then(before, gone | {"schedule": None})


@scenario("6.02.3", "additive: lanes too; a lane that is emptied leaves the ring")
def test_a_drain_of_lanes_empties_them_and_the_ring(start: Start, queue: Queue, wire: Wire) -> None:
    fill(start, wire)
    before = wire.everything()
    assert queue.drain("lanes") == 3
    gone = {name: None for name in before if name.startswith(tuple(f"job:JOB0NgWEfAEJ1{each}" for each in "LMN"))}
    lanes = {f"g:{group}:pending": None for group in (LANE, OTHER)}
    assert wire.everything() == then(before, gone | lanes | {"ring": None})
    assert wire.running() == {LANE: 1}


# -- obliterate ---------------------------------------------------------------------------------------------------


@scenario("6.03.1", "only a paused queue (EMQSTATE)")
@pytest.mark.parametrize("force", [False, True])
def test_a_queue_that_is_not_paused_is_not_obliterated(start: Start, queue: Queue, wire: Wire, force: bool) -> None:
    fill(start, wire)
    before = wire.everything()
    with pytest.raises(WrongState):
        queue.obliterate(force=force)
    assert wire.everything() == before


@scenario("6.03.2", "no active unless forced")
def test_a_queue_with_active_jobs_is_obliterated_by_force_only(start: Start, queue: Queue, wire: Wire) -> None:
    fill(start, wire)
    wire.do("HSET", "meta", "paused", 1)
    before = wire.everything()
    with pytest.raises(WrongState):
        queue.obliterate()
    assert wire.everything() == before
    assert queue.obliterate(force=True) == 9
    assert wire.everything() == {}


@scenario("6.03.3", "leaving no key of that queue")
def test_an_obliterated_queue_has_not_one_key(start: Start, queue: Queue, wire: Wire, connection: Connection) -> None:
    start.waiting(A)
    start.waiting(B, group=LANE)
    start.scheduled(C)
    queue.enqueue("p", id=D, group="named")
    wire.do("HSET", f"job:{E}", "state", "awaiting_children", "attempts", 0, "payload", "p")
    for suffix in ("dependencies", "lock"):
        wire.do("SET", f"job:{E}:{suffix}", 1)
    for suffix in ("processed", "failed", "unsuccessful"):
        wire.do("HSET", f"job:{E}:{suffix}", A, "x")
    for key in ("glimit", "gweight", "gactive"):
        wire.do("HSET", key, LANE, 3)
    wire.do("SADD", "paused", OTHER)
    wire.do("HSET", "meta", "paused", 1, "max", 5, "concurrency", 5)
    wire.do("SET", "limiter", 1)
    wire.do("SET", "de:order-7", A)
    wire.do("HSET", "repeat:nightly", "every_ms", 1, "template", "p")
    wire.do("ZADD", "repeat", FAR, "nightly")
    wire.do("ZADD", "repeat", FAR, "orphan")
    wire.do("RPUSH", "flow:outbox", "x\0y")
    wire.do("XADD", "stream:audit", "1-1", "id", "EVT000xY9Wvvcd")
    wire.do("HSET", "metrics:completed", "count", 7)
    wire.do("RPUSH", "metrics:completed:data", 1, 2)
    neighbour = Wire(connection, queue.name + "2")
    neighbour.do("ZADD", "pending", 0, A)
    queue.obliterate()
    assert list(connection.client.scan_iter(match=wire.base + "*", count=1000)) == []
    assert neighbour.everything() == {"pending": {A: 0}}
    assert not queue.enqueue("p", id=A).duplicate
    assert len(queue.claim()) == 1


@scenario("6.03.4", "in bounded steps until done; one that was stopped in between is finished by the next")
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_an_obliteration_that_stopped_is_finished_by_the_next(
    start: Start, queue: Queue, wire: Wire, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start.scheduled(A)
    for _ in range(12):
        queue.enqueue_many(["p"] * 100)
    queue.pause()
    run, left = queue.run, [steps]

    def stop(script: str, *args: bytes | str | int, repeat: bool = True) -> object:
        if script == "queue_obliterate":
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
        return run(script, *args, repeat=repeat)

    monkeypatch.setattr(queue, "run", stop)
    with pytest.raises(KeyboardInterrupt):
        queue.obliterate()
    monkeypatch.undo()
    assert queue.counts().paused
    # Not in one step: the server must get to others in between.
    assert queue.counts().unfinished > 0
    queue.obliterate()
    assert wire.everything() == {}


# -- counts -------------------------------------------------------------------------------------------------------


@scenario("6.04.1", "counts per state in one call")
def test_counts_name_every_state_and_write_nothing(start: Start, queue: Queue, wire: Wire) -> None:
    fill(start, wire)
    before = wire.everything()
    counts = queue.counts()
    assert (counts.pending, counts.in_lanes, counts.active, counts.scheduled, counts.dead) == (2, 3, 2, 1, 1)
    assert (counts.completed, counts.failed, counts.paused) == (7, 1, False)
    assert wire.everything() == before


@scenario("6.04.2", "counts of lanes that are paused or at their limit, and of a paused queue")
def test_counts_see_lanes_outside_the_ring(start: Start, queue: Queue, wire: Wire) -> None:
    start.running(A, group=OTHER)
    start.waiting(B, group=LANE)
    start.waiting(C, D, group=OTHER)
    wire.do("SADD", "paused", LANE)
    wire.do("HSET", "glimit", OTHER, 1)
    wire.do("DEL", "ring")
    wire.do("HSET", "meta", "paused", 1)
    counts = queue.counts()
    assert (counts.in_lanes, counts.active, counts.paused) == (3, 1, True)


# -- the rate gate ------------------------------------------------------------------------------------------------


@scenario("6.05.1", "rate gate: `max`, and `limiter` counts the jobs spent in this window, with a TTL")
@pytest.mark.parametrize("by_hand", [True, False], ids=["set by hand", "set by verb"])
def test_a_rate_ceiling_is_max_and_holds_over_claims(start: Start, queue: Queue, wire: Wire, by_hand: bool) -> None:
    start.waiting(A, B, C, D)
    start.waiting(E, group=LANE)
    if by_hand:
        wire.do("HSET", "meta", "max", 3)
    else:
        queue.limit_rate(3)
        assert wire.read("meta") == {"max": "3"}
    wire.do("SET", "limiter", 0, "PX", 60_000)  # a window that does not end while we look
    assert (len(queue.claim(2)), len(queue.claim(9)), len(queue.claim(9))) == (2, 1, 0)
    assert wire.read("limiter") == "3"
    assert 1000 < wire.do("PTTL", "limiter") <= 60_000


@scenario("6.05.2", "rate gate: a new window serves again, and a claim says how long until then")
def test_a_claim_says_when_the_window_ends_and_the_next_one_serves(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(A, B)
    wire.do("HSET", "meta", "max", 1)
    wire.do("SET", "limiter", 1, "PX", 60_000)
    look_again = queue.claim().look_again
    assert look_again is not None
    assert 0 < look_again <= 60
    wire.do("DEL", "limiter")
    assert [job.id for job in queue.claim(9)] == [A]


@scenario("6.05.3", "rate gate: taken away, all that waits is served")
def test_a_rate_ceiling_that_is_taken_away_leaves_nothing(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(A, B)
    before = wire.everything()
    wire.do("HSET", "meta", "max", 1)
    wire.do("SET", "limiter", 1, "PX", 60_000)
    queue.limit_rate(None)
    assert wire.wakes() >= 1
    assert then(wire.everything(), {"wake": None}) == before
    assert len(queue.claim(9)) == 2


@scenario("6.05.4", "rate gate: the TTL of `limiter` is the window's length; additive: another than a second")
def test_a_window_lasts_as_long_as_it_was_set_to(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(A, B)
    queue.limit_rate(1, per=60)
    assert wire.read("meta")["max"] == "1"
    assert len(queue.claim(9)) == 1
    assert 1000 < wire.do("PTTL", "limiter") <= 60_000
    # A shorter one ends the window that is open too.
    queue.limit_rate(1)
    assert wire.read("meta") == {"max": "1"}
    assert wire.do("PTTL", "limiter") <= 1000


# -- the concurrency gate -----------------------------------------------------------------------------------------


@scenario("6.06.1", "concurrency gate: `concurrency` is the ceiling on `active`, whoever claimed them")
@pytest.mark.parametrize("by_hand", [True, False], ids=["set by hand", "set by verb"])
def test_a_concurrency_ceiling_counts_all_active_jobs(start: Start, queue: Queue, wire: Wire, by_hand: bool) -> None:
    start.running(A)
    start.running(B, group=LANE)
    start.waiting(C, D)
    start.waiting(E, group=LANE)
    if by_hand:
        wire.do("HSET", "meta", "concurrency", 3)
    else:
        queue.limit_concurrency(3)
        assert wire.read("meta")["concurrency"] == "3"
    assert (len(queue.claim(9)), len(queue.claim(9)), wire.do("ZCARD", "active")) == (1, 0, 3)


@scenario("6.06.2", "concurrency gate: a job that leaves active makes room, and a worker is woken for it")
@pytest.mark.parametrize("way", ["complete", "retry", "bury", "release", "reap", "sweep"])
def test_room_under_the_concurrency_ceiling_wakes_a_worker(start: Start, queue: Queue, wire: Wire, way: str) -> None:
    job = start.running(A)
    start.waiting(B)
    wire.do("HSET", "meta", "concurrency", 1)
    assert not queue.claim()
    match way:
        case "complete":
            queue.complete(job)
        case "retry":
            queue.retry(job, delay=60)
        case "bury":
            queue.retry(job, max_retries=0)
        case "release":
            queue.release(job)
        case _:
            wire.expire(A)
            assert queue.reap() if way == "reap" else queue.sweep_stalled().recovered
    assert wire.wakes() >= 1
    assert len(queue.claim(9)) == 1


@scenario("6.06.3", "concurrency gate: taken away, all that waits is served")
def test_a_concurrency_ceiling_that_is_taken_away_leaves_nothing(start: Start, queue: Queue, wire: Wire) -> None:
    start.running(A)
    start.waiting(B, C)
    before = wire.everything()
    wire.do("HSET", "meta", "concurrency", 1)
    assert not queue.claim(9)
    queue.limit_concurrency(None)
    assert wire.wakes() >= 1
    assert then(wire.everything(), {"wake": None}) == before
    assert len(queue.claim(9)) == 2
