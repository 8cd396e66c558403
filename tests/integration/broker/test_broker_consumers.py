"""Consumers without a worker: what next, ack, nack, requeue and close promise."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from dramatiq import Message, MessageProxy
from dramatiq.errors import QueueNotFound
from support.eventually import eventually

from echomq_tasks.brokers.dramatiq import Delivery, EchoMQBroker, EchoMQConsumer
from echomq_tasks.queue import JobInfo

Consume = Callable[..., EchoMQConsumer]


def send(broker: EchoMQBroker, count: int = 1, **options: Any) -> list[Message[Any]]:
    return [broker.enqueue(Message("default", "f", (n,), {}, dict(options))) for n in range(count)]


def take(consumer: EchoMQConsumer) -> Delivery:
    delivery = next(consumer)
    assert delivery is not None
    return delivery


@pytest.fixture
def consume(broker: EchoMQBroker) -> Iterator[Consume]:
    """Open consumers of the queue "default" that wait 2 seconds; closed after the test."""
    broker.declare_queue("default")
    opened: list[EchoMQConsumer] = []

    def make(**options: Any) -> EchoMQConsumer:
        consumer = broker.consume(**({"queue_name": "default", "prefetch": 1, "timeout": 2000} | options))
        opened.append(consumer)
        return consumer

    yield make
    for consumer in opened:
        consumer.close()


def active(broker: EchoMQBroker) -> int:
    return broker.queue("default").counts().active


def test_a_queue_that_was_never_declared_has_no_consumer(broker: EchoMQBroker) -> None:
    with pytest.raises(QueueNotFound):
        broker.consume("nowhere")
    with pytest.raises(QueueNotFound):
        broker.consume(queue_name="nowhere", prefetch=1, timeout=100)


def test_a_delay_queue_has_no_consumer(broker: EchoMQBroker) -> None:
    broker.declare_queue("default")
    with pytest.raises(QueueNotFound):
        broker.consume("default.DQ")


def test_a_consumer_is_its_own_iterator(consume: Consume) -> None:
    consumer = consume()
    assert iter(consumer) is consumer


def test_next_answers_none_when_the_timeout_ends(consume: Consume) -> None:
    consumer = consume(timeout=50)
    assert next(consumer) is None
    assert next(consumer) is None


def test_next_waits_for_a_message_that_comes_meanwhile(broker: EchoMQBroker, consume: Consume) -> None:
    consumer = consume(timeout=20_000)
    found: list[Delivery | None] = []
    thread = threading.Thread(target=lambda: found.append(next(consumer)))
    thread.start()
    eventually(lambda: broker.client.info("clients")["blocked_clients"], message="the consumer parks")
    (message,) = send(broker)
    thread.join(10)
    assert found == [message]


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_a_consumer_holds_no_more_than_its_prefetch(broker: EchoMQBroker, consume: Consume, prefetch: int) -> None:
    send(broker, 8)
    consumer = consume(prefetch=prefetch, timeout=50)
    held = [take(consumer) for _ in range(prefetch)]
    assert next(consumer) is None
    assert active(broker) == prefetch
    consumer.ack(held[0])
    assert take(consumer).args == (prefetch,)


def test_a_free_place_ends_the_wait_of_a_full_consumer(broker: EchoMQBroker, consume: Consume) -> None:
    first, second = send(broker, 2)
    consumer = consume(timeout=20_000)
    held = take(consumer)
    assert held == first
    found: list[Delivery | None] = []
    thread = threading.Thread(target=lambda: found.append(next(consumer)))
    thread.start()
    consumer.ack(held)
    thread.join(10)
    assert found == [second]


@pytest.mark.parametrize("end", ["ack", "nack", "requeue"])
def test_each_end_gives_its_place_back_once(broker: EchoMQBroker, consume: Consume, end: str) -> None:
    send(broker, 5)
    consumer = consume(timeout=50)
    held = take(consumer)
    for _ in range(3):
        if end == "requeue":
            consumer.requeue([held])
        else:
            getattr(consumer, end)(held)
    take(consumer)
    assert next(consumer) is None
    assert active(broker) == 1


def test_ack_ends_a_job_for_good(broker: EchoMQBroker, consume: Consume) -> None:
    send(broker)
    consumer = consume()
    delivery = take(consumer)
    consumer.ack(delivery)
    assert broker.queue("default").get(delivery.job_id) is None
    counts = broker.queue("default").counts()
    assert (counts.unfinished, counts.dead, counts.completed) == (0, 0, 1)


def test_ack_twice_counts_once(broker: EchoMQBroker, consume: Consume) -> None:
    send(broker)
    consumer = consume()
    delivery = take(consumer)
    consumer.ack(delivery)
    consumer.ack(delivery)
    assert broker.queue("default").counts().completed == 1


def test_nack_sends_a_job_to_dead(
    broker: EchoMQBroker, consume: Consume, dead_jobs: Callable[..., list[JobInfo]]
) -> None:
    (message,) = send(broker)
    consumer = consume()
    delivery = take(consumer)
    consumer.nack(delivery)
    (dead,) = dead_jobs(broker)
    assert dead.id == message.job_id  # type: ignore[attr-defined]
    assert dead.payload == message.encode()
    assert dead.last_error == "rejected without an exception"


def test_nack_twice_and_ack_after_nack_change_nothing(broker: EchoMQBroker, consume: Consume) -> None:
    send(broker)
    consumer = consume()
    delivery = take(consumer)
    consumer.nack(delivery)
    consumer.nack(delivery)
    consumer.ack(delivery)
    counts = broker.queue("default").counts()
    assert (counts.dead, counts.failed, counts.completed) == (1, 1, 0)


@pytest.mark.parametrize("end", ["ack", "nack"])
def test_a_message_of_no_consumer_is_nothing_to_settle(broker: EchoMQBroker, consume: Consume, end: str) -> None:
    consumer = consume()
    getattr(consumer, end)(MessageProxy(Message("default", "f", (), {}, {})))
    consumer.requeue([MessageProxy(Message("default", "f", (), {}, {}))])
    counts = broker.queue("default").counts()
    assert (counts.unfinished, counts.dead, counts.completed) == (0, 0, 0)


@pytest.mark.parametrize("end", ["ack", "nack"])
def test_a_newer_consumer_settles_what_an_older_one_delivered(broker: EchoMQBroker, consume: Consume, end: str) -> None:
    send(broker)
    old = consume()
    delivery = take(old)
    old.close()
    assert active(broker) == 1
    getattr(consume(), end)(delivery)
    counts = broker.queue("default").counts()
    assert (counts.active, counts.completed, counts.dead) == (0, int(end == "ack"), int(end == "nack"))


def test_a_closed_consumer_still_settles(broker: EchoMQBroker, consume: Consume) -> None:
    send(broker)
    consumer = consume()
    delivery = take(consumer)
    consumer.close()
    consumer.close()
    consumer.ack(delivery)
    assert broker.queue("default").counts().completed == 1


def test_requeue_brings_messages_back_in_their_order(broker: EchoMQBroker, consume: Consume) -> None:
    messages = send(broker, 3)
    consumer = consume(prefetch=3)
    held = [take(consumer) for _ in range(3)]
    consumer.requeue(reversed(held))
    again = [take(consumer) for _ in range(3)]
    assert again == messages
    assert [delivery.job_id for delivery in again] == [delivery.job_id for delivery in held]
    assert all(delivery.job.failures == 0 and delivery.job.stalled == 0 for delivery in again)


def test_requeue_of_nothing_is_fine(consume: Consume) -> None:
    consumer = consume()
    consumer.requeue([])
    consumer.requeue(iter(()))


def test_requeue_of_what_is_settled_changes_nothing(broker: EchoMQBroker, consume: Consume) -> None:
    send(broker)
    consumer = consume()
    delivery = take(consumer)
    consumer.ack(delivery)
    consumer.requeue([delivery])
    assert broker.queue("default").counts().unfinished == 0


def test_close_gives_back_what_was_claimed_and_not_handed_out(broker: EchoMQBroker, consume: Consume) -> None:
    send(broker, 5)
    consumer = consume(prefetch=5)
    take(consumer)
    assert active(broker) == 5
    consumer.close()
    assert active(broker) == 1
    assert broker.get_queue_message_counts("default") == (4, 0, 0)


def test_two_consumers_share_the_messages(broker: EchoMQBroker, consume: Consume) -> None:
    send(broker, 4)
    one, two = consume(prefetch=2), consume(prefetch=2)
    numbers = [take(one).args[0], take(two).args[0], take(one).args[0], take(two).args[0]]
    assert sorted(numbers) == [0, 1, 2, 3]


def test_ack_from_many_threads_at_once_settles_each(broker: EchoMQBroker, consume: Consume) -> None:
    send(broker, 24)
    consumer = consume(prefetch=24)
    threads = [threading.Thread(target=consumer.ack, args=(take(consumer),)) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    counts = broker.queue("default").counts()
    assert (counts.unfinished, counts.completed) == (0, 24)


def test_a_delivery_is_of_the_queue_it_was_claimed_from(broker: EchoMQBroker, consume: Consume) -> None:
    # As after a move from one queue to another by hand: the worker finds its consumer by this name.
    broker.queue("default").enqueue(Message("elsewhere", "f", (), {}, {}).encode())
    assert take(consume()).queue_name == "default"


def test_a_lease_stands_on_what_was_delivered(broker: EchoMQBroker, consume: Consume) -> None:
    send(broker)
    before = time.time()
    delivery = take(consume())
    job = broker.queue("default").get(delivery.job_id)
    assert job is not None
    assert job.due is not None
    assert 29 < job.due.timestamp() - before < 60
    assert job.attempts == delivery.job.token == 1


def test_acking_a_flushed_message_is_harmless(broker: EchoMQBroker, consume: Consume) -> None:
    send(broker)
    consumer = consume()
    delivery = take(consumer)
    broker.flush("default")
    consumer.ack(delivery)
    assert broker.queue("default").counts().unfinished == 0


def test_a_delayed_message_is_not_handed_out_early(broker: EchoMQBroker, consume: Consume) -> None:
    broker.enqueue(Message("default", "f", (), {}, {}), delay=60_000)
    assert next(consume(timeout=100)) is None
    assert broker.get_queue_message_counts("default") == (0, 1, 0)
