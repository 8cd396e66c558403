"""Counting, flushing and joining."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
from dramatiq import Message, Worker
from dramatiq.errors import QueueJoinTimeout, QueueNotFound
from support.eventually import eventually

from echomq_tasks.brokers.dramatiq import EchoMQBroker


def send(broker: EchoMQBroker, queue: str = "default", *, delay: int | None = None) -> Message[Any]:
    return broker.enqueue(Message(queue, "f", (), {}, {}), delay=delay)


def fill(broker: EchoMQBroker, queue: str) -> None:
    """One job in each state."""
    broker.declare_queue(queue)
    consumer = broker.consume(queue, prefetch=2, timeout=2000)
    send(broker, queue)
    consumer.nack(next(consumer))  # type: ignore[arg-type]
    send(broker, queue)
    assert next(consumer) is not None
    consumer.close()
    send(broker, queue)
    broker.enqueue(Message(queue, "f", (), {}, {"group": "lane"}))
    send(broker, queue, delay=60_000)
    counts = broker.queue(queue).counts()
    states = (counts.pending, counts.in_lanes, counts.active, counts.scheduled, counts.dead)
    assert states == (1, 1, 1, 1, 1)


def test_counts_are_ready_delayed_and_dead(broker: EchoMQBroker) -> None:
    assert broker.get_queue_message_counts("default") == (0, 0, 0)
    fill(broker, "default")
    assert broker.get_queue_message_counts("default") == (2, 1, 1)


def test_flush_drops_every_state_of_one_queue(broker: EchoMQBroker) -> None:
    fill(broker, "a")
    fill(broker, "b")
    broker.flush("a")
    assert broker.get_queue_message_counts("a") == (0, 0, 0)
    assert broker.queue("a").counts().unfinished == 0
    assert broker.get_queue_message_counts("b") == (2, 1, 1)
    assert not list(broker.client.scan_iter("emq:{a}:job:*"))


def test_flush_all_drops_every_declared_queue(broker: EchoMQBroker) -> None:
    fill(broker, "a")
    fill(broker, "b")
    broker.flush_all()
    for queue in ("a", "b"):
        assert broker.get_queue_message_counts(queue) == (0, 0, 0)
        assert broker.queue(queue).counts().unfinished == 0


def test_flushing_nothing_is_fine(broker: EchoMQBroker) -> None:
    broker.declare_queue("default")
    broker.flush("default")
    broker.flush("default")
    broker.flush_all()
    assert broker.get_queue_message_counts("default") == (0, 0, 0)


def test_a_queue_works_on_after_a_flush(broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]) -> None:
    ran = threading.Event()
    f = dramatiq.actor(actor_name="f")(ran.set)
    f.send_with_options(delay=60_000)
    broker.flush_all()
    f.send()
    finish(broker)
    assert ran.is_set()


def test_flush_while_a_job_runs_lets_it_end(broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]) -> None:
    started, go, ended = threading.Event(), threading.Event(), threading.Event()

    @dramatiq.actor(max_retries=3, min_backoff=1, max_backoff=1)
    def slow() -> None:
        started.set()
        go.wait(10)
        ended.set()
        raise RuntimeError("a retry of a job that is gone")

    slow.send()
    started.wait(10)
    broker.flush("default")
    go.set()
    eventually(ended.is_set)
    worker.join()
    finish(broker)
    assert broker.get_queue_message_counts("default") == (0, 0, 0)


def test_join_of_a_queue_that_was_never_declared_raises(broker: EchoMQBroker) -> None:
    with pytest.raises(QueueNotFound):
        broker.join("nowhere")
    with pytest.raises(QueueNotFound):
        broker.join("nowhere", timeout=100)


def test_join_of_an_empty_queue_returns(broker: EchoMQBroker) -> None:
    broker.declare_queue("default")
    broker.join("default")
    broker.join("default", timeout=0)


@pytest.mark.parametrize("delay", [None, 60_000])
def test_join_times_out_while_work_waits(broker: EchoMQBroker, delay: int | None) -> None:
    broker.declare_queue("default")
    send(broker, delay=delay)
    with pytest.raises(QueueJoinTimeout):
        broker.join("default", timeout=60)


def test_join_waits_for_what_a_consumer_holds(broker: EchoMQBroker) -> None:
    broker.declare_queue("default")
    send(broker)
    consumer = broker.consume("default", timeout=2000)
    delivery = next(consumer)
    assert delivery is not None
    with pytest.raises(QueueJoinTimeout):
        broker.join("default", timeout=60)
    consumer.ack(delivery)
    broker.join("default", timeout=60)
    consumer.close()


def test_join_does_not_wait_for_the_dead(broker: EchoMQBroker) -> None:
    broker.declare_queue("default")
    send(broker)
    consumer = broker.consume("default", timeout=2000)
    consumer.nack(next(consumer))  # type: ignore[arg-type]
    broker.join("default", timeout=60)
    consumer.close()


def test_join_waits_for_delayed_work(broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]) -> None:
    ran = threading.Event()
    dramatiq.actor(actor_name="f")(ran.set).send_with_options(delay=200)
    finish(broker)
    assert ran.is_set()


def test_join_waits_for_retries(broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]) -> None:
    tries: list[int] = []

    @dramatiq.actor(min_backoff=30, max_backoff=60)
    def flaky() -> None:
        tries.append(1)
        if len(tries) < 4:
            raise RuntimeError("not yet")

    flaky.send()
    finish(broker)
    assert len(tries) == 4


def test_join_waits_for_work_that_work_sends(broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]) -> None:
    seen: list[int] = []

    @dramatiq.actor
    def chain(n: int) -> None:
        if n:
            chain.send(n - 1)
        seen.append(n)

    chain.send(20)
    finish(broker)
    worker.join()
    assert sorted(seen) == list(range(21))


def test_join_of_one_queue_does_not_wait_for_another(broker: EchoMQBroker) -> None:
    broker.declare_queue("a")
    broker.declare_queue("b")
    send(broker, "b")
    broker.join("a", timeout=60)
