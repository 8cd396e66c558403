"""Wire §8, live: what each transition says on the queue's channel, once and in order, and what says nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conformance.scenarios import FAR, LANE, A, B, C, D, E, scenario
from support.hearing import Ear
from wire.handwriting import Wire

from echomq_tasks.connection import Connection
from echomq_tasks.errors import Held, StaleToken, WrongState
from echomq_tasks.events import EVENTS, Announcing
from echomq_tasks.queue import Cancellation, Discard, Flow, Job, NewJob, Queue, Unique, Verdict

PAYLOAD = '{"actor_name":"send","args":[1]}'


@pytest.fixture
def queue(connection: Connection, queue_name: str) -> Queue:
    """In place of the shared one: a queue that announces everything."""
    return Queue(queue_name, connection, announcing=Announcing(EVENTS))


@pytest.fixture
def ear(connection: Connection, queue_name: str) -> Iterator[Ear]:
    with Ear(connection, queue_name) as opened:
        yield opened


def running(queue: Queue, ear: Ear, job_id: str = A, **more: Any) -> Job:
    """A claimed job, whose beginnings were heard."""
    queue.enqueue(PAYLOAD, id=job_id, **more)
    (job,) = queue.claim()
    ear.heard()
    return job


# -- a job's events ------------------------------------------------------------------------------------------------


@scenario(
    "8.11.1", "each event names its job, the queue, the actor that the payload names, the attempt and the instant"
)
def test_a_job_that_is_admitted_claimed_and_completed_says_so(queue: Queue, wire: Wire, ear: Ear) -> None:
    since = wire.now_ms()
    queue.enqueue(PAYLOAD, id=A)
    (job,) = queue.claim()
    queue.complete(job)
    heard = ear.heard()
    instants = [int(event.pop("at")) for event in heard]
    assert instants == sorted(instants)
    assert since <= instants[0] <= instants[-1] <= wire.now_ms()
    about = {"job": A, "queue": queue.name, "actor": "send"}
    assert heard == [
        {"event": "enqueued", "attempt": "0", **about},
        {"event": "started", "attempt": "1", **about},
        {"event": "completed", "attempt": "1", **about},
    ]


@scenario(
    "8.11.2", "a job for later: `scheduled` and its delay, not `enqueued`; nothing when its time comes, then `started`"
)
def test_a_job_for_later_is_scheduled(queue: Queue, wire: Wire, ear: Ear) -> None:
    queue.enqueue("p", id=A, delay=60)
    queue.enqueue("p", id=B, at=FAR / 1000)
    queue.enqueue("p", id=C, at=1.0)
    late, far, past = ear.heard()
    assert (late["event"], late["job"], late["delay_ms"]) == ("scheduled", A, "60000")
    assert (far["event"], far["job"], int(far["delay_ms"])) == ("scheduled", B, FAR - int(far["at"]))
    assert (past["event"], past["job"], past["delay_ms"]) == ("scheduled", C, "0")
    wire.come_due(A)
    queue.promote()
    assert ear.heard() == []
    assert len(queue.claim(5)) == 2
    assert sorted(ear.names("job")) == [("started", A), ("started", C)]


@scenario("8.11.3", "a failure: `retried` with its delay, or `failed`; both with the error's first line")
def test_a_failed_job_is_retried_and_then_dead(queue: Queue, wire: Wire, ear: Ear) -> None:
    queue.retry(running(queue, ear), "ValueError: no\nat line 1", delay=1.5)
    assert ear.names("job", "attempt", "message", "delay_ms") == [("retried", A, "1", "ValueError: no", "1500")]
    wire.come_due(A)
    (job,) = queue.claim()
    queue.retry(job, "again", max_retries=1)
    assert ear.names("job", "attempt", "message") == [("started", A, "2", None), ("failed", A, "2", "again")]


@scenario("8.11.4", "what the caller tells of the run goes with it")
def test_what_is_told_of_a_run_is_said(queue: Queue, ear: Ear) -> None:
    job, other = running(queue, ear), running(queue, ear, B)
    about = {"actor": "send", "duration_ms": "1.500", "error": "ValueError", "message": "no"}
    settled = [queue.settle([Discard(job, "why", about)]), queue.settle([Discard(other, "why")])]
    assert settled == [[Verdict.OK], [Verdict.OK]]
    told, plain = ear.heard()
    assert about.items() <= told.items()
    assert (told["event"], told["job"], told["attempt"]) == ("cancelled", A, "1")
    assert (plain["event"], plain["job"], plain["actor"]) == ("cancelled", B, "send")


@scenario("8.11.5", "update_progress: `progress`, whether anything else is announced or not")
def test_progress_is_said_also_where_all_else_is_off(queue: Queue, ear: Ear) -> None:
    running(queue, ear)
    quiet = Queue(queue.name, queue.connection, announcing=Announcing(()))
    for each in (queue, quiet):
        assert each.update_progress(A, "half") is Verdict.OK
        assert ear.names("job", "actor", "attempt", "progress") == [("progress", A, "send", "1", "half")]


@scenario(
    "8.11.6", "cancel: `cancelled` when the job goes: at once, when its run ends, or when it would be claimed again"
)
@pytest.mark.parametrize("way", ["waits", "is retried", "comes back", "is swept to its end"])
def test_a_cancelled_job_says_so_when_it_goes(queue: Queue, wire: Wire, ear: Ear, way: str) -> None:
    if way == "waits":
        queue.enqueue(PAYLOAD, id=A)
        ear.heard()
        assert queue.cancel(A) is Cancellation.REMOVED
        assert ear.names("job", "actor", "attempt") == [("cancelled", A, "send", "0")]
        return
    job = running(queue, ear)
    assert queue.cancel(A) is Cancellation.REQUESTED
    assert ear.heard() == []
    if way == "is retried":
        assert queue.retry(job, "boom") is Verdict.CANCELLED
    elif way == "comes back":
        queue.release(job)
        assert not queue.claim()
    else:
        wire.expire(A)
        queue.sweep_stalled(max_stalled=1)
    assert ear.names("job", "actor", "attempt") == [("cancelled", A, "send", "1")]


@scenario("8.11.7", "remove, and whatever drops the dead: `removed`")
@pytest.mark.parametrize("way", ["by its id", "as one of the dead", "beyond their number"])
def test_a_removed_job_says_so(queue: Queue, ear: Ear, way: str) -> None:
    queue.retry(running(queue, ear), "boom", max_retries=0)
    ear.heard()
    if way == "by its id":
        queue.remove(A)
    elif way == "as one of the dead":
        assert queue.purge_dead() == 1
    else:
        queue.retry(running(queue, ear, B), "boom", max_retries=0)
        ear.heard()
        assert queue.trim_dead(most=1) == (1, None)
    assert ear.names("job", "actor", "attempt") == [("removed", A, "send", "1")]


@scenario("8.11.8", "reap, of the queue or of one lane, and sweep: `stalled`; at `max_stalled`: `failed`")
@pytest.mark.parametrize("way", ["reap", "lane", "sweep", "last sweep"])
def test_a_job_whose_lease_ran_out_says_so(queue: Queue, wire: Wire, ear: Ear, way: str) -> None:
    running(queue, ear, group=LANE)
    wire.expire(A)
    match way:
        case "reap":
            queue.reap()
        case "lane":
            queue.lane(LANE).reap()
        case _:
            queue.sweep_stalled(max_stalled=1 if way == "last sweep" else 2)
    expected = ("failed", A, "1", "stalled") if way == "last sweep" else ("stalled", A, "1", None)
    assert ear.names("job", "attempt", "error") == [expected]


@scenario("8.11.9", "reprocess: `enqueued`")
@pytest.mark.parametrize("way", ["by its id", "all"])
def test_a_dead_job_that_is_brought_back_is_enqueued(queue: Queue, ear: Ear, way: str) -> None:
    queue.retry(running(queue, ear), "boom", max_retries=0)
    ear.heard()
    if way == "all":
        assert queue.retry_dead() == 1
    else:
        assert queue.reprocess(A, payload='{"actor_name":"other"}') is Verdict.OK
    assert ear.names("job", "actor", "attempt") == [("enqueued", A, "send" if way == "all" else "other", "1")]


@scenario("8.11.10", "an occurrence of a repeat: `enqueued`, with the repeat's name")
def test_a_repeat_says_what_it_admits(queue: Queue, wire: Wire, ear: Ear) -> None:
    queue.repeat("nightly.report", PAYLOAD, every=3600, first_in=0)
    assert ear.heard() == []
    (job_id,) = queue.fire_repeats()
    assert ear.names("job", "actor", "repeat") == [("enqueued", job_id, "send", "nightly.report")]
    wire.do("ZADD", "repeat", 1, "nightly.report")
    queue.repeat("nightly.report", PAYLOAD, every=3600, replace=True, unique=Unique("k"))
    wire.do("ZADD", "repeat", 1, "nightly.report")
    assert len(queue.fire_repeats()) == 1
    wire.do("ZADD", "repeat", 1, "nightly.report")
    assert queue.fire_repeats() == [], "the key is held"
    assert ear.names() == ["enqueued"]


@scenario("8.11.11", "a flow: each job is `enqueued` once, its parents too, which then wait for it")
def test_a_flow_says_what_it_admits(queue: Queue, ear: Ear) -> None:
    queue.add_flow(Flow(NewJob(PAYLOAD, id=A), [NewJob("p", id=B), NewJob("p", id=C, delay=60)]))
    assert ear.names("job") == [("enqueued", A), ("enqueued", B), ("scheduled", C)]
    queue.cancel(C)
    assert ear.names("job", "message") == [("cancelled", C, None), ("failed", A, f"child {C} failed: cancelled")]


@scenario("8.11.12", "a child's death is its parents' too: `failed` for each, level by level, behind the child's own")
def test_parents_that_die_with_a_child_say_so(queue: Queue, ear: Ear) -> None:
    tree = Flow(NewJob("p", id=A), [Flow(NewJob(PAYLOAD, id=B), [NewJob("p", id=C), NewJob("p", id=D)])])
    queue.add_flow(tree)
    first, second = queue.claim(5)
    ear.heard()
    queue.retry(first, "boom", max_retries=0)
    b_died = f"child {C} failed: boom"
    assert ear.names("job", "actor", "message") == [
        ("failed", C, None, "boom"),
        ("failed", B, "send", b_died),
        ("failed", A, None, f"child {B} failed: {b_died}"),
    ]
    queue.retry(second, "boom", max_retries=0)
    assert ear.names("job") == [("failed", D)], "its parents are dead already"


@scenario("8.11.13", "a parent in another queue: `failed` on its own channel, when it is told through the outbox, once")
def test_a_parent_in_another_queue_says_so_there(queue: Queue, wire: Wire, ear: Ear, connection: Connection) -> None:
    name = f"{queue.name}.parents"
    far = Queue(name, connection, announcing=Announcing(EVENTS))
    far.add_flow(Flow(NewJob("p", id=A), [Flow(NewJob("p", id=B), queue=queue.name)]))
    (child,) = queue.claim()
    ear.heard()
    with Ear(connection, name) as there:
        queue.retry(child, "boom", max_retries=0)
        (owed,) = wire.read("flow:outbox")
        assert ear.names("job") == [("failed", B)]
        assert there.heard() == []
        assert queue.deliver() == 1
        assert there.names("job", "message") == [("failed", A, f"child {B} failed: boom")]
        wire.do("RPUSH", "flow:outbox", owed)
        queue.deliver()
        assert there.heard() == []
    assert ear.heard() == []


@scenario("8.11.14", "a child that died and is ignored says nothing for its parent, which is started in its turn")
def test_a_parent_that_ignores_a_death_goes_on(queue: Queue, ear: Ear) -> None:
    queue.add_flow(Flow(NewJob("p", id=A), [Flow(NewJob("p", id=B), on_failure="ignore")]))
    queue.retry(queue.claim().jobs[0], "boom", max_retries=0)
    queue.complete(queue.claim().jobs[0])
    expected = [("enqueued", A), ("enqueued", B), ("started", B), ("failed", B), ("started", A), ("completed", A)]
    assert ear.names("job") == expected


@scenario("8.11.15", "what no transition tells is said by its own call: a lost lease, a worker's start and stop")
def test_what_no_transition_tells_is_announced(queue: Queue, ear: Ear) -> None:
    queue.publish_event("lease_lost", A, about={"actor": "send", "attempt": "3"})
    queue.publish_event("worker_started", about={"worker": "w:1", "threads": "8"})
    lost, started = ear.heard()
    assert lost.pop("at")
    assert started.pop("at")
    assert lost == {"event": "lease_lost", "job": A, "queue": queue.name, "actor": "send", "attempt": "3"}
    assert started == {"event": "worker_started", "queue": queue.name, "worker": "w:1", "threads": "8"}


# -- a queue's events ----------------------------------------------------------------------------------------------


@scenario("8.12.1", "pause and resume, of the queue or of a lane: `paused`, `resumed`, once each")
@pytest.mark.parametrize("group", [None, LANE])
def test_a_pause_and_its_end_are_said(queue: Queue, ear: Ear, group: str | None) -> None:
    what = queue if group is None else queue.lane(group)
    for _ in range(2):
        what.pause()
    for _ in range(2):
        what.resume()
    assert ear.names("group") == [("paused", group), ("resumed", group)]


@scenario(
    "8.12.2", "drain: one `drained` with the number of all that went, in however many steps; none when nothing did"
)
@pytest.mark.parametrize("count", [0, 3, 500, 1100])
@pytest.mark.parametrize("group", [None, LANE])
def test_a_drain_says_how_many_went(queue: Queue, ear: Ear, group: str | None, count: int) -> None:
    quiet = Queue(queue.name, queue.connection, announcing=Announcing(()))
    quiet.enqueue_many([NewJob("p", group=group)] * count)
    assert (queue.drain() if group is None else queue.lane(group).drain()) == count
    assert ear.names("jobs", "group") == ([("drained", str(count), group)] if count else [])


@scenario(
    "8.12.3", "a drained job says nothing of its own; a parent that dies with it does, and one that then waits goes too"
)
def test_a_drain_counts_what_it_finds_on_the_way(queue: Queue, ear: Ear) -> None:
    queue.add_flow(Flow(NewJob("p", id=A), [Flow(NewJob("p", id=B), on_failure="ignore")]))
    queue.add_flow(Flow(NewJob("p", id=C), [NewJob("p", id=D)]))
    ear.heard()
    assert queue.drain() == 3
    assert ear.names("job", "jobs") == [("failed", C, None), ("drained", None, "3")]


# -- their order, and what says nothing ----------------------------------------------------------------------------


@scenario("8.13.1", "the events of one job stand in the order of its transitions")
def test_a_whole_life_is_heard_in_order(queue: Queue, wire: Wire, ear: Ear) -> None:
    queue.enqueue(PAYLOAD, id=A, delay=60)
    wire.come_due(A)
    (job,) = queue.claim()
    queue.update_progress(A, 1)
    queue.retry(job, "boom", delay=60)
    wire.come_due(A)
    (job,) = queue.claim()
    wire.expire(A)
    queue.sweep_stalled()
    (job,) = queue.claim()
    queue.retry(job, "boom", max_retries=0)
    queue.reprocess(A)
    (job,) = queue.claim()
    queue.complete(job)
    assert ear.names("attempt") == [
        ("scheduled", "0"), ("started", "1"), ("progress", "1"), ("retried", "1"), ("started", "2"), ("stalled", "2"),
        ("started", "3"), ("failed", "3"), ("enqueued", "3"), ("started", "4"), ("completed", "4"),
    ]  # fmt: skip


@scenario("8.13.2", "many in one call: one event for each that was taken, in the order of the call")
def test_a_batch_says_one_event_for_each(queue: Queue, ear: Ear) -> None:
    ids = [A, B, C, D, E]
    queue.enqueue_many([NewJob("p", id=each) for each in ids])
    jobs = queue.claim(5).jobs
    queue.complete_many(jobs)
    expected = [(event, each) for event in ("enqueued", "started", "completed") for each in ids]
    assert ear.names("job") == expected


def _refused(call: Callable[[], Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


def _stale(queue: Queue, job: Job) -> None:
    old = Job(job.id, job.payload, 0)
    for end in (lambda: queue.complete(old), lambda: queue.retry(old, "boom"), lambda: queue.release(old)):
        _refused(end, StaleToken)
    assert queue.settle([Discard(old)]) == [Verdict.STALE]


def _gone(queue: Queue, job: Job) -> None:
    gone = Job(B, b"p", 1)
    assert queue.complete(gone) is Verdict.GONE
    assert queue.settle([Discard(gone)]) == [Verdict.GONE]
    assert queue.remove(B) is queue.reprocess(B) is queue.update_progress(B, 1) is Verdict.GONE
    assert queue.cancel(B) is Cancellation.GONE


def _duplicate(queue: Queue, job: Job) -> None:
    assert queue.enqueue(PAYLOAD, id=A).duplicate
    assert queue.enqueue(PAYLOAD, id=A, delay=5).duplicate
    assert queue.add_flow(Flow(NewJob(PAYLOAD, id=A), [NewJob("p", id=B)])).duplicate


def _not_unique(queue: Queue, job: Job) -> None:
    quiet = Queue(queue.name, queue.connection, announcing=Announcing(()))
    quiet.enqueue("p", unique=Unique("key"))
    for delay in (None, 5):
        assert queue.enqueue("p", unique=Unique("key"), delay=delay).duplicate


def _held(queue: Queue, job: Job) -> None:
    _refused(lambda: queue.remove(A), Held)
    _refused(lambda: queue.reprocess(A), WrongState)
    assert queue.purge_dead(only=[A]) == 0


def _nothing_there(queue: Queue, job: Job) -> None:
    assert not queue.claim()
    assert queue.reap() == queue.promote() == queue.lane(LANE).reap() == queue.deliver() == 0
    assert queue.fire_repeats() == []
    assert queue.trim_dead(most=1) == (0, None)
    assert queue.drain() == queue.lane(LANE).drain() == 0
    assert queue.resume() is queue.lane(LANE).resume() is False


def _looked_at(queue: Queue, job: Job) -> None:
    queue.extend(job)
    queue.add_log(A, "a line")
    queue.update_data(A, "q")
    queue.counts()
    queue.get(A)
    queue.cancel(A)
    queue.release(job)


@scenario("8.14.1", "a transition that is refused, or finds nothing to do, says nothing; nor does what is none")
@pytest.mark.parametrize(
    "attempt",
    [_stale, _gone, _duplicate, _not_unique, _held, _nothing_there, _looked_at],
    ids=lambda each: each.__name__,
)
def test_what_does_not_happen_is_not_said(queue: Queue, ear: Ear, attempt: Callable[[Queue, Job], None]) -> None:
    attempt(queue, running(queue, ear))
    assert ear.heard() == []


@scenario("8.14.2", "a settlement that comes again says nothing again")
def test_a_second_settlement_says_nothing(queue: Queue, ear: Ear) -> None:
    done, again = running(queue, ear), running(queue, ear, B)
    for _ in range(2):
        queue.complete(done)
        queue.retry(again, "boom", delay=60)
    assert ear.names("job") == [("completed", A), ("retried", B)]


@scenario("8.14.3", "where nothing is chosen, only what a hand does is said")
def test_a_plain_queue_says_what_a_hand_does(queue: Queue, ear: Ear) -> None:
    plain = Queue(queue.name, queue.connection)
    for each in (A, B, C):
        plain.enqueue("p", id=each)
    plain.complete(plain.claim().jobs[0])
    plain.retry(plain.claim().jobs[0], "boom", max_retries=0)
    assert ear.heard() == []
    plain.cancel(C)
    plain.remove(B)
    plain.pause()
    plain.resume()
    assert ear.names("job") == [("cancelled", C), ("removed", B), ("paused", None), ("resumed", None)]
