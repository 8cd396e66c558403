"""Flow parents that wait for their children belong to their queue: join waits for them, flush drops them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import dramatiq
import pytest
from dramatiq import Worker
from dramatiq import middleware as stock
from dramatiq.errors import QueueJoinTimeout
from support.eventually import eventually
from wire.handwriting import Wire

from echomq_tasks import actor, current_job, flow
from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.queue import State


def family(gate: threading.Event | None = None) -> tuple[flow, list[object]]:
    """A parent on queue `near` with a child on queue `far`, and what the parent saw."""
    seen: list[object] = []

    @actor(queue_name="far")
    def child() -> int:
        if gate is not None:
            gate.wait(20)
        return 1

    @actor(queue_name="near")
    def parent() -> None:
        seen.append(list(current_job().children().results.values()))

    return flow(parent.message(), [child.message()]), seen


def test_join_waits_for_a_parent_whose_children_run_elsewhere(
    broker: EchoMQBroker, worker: Worker, gate: threading.Event
) -> None:
    tree, seen = family(gate)
    tree.run()
    eventually(lambda: broker.queue("far").counts().active == 1)
    with pytest.raises(QueueJoinTimeout):
        broker.join("near", timeout=200)
    gate.set()
    broker.join("near", timeout=20_000)
    assert seen == [[1]]


def test_flushing_a_queue_drops_the_parents_that_it_holds(broker: EchoMQBroker) -> None:
    tree, _ = family()
    tree.run()
    broker.flush("near")
    assert broker.queue("near").state(tree.parent.job_id) is State.ABSENT  # type: ignore[attr-defined]
    assert Wire(broker.connection, "near").everything().keys() <= {"wake", "metrics:failed"}


@pytest.mark.parametrize("running", [False, True])
def test_flushing_all_queues_leaves_nothing_of_a_flow(broker: EchoMQBroker, running: bool) -> None:
    tree, _ = family()
    tree.run()
    if running:
        assert broker.queue("far").claim()
    broker.flush_all()
    for name in ("near", "far"):
        counts = broker.queue(name).counts()
        assert (counts.unfinished, counts.dead) == (0, 0)
        assert Wire(broker.connection, name).everything().keys() <= {"wake", "metrics:failed"}


def test_a_child_that_raises_fails_also_without_a_middleware_that_retries(
    make_broker: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker]
) -> None:
    broker = make_broker(middleware=[stock.AgeLimit()])

    @dramatiq.actor
    def child() -> None:
        raise ValueError("no")

    @dramatiq.actor
    def parent() -> None: ...

    make_worker(broker)
    tree = flow(parent.message(), [child.message()]).run()
    queue = broker.queue("default")
    eventually(lambda: queue.counts().dead == 2)
    info = queue.get(tree.parent.job_id)  # type: ignore[attr-defined]
    assert info is not None
    assert "ValueError: no" in (info.last_error or "")
