"""Wire §7, flows: how they land, and what a completed child does."""

from __future__ import annotations

from typing import Any

import pytest
from conformance.families import HELD, ON_FAILURE, Family, Policy, done
from conformance.scenarios import LANE, ROW, A, B, C, D, E, scenario, then
from wire.handwriting import Wire

from echomq_tasks.errors import EchoMQError, WrongState
from echomq_tasks.queue import Flow, NewJob, Queue, State, Verdict

# -- a parent waits for its children ------------------------------------------------------------------------------


@scenario("7.01.1", "a parent is `awaiting_children`, in no set, `:dependencies` = N")
def test_a_parent_is_held_in_no_set_with_the_number_of_its_children(family: Family, queue: Queue, wire: Wire) -> None:
    family.lay(A, B, C)
    found = wire.everything()
    assert (found[f"job:{A}"], found[f"job:{A}:dependencies"]) == (HELD, "2")
    assert set(found) == {f"job:{A}", f"job:{A}:dependencies", f"job:{B}", f"job:{C}", "pending"}
    assert found["pending"] == {B: 0, C: 0}
    assert queue.state(A) is State.AWAITING_CHILDREN
    assert [job.id for job in queue.claim(9)] == [B, C]


@scenario("7.01.2", "what a parent knows of its children: four keys beside its row (§2)")
def test_what_a_parent_knows_is_read_from_its_four_keys(family: Family, queue: Queue, wire: Wire) -> None:
    family.lay(A, B, C)
    wire.do("HSET", f"job:{A}:processed", D, "result")
    wire.do("HSET", f"job:{A}:failed", E, "boom")
    wire.do("HSET", f"job:{A}:unsuccessful", "JOB0NgWEfAEJ0F", "pity")
    children = queue.children(A)
    assert children is not None
    assert (children.results, children.failures) == ({D: b"result"}, {E: "boom"})
    assert (children.ignored, children.outstanding) == ({"JOB0NgWEfAEJ0F": "pity"}, 2)
    assert queue.children(D) is None


@scenario("7.02.1", "children carry `parent`, and `parent_policy` `fp` or `id`; no `parent_queue` of its own")
@pytest.mark.parametrize("policy", ["fp", "id"])
def test_a_child_names_its_parent_and_its_policy(queue: Queue, wire: Wire, policy: Policy) -> None:
    below = [NewJob("p", id=B), NewJob("p", id=C, delay=60), NewJob("p", id=D, group=LANE, priority=3)]
    queue.add_flow(Flow(NewJob("p", id=A), [Flow(job, on_failure=ON_FAILURE[policy]) for job in below]))
    ties = {"parent": A, "parent_policy": policy}
    assert wire.row(B) == ROW | ties
    assert wire.row(C) == ROW | ties | {"state": "scheduled"}
    assert wire.row(D) == ROW | ties | {"group": LANE, "priority": "3"}
    assert (wire.ids("pending"), wire.ids("schedule")) == ([B], [C])
    assert (wire.read(f"g:{LANE}:pending"), wire.ring()) == ({D: 3}, [LANE])


@scenario("7.02.2", "children carry `parent_queue` when it differs")
def test_a_child_in_another_queue_names_its_parents_queue(family: Family, wire: Wire) -> None:
    family.lay(A, B, away=True)
    ties = {"parent": A, "parent_queue": family.far.name}
    assert then(wire.row(B), {"parent_policy": None}) == ROW | ties
    assert set(wire.everything()) == {f"job:{B}", "pending"}
    assert family.far_wire.everything() == {f"job:{A}": HELD, f"job:{A}:dependencies": "1"}


# -- how a flow lands ---------------------------------------------------------------------------------------------


@scenario("7.03.1", "all in one queue: one atomic script, so a flow with an id that exists lands not at all")
@pytest.mark.parametrize("there", [B, C, D])
def test_a_flow_of_one_queue_lands_whole_or_not_at_all(family: Family, queue: Queue, wire: Wire, there: str) -> None:
    family.lay(E, there)
    before = wire.everything()
    flow = Flow(NewJob("p", id=A), [NewJob("p", id=B), Flow(NewJob("p", id=C), [NewJob("p", id=D)])])
    with pytest.raises(WrongState, match=there):
        queue.add_flow(flow)
    assert wire.everything() == before


@scenario("7.03.2", "a root that exists is a duplicate, and nothing changes (§5, enqueue)")
def test_a_flow_whose_root_exists_is_a_duplicate(family: Family, queue: Queue, wire: Wire) -> None:
    family.lay(A, B)
    before = wire.everything()
    added = queue.add_flow(Flow(NewJob("p", id=A), [NewJob("p", id=B)]))
    assert (added.id, added.duplicate) == (A, True)
    assert wire.everything() == before


@scenario("7.03.3", "admissions of a flow push wake tokens, one for each job that waits (§2)")
def test_the_jobs_of_a_flow_that_wait_wake_workers(queue: Queue, wire: Wire) -> None:
    queue.add_flow(Flow(NewJob("p", id=A), [NewJob("p", id=B), NewJob("p", id=C)]))
    assert wire.read("wake") == ["1", "1"]


@scenario("7.04.1", "else: parent first, then each child on its own slot")
def test_a_flow_over_queues_lands_each_job_in_its_own(family: Family, queue: Queue, wire: Wire) -> None:
    added = family.far.add_flow(
        Flow(NewJob("p", id=A), [NewJob("p", id=B), Flow(NewJob("p", id=C), [NewJob("p", id=D)], queue=queue.name)])
    )
    assert [(child.id, child.queue) for child in added.children] == [(B, family.far.name), (C, queue.name)]
    assert (family.far_wire.row(A), family.far_wire.read(f"job:{A}:dependencies")) == (HELD, "2")
    assert family.far_wire.row(B) == ROW | {"parent": A, "parent_policy": "fp"}
    ties = {"parent": A, "parent_queue": family.far.name, "parent_policy": "fp"}
    assert (wire.row(C), wire.read(f"job:{C}:dependencies")) == (HELD | ties, "1")
    assert wire.row(D) == ROW | {"parent": C, "parent_policy": "fp"}


@scenario("7.04.2", "a half-landed flow leaves the parent held, never run early; added again it is whole")
def test_a_flow_that_broke_off_holds_its_parent(family: Family, queue: Queue, wire: Wire) -> None:
    flow = Flow(NewJob("p", id=A), [NewJob("p", id=B), Flow(NewJob("p", id=C), queue=queue.name)])
    wire.do("SET", "pending", "what no queue has there")
    with pytest.raises(EchoMQError):
        family.far.add_flow(flow)
    wire.do("DEL", "pending")
    wire.do("DEL", f"job:{C}")
    assert (family.far_wire.row(A), family.far_wire.read(f"job:{A}:dependencies")) == (HELD, "2")
    for job in family.far.claim(9):
        assert job.id == B
        family.far.complete(job)
    assert family.far.state(A) is State.AWAITING_CHILDREN
    assert not family.far.claim(9)


@scenario("7.04.3", "a half-landed flow of another runtime leaves the parent held too")
def test_a_parent_whose_other_child_never_came_stays_held(family: Family, queue: Queue, wire: Wire) -> None:
    family.lay(A, B, C)
    wire.do("DEL", f"job:{C}")
    wire.do("ZREM", "pending", C)
    (job,) = family.take(B)
    queue.complete(job)
    assert (queue.state(A), wire.read(f"job:{A}:dependencies")) == (State.AWAITING_CHILDREN, "1")
    assert not queue.claim(9)


# -- a child completes --------------------------------------------------------------------------------------------


@scenario("7.05.1", "same queue, in the complete script: `DECR dependencies`, `HSET processed child result`")
def test_a_completed_child_leaves_its_result_and_counts_down(family: Family, queue: Queue, wire: Wire) -> None:
    family.lay(A, B, C)
    (job, _) = family.take(B, C)
    before = wire.everything()
    assert queue.complete(job, b"\x00\xff") is Verdict.OK
    told = {f"job:{A}:dependencies": "1", f"job:{A}:processed": {B: b"\x00\xff"}}
    assert wire.everything() == done(before, B, told)


@scenario("7.05.2", "at 0 the parent becomes pending")
def test_the_last_child_makes_its_parent_pending(family: Family, queue: Queue, wire: Wire) -> None:
    family.lay(A, B)
    (job,) = family.take(B)
    before = wire.everything()
    queue.complete(job, "r")
    told = {f"job:{A}:dependencies": "0", f"job:{A}:processed": {B: "r"}, f"job:{A}": ROW}
    assert wire.everything() == done(before, B, told | {"pending": {A: 0}, "wake": ["1"]})
    (parent,) = queue.claim(9)
    assert (parent.id, parent.token) == (A, 1)
    queue.complete(parent)
    assert wire.everything() == {"metrics:completed": {"count": "2"}}


@scenario("7.05.3", "the parent becomes pending in its lane by rule 6, at its priority")
def test_a_parent_waits_in_its_lane_at_its_priority(family: Family, queue: Queue, wire: Wire) -> None:
    family.lay(A, B, group=LANE, priority=-3)
    (job,) = family.take(B)
    queue.complete(job)
    assert (wire.read(f"g:{LANE}:pending"), wire.ring(), wire.read("pending")) == ({A: -3}, [LANE], None)
    assert wire.wakes() >= 1


@scenario("7.05.4", "a child that is completed twice counts once")
def test_a_child_that_completes_again_changes_nothing(family: Family, queue: Queue, wire: Wire) -> None:
    family.lay(A, B, C)
    (job, _) = family.take(B, C)
    queue.complete(job, "r")
    before = wire.everything()
    assert queue.complete(job, "again") is Verdict.GONE
    assert wire.everything() == before


@scenario("7.06.1", "other queue: the complete script appends to the child's own `flow:outbox`")
def test_a_completion_for_another_queue_goes_to_our_own_outbox(family: Family, queue: Queue, wire: Wire) -> None:
    family.lay(A, B, away=True)
    (job,) = family.take(B)
    before, parents = wire.everything(), family.far_wire.everything()
    queue.complete(job, "r")
    found = wire.everything()
    assert found.pop("wake", ["1"]) == ["1"]  # for whoever delivers
    assert found == done(before, B, {"flow:outbox": [f"{family.far.name}\0{A}\0{B}\0r"]})
    assert family.far_wire.everything() == parents


@scenario("7.06.2", "a sweep delivers on the parent's slot, then trims the outbox")
def test_a_delivery_tells_the_parent_and_empties_the_outbox(family: Family, queue: Queue, wire: Wire) -> None:
    family.lay(A, B, C, away=True)
    for job, result in zip(family.take(B, C), ("one", "two"), strict=True):
        queue.complete(job, result)
    family.quiet()
    assert queue.deliver() == 2
    assert wire.everything() == {"metrics:completed": {"count": "2"}}
    assert family.far_wire.everything() == {
        f"job:{A}": ROW, f"job:{A}:dependencies": "0", f"job:{A}:processed": {B: "one", C: "two"},
        "pending": {A: 0}, "wake": ["1"],
    }  # fmt: skip
    assert queue.deliver() == 0


@scenario("7.06.3", "guarded by `HSETNX processed`, so a re-delivery changes nothing")
def test_a_fact_that_is_delivered_again_changes_nothing(family: Family, queue: Queue, wire: Wire) -> None:
    family.lay(A, B, C, away=True)
    (job, _) = family.take(B, C)
    queue.complete(job, "r")
    (entry,) = wire.read("flow:outbox")
    queue.deliver()
    before = family.far_wire.everything()
    wire.do("RPUSH", "flow:outbox", entry, entry)
    queue.deliver()
    assert family.far_wire.everything() == before
    assert before[f"job:{A}:dependencies"] == "1"
    assert wire.read("flow:outbox") is None


@scenario("7.06.4", "only then trims the outbox: one that stopped in between is delivered again")
def test_a_sweep_that_stopped_before_the_trim_loses_nothing(
    family: Family, queue: Queue, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    family.lay(A, B, C, away=True)
    (job, _) = family.take(B, C)
    queue.complete(job, "r")
    run = queue.run

    def stop(script: str, *args: Any, **options: Any) -> Any:
        if script == "outbox_trim":
            raise KeyboardInterrupt
        return run(script, *args, **options)

    monkeypatch.setattr(queue, "run", stop)
    with pytest.raises(KeyboardInterrupt):
        queue.deliver()
    monkeypatch.undo()
    assert wire.do("LLEN", "flow:outbox") == 1
    before = family.far_wire.everything()
    assert before[f"job:{A}:processed"] == {B: "r"}
    queue.deliver()
    assert wire.read("flow:outbox") is None
    assert family.far_wire.everything() == before


@scenario("7.06.5", "a sweep delivers what other runtimes appended, and only so much as it is asked to")
def test_a_sweep_delivers_entries_of_others_in_order(family: Family, queue: Queue, wire: Wire) -> None:
    family.lay(A, B, C, away=True)
    wire.do("RPUSH", "flow:outbox", *(f"{family.far.name}\0{A}\0{child}\0{child}" for child in (B, C)))
    assert queue.deliver(1) == 1
    assert family.far_wire.read(f"job:{A}:processed") == {B: B}
    assert (queue.deliver(), family.far.state(A)) == (1, State.PENDING)
