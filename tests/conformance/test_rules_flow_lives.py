"""What happens to a parent while its children live, fail, are taken away, come back, or are another runtime's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conformance.flow_steps import chain, take, work_off
from conformance.scenarios import A, B, C, D, E
from wire.handwriting import Wire

from echomq_tasks.connection import Connection
from echomq_tasks.errors import StaleToken
from echomq_tasks.queue import Cancellation, Children, Discard, Flow, Job, NewJob, Queue, State, Verdict


@pytest.fixture
def far(connection: Connection, queue_name: str) -> Queue:
    """Another queue; in the cluster of another slot."""
    return Queue(f"{queue_name}.far", connection)


@pytest.fixture
def far_wire(connection: Connection, queue_name: str) -> Wire:
    return Wire(connection, f"{queue_name}.far")


IGNORE = pytest.mark.parametrize("ignore", [False, True], ids=["fail-parent", "ignore"])
AWAY = pytest.mark.parametrize("away", [False, True], ids=["one-queue", "two-queues"])


def family(queue: Queue, home: Queue, *children: str, ignore: bool) -> None:
    """Parent A in ``queue``, its children in ``home``."""
    policy = "ignore" if ignore else "fail_parent"
    below = [Flow(NewJob("c", id=child), queue=home.name, on_failure=policy) for child in children]  # type: ignore[arg-type]
    queue.add_flow(Flow(NewJob("p", id=A), below))


def kill(queue: Queue, job_id: str, error: str = "boom") -> None:
    assert queue.retry(take(queue, job_id), error, max_retries=0) is Verdict.DEAD


def known(queue: Queue, parent: str = A) -> Children:
    found = queue.children(parent)
    assert found is not None
    return found


# -- the life of a parent -----------------------------------------------------------------------------------------


@AWAY
def test_children_are_known_at_every_step_of_the_parents_life(queue: Queue, far: Queue, away: bool) -> None:
    home = far if away else queue
    family(queue, home, B, C, D, ignore=True)
    assert known(queue) == Children({}, {}, {}, 3)
    home.complete(take(home, C), b"\x00\xff")
    home.deliver()
    assert known(queue) == Children({C: b"\x00\xff"}, {}, {}, 2)
    kill(home, B, "boom")
    home.deliver()
    assert known(queue) == Children({C: b"\x00\xff"}, {}, {B: "boom"}, 1)
    home.complete(take(home, D))
    home.deliver()
    whole = Children({C: b"\x00\xff", D: b""}, {}, {B: "boom"}, 0)
    assert (known(queue), queue.state(A)) == (whole, State.PENDING)
    (parent,) = queue.claim(9)
    assert known(queue) == whole
    queue.retry(parent, "again", max_retries=3)
    assert known(queue) == whole, "a retry keeps them"
    (parent,) = queue.claim(9)
    queue.retry(parent, "enough", max_retries=0)
    assert known(queue) == whole, "and so does death"
    queue.reprocess(A)
    (parent,) = queue.claim(9)
    queue.complete(parent)
    assert queue.children(A) is None


def test_a_job_without_children_knows_of_none(queue: Queue) -> None:
    job_id = queue.enqueue("p").id
    assert known(queue, job_id) == Children({}, {}, {}, 0)


@AWAY
def test_retries_of_a_child_tell_its_parent_nothing_until_it_ends(queue: Queue, far: Queue, away: bool) -> None:
    home = far if away else queue
    family(queue, home, B, ignore=False)
    for attempt in range(1, 4):
        job = take(home, B)
        assert (job.token, job.failures, job.is_child) == (attempt, attempt - 1, True)
        assert home.retry(job, "boom", max_retries=3) is Verdict.SCHEDULED
        home.deliver()
        assert known(queue) == Children({}, {}, {}, 1)
    home.complete(take(home, B), "r")
    home.deliver()
    assert known(queue) == Children({B: b"r"}, {}, {}, 0)


@AWAY
@pytest.mark.parametrize("first", ["complete", "kill"])
def test_a_child_whose_lease_was_lost_ends_once(queue: Queue, far: Queue, away: bool, first: str) -> None:
    home = far if away else queue
    family(queue, home, B, C, ignore=True)
    old = take(home, B)
    Wire(home.connection, home.name).expire(B)
    assert home.reap() == 1
    new = take(home, B)
    assert new.token > old.token
    for late in (
        lambda: home.complete(old, "old"),
        lambda: home.retry(old, "old", max_retries=0),
        lambda: home.release(old),
    ):
        with pytest.raises(StaleToken):
            late()
    home.deliver()
    assert known(queue).outstanding == 2
    home.complete(new, "new") if first == "complete" else home.retry(new, "new", max_retries=0)
    assert home.complete(old, "old") is Verdict.GONE if first == "complete" else True
    home.deliver()
    assert known(queue).outstanding == 1
    assert known(queue).results == ({B: b"new"} if first == "complete" else {})


def test_a_child_that_stalled_to_death_and_completes_late_counts_once(queue: Queue, wire: Wire) -> None:
    family(queue, queue, B, C, ignore=True)
    old = take(queue, B)
    wire.expire(B)
    assert queue.sweep_stalled(max_stalled=1).dead == (B,)
    assert known(queue) == Children({}, {}, {B: "stalled"}, 1)
    assert queue.complete(old, "late") is Verdict.OK
    assert known(queue) == Children({B: b"late"}, {}, {}, 1)
    assert queue.state(A) is State.AWAITING_CHILDREN


# -- children that are taken away ---------------------------------------------------------------------------------


def remove(queue: Queue) -> None:
    assert queue.remove(B) is Verdict.OK


def cancel(queue: Queue) -> None:
    assert queue.cancel(B) is Cancellation.REMOVED


def cancel_running(queue: Queue) -> None:
    job = take(queue, B)
    assert queue.cancel(B) is Cancellation.REQUESTED
    assert queue.retry(job, "stopped", delay=60) is Verdict.CANCELLED


def discard(queue: Queue) -> None:
    assert queue.settle([Discard(take(queue, B), "cancelled")]) == [Verdict.OK]


def cancelled_and_lost(queue: Queue) -> None:
    take(queue, B)
    assert queue.cancel(B) is Cancellation.REQUESTED
    Wire(queue.connection, queue.name).expire(B)
    queue.reap()
    for job in queue.claim(9):
        assert job.id == A, "its parent, which that set free"
        queue.release(job)


def drain(queue: Queue) -> None:
    assert queue.drain("pending") >= 1


def drain_lane(queue: Queue) -> None:
    queue.move(B, "lane")
    assert queue.lane("lane").drain() == 1


def drain_lanes(queue: Queue) -> None:
    queue.move(B, "lane")
    assert queue.drain("lanes") == 1


WAYS: dict[str, tuple[Callable[[Queue], None], str]] = {
    "remove": (remove, "removed"),
    "cancel": (cancel, "cancelled"),
    "cancel a running one": (cancel_running, "cancelled"),
    "cancel a lost one": (cancelled_and_lost, "cancelled"),
    "discard": (discard, "cancelled"),
    "drain": (drain, "drained"),
    "drain its lane": (drain_lane, "drained"),
    "drain all lanes": (drain_lanes, "drained"),
}


@IGNORE
@AWAY
@pytest.mark.parametrize("way", WAYS)
def test_a_child_that_is_taken_away_is_one_that_failed(
    queue: Queue, wire: Wire, far: Queue, way: str, away: bool, ignore: bool
) -> None:
    home = far if away else queue
    family(queue, home, B, ignore=ignore)
    take_away, reason = WAYS[way]
    take_away(home)
    assert home.state(B) is State.ABSENT
    assert home.deliver() == (1 if away else 0)
    if ignore and way == "drain" and not away:
        # What it set free waited in the set that was to be drained.
        assert queue.state(A) is State.ABSENT
    elif ignore:
        assert queue.state(A) is State.PENDING
        assert known(queue) == Children({}, {}, {B: reason}, 0)
    else:
        assert queue.state(A) is State.DEAD
        assert known(queue) == Children({}, {B: reason}, {}, 1)
        info = queue.get(A)
        assert info is not None
        assert info.last_error == f"child {B} failed: {reason}"
        assert queue.counts().failed == 1


@AWAY
def test_purging_a_dead_child_tells_its_parent_nothing_new(queue: Queue, far: Queue, away: bool) -> None:
    home = far if away else queue
    family(queue, home, B, C, ignore=True)
    kill(home, B)
    home.deliver()
    before = known(queue)
    assert home.purge_dead() == 1
    home.deliver()
    assert (known(queue), queue.state(A)) == (before, State.AWAITING_CHILDREN)
    assert before.outstanding == 1


def test_draining_everything_takes_the_parents_that_it_sets_free(queue: Queue, wire: Wire) -> None:
    family(queue, queue, B, C, ignore=True)
    queue.add_flow(Flow(NewJob("q", id=D), [NewJob("c", id=E)]))
    while queue.drain("pending"):
        pass
    assert (queue.state(A), queue.state(D)) == (State.ABSENT, State.DEAD)
    queue.drain("dead")
    assert set(wire.everything()) <= {"metrics:failed", "wake"}


@AWAY
def test_a_chain_falls_with_a_child_that_is_cancelled(queue: Queue, far: Queue, away: bool) -> None:
    ids = [A, B, C, D]
    queue.add_flow(chain(*ids, queues=(queue.name, far.name) if away else (None,)))
    bottom = far if away else queue
    assert bottom.cancel(D) is Cancellation.REMOVED
    while queue.deliver() + far.deliver():
        pass
    states = [(far if away and place % 2 else queue).state(job_id) for place, job_id in enumerate(ids)]
    assert states == [State.DEAD, State.DEAD, State.DEAD, State.ABSENT]
    info = queue.get(A)
    assert info is not None
    assert info.last_error is not None
    assert info.last_error.endswith(f"child {D} failed: cancelled")


# -- a middle parent that goes ------------------------------------------------------------------------------------


@IGNORE
@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("verb", ["remove", "cancel"])
def test_a_parent_that_is_removed_tells_its_own_parent_and_its_children_finish_quietly(
    queue: Queue, wire: Wire, far: Queue, far_wire: Wire, verb: str, away: bool, ignore: bool
) -> None:
    home = far if away else queue
    middle = Flow(
        NewJob("m", id=B),
        [Flow(NewJob("c", id=C), queue=queue.name), Flow(NewJob("c", id=D), queue=home.name)],
        queue=home.name,
        on_failure="ignore" if ignore else "fail_parent",
    )
    queue.add_flow(Flow(NewJob("p", id=A), [middle]))
    getattr(home, verb)(B)
    home.deliver()
    assert home.state(B) is State.ABSENT
    assert queue.state(A) is (State.PENDING if ignore else State.DEAD)
    assert set(work_off(queue, far)) == ({A, C, D} if ignore else {C, D})
    queue.purge_dead()
    assert set(wire.everything()) | set(far_wire.everything()) <= {"metrics:completed", "metrics:failed", "wake"}


@AWAY
def test_a_removed_roots_children_die_quietly_too(queue: Queue, wire: Wire, far: Queue, away: bool) -> None:
    home = far if away else queue
    family(queue, home, B, C, ignore=False)
    queue.remove(A)
    kill(home, B)
    home.complete(take(home, C), "r")
    assert home.deliver() == (2 if away else 0)
    assert [name for name in wire.keys() if A in name] == []
    assert home.browse(State.DEAD) == [B]


# -- coming back --------------------------------------------------------------------------------------------------


@AWAY
def test_a_dead_child_brought_back_after_its_parent_died_completes_for_it(queue: Queue, far: Queue, away: bool) -> None:
    home = far if away else queue
    family(queue, home, B, C, ignore=False)
    kill(home, B)
    home.complete(take(home, C), "c")
    home.deliver()
    assert queue.state(A) is State.DEAD
    home.reprocess(B)
    home.complete(take(home, B), "b")
    home.deliver()
    assert queue.state(A) is State.DEAD, "nobody but you revives it"
    assert known(queue) == Children({B: b"b", C: b"c"}, {}, {}, 0)
    assert queue.reprocess(A) is Verdict.OK
    assert work_off(queue) == [A]


@AWAY
def test_a_parent_brought_back_before_its_children_ended_waits_for_them(
    queue: Queue, wire: Wire, far: Queue, away: bool
) -> None:
    home = far if away else queue
    family(queue, home, B, C, ignore=False)
    kill(home, B)
    home.deliver()
    assert queue.state(A) is State.DEAD
    queue.reprocess(A)
    assert queue.state(A) is State.AWAITING_CHILDREN
    assert known(queue) == Children({}, {}, {}, 2)
    home.complete(take(home, C), "c")
    home.reprocess(B)
    home.deliver()
    assert queue.state(A) is State.AWAITING_CHILDREN
    home.complete(take(home, B), "b")
    home.deliver()
    assert known(queue) == Children({B: b"b", C: b"c"}, {}, {}, 0)
    assert work_off(queue) == [A]


@AWAY
def test_a_parent_brought_back_dies_again_with_its_child(queue: Queue, far: Queue, away: bool) -> None:
    home = far if away else queue
    family(queue, home, B, C, ignore=False)
    kill(home, B)
    home.deliver()
    queue.reprocess(A)
    home.reprocess(B)
    kill(home, B, "again")
    home.deliver()
    assert queue.state(A) is State.DEAD
    assert known(queue).failures == {B: "again"}


@AWAY
def test_a_parent_brought_back_without_its_dead_child_dies_when_that_is_dropped(
    queue: Queue, far: Queue, away: bool
) -> None:
    home = far if away else queue
    family(queue, home, B, C, ignore=False)
    kill(home, B)
    home.deliver()
    queue.reprocess(A)
    assert home.purge_dead() == 1
    home.deliver()
    assert queue.state(A) is State.DEAD


def test_retrying_all_the_dead_runs_no_parent_early(queue: Queue) -> None:
    family(queue, queue, B, C, ignore=False)
    kill(queue, B)
    assert queue.retry_dead() == 2
    assert sorted(job.id for job in queue.claim(9)) == [B, C]


@pytest.mark.parametrize("order", ["done, fail", "fail, done", "fail, done, fail", "done, fail, done"])
def test_facts_of_one_child_in_any_order_count_it_once(queue: Queue, far: Queue, far_wire: Wire, order: str) -> None:
    family(queue, far, B, C, ignore=True)
    far_wire.do("DEL", "pending")
    facts = {"done": f"{queue.name}\0{A}\0{B}\0r", "fail": f"\0fail\0{queue.name}\0{A}\0{B}\0id\0boom"}
    for word in order.split(", "):
        far_wire.do("RPUSH", "flow:outbox", facts[word])
        assert far.deliver() == 1
    assert known(queue).outstanding == 1
    assert known(queue).results == {B: b"r"}
    assert known(queue).ignored == {}
    assert queue.state(A) is State.AWAITING_CHILDREN


# -- rows of other runtimes ---------------------------------------------------------------------------------------


def by_hand(wire: Wire, job_id: str, state: str, **fields: str | int) -> None:
    words = [word for field in fields.items() for word in field]
    wire.do("HSET", f"job:{job_id}", "state", state, "attempts", 0, "payload", job_id, *words)
    if state == "pending":
        wire.do("ZADD", "pending", 0, job_id)


def test_a_tree_written_by_hand_over_two_queues_runs_to_its_end(
    queue: Queue, wire: Wire, far: Queue, far_wire: Wire
) -> None:
    by_hand(wire, A, "awaiting_children")
    wire.do("SET", f"job:{A}:dependencies", 2)
    by_hand(wire, B, "pending", parent=A)
    by_hand(far_wire, C, "awaiting_children", parent=A, parent_queue=queue.name, parent_policy="id")
    far_wire.do("SET", f"job:{C}:dependencies", 1)
    by_hand(far_wire, D, "pending", parent=C, parent_policy="fp", parent_queue=far.name)
    assert known(queue).outstanding == 2
    assert work_off(queue, far) == [B, D, C, A]
    assert set(wire.everything()) | set(far_wire.everything()) == {"metrics:completed"}


SPOILT: dict[str, Callable[[Wire], object]] = {
    "a count that is no number": lambda wire: wire.do("SET", f"job:{A}:dependencies", "two"),
    "a count that is no string": lambda wire: (
        wire.do("DEL", f"job:{A}:dependencies"),
        wire.do("RPUSH", f"job:{A}:dependencies", 2),
    ),
    "no count": lambda wire: wire.do("DEL", f"job:{A}:dependencies"),
    "results that are no hash": lambda wire: wire.do("SET", f"job:{A}:processed", "x"),
    "failures that are no hash": lambda wire: wire.do("SET", f"job:{A}:failed", "x"),
    "ignored ones that are no hash": lambda wire: wire.do("SET", f"job:{A}:unsuccessful", "x"),
    "a row that is no hash": lambda wire: (wire.do("DEL", f"job:{A}"), wire.do("SET", f"job:{A}", "x")),
    "a state that nobody knows": lambda wire: wire.do("HSET", f"job:{A}", "state", "dreaming"),
}


@IGNORE
@AWAY
@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_parent_stops_no_child_halfway(
    queue: Queue, wire: Wire, far: Queue, away: bool, ignore: bool, name: str
) -> None:
    home = far if away else queue
    family(queue, home, B, C, D, ignore=ignore)
    SPOILT[name](wire)
    jobs = {job.id: job for job in home.claim(9)}
    done: list[Job] = [jobs[B], jobs[D]]
    assert home.complete_many(done) == [Verdict.OK, Verdict.OK]
    assert home.retry(jobs[C], "boom", max_retries=0) is Verdict.DEAD
    assert home.deliver() == (3 if away else 0)
    counts = home.counts()
    assert (counts.completed, counts.active, home.state(B), home.state(C)) == (2, 0, State.ABSENT, State.DEAD)
    assert A not in wire.ids("pending") or name in ("failures that are no hash", "results that are no hash")


def test_a_parent_that_names_itself_or_nobody_ends_no_worse_than_a_job(queue: Queue, wire: Wire) -> None:
    by_hand(wire, A, "pending", parent=A)
    by_hand(wire, B, "pending", parent="")
    by_hand(wire, C, "pending", parent="not an id")
    by_hand(wire, D, "pending", parent=E, parent_queue="")
    jobs = queue.claim(9).jobs
    assert queue.retry(jobs[0], "boom", max_retries=0) is Verdict.DEAD
    assert queue.complete_many(jobs[1:]) == [Verdict.OK] * 3
    queue.deliver()
    queue.purge_dead()
    assert set(wire.everything()) <= {"metrics:completed", "metrics:failed", "wake"}
