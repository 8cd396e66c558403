"""Flow parents that wait for their children can be found: counted, listed, drained, waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conformance.scenarios import A, B, C, D
from wire.handwriting import Wire

from echomq_tasks.errors import WrongState
from echomq_tasks.queue import Flow, NewJob, Queue, State


@pytest.fixture
def far(queue: Queue) -> Queue:
    """Another queue on the same server, in a cluster most likely in another slot."""
    return Queue(f"{queue.name}.far", queue.connection)


def add(queue: Queue, far: Queue) -> None:
    """A waits for B, in the other queue."""
    queue.add_flow(Flow(NewJob(payload="p", id=A), [Flow(NewJob(payload="p", id=B), queue=far.name)]))


def test_a_held_parent_is_counted_and_listed(queue: Queue, far: Queue, wire: Wire) -> None:
    add(queue, far)
    assert queue.counts().awaiting == queue.metrics().awaiting == 1
    assert queue.counts().unfinished == 1
    assert queue.browse(State.AWAITING_CHILDREN) == [A]


ENDS: dict[str, Callable[[Queue, Queue], object]] = {
    "it runs": lambda queue, far: (far.complete(far.claim().jobs[0]), far.deliver()),
    "it dies": lambda queue, far: (far.retry(far.claim().jobs[0], max_retries=0), far.deliver()),
    "it is removed": lambda queue, far: queue.remove(A),
    "it is cancelled": lambda queue, far: queue.cancel(A),
    "it is drained": lambda queue, far: queue.drain("awaiting"),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_parent_that_waits_no_more_is_not_counted(queue: Queue, far: Queue, wire: Wire, end: str) -> None:
    add(queue, far)
    ENDS[end](queue, far)
    assert queue.counts().awaiting == 0
    assert wire.read("flow:parents") is None


def test_draining_held_parents_goes_up_their_tree(queue: Queue, wire: Wire) -> None:
    queue.add_flow(Flow(NewJob(payload="p", id=A), [Flow(NewJob(payload="p", id=B), [NewJob(payload="p", id=C)])]))
    assert queue.drain("awaiting", "pending", "dead") == 3
    assert wire.everything().keys() <= {"wake", "metrics:failed"}


def test_draining_held_parents_takes_none_that_another_runtime_has_set_going(
    queue: Queue, far: Queue, wire: Wire
) -> None:
    add(queue, far)
    wire.do("HSET", f"job:{A}", "state", "pending")
    wire.do("ZADD", "pending", 0, A)
    assert len(queue.claim()) == 1
    assert queue.drain("awaiting") == 0
    assert queue.state(A) is State.ACTIVE


def test_obliterating_a_queue_takes_a_parent_that_was_added_at_the_last_moment(
    queue: Queue, far: Queue, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.pause()
    run = queue.run

    def at_the_last_moment(script: str, *args: Any, **more: Any) -> Any:
        if script == "queue_obliterate" and args[2] == 1:
            monkeypatch.setattr(queue, "run", run)
            add(queue, far)
        return run(script, *args, **more)

    monkeypatch.setattr(queue, "run", at_the_last_moment)
    queue.obliterate()
    assert queue.run is run or wire.everything() == {}
    assert wire.everything() == {}
    assert wire.read("flow:parents") is None


def test_a_parent_whose_dead_child_was_dropped_is_not_brought_back_to_wait_for_ever(
    queue: Queue, far: Queue, wire: Wire
) -> None:
    add(queue, far)
    far.retry(far.claim().jobs[0], max_retries=0)
    far.deliver()
    assert far.purge_dead() == 1
    far.deliver()
    before = wire.dumps()
    with pytest.raises(WrongState, match=f"its child {B} was removed and cannot come back"):
        queue.reprocess(A)
    assert queue.retry_dead() == 0
    assert wire.dumps() == before


def test_a_parent_that_another_runtime_has_set_going_is_not_counted(queue: Queue, far: Queue, wire: Wire) -> None:
    add(queue, far)
    wire.do("HSET", f"job:{A}", "state", "pending")
    wire.do("ZADD", "pending", 0, A)
    assert queue.counts().awaiting == 0
    queue.sweep_stalled()
    assert wire.read("flow:parents") is None


def test_an_id_that_exists_names_what_was_admitted_beside_it(queue: Queue) -> None:
    queue.enqueue("p", id=C)
    flows = [
        Flow(NewJob(payload="p", id=A), [NewJob(payload="p", id=B)]),
        Flow(NewJob(payload="p"), [NewJob(payload="p", id=C)]),
    ]
    with pytest.raises(WrongState, match=C) as refused:
        queue.add_flows(flows)
    assert refused.value.admitted == (A, B)


def test_adding_a_flow_again_runs_no_child_again_whose_end_is_still_to_be_told(queue: Queue, far: Queue) -> None:
    flow = Flow(
        NewJob(payload="p", id=A),
        [Flow(NewJob(payload="p", id=B), queue=far.name), Flow(NewJob(payload="p", id=C), queue=far.name)],
    )
    queue.add_flow(flow)
    far.complete(next(job for job in far.claim(2) if job.id == B), "b")
    assert queue.add_flow(flow).duplicate
    assert far.state(B) is State.ABSENT
    children = queue.children(A)
    assert children is not None
    assert children.results == {B: b"b"}


def test_a_flow_that_is_there_already_names_no_child_that_is_not(queue: Queue) -> None:
    flow = Flow(NewJob(payload="p", id=A), [NewJob(payload="p"), NewJob(payload="p", id=D)])
    first = queue.add_flow(flow)
    assert [child.id for child in first.children][1] == D
    again = queue.add_flow(flow)
    assert again.duplicate
    assert [child.id for child in again.children] == [D]
