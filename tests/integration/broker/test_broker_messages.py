"""Messages: what goes in is what comes out, through every encoder."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq import Message, MessageProxy, Worker
from dramatiq.encoder import JSONEncoder, PickleEncoder

from echomq_tasks.brokers.dramatiq import Delivery, EchoMQBroker


@pytest.fixture
def pickled() -> Iterator[None]:
    """Dramatiq's global encoder is pickle's for the length of a test."""
    before = dramatiq.get_encoder()
    dramatiq.set_encoder(PickleEncoder())
    yield
    dramatiq.set_encoder(before)


def a_message(**changes: Any) -> Message[Any]:
    fields: dict[str, Any] = {
        "queue_name": "default",
        "actor_name": "f",
        "args": (1, [2]),
        "kwargs": {"k": "v"},
        "options": {"tenant": "acme"},
    }
    return Message(**(fields | changes))


@pytest.fixture
def actor(broker: EchoMQBroker) -> dramatiq.Actor[..., Any]:
    return dramatiq.actor(actor_name="f")(lambda *args, **kwargs: None)


def test_enqueue_answers_the_message_itself(broker: EchoMQBroker) -> None:
    message = a_message()
    assert broker.enqueue(message) is message
    assert message == a_message(message_id=message.message_id, message_timestamp=message.message_timestamp)


def test_a_message_carries_its_job_id_beside_its_fields(broker: EchoMQBroker) -> None:
    message = broker.enqueue(a_message())
    job = broker.queue("default").get(message.job_id)  # type: ignore[attr-defined]
    assert job is not None
    assert job.payload == message.encode()
    assert "job_id" not in message.asdict()


def test_one_message_enqueued_twice_is_two_jobs(broker: EchoMQBroker) -> None:
    message = a_message()
    first = broker.enqueue(message).job_id  # type: ignore[attr-defined]
    second = broker.enqueue(message).job_id  # type: ignore[attr-defined]
    assert first != second
    assert broker.get_queue_message_counts("default") == (2, 0, 0)


def test_a_consumed_message_equals_the_one_sent(broker: EchoMQBroker) -> None:
    broker.declare_queue("default")
    message = broker.enqueue(a_message())
    consumer = broker.consume("default", timeout=2000)
    delivery = next(consumer)
    assert isinstance(delivery, MessageProxy)
    assert isinstance(delivery, Delivery)
    assert delivery == message
    assert delivery.message_id == message.message_id
    assert delivery.message_timestamp == message.message_timestamp
    assert delivery.args == (1, [2])
    assert delivery.options == {"tenant": "acme"}
    assert delivery.asdict() == message.asdict()
    assert delivery.copy() == message
    assert str(delivery) == str(message)
    assert not delivery.failed
    consumer.ack(delivery)
    consumer.close()


def test_a_copy_of_a_delivery_with_other_options_leaves_the_delivery_alone(broker: EchoMQBroker) -> None:
    broker.declare_queue("default")
    broker.enqueue(a_message())
    consumer = broker.consume("default", timeout=2000)
    delivery = next(consumer)
    assert delivery is not None
    assert delivery.copy(options={"x": 1}).options == {"tenant": "acme", "x": 1}
    assert delivery.options == {"tenant": "acme"}
    consumer.close()


def test_the_payload_is_dramatiqs_json_message(broker: EchoMQBroker, actor: dramatiq.Actor[..., Any]) -> None:
    message = actor.send(1, k="v")
    job = broker.queue("default").get(message.job_id)  # type: ignore[attr-defined]
    assert job is not None
    assert json.loads(job.payload) == {
        "queue_name": "default",
        "actor_name": "f",
        "args": [1],
        "kwargs": {"k": "v"},
        "options": {},
        "message_id": message.message_id,
        "message_timestamp": message.message_timestamp,
    }


def test_a_message_proxy_can_be_enqueued(broker: EchoMQBroker) -> None:
    broker.declare_queue("default")
    proxy = MessageProxy(a_message())
    sent = broker.enqueue(proxy)  # type: ignore[arg-type]
    assert isinstance(sent, Message)
    assert sent == proxy._message  # noqa: SLF001


def test_a_delivery_enqueued_outside_of_hooks_is_a_new_job(broker: EchoMQBroker) -> None:
    broker.declare_queue("default")
    broker.enqueue(a_message())
    consumer = broker.consume("default", timeout=2000)
    delivery = next(consumer)
    assert delivery is not None
    sent = broker.enqueue(delivery, delay=60_000)
    assert sent.job_id != delivery.job_id
    assert sent == delivery
    consumer.ack(delivery)
    assert broker.get_queue_message_counts("default") == (0, 1, 0)
    consumer.close()


@pytest.mark.parametrize("suffix", [".DQ", ".XQ"])
def test_a_message_for_a_delay_or_dead_queue_goes_to_the_queue_itself(broker: EchoMQBroker, suffix: str) -> None:
    sent = broker.enqueue(a_message(queue_name=f"default{suffix}"))
    assert sent.queue_name == "default"
    assert broker.get_queue_message_counts("default") == (1, 0, 0)


def test_pickle_carries_what_json_cannot(
    pickled: None, broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    seen: list[Any] = []
    record = dramatiq.actor(actor_name="record")(seen.append)
    values = [b"\x00\xff\r\n", {1, 2}, datetime.date(2026, 1, 2), (1, (2,)), float("inf")]
    for value in values:
        record.send(value)
    finish(broker)
    assert len(seen) == len(values)
    assert all(value in seen for value in values)


def test_pickled_options_survive_a_retry(
    pickled: None, broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    broker.add_middleware(dramatiq.middleware.CurrentMessage())
    seen: list[Any] = []

    @dramatiq.actor(min_backoff=1, max_backoff=1)
    def flaky() -> None:
        message = dramatiq.middleware.CurrentMessage.get_current_message()
        assert message is not None
        seen.append(message.options["blob"])
        if len(seen) == 1:
            raise RuntimeError("again")

    flaky.send_with_options(blob=b"\xff\x00")
    finish(broker)
    assert seen == [b"\xff\x00", b"\xff\x00"]


def test_an_encoder_of_ones_own_is_used_both_ways(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None], actor: dramatiq.Actor[..., Any]
) -> None:
    class Reversed(JSONEncoder):
        def encode(self, data: Any) -> bytes:
            return super().encode(data)[::-1]

        def decode(self, data: bytes) -> Any:
            return super().decode(data[::-1])

    seen: list[Any] = []
    record = dramatiq.actor(actor_name="record")(seen.append)
    before = dramatiq.get_encoder()
    dramatiq.set_encoder(Reversed())
    try:
        message = record.send("mirror")
        finish(broker)
    finally:
        dramatiq.set_encoder(before)
    assert seen == ["mirror"]
    assert message.job_id  # type: ignore[attr-defined]


def test_a_large_message_goes_through(broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]) -> None:
    seen: list[int] = []
    record = dramatiq.actor(actor_name="record")(lambda text: seen.append(len(text)))
    record.send("ä" * 2_000_000)
    finish(broker)
    assert seen == [2_000_000]


@pytest.mark.parametrize(
    "args",
    [
        (),
        (1, 2.5, None, True),
        ("é🐍\u2028", '"\\'),
        ([1, [2]], {"a": {"b": []}}),
        (float("nan"), float("inf"), 10**30),
    ],
)
def test_a_payload_is_what_dramatiq_would_have_written(broker: EchoMQBroker, args: tuple[Any, ...]) -> None:
    message = dramatiq.Message("default", "nobody", args, {"k": args}, {"o": 1})
    broker.enqueue(message)
    (job,) = broker.queue("default").claim()
    assert job.payload == message.encode()
