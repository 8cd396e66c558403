"""What a worker runs beside its actors: the functions registered on the bus."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator

import pytest
from dramatiq import Worker
from support.eventually import eventually

from echomq_tasks import actor
from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.brokers.dramatiq import broker as broker_module
from echomq_tasks.brokers.dramatiq.listening import Listening
from echomq_tasks.bus import Bus, Delivery, Event, handlers
from echomq_tasks.connection import Connection

MakeWorker = Callable[..., Worker]


@pytest.fixture(autouse=True)
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listening]:
    """A fresh one, and no handlers: what other tests left behind does not count."""
    mine = Listening()
    monkeypatch.setattr(handlers, "_registered", weakref.WeakKeyDictionary())
    monkeypatch.setattr(broker_module, "listening", mine)
    yield mine
    mine.stop()


@pytest.fixture
def broker(standalone: Connection) -> Iterator[EchoMQBroker]:
    made = EchoMQBroker(connection=standalone)
    made.announce_by_default()
    yield made
    made.close()


def test_the_bus_of_a_broker_connects_when_the_broker_does(broker: EchoMQBroker, standalone: Connection) -> None:
    away = EchoMQBroker("valkey://127.0.0.1:1")
    away.bus.on("failed")(lambda event: None)
    away.bus.consumer("orders", "audit", group="g", start="new")(lambda delivery: None)
    assert broker.bus.connect() is standalone


def test_a_worker_runs_handlers_until_its_last_one_has_stopped(broker: EchoMQBroker, make_worker: MakeWorker) -> None:
    heard: list[str | None] = []
    billed: list[str] = []

    @broker.bus.on("completed", queues=["default"])
    async def note(event: Event) -> None:
        heard.append(event.actor)

    @broker.bus.consumer("default", "audit", group="billing", start="head", beat=0.1)
    def bill(delivery: Delivery) -> None:
        billed.append(delivery.fields["what"])

    work = actor(lambda: None, actor_name="work", broker=broker)
    log = broker.bus.log("default", "audit")
    first, second = make_worker(broker, threads=1), make_worker(broker, threads=1)
    first.stop()
    log.append({"what": "paid"})
    # It subscribes in a thread of its own, so the first jobs may be done before it hears.
    eventually(lambda: work.send() and heard)
    eventually(lambda: billed == ["paid"])
    second.stop()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("echomq-on", "echomq-group"))]
    assert set(heard) == {"work"}


def test_the_first_handler_may_come_after_the_worker(broker: EchoMQBroker, make_worker: MakeWorker) -> None:
    billed: list[str] = []
    log = broker.bus.log("default", "audit")
    log.append({"what": "paid"})
    worker = make_worker(broker, threads=1)
    for group in ("billing", "mails"):
        broker.bus.consumer("default", "audit", group=group, start="head")(
            lambda each, group=group: billed.append(group)
        )
    # One that nobody knew before, too.
    other = Bus(broker.connection)
    other.consumer("default", "audit", group="others", start="head")(lambda each: billed.append("others"))
    eventually(lambda: sorted(billed) == ["billing", "mails", "others"])
    worker.stop()
    broker.bus.consumer("default", "audit", group="late", start="head")(lambda each: billed.append("late"))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("echomq-group")]
    other.close()


def test_handlers_run_on_for_a_worker_that_boots_while_the_last_one_stops(
    broker: EchoMQBroker, listening: Listening
) -> None:
    billed: list[str] = []
    log = broker.bus.log("default", "audit")

    @broker.bus.consumer("default", "audit", group="billing", start="head", beat=0.1)
    def bill(delivery: Delivery) -> None:
        billed.append(delivery.fields["what"])

    listening.start()
    listening.ask()
    listening.start()
    listening.stop()
    log.append({"what": "paid"})
    eventually(lambda: billed == ["paid"])
    listening.stop()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("echomq-group")]


def test_handlers_take_nothing_new_while_the_last_jobs_of_a_stopping_worker_end(
    broker: EchoMQBroker, make_worker: MakeWorker
) -> None:
    running, go_on = threading.Event(), threading.Event()
    billed: list[str] = []

    @broker.bus.consumer("default", "audit", group="billing", start="head", beat=0.1)
    def bill(delivery: Delivery) -> None:
        billed.append(delivery.fields["what"])

    @actor(broker=broker)
    def work() -> None:
        running.set()
        go_on.wait(30)

    log = broker.bus.log("default", "audit")
    worker = make_worker(broker, threads=1)
    log.append({"what": "paid"})
    eventually(lambda: billed == ["paid"])
    work.send()
    running.wait(30)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    eventually(lambda: not [each for each in threading.enumerate() if each.name.startswith("echomq-group")])
    log.append({"what": "late"})
    go_on.set()
    stopping.join(30)
    assert billed == ["paid"]
