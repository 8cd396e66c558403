"""A server that is away, in the words Dramatiq understands."""

from __future__ import annotations

import threading
from collections.abc import Callable

import dramatiq
import pytest
from dramatiq import Message, Worker
from dramatiq.errors import BrokerConnectionError, ConnectionClosed
from support.eventually import eventually
from support.servers import ServerProcess, free_port

from echomq_tasks.brokers.dramatiq import EchoMQBroker


@pytest.fixture
def nowhere() -> EchoMQBroker:
    broker = EchoMQBroker(f"valkey://127.0.0.1:{free_port()}", connect_timeout=0.5)
    broker.declare_queue("default")
    return broker


@pytest.mark.parametrize(
    "use",
    [
        lambda broker: broker.enqueue(Message("default", "f", (), {}, {})),
        lambda broker: broker.enqueue(Message("default", "f", (), {}, {}), delay=100),
        lambda broker: next(broker.consume("default", timeout=100)),
        lambda broker: broker.flush("default"),
        lambda broker: broker.join("default", timeout=100),
        lambda broker: broker.get_queue_message_counts("default"),
    ],
    ids=["enqueue", "enqueue delayed", "consume", "flush", "join", "counts"],
)
def test_a_server_that_is_away_is_a_broker_connection_error(
    nowhere: EchoMQBroker, use: Callable[[EchoMQBroker], object]
) -> None:
    # It names the server, so that a person knows which one to look after.
    with pytest.raises(BrokerConnectionError, match=r"valkey://127\.0\.0\.1:\d+/0") as caught:
        use(nowhere)
    assert isinstance(caught.value, ConnectionClosed)
    nowhere.close()


def test_a_server_that_went_away_is_found_again(own_server: ServerProcess) -> None:
    broker = EchoMQBroker(own_server.url)
    broker.declare_queue("default")
    broker.enqueue(Message("default", "f", (), {}, {}))
    own_server.kill()
    with pytest.raises(BrokerConnectionError):
        broker.enqueue(Message("default", "f", (), {}, {}))
    own_server.start()
    broker.enqueue(Message("default", "f", (), {}, {}))
    assert broker.get_queue_message_counts("default") == (2, 0, 0)
    broker.close()


def test_a_worker_started_before_its_server_finds_it(
    own_server: ServerProcess, make_worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 0.05)
    own_server.kill()
    broker = EchoMQBroker(own_server.url, connect_timeout=0.5)
    ran = threading.Event()
    f = dramatiq.actor(actor_name="f", broker=broker)(ran.set)
    worker = make_worker(broker)
    own_server.start()
    f.send()
    eventually(ran.is_set, message="the job ran")
    worker.stop()
    broker.close()


def test_an_ack_that_cannot_be_sent_can_be_repeated(own_server: ServerProcess) -> None:
    broker = EchoMQBroker(own_server.url)
    broker.declare_queue("default")
    broker.enqueue(Message("default", "f", (), {}, {}))
    consumer = broker.consume("default", timeout=2000)
    delivery = next(consumer)
    assert delivery is not None
    own_server.kill()
    with pytest.raises(BrokerConnectionError):
        consumer.ack(delivery)
    own_server.start()
    consumer.ack(delivery)
    counts = broker.queue("default").counts()
    assert (counts.unfinished, counts.completed) == (0, 1)
    broker.close()
