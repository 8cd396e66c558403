"""Cancellation: what waits goes, what runs is asked to stop and never runs again, and every job ends once."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from conformance.families import Family
from conformance.scenarios import A, B, C, Start
from support.proxy import DroppingProxy
from wire.handwriting import Wire

from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import Held, InvalidId, ServerUnavailable, StaleToken
from echomq_tasks.queue import (
    Cancellation,
    Complete,
    Discard,
    Flow,
    Job,
    NewJob,
    Queue,
    Release,
    Renewal,
    Retry,
    State,
    Unique,
    Verdict,
    extend_all,
)
from echomq_tasks.scripts import load_scripts

LANE, OTHER = "GRP0NgWEfAEJ0x", "GRP0NgWEfAEJ0y"
#: What an empty queue may keep: counts, and news for workers that there is room.
KEPT = {"wake", "metrics:completed", "metrics:failed", "meta", "gnames", "glimit", "flow:outbox"}


def left(wire: Wire) -> set[str]:
    """What of a queue's keys belongs to jobs."""
    return set(wire.keys()) - KEPT


def take(queue: Queue) -> Job:
    (job,) = queue.claim()
    return job


# -- one that does not run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["waiting", "lane", "scheduled"])
def test_a_job_that_waits_is_removed_with_all_that_is_kept_of_it(
    start: Start, queue: Queue, wire: Wire, where: str
) -> None:
    start.put(where, A)
    queue.add_log(A, "a line")
    assert queue.cancel(A) is Cancellation.REMOVED
    assert left(wire) == set()
    assert queue.cancel(A) is Cancellation.GONE
    assert not queue.claim()


def test_a_lane_that_a_cancellation_empties_leaves_the_ring_and_others_stay(queue: Queue, wire: Wire) -> None:
    for job_id, group in ((A, LANE), (B, OTHER), (C, OTHER)):
        queue.enqueue("p", id=job_id, group=group)
    queue.cancel(A)
    queue.cancel(B)
    assert wire.ring() == [OTHER]
    assert [job.id for job in queue.claim(5)] == [C]


def test_a_dead_job_has_ended_and_stays_as_it_is(start: Start, queue: Queue, wire: Wire) -> None:
    start.put("dead", A)
    before = wire.everything()
    assert queue.cancel(A) is Cancellation.ENDED
    assert wire.everything() == before


def test_a_job_that_was_never_there_is_gone(queue: Queue, wire: Wire) -> None:
    assert queue.cancel(A) is Cancellation.GONE
    assert not queue.is_cancelled(A)
    assert wire.dumps() == {}


def test_a_row_that_no_set_holds_is_removed(queue: Queue, wire: Wire) -> None:
    wire.do("HSET", f"job:{A}", "state", "pending", "attempts", 0, "payload", "p")
    assert queue.cancel(A) is Cancellation.REMOVED
    assert left(wire) == set()


def test_a_parent_that_awaits_its_children_is_removed_and_they_finish_quietly(queue: Queue, wire: Wire) -> None:
    queue.add_flow(Flow(NewJob(payload="parent", id=A), [NewJob(payload="p", id=B), NewJob(payload="p", id=C)]))
    child = take(queue)
    assert queue.cancel(A) is Cancellation.REMOVED
    assert queue.complete(child, "r") is Verdict.OK
    assert queue.retry(take(queue), max_retries=0) is Verdict.DEAD
    assert queue.state(A) is State.ABSENT
    assert queue.remove(C) is Verdict.OK
    assert left(wire) == set()


@pytest.mark.parametrize("job_id", ["", "JOB", "EVT0NgWEfAEJ0A", "JOB0NgWEfAEJ0A:logs", None, b"JOB0NgWEfAEJ0A"])
@pytest.mark.parametrize("verb", ["cancel", "is_cancelled"])
def test_what_is_no_job_id_is_refused_before_a_byte(queue: Queue, wire: Wire, job_id: Any, verb: str) -> None:
    with pytest.raises(InvalidId):
        getattr(queue, verb)(job_id)
    assert wire.dumps() == {}


# -- one that runs ----------------------------------------------------------------------------------------------------


def test_a_job_that_runs_is_asked_to_stop_and_nothing_else_changes(start: Start, queue: Queue, wire: Wire) -> None:
    start.running(A, group=LANE)
    before = wire.everything()
    assert not queue.is_cancelled(A)
    assert queue.cancel(A) is Cancellation.REQUESTED
    assert queue.cancel(A) is Cancellation.REQUESTED
    assert queue.is_cancelled(A)
    before[f"job:{A}"]["cancel"] = "1"
    assert wire.everything() == before
    info = queue.get(A)
    assert info is not None
    assert info.cancelled
    assert info.state is State.ACTIVE


def test_a_renewal_tells_of_it_and_renews_the_lease_all_the_same(queue: Queue, wire: Wire) -> None:
    for job_id in (A, B, C):
        queue.enqueue("p", id=job_id)
    jobs = queue.claim(3, lease=1).jobs
    queue.cancel(B)
    wire.expire(C)
    queue.reap()
    renewal = extend_all({queue: jobs}, lease=1000)
    assert renewal == Renewal(lost=(jobs[2],), unknown=(), error=None, cancelled=(jobs[1],))
    deadlines = wire.read("active")
    assert sorted(deadlines) == [A, B]
    assert min(deadlines.values()) > wire.now_ms() + 500_000
    assert queue.extend(jobs[1]) is Verdict.OK
    assert queue.extend_many(jobs[:2]) == []
    with pytest.raises(StaleToken):
        queue.extend(jobs[2])


Comeback = Callable[[Queue, Wire, Job], object]


def _reap(queue: Queue, wire: Wire, job: Job) -> None:
    wire.expire(job.id)
    assert queue.reap() == 1


def _sweep(queue: Queue, wire: Wire, job: Job) -> None:
    wire.expire(job.id)
    assert queue.sweep_stalled().recovered == (job.id,)


#: How a job comes back to where it waits without having ended.
COMEBACKS: dict[str, Comeback] = {
    "its worker died, reaped": _reap,
    "its worker died, swept": _sweep,
    "released": lambda queue, wire, job: queue.release(job),
}


@pytest.mark.parametrize("group", [None, LANE])
@pytest.mark.parametrize("how", COMEBACKS)
def test_one_that_comes_back_is_dropped_by_the_next_claim_which_goes_on_to_the_others(
    queue: Queue, wire: Wire, how: str, group: str | None
) -> None:
    queue.enqueue("p", id=A, group=group, unique=Unique("key"))
    job = take(queue)
    queue.add_log(A, "a line")
    assert queue.cancel(A) is Cancellation.REQUESTED
    COMEBACKS[how](queue, wire, job)
    queue.enqueue("p", id=B, group=group)
    assert [each.id for each in queue.claim()] == [B]
    assert queue.state(A) is State.ABSENT
    assert wire.read("de:key") is None
    assert queue.complete(job) is Verdict.GONE
    assert queue.complete(Job(B, b"p", 1, group)) is Verdict.OK
    assert left(wire) == set()
    counts = queue.counts()
    assert (counts.completed, counts.failed, counts.unfinished) == (1, 0, 0)


@pytest.mark.parametrize("how", COMEBACKS)
def test_one_that_came_back_can_be_cancelled_again_and_is_removed_at_once(queue: Queue, wire: Wire, how: str) -> None:
    queue.enqueue("p", id=A)
    job = take(queue)
    queue.cancel(A)
    COMEBACKS[how](queue, wire, job)
    assert queue.cancel(A) is Cancellation.REMOVED
    assert left(wire) == set()


@pytest.mark.parametrize("count", [1, 3, 10])
@pytest.mark.parametrize("group", [None, LANE])
def test_a_claim_that_drops_is_filled_up_with_what_waits_behind(
    queue: Queue, wire: Wire, group: str | None, count: int
) -> None:
    queue.enqueue_many(NewJob(payload="gone", group=group) for _ in range(5))
    dropped = queue.claim(5).jobs
    for job in dropped:
        queue.cancel(job.id)
    queue.settle([Release(job) for job in dropped])
    queue.enqueue_many(NewJob(payload="p", group=group) for _ in range(10))
    jobs = queue.claim(count).jobs
    assert [job.payload for job in jobs] == [b"p"] * count
    assert len(wire.ids("active")) == count
    assert wire.running() == ({LANE: count} if group else {})


def test_a_limit_holds_through_a_claim_that_drops(queue: Queue, wire: Wire) -> None:
    queue.lane(LANE).limit(2)
    queue.enqueue_many(NewJob(payload="p", group=LANE) for _ in range(6))
    for job in queue.claim(2).jobs:
        queue.cancel(job.id)
        queue.release(job)
    assert len(queue.claim(10)) == 2
    assert wire.running() == {LANE: 2}
    assert wire.ring() == []
    assert queue.counts().in_lanes == 2


def test_a_window_of_the_rate_limit_is_not_spent_on_what_is_dropped(queue: Queue, wire: Wire) -> None:
    queue.limit_rate(2, per=60)
    queue.enqueue("p", id=A)
    job = take(queue)
    queue.cancel(A)
    queue.release(job)
    queue.enqueue_many(["p", "p"])
    assert len(queue.claim(5)) == 1
    assert wire.read("limiter") == "2"


def test_a_parent_that_its_dropped_child_makes_ready_is_claimed_or_its_token_stays(queue: Queue, wire: Wire) -> None:
    for group in (None, LANE):
        child = Flow(NewJob(payload="child"), on_failure="ignore")
        added = queue.add_flow(Flow(NewJob(payload="parent", group=group), [child]))
        job = take(queue)
        queue.cancel(job.id)
        queue.release(job)
        jobs = list(queue.claim())
        if not jobs:
            assert wire.wakes() > 0
            jobs = list(queue.claim())
        assert [each.id for each in jobs] == [added.id]
        children = queue.children(added.id)
        assert children is not None
        assert dict(children.ignored) == {job.id: "cancelled"}
        queue.complete(jobs[0])
    assert left(wire) == set()


def test_a_claim_that_drops_a_child_of_another_queues_parent_says_that_there_is_something_to_deliver(
    family: Family, queue: Queue, wire: Wire, connection: Connection
) -> None:
    parents = Queue(f"{queue.name}.parents", connection)
    child = Flow(NewJob(payload="child", id=B), queue=queue.name)
    parents.add_flow(Flow(NewJob(payload="parent", id=A), [child]))
    job = take(queue)
    queue.cancel(B)
    queue.release(job)
    claimed = queue.claim()
    assert not claimed
    assert claimed.outbox
    assert queue.deliver() == 1
    assert parents.state(A) is State.DEAD


# -- one that ends -----------------------------------------------------------------------------------------------------


def test_one_that_fails_after_it_was_asked_is_gone_and_not_retried(queue: Queue, wire: Wire) -> None:
    for max_retries in (None, 5, 0):
        queue.enqueue("p", id=A, group=LANE, unique=Unique("key"))
        job = take(queue)
        queue.cancel(A)
        assert queue.retry(job, "boom", delay=5, max_retries=max_retries, payload="q") is Verdict.CANCELLED
        assert left(wire) == set()
        assert queue.settle([Retry(job, "boom")])[0] in (Verdict.STALE, Verdict.GONE)
        assert left(wire) == set()
    assert queue.counts().failed == 0


def test_one_that_completes_all_the_same_has_completed(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p", id=A)
    job = take(queue)
    queue.cancel(A)
    assert queue.complete(job) is Verdict.OK
    assert queue.counts().completed == 1
    assert left(wire) == set()
    assert queue.cancel(A) is Cancellation.GONE


def test_one_that_is_discarded_is_gone_and_counts_neither_way(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many([NewJob(payload="p", id=A), NewJob(payload="p", id=B, group=LANE)])
    jobs = queue.claim(2).jobs
    assert queue.settle([Discard(job) for job in jobs]) == [Verdict.OK, Verdict.OK]
    assert queue.settle([Discard(job) for job in jobs]) == [Verdict.GONE, Verdict.GONE]
    assert left(wire) == set()
    counts = queue.counts()
    assert (counts.completed, counts.failed) == (0, 0)


def test_a_discard_under_an_old_token_changes_nothing(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p", id=A)
    old = take(queue)
    queue.release(old)
    take(queue)
    before = wire.everything()
    assert queue.settle([Discard(old)]) == [Verdict.STALE]
    assert wire.everything() == before


def test_a_cancelled_job_whose_worker_dies_for_the_last_time_does_not_run_again(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p", id=A)
    take(queue)
    queue.cancel(A)
    wire.expire(A)
    queue.sweep_stalled(max_stalled=1)
    assert not queue.claim()
    assert queue.counts().unfinished == 0


def test_a_second_life_is_not_cancelled_by_what_was_asked_in_the_first(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p", id=A)
    take(queue)
    queue.cancel(A)
    # Buried by a runtime that knows of no cancellation.
    wire.do("ZREM", "active", A)
    wire.do("HSET", f"job:{A}", "state", "dead")
    wire.do("HDEL", f"job:{A}", "lock")
    wire.do("DEL", f"job:{A}:lock")
    wire.do("ZADD", "dead", 0, A)
    assert queue.reprocess(A) is Verdict.OK
    assert not queue.is_cancelled(A)
    assert take(queue).id == A


End = Callable[[Queue, Wire], object]


def _waiting(queue: Queue, wire: Wire) -> None:
    assert queue.cancel(B) is Cancellation.REMOVED


def _fails(queue: Queue, wire: Wire) -> None:
    job = take(queue)
    assert queue.cancel(B) is Cancellation.REQUESTED
    assert queue.retry(job, "boom") is Verdict.CANCELLED


def _discarded(queue: Queue, wire: Wire) -> None:
    assert queue.settle([Discard(take(queue), "not today")]) == [Verdict.OK]


def _dropped(queue: Queue, wire: Wire) -> None:
    job = take(queue)
    queue.cancel(B)
    queue.release(job)
    # The parent may be ready at once, and come with it.
    for parent in queue.claim():
        queue.release(parent)


ENDS: dict[str, tuple[End, str]] = {
    "while it waits": (_waiting, "cancelled"),
    "while it runs": (_fails, "cancelled"),
    "by its own worker": (_discarded, "not today"),
    "by the next claim": (_dropped, "cancelled"),
}


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("how", ENDS)
def test_the_parent_of_a_cancelled_child_is_told_by_its_policy(
    queue: Queue, wire: Wire, connection: Connection, how: str, elsewhere: bool, ignored: bool
) -> None:
    parents = Queue(f"{queue.name}.parents", connection) if elsewhere else queue
    child = Flow(NewJob(payload="p", id=B), queue=queue.name, on_failure="ignore" if ignored else "fail_parent")
    parents.add_flow(Flow(NewJob(payload="parent", id=A), [child]))
    end, reason = ENDS[how]
    end(queue, wire)
    assert queue.deliver() == elsewhere
    children = parents.children(A)
    assert children is not None
    if ignored:
        assert parents.state(A) is State.PENDING
        assert dict(children.ignored) == {B: reason}
    else:
        info = parents.get(A)
        assert info is not None
        assert info.state is State.DEAD
        assert info.last_error == f"child {B} failed: {reason}"
    assert queue.state(B) is State.ABSENT


# -- answers that are lost, and races ----------------------------------------------------------------------------------


def test_a_cancellation_whose_answer_was_lost_is_told_as_such_and_can_be_repeated(
    proxy: DroppingProxy, queue_name: str
) -> None:
    with connect(proxy.url) as connection:
        queue, sha = Queue(queue_name, connection), load_scripts()["job_cancel"].sha.encode()
        queue.enqueue("p", id=A)
        proxy.drop_reply(sha)
        with pytest.raises(ServerUnavailable):
            # Sent again by itself it would answer that there was nothing to cancel.
            queue.cancel(A)
        assert queue.cancel(A) is Cancellation.GONE
        queue.enqueue("p", id=B)
        job = take(queue)
        proxy.drop_reply(sha)
        with pytest.raises(ServerUnavailable):
            queue.cancel(B)
        assert queue.cancel(B) is Cancellation.REQUESTED
        assert proxy.counts.dropped_replies == 2
        assert queue.retry(job) is Verdict.CANCELLED


class Tally:
    """What threads saw of each job's end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.ends: dict[str, list[str]] = {}
        self.failures: list[BaseException] = []

    def end(self, job_id: str, how: str) -> None:
        with self._lock:
            self.ends.setdefault(job_id, []).append(how)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_completion_reaping_removal_and_cancellation_race_and_each_job_ends_once(
    connection: Connection, queue: Queue, wire: Wire, seed: int
) -> None:
    dice, tally, over = random.Random(seed), Tally(), threading.Event()
    jobs = [
        NewJob(
            payload="p",
            group=dice.choice([None, LANE, OTHER]),
            unique=Unique(f"key{number}") if dice.random() < 0.5 else None,
        )
        for number in range(600)
    ]
    ids = [answer.id for answer in queue.enqueue_many(jobs)]

    def work(number: int) -> None:
        dice = random.Random(seed * 1000 + number)
        while not over.is_set():
            # Of a lease so short, many are lost while their jobs are at work.
            for job in queue.claim(5, lease=dice.choice([0.001, 0.001, 30])):
                how = dice.choice(["complete", "complete", "retry", "bury", "release", "discard", "forget"])
                if how == "forget":
                    # As a worker that died; 30 seconds are longer than this test waits.
                    wire.do("ZADD", "active", "XX", 1, job.id)
                    continue
                settlement = {
                    "complete": Complete(job),
                    "retry": Retry(job),
                    "bury": Retry(job, max_retries=0),
                    "release": Release(job),
                    "discard": Discard(job),
                }[how]
                (verdict,) = queue.settle([settlement])
                if verdict is Verdict.CANCELLED:
                    tally.end(job.id, "cancelled")
                elif verdict is Verdict.OK and how in ("complete", "discard"):
                    tally.end(job.id, how)
                elif verdict is Verdict.DEAD:
                    tally.end(job.id, "dead")

    def interfere(number: int) -> None:
        dice = random.Random(seed * 2000 + number)
        while not over.is_set():
            job_id = dice.choice(ids)
            match dice.randrange(4):
                case 0:
                    if queue.cancel(job_id) is Cancellation.REMOVED:
                        tally.end(job_id, "removed")
                case 1:
                    try:
                        if queue.state(job_id) is not State.DEAD and queue.remove(job_id) is Verdict.OK:
                            tally.end(job_id, "removed")
                    except Held:
                        pass
                case 2:
                    queue.reap()
                case _:
                    queue.sweep_stalled(max_stalled=1000)

    def guarded(body: Callable[[int], None], number: int) -> None:
        try:
            body(number)
        except BaseException as error:
            tally.failures.append(error)
            over.set()

    threads = [
        threading.Thread(target=guarded, args=(body, number)) for body in (work, interfere) for number in range(8)
    ]
    for thread in threads:
        thread.start()
    try:
        while not over.is_set() and queue.counts().unfinished:
            queue.reap()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert tally.failures == []

    dead = set(queue.browse(State.DEAD, count=1000))
    ends = Counter(end for ends in tally.ends.values() for end in ends)
    counts = queue.counts()
    # A cancelled job that a claim drops tells nobody, so it is what is missing here.
    assert set(tally.ends) <= set(ids)
    for job_id, how in tally.ends.items():
        # A late end of a dead job may still win over its burial, and the dead may be removed: no other two. Whichever
        # thread notes it first.
        assert len(how) == 1 or ("dead" in how and len(how) == 2), (job_id, how)
    assert counts.completed == ends["complete"]
    assert counts.failed == ends["dead"]
    assert dead == {job_id for job_id, how in tally.ends.items() if how == ["dead"]}
    rows = {suffix for suffix in wire.keys() if suffix.startswith("job:")}
    assert rows == {f"job:{job_id}" for job_id in dead}
    queue.purge_dead()
    assert left(wire) == set()
