"""Wire §7, flows: what the death of a child does, the outbox byte by byte, and the bounds of a tree."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from conformance.families import HELD, Family, Policy
from conformance.scenarios import ROW, A, B, C, D, E, scenario, seen
from wire.handwriting import Wire

from echomq_tasks.errors import InvalidArgument
from echomq_tasks.queue import Flow, Job, NewJob, Queue, State, Verdict

# -- a child dies -------------------------------------------------------------------------------------------------


def by_failing(queue: Queue, wire: Wire, job: Job) -> str:
    assert queue.retry(job, "boom", max_retries=0) is Verdict.DEAD
    return "boom"


def by_stalling(queue: Queue, wire: Wire, job: Job) -> str:
    wire.expire(job.id)
    assert queue.sweep_stalled(max_stalled=1).dead == (job.id,)
    return "stalled"


Death = Callable[[Queue, Wire, Job], str]
DEATHS = pytest.mark.parametrize("die", [by_failing, by_stalling])


@scenario("7.07.1", "`fp` (default): recorded in the parent's `:failed`, the parent goes to dead")
@DEATHS
def test_a_dead_child_takes_its_parent_along(family: Family, queue: Queue, wire: Wire, die: Death) -> None:
    family.lay(A, B, C)
    (job, _) = family.take(B, C)
    before = seen(wire)
    error = die(queue, wire, job)
    found = seen(wire)
    assert found[f"job:{A}"].pop("last_error")
    assert {name: found[name] for name in (f"job:{A}", f"job:{A}:failed", f"job:{A}:dependencies")} == {
        f"job:{A}": HELD | {"state": "dead"}, f"job:{A}:failed": {B: error}, f"job:{A}:dependencies": "2",
    }  # fmt: skip
    assert (found["dead"], found["metrics:failed"]) == ({A: 0, B: 0}, {"count": "2"})
    assert found[f"job:{C}"] == before[f"job:{C}"]
    assert queue.state(A) is State.DEAD


@scenario("7.07.2", "`fp` in another queue: through the outbox, and the parent goes to dead there")
@DEATHS
def test_a_dead_child_takes_its_parent_along_in_another_queue(
    family: Family, queue: Queue, wire: Wire, die: Death
) -> None:
    family.lay(A, B, away=True)
    error = die(queue, wire, *family.take(B))
    assert wire.read("dead") == {B: 0}
    assert queue.deliver() == 1
    assert wire.read("flow:outbox") is None
    far = seen(family.far_wire)
    assert far.pop(f"job:{A}").pop("last_error")
    assert far.pop("wake", None) is None
    assert far == {
        f"job:{A}:dependencies": "1", f"job:{A}:failed": {B: error}, "dead": {A: 0}, "metrics:failed": {"count": "1"},
    }  # fmt: skip


@scenario("7.07.3", "a death that is delivered again changes nothing")
@pytest.mark.parametrize("policy", ["fp", "id"])
def test_a_death_that_is_delivered_again_changes_nothing(
    family: Family, queue: Queue, wire: Wire, policy: Policy
) -> None:
    family.lay(A, B, C, policy=policy, away=True)
    (job, _) = family.take(B, C)
    by_failing(queue, wire, job)
    (entry,) = wire.read("flow:outbox")
    queue.deliver()
    before = family.far_wire.everything()
    wire.do("RPUSH", "flow:outbox", entry)
    queue.deliver()
    assert family.far_wire.everything() == before
    assert before[f"job:{A}:dependencies"] == ("2" if policy == "fp" else "1")


@scenario("7.07.4", "a child that fails with tries left tells nobody")
def test_a_child_that_runs_again_tells_nobody(family: Family, queue: Queue, wire: Wire) -> None:
    family.lay(A, B)
    (job,) = family.take(B)
    assert queue.retry(job, "boom", delay=60, max_retries=3) is Verdict.SCHEDULED
    assert (wire.row(A), wire.read(f"job:{A}:dependencies"), wire.read(f"job:{A}:failed")) == (HELD, "1", None)


@scenario("7.08.1", "`id`: recorded in `:unsuccessful`, counts as satisfied")
@DEATHS
def test_a_dead_child_of_the_other_policy_counts_as_satisfied(
    family: Family, queue: Queue, wire: Wire, die: Death
) -> None:
    family.lay(A, B, C, policy="id")
    first, second = family.take(B, C)
    error = die(queue, wire, first)
    assert (wire.row(A), wire.read(f"job:{A}:dependencies")) == (HELD, "1")
    assert (wire.read(f"job:{A}:unsuccessful"), wire.read(f"job:{A}:failed")) == ({B: error}, None)
    queue.complete(second, "r")
    assert (wire.row(A), wire.read("pending"), wire.read("dead")) == (ROW, {A: 0}, {B: 0})
    assert wire.read(f"job:{A}:processed") == {C: "r"}


@scenario("7.08.2", "`id` in another queue: through the outbox, and counts as satisfied there")
@DEATHS
def test_a_dead_child_of_the_other_policy_satisfies_a_parent_elsewhere(
    family: Family, queue: Queue, wire: Wire, die: Death
) -> None:
    family.lay(A, B, policy="id", away=True)
    error = die(queue, wire, *family.take(B))
    assert queue.deliver() == 1
    assert family.far_wire.everything() == {
        f"job:{A}": ROW, f"job:{A}:dependencies": "0", f"job:{A}:unsuccessful": {B: error},
        "pending": {A: 0}, "wake": ["1"],
    }  # fmt: skip


@scenario("7.08.3", "`id`: a child counts as satisfied once, also when it is reprocessed and completes after all")
@pytest.mark.parametrize("away", [False, True])
def test_a_child_that_died_and_then_completed_counts_once(family: Family, queue: Queue, wire: Wire, away: bool) -> None:
    family.lay(A, B, C, policy="id", away=away)
    (job, _) = family.take(B, C)
    by_failing(queue, wire, job)
    queue.deliver()
    assert queue.reprocess(B) is Verdict.OK
    (again,) = family.take(B)
    queue.complete(again, "r")
    queue.deliver()
    parents = family.far_wire if away else wire
    assert (parents.row(A), parents.read(f"job:{A}:dependencies")) == (HELD, "1")


@scenario("7.08.4", "`id`: a child counts as satisfied once, also when its two ends are delivered in the other order")
def test_two_ends_of_a_child_delivered_out_of_turn_count_once(family: Family, queue: Queue, wire: Wire) -> None:
    family.lay(A, B, C, policy="id", away=True)
    ends = [f"{family.far.name}\0{A}\0{B}\0r", f"\0fail\0{family.far.name}\0{A}\0{B}\0id\0boom"]
    wire.do("RPUSH", "flow:outbox", *ends)
    assert queue.deliver() == 2
    assert (family.far_wire.row(A), family.far_wire.read(f"job:{A}:dependencies")) == (HELD, "1")


@scenario("7.09.1", "both go up level by level")
def test_a_death_goes_up_all_levels_and_stops_where_it_is_ignored(family: Family, queue: Queue, wire: Wire) -> None:
    family.lay(A, B, policy="id")  # and B waits for C, and C for D
    for parent, child in ((B, C), (C, D)):
        wire.do("ZREM", "pending", parent)
        wire.do("HSET", f"job:{parent}", "state", "awaiting_children")
        wire.do("SET", f"job:{parent}:dependencies", 1)
        wire.do("HSET", f"job:{child}", "state", "pending", "attempts", 0, "payload", "p", "parent", parent)
    wire.do("ZADD", "pending", 0, D)
    by_failing(queue, wire, *family.take(D))
    assert wire.read("dead") == {B: 0, C: 0, D: 0}
    assert (wire.read(f"job:{C}:failed"), list(wire.read(f"job:{B}:failed"))) == ({D: "boom"}, [C])
    assert (wire.row(A), list(wire.read(f"job:{A}:unsuccessful"))) == (ROW, [B])
    assert wire.read("metrics:failed") == {"count": "3"}


@scenario("7.09.2", "both go up level by level, across queues")
@pytest.mark.parametrize("policy", ["fp", "id"])
def test_a_death_goes_up_from_queue_to_queue(family: Family, queue: Queue, wire: Wire, policy: Policy) -> None:
    family.lay(A, B, policy=policy, away=True)
    wire.do("ZREM", "pending", B)
    wire.do("HSET", f"job:{B}", "state", "awaiting_children")
    wire.do("SET", f"job:{B}:dependencies", 1)
    wire.do("HSET", f"job:{C}", "state", "pending", "attempts", 0, "payload", "p", "parent", B)
    wire.do("ZADD", "pending", 0, C)
    by_failing(queue, wire, *family.take(C))
    assert wire.read("dead") == {B: 0, C: 0}
    assert family.far_wire.row(A) == HELD
    assert queue.deliver() == 1
    assert family.far.state(A) is (State.DEAD if policy == "fp" else State.PENDING)
    assert list(family.far_wire.read(f"job:{A}:{'failed' if policy == 'fp' else 'unsuccessful'}")) == [B]


@scenario("7.09.3", "completions go up level by level too")
def test_parents_complete_one_after_the_other(queue: Queue, family: Family) -> None:
    chain = Flow(NewJob("p", id=A), [Flow(NewJob("p", id=B), [NewJob("p", id=C)], queue=queue.name)])
    family.far.add_flow(chain)
    for job_id in (C, B):
        (job,) = queue.claim(9)
        assert job.id == job_id
        queue.complete(job, job_id)
    assert queue.deliver() == 1
    (top,) = family.far.claim(9)
    children = family.far.children(A)
    assert children is not None
    assert (top.id, children.results) == (A, {B: B.encode()})


# -- the outbox ---------------------------------------------------------------------------------------------------


@scenario("7.10.1", "completion: parent queue, parent id, child id, result (the remainder, any bytes), NUL-joined")
@pytest.mark.parametrize("result", [b"", b"r", b"a\0b\0", bytes(range(256)), b"\0fail\0"])
def test_a_completion_is_written_and_read_byte_by_byte(family: Family, queue: Queue, wire: Wire, result: bytes) -> None:
    family.lay(A, B, away=True)
    (job,) = family.take(B)
    queue.complete(job, result)
    (entry,) = wire.client.lrange(f"{wire.base}flow:outbox", 0, -1)
    assert entry == b"\0".join([family.far.name.encode(), A.encode(), B.encode(), result])
    assert queue.deliver() == 1
    assert family.far_wire.client.hget(f"{family.far_wire.base}job:{A}:processed", B) == result


@scenario("7.10.2", "failure: empty, `fail`, parent queue, parent id, child id, policy, error (the rest), NUL-joined")
@pytest.mark.parametrize("policy", ["fp", "id"])
@pytest.mark.parametrize("error", ["", "boom", "a\0b\0", "Ελλάδα"])
def test_a_failure_is_written_and_read_byte_by_byte(
    family: Family, queue: Queue, wire: Wire, policy: Policy, error: str
) -> None:
    family.lay(A, B, policy=policy, away=True)
    (job,) = family.take(B)
    queue.retry(job, error, max_retries=0)
    assert wire.read("flow:outbox") == ["\0".join(["", "fail", family.far.name, A, B, policy, error])]
    assert queue.deliver() == 1
    key = f"job:{A}:{'failed' if policy == 'fp' else 'unsuccessful'}"
    assert family.far_wire.read(key) == {B: error}


@scenario("7.10.3", "entries are appended in order, behind those of others")
def test_entries_are_appended_in_order(family: Family, queue: Queue, wire: Wire) -> None:
    family.lay(A, B, C, away=True)
    wire.do("RPUSH", "flow:outbox", "older")
    for job in family.take(B, C):
        queue.complete(job)
    assert wire.read("flow:outbox") == ["older", *(f"{family.far.name}\0{A}\0{child}\0" for child in (B, C))]


# -- trees --------------------------------------------------------------------------------------------------------


@scenario("7.11.1", "trees nest (a child may be a parent)")
def test_a_child_may_be_a_parent(queue: Queue, wire: Wire) -> None:
    queue.add_flow(Flow(NewJob("p", id=A), [NewJob("p", id=B), Flow(NewJob("p", id=C), [NewJob("p", id=D)])]))
    assert (wire.row(A), wire.read(f"job:{A}:dependencies")) == (HELD, "2")
    assert wire.row(C) == HELD | {"parent": A, "parent_policy": "fp"}
    assert wire.read(f"job:{C}:dependencies") == "1"
    assert wire.ids("pending") == [B, D]


def chain(*ids: str, queue: str | None = None) -> Flow:
    flow = Flow(NewJob("p", id=ids[-1]), queue=queue)
    for job_id in reversed(ids[:-1]):
        flow = Flow(NewJob("p", id=job_id), [flow])
    return flow


@scenario("7.11.2", "at most 8 levels, checked before any write")
@pytest.mark.parametrize("spans", [False, True])
def test_a_tree_has_eight_levels_at_most(family: Family, queue: Queue, wire: Wire, spans: bool) -> None:
    family.lay(A, B)
    before = wire.everything()
    levels = [f"JOB0NgWEfAEJ1{level}" for level in range(9)]
    where = family.far.name if spans else None
    with pytest.raises(InvalidArgument, match="8 levels"):
        queue.add_flow(chain(*levels, queue=where))
    assert (wire.everything(), family.far_wire.everything()) == (before, {})
    queue.add_flow(chain(*levels[:8], queue=where))
    assert [wire.read(f"job:{level}:dependencies") for level in levels[:7]] == ["1"] * 7
    assert [(wire, family.far_wire)[spans].row(below).get("parent") for below in levels[7:8]] == [levels[6]]
    for above, below in pairwise(levels[:7]):
        assert wire.row(below)["parent"] == above


@scenario("7.11.3", "eight levels fall with their deepest child")
def test_eight_levels_all_fall_with_their_deepest_child(queue: Queue, wire: Wire) -> None:
    levels = [f"JOB0NgWEfAEJ1{level}" for level in range(8)]
    queue.add_flow(chain(*levels))
    (job,) = queue.claim(9)
    by_failing(queue, wire, job)
    assert wire.ids("dead") == levels


@scenario("7.11.4", "no id twice, checked before any write")
@pytest.mark.parametrize("spans", [False, True])
def test_an_id_stands_in_a_tree_once(family: Family, queue: Queue, wire: Wire, spans: bool) -> None:
    family.lay(A, B)
    before = wire.everything()
    where = family.far.name if spans else None
    for flow in (
        Flow(NewJob("p", id=C), [Flow(NewJob("p", id=C), queue=where)]),
        Flow(NewJob("p", id=C), [NewJob("p", id=D), Flow(NewJob("p", id=E), [NewJob("p", id=D)], queue=where)]),
    ):
        with pytest.raises(InvalidArgument, match="twice"):
            queue.add_flow(flow)
    assert (wire.everything(), family.far_wire.everything()) == (before, {})
