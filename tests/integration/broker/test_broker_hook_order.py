"""The hooks of user middleware run in the order in which Dramatiq's own StubBroker runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
from dramatiq import Broker, Middleware, Worker
from dramatiq import middleware as stock
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import SkipMessage
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend
from support.eventually import eventually

from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.middleware import Retries

#: Scenario -> how often the actor fails, how often it runs in all, and the hook that ends it.
SCENARIOS = {
    "success": (0, 1, "outer.after_ack work"),
    "callback": (0, 1, "outer.after_ack told"),
    "failure": (1, 1, "outer.after_nack work"),
    "skip": (0, 0, "outer.after_ack work"),
    "unknown": (0, 0, "outer.after_nack nobody"),
    "retry": (1, 2, "outer.after_ack work"),
}


class Recorder(Middleware):
    """Notes the hooks about messages that it is called with, its own name first."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name = name
        self.events = events

    def note(self, hook: str, message: Any) -> None:
        self.events.append(f"{self.name}.{hook} {message.actor_name} retries={message.options.get('retries')}")

    def before_enqueue(self, broker: Broker, message: Any, delay: Any) -> None:
        self.note("before_enqueue", message)

    def after_enqueue(self, broker: Broker, message: Any, delay: Any) -> None:
        self.note("after_enqueue", message)

    def before_process_message(self, broker: Broker, message: Any) -> None:
        self.note("before_process", message)

    def after_process_message(self, broker: Broker, message: Any, *, result: Any = None, exception: Any = None) -> None:
        self.note(f"after_process({result!r}, {exception!r})", message)

    def after_skip_message(self, broker: Broker, message: Any) -> None:
        self.note("after_skip", message)

    def before_ack(self, broker: Broker, message: Any) -> None:
        self.note("before_ack", message)

    def after_ack(self, broker: Broker, message: Any) -> None:
        self.note("after_ack", message)

    def before_nack(self, broker: Broker, message: Any) -> None:
        self.note("before_nack", message)

    def after_nack(self, broker: Broker, message: Any) -> None:
        self.note("after_nack", message)


class Skip(Middleware):
    """Skips every message."""

    def before_process_message(self, broker: Broker, message: Any) -> None:
        raise SkipMessage("not today")


def default_middleware(retries: type[stock.Retries]) -> list[Middleware]:
    return [stock.AgeLimit(), stock.Callbacks(), stock.Pipelines(), retries(), Results(backend=StubBackend())]


def record(broker: Broker, scenario: str, make_worker: Callable[..., Worker]) -> list[str]:
    """Run one message of the scenario on ``broker`` and answer the hooks in their order."""
    failures, runs, last = SCENARIOS[scenario]
    events: list[str] = []
    broker.add_middleware(Recorder("outer", events), before=stock.AgeLimit)
    if scenario == "skip":
        broker.add_middleware(Skip())
    broker.add_middleware(Recorder("inner", events))

    def work() -> int:
        events.append("run")
        if events.count("run") <= failures:
            raise RuntimeError("no luck")
        return 7

    options = {"on_success": "told"} if scenario == "callback" else {}
    dramatiq.actor(actor_name="told", broker=broker)(lambda data, result: None)
    dramatiq.actor(
        actor_name="work",
        broker=broker,
        max_retries=runs - 1,
        min_backoff=1,
        max_backoff=1,
        store_results=True,
        **options,
    )(work)
    # Sent before a worker runs, or what it does would mix with the end of the sending.
    name = "nobody" if scenario == "unknown" else "work"
    broker.enqueue(dramatiq.Message("default", name, (), {}, {}))
    worker = make_worker(broker, threads=1)

    def ended() -> bool:
        since = len(events) - events[::-1].index("run") if "run" in events else 0
        return events.count("run") == runs and any(event.startswith(last) for event in events[since:])

    eventually(ended, message=f"the message of {scenario} ends")
    worker.stop()
    return events


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != "retry"])
def test_the_order_of_hooks_is_the_stub_brokers(
    make_broker: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], scenario: str
) -> None:
    theirs = record(StubBroker(middleware=default_middleware(stock.Retries)), scenario, make_worker)
    ours = record(make_broker(middleware=default_middleware(Retries)), scenario, make_worker)
    assert ours == theirs


@pytest.mark.parametrize("retries", [Retries, stock.Retries])
def test_the_hooks_of_a_retry_are_the_stub_brokers_but_for_its_delay_queue(
    make_broker: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], retries: type[stock.Retries]
) -> None:
    theirs = record(StubBroker(middleware=default_middleware(stock.Retries)), "retry", make_worker)
    ours = record(make_broker(middleware=default_middleware(retries)), "retry", make_worker)
    second_run = "outer.before_process work retries=1"
    # StubBroker holds the retry as a copy in its worker: when it is due it is enqueued once more and the copy is
    # acknowledged, maybe while the second run is under way. Here the server keeps the one job until it is due.
    enqueues = [place for place, event in enumerate(theirs) if event.startswith("outer.before_enqueue")]
    assert len(enqueues) == 3
    assert ours[: ours.index(second_run)] == theirs[: enqueues[2]]

    def without_acks(events: list[str]) -> list[str]:
        return [
            event for event in events[events.index(second_run) :] if "_ack" not in event and "_enqueue" not in event
        ]

    assert without_acks(ours) == without_acks(theirs)
    assert sum("outer.after_ack" in event for event in ours) == 2
