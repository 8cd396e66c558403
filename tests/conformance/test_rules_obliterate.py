"""Obliterate: only a paused queue, in bounded steps, until not one of its keys is left; each job is whole or gone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.proxy import DroppingProxy
from wire.handwriting import Wire, text

from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import ServerUnavailable, WrongState
from echomq_tasks.queue import NewJob, Queue, Release, Retry, Verdict

LANE, OTHER = "GRP0NgWEfAEJ0x", "GRP0NgWEfAEJ0y"
PARENT, CHILD, STRANGER, LOOSE, ABSENT = (f"JOB0NgWEfAEJ0{letter}" for letter in "ABCDE")


def all_keys(wire: Wire) -> list[str]:
    """Every key of the queue, the kept answers with them."""
    return sorted(text(key).removeprefix(wire.base) for key in wire.client.scan_iter(match=wire.base + "*", count=1000))


def fill(queue: Queue, wire: Wire, *, active: bool) -> int:
    """Something in every key that the wire knows, and some that it does not; answers how many jobs there are."""
    queue.limit_rate(1000, per=60.0)
    queue.limit_concurrency(1000)
    for group, name in ((LANE, "acme"), (OTHER, "umbrella")):
        wire.do("HSET", "gnames", group, name)
        queue.lane(group).weight(2)
    queue.lane(LANE).limit(7)
    queue.enqueue_many([NewJob(payload="p", group=group) for group in (None, LANE, OTHER)] * 3)
    queue.lane(OTHER).pause()
    jobs = queue.claim(4).jobs
    queue.add_log(jobs[0].id, "a line")
    queue.retry(jobs[0], "boom", max_retries=0)
    queue.retry(jobs[1], "boom", delay=60)
    for job in jobs[2:]:
        if not active:
            queue.release(job)
    queue.complete(queue.claim().jobs[0])
    queue.enqueue("p", delay=60, priority=3)
    # A flow: its parent is in no set. And a child whose parent is in another queue.
    wire.do("HSET", f"job:{PARENT}", "state", "awaiting_children", "attempts", 0, "payload", "p")
    for beside in ("processed", "failed", "unsuccessful"):
        wire.do("HSET", f"job:{PARENT}:{beside}", "a", "b")
    wire.do("SET", f"job:{PARENT}:dependencies", 1)
    wire.do(
        "HSET", f"job:{CHILD}", "state", "pending", "attempts", 0, "payload", "p", "parent", PARENT, "dedup", "once"
    )
    wire.do("HSET", f"job:{STRANGER}", "state", "pending", "attempts", 0, "parent", PARENT, "parent_queue", "elsewhere")
    wire.do("ZADD", "pending", 0, CHILD, 0, STRANGER)
    wire.do("HSET", f"job:{LOOSE}", "state", "pending", "payload", "in no set")
    wire.do("SET", "de:once", CHILD, "PX", 60_000)
    wire.do("SET", "de:other", "whatever")
    wire.do("RPUSH", "job:JOB0NgWEfAEJ0Z:result", "of a job that is long gone")
    wire.do("SET", "job:JOB0NgWEfAEJ0Y:lock", 1)
    wire.do("SET", "job:no id", "p")
    wire.do("RPUSH", "flow:outbox", "owed")
    wire.do("ZADD", "repeat", 1, "nightly", 2, "rowless")
    wire.do("HSET", "repeat:nightly", "every_ms", 60_000, "template", "p")
    wire.do("HSET", "repeat:setless", "every_ms", 60_000, "template", "p")
    wire.client.xadd(wire.base + "stream:audit", {"id": "EVT0NgWEfAEJ0A"})
    wire.do("RPUSH", "metrics:completed:data", 1)
    wire.do("ZADD", "g:GRP0NgWEfAEJ0z:pending", 0, "JOB0NgWEfAEJ0X")
    wire.do("SET", "g:GRP0NgWEfAEJ0w:pending", "no zset")
    wire.do("SET", "what another runtime keeps here", 1)
    wire.do("LPUSH", "wake", 1)
    return 13  # nine and one later, of which one is completed, and four by hand


def whole(wire: Wire) -> None:
    """Each job that is left is in one set or awaits its children, and each id in a set has its row."""
    lanes = {suffix: suffix.split(":")[1] for suffix in wire.keys() if suffix.startswith("g:")}
    places: dict[str, str] = {}
    for suffix in ("pending", "active", "schedule", "dead", *lanes):
        for job_id in wire.ids(suffix):
            assert job_id not in places
            places[job_id] = suffix
            assert wire.row(job_id)["payload"], suffix
    rows = {suffix for suffix in wire.keys() if suffix.startswith("job:") and suffix.count(":") == 1}
    assert rows == {f"job:{job_id}" for job_id in places}


@pytest.mark.parametrize("active", [False, True])
def test_not_one_key_is_left_and_other_queues_keep_theirs(queue: Queue, wire: Wire, active: bool) -> None:
    others = [Queue(name, queue.connection) for name in (f"{queue.name}x", f"x{queue.name}", queue.name[:-1])]
    for other in others:
        other.enqueue_many(["p", NewJob(payload="q", group=LANE)])
    before = wire.dumps()
    jobs = fill(queue, wire, active=active)
    queue.pause()
    assert queue.obliterate(force=active) == jobs
    assert all_keys(wire) == []
    assert wire.dumps() == before
    assert not queue.limits().paused
    queue.enqueue("a new life")
    assert len(queue.claim()) == 1


def test_an_empty_queue_can_be_obliterated_once_it_is_paused(queue: Queue, wire: Wire) -> None:
    queue.pause()
    assert queue.obliterate() == 0
    assert all_keys(wire) == []


def test_a_queue_that_is_not_paused_is_refused_and_nothing_changes(queue: Queue, wire: Wire) -> None:
    fill(queue, wire, active=False)
    before = wire.dumps()
    with pytest.raises(WrongState, match="not paused: pause it"):
        queue.obliterate(force=True)
    wire.do("HSET", "meta", "paused", 0)
    with pytest.raises(WrongState, match="not paused"):
        queue.obliterate()
    wire.do("HDEL", "meta", "paused")
    assert wire.dumps() == before


def test_active_jobs_are_refused_without_force_and_gone_with_it(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many(["p", NewJob(payload="p", group=LANE), "q"])
    flat, in_lane = queue.claim(2).jobs
    queue.pause()
    before = wire.dumps()
    with pytest.raises(WrongState, match="active"):
        queue.obliterate()
    assert wire.dumps() == before
    assert queue.obliterate(force=True) == 3
    assert queue.complete(flat) is Verdict.GONE
    assert queue.settle([Retry(in_lane), Release(in_lane)]) == [Verdict.STALE, Verdict.GONE]
    assert queue.extend(flat) is Verdict.GONE
    assert all_keys(wire) == [], "a late settlement leaves nothing behind"


def test_what_the_settled_jobs_of_a_paused_queue_leave_is_obliterated_without_force(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many(["p", "q"])
    (job,) = queue.claim()
    queue.pause()
    queue.complete(job)
    assert queue.obliterate() == 1
    assert all_keys(wire) == []


class Killed(BaseException):
    """What ends a process."""


def dying(queue: Queue, monkeypatch: pytest.MonkeyPatch, after: int) -> list[int]:
    """Let the process die when it has made so many calls of the script."""
    run, calls = queue.run, [0]

    def counted(*args: Any, **options: Any) -> Any:
        if calls[0] == after:
            raise Killed
        calls[0] += 1
        return run(*args, **options)

    monkeypatch.setattr(queue, "run", counted)
    return calls


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echomq_tasks.queue.operating._STEP", 3)
    monkeypatch.setattr("echomq_tasks.queue.operating._SUFFIXES", 4)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("after", [1, 2, 3, 5, 7, 9, 12])
def test_killed_halfway_it_leaves_a_paused_queue_of_whole_jobs_that_is_finished_by_the_next(
    queue: Queue, wire: Wire, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    queue.enqueue_many([NewJob(payload="p", group=group) for group in (None, LANE, OTHER)] * 8)
    queue.enqueue_many([NewJob(payload="p", delay=60)] * 4)
    dead, active = queue.claim(2).jobs
    queue.retry(dead, max_retries=0)
    queue.pause()
    with monkeypatch.context() as patch:
        dying(queue, patch, after)
        with pytest.raises(Killed):
            queue.obliterate(force=True)
    whole(wire)
    assert queue.limits().paused
    left = sum(suffix.startswith("job:") and suffix.count(":") == 1 for suffix in wire.keys())
    assert queue.obliterate(force=True) == left
    assert all_keys(wire) == []
    assert queue.complete(active) is Verdict.GONE


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("after", [1, 3, 5, 8])
def test_killed_halfway_and_resumed_what_is_left_is_served(
    queue: Queue, wire: Wire, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    queue.enqueue_many([NewJob(payload="p", group=group) for group in (None, LANE, OTHER)] * 8)
    queue.lane(LANE).limit(5)
    queue.pause()
    with monkeypatch.context() as patch:
        dying(queue, patch, after)
        with pytest.raises(Killed):
            queue.obliterate()
    left = queue.counts().waiting
    assert left == sum(suffix.startswith("job:") and suffix.count(":") == 1 for suffix in wire.keys())
    queue.lane(LANE).limit(None)
    queue.resume()
    assert len(queue.claim(99)) == left
    assert wire.ring() == []


@pytest.mark.usefixtures("small_steps")
def test_a_queue_that_is_resumed_meanwhile_is_destroyed_no_further(
    queue: Queue, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue_many(["p"] * 50)
    queue.pause()
    run, calls = queue.run, [0]

    def meddling(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == 4:
            wire.do("HDEL", "meta", "paused")
        return run(*args, **options)

    monkeypatch.setattr(queue, "run", meddling)
    with pytest.raises(WrongState, match="not paused"):
        queue.obliterate()
    assert calls[0] == 4
    whole(wire)
    assert len(queue.claim(99)) == len(wire.ids("active")) > 0


def test_thousands_of_jobs_go_in_bounded_steps(queue: Queue, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.enqueue_many([NewJob(payload="p", group=group) for group in (None, LANE, OTHER)] * 800)
    queue.pause()
    run, answers = queue.run, []

    def noted(*args: Any, **options: Any) -> Any:
        answers.append(run(*args, **options))
        return answers[-1]

    monkeypatch.setattr(queue, "run", noted)
    assert queue.obliterate() == 2400
    assert max(jobs for jobs, _ in answers) <= 510, "a step ends with the flow of its last job"
    assert all_keys(wire) == []


def test_a_step_stops_at_its_share_and_says_where(queue: Queue, wire: Wire) -> None:
    first, second, *_ = ids = [answer.id for answer in queue.enqueue_many(["p"] * 6)]
    wire.do("HSET", "repeat:nightly", "every_ms", 60_000)
    wire.do("ZADD", "repeat", 1, "nightly", 2, "weekly")
    queue.pause()
    assert queue.run("queue_obliterate", 0, 2, 0, *(f"job:{job_id}" for job_id in ids)) == [2, 3]
    assert wire.ids("pending") == ids[2:]
    assert (wire.row(first), wire.row(second)) == ({}, {})
    assert queue.run("queue_obliterate", 0, 3, 0, "repeat:nightly", "pending", "de:x") == [3, 2]
    assert wire.read("repeat") == {"weekly": 2.0}
    assert queue.run("queue_obliterate", 0, 3, 0, "pending", "de:x") == [1, 0]
    whole(wire)


@pytest.mark.usefixtures("small_steps")
def test_the_rest_of_a_step_that_stopped_is_done_by_the_next(
    queue: Queue, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue_many(["p"] * 10)
    wire.do("SET", "de:x", ABSENT)
    queue.pause()
    found = [[b"pending", b"de:x"], [], []]
    monkeypatch.setattr(queue, "_suffixes", lambda: iter(found.pop(0)))
    assert queue.obliterate() == 10
    assert all_keys(wire) == []


def test_the_last_step_takes_what_came_since_it_was_looked_for(
    queue: Queue, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [NewJob(payload="p", group=group) for group in (None, LANE)] * 600
    queue.enqueue_many(jobs)
    queue.enqueue("p", delay=60)
    for job_id, fields in ((PARENT, ["awaiting_children"]), (CHILD, ["pending", "parent", PARENT, "dedup", "once"])):
        wire.do("HSET", f"job:{job_id}", "attempts", 0, "payload", "p", "state", *fields)
    wire.do("SET", f"job:{PARENT}:dependencies", 1)
    wire.do("ZADD", "pending", 0, CHILD)
    wire.do("SET", "de:once", CHILD)
    wire.do("RPUSH", f"job:{CHILD}:result", "r")
    wire.do("ZADD", "repeat", 1, "nightly")
    wire.do("HSET", "repeat:nightly", "every_ms", 60_000)
    queue.pause()
    monkeypatch.setattr(queue, "_suffixes", lambda: iter(()))
    assert queue.obliterate() == 1203
    assert all_keys(wire) == []


def test_while_others_keep_enqueuing_it_ends_and_what_comes_after_is_a_whole_new_queue(
    queue: Queue, wire: Wire
) -> None:
    queue.enqueue_many([NewJob(payload="p", group=group) for group in (None, LANE)] * 300)
    queue.pause()
    stop, failures = threading.Event(), []
    started = threading.Barrier(4)

    def produce(group: str | None) -> None:
        own = Queue(queue.name, queue.connection)
        started.wait()
        try:
            while not stop.is_set():
                own.enqueue_many([NewJob(payload="p", group=group), NewJob(payload="p", group=group, delay=60)])
        except BaseException as error:
            failures.append(error)

    producers = [threading.Thread(target=produce, args=(group,)) for group in (None, LANE, OTHER)]
    for producer in producers:
        producer.start()
    started.wait()
    try:
        assert queue.obliterate() >= 600
    finally:
        stop.set()
        for producer in producers:
            producer.join(30)
    assert failures == []
    whole(wire)
    assert not queue.limits().paused
    waiting, scheduled = queue.counts().waiting, queue.counts().scheduled
    claimed = 0
    while jobs := queue.claim(500):
        claimed += len(jobs)
    assert claimed == waiting
    assert queue.counts().scheduled == scheduled


def test_keys_of_a_wrong_type_go_too(queue: Queue, wire: Wire) -> None:
    spoilt = (
        "pending",
        "active",
        "schedule",
        "dead",
        "ring",
        "wake",
        "paused",
        "gactive",
        "glimit",
        "gweight",
        "repeat",
    )
    job_id = queue.enqueue("p", group=LANE).id
    for suffix in (*spoilt, f"g:{LANE}:pending", f"job:{job_id}:logs", "flow:outbox", "gnames", "limiter", "de:x"):
        wire.do("DEL", suffix)
        wire.do("SADD" if suffix == "limiter" else "SET", suffix, "spoilt")
    wire.do("SET", f"job:{PARENT}", "no row")
    queue.pause()
    with pytest.raises(WrongState, match="active"):
        queue.obliterate()
    assert queue.obliterate(force=True) == 2
    assert all_keys(wire) == []


def test_a_pause_that_cannot_be_read_is_none(queue: Queue, wire: Wire) -> None:
    wire.do("SET", "meta", "spoilt")
    with pytest.raises(WrongState, match="meta"):
        queue.obliterate(force=True)
    assert wire.read("meta") == "spoilt"


# --- the connection


@pytest.fixture
def through(proxy: DroppingProxy, queue_name: str) -> Iterator[Queue]:
    """The queue, over a proxy that drops what a test asks it to."""
    with connect(proxy.url) as opened:
        yield Queue(queue_name, opened)


@pytest.mark.parametrize("fault", ["drop_reply", "drop_request"])
@pytest.mark.parametrize("step", [b" 0 500 0", b" 0 500 1"])
def test_a_step_whose_connection_drops_is_done_again_and_the_last_one_too(
    proxy: DroppingProxy, through: Queue, standalone: Connection, fault: str, step: bytes
) -> None:
    through.enqueue_many(["p"] * 10)
    through.pause()
    drop: Callable[[bytes], None] = getattr(proxy, fault)
    drop(step)
    assert through.obliterate() in range(11)
    assert proxy.counts.dropped_replies + proxy.counts.dropped_requests == 1
    assert all_keys(Wire(standalone, through.name)) == []


def test_a_search_whose_connection_breaks_is_told_and_the_next_call_goes_on(
    proxy: DroppingProxy, through: Queue, standalone: Connection
) -> None:
    through.enqueue_many(["p"] * 10)
    through.pause()
    proxy.drop_reply(b"SCAN", times=100)
    with pytest.raises(ServerUnavailable):
        through.obliterate()
    proxy.clear()
    assert through.obliterate() == 10
    assert all_keys(Wire(standalone, through.name)) == []
