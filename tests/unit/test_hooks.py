"""Which hooks are called: those that do something, in Dramatiq's order, and whatever the list of middleware becomes."""

from __future__ import annotations

from typing import Any

import pytest
from dramatiq import Broker, Middleware
from dramatiq.middleware import SkipMessage

from echomq_tasks.brokers.dramatiq.hooks import Hooks


class Noting(Middleware):
    def __init__(self, name: str, seen: list[str]) -> None:
        self.name = name
        self.seen = seen

    def before_ack(self, broker: Any, message: Any) -> None:
        self.seen.append(f"{self.name} before {message}")

    def after_ack(self, broker: Any, message: Any) -> None:
        self.seen.append(f"{self.name} after {message}")


class Silent(Middleware):
    """Overrides nothing."""


@pytest.fixture
def broker() -> Broker:
    return Broker(middleware=[])


def test_hooks_are_called_in_order_and_back(broker: Broker) -> None:
    seen: list[str] = []
    broker.middleware += [Noting("a", seen), Silent(), Noting("b", seen)]
    hooks = Hooks(broker)
    hooks.before("ack", "m")
    hooks.after("ack", "m")
    assert seen == ["a before m", "b before m", "b after m", "a after m"]


def test_only_middleware_that_does_something_is_asked(broker: Broker) -> None:
    noting = Noting("a", [])
    broker.middleware += [Silent(), noting]
    hooks = Hooks(broker)
    assert hooks.who("after_ack") == (noting,)
    assert hooks.who("after_nack") == ()


def test_a_hook_put_on_an_object_counts(broker: Broker) -> None:
    seen: list[Any] = []
    silent: Any = Silent()
    silent.after_nack = lambda broker, message: seen.append(message)
    broker.middleware.append(silent)
    Hooks(broker).after("nack", "m")
    assert seen == ["m"]


def test_what_is_added_to_or_taken_off_the_list_by_hand_is_seen(broker: Broker) -> None:
    seen: list[str] = []
    hooks = Hooks(broker)
    hooks.before("ack", "m")
    first, second = Noting("first", seen), Noting("second", seen)
    broker.middleware.append(first)
    hooks.before("ack", "m")
    broker.middleware.insert(0, second)
    hooks.before("ack", "m")
    broker.middleware.remove(first)
    hooks.before("ack", "m")
    assert seen == ["first before m", "second before m", "first before m", "second before m"]


def test_what_a_hook_raises_is_logged_but_for_what_it_means_to_say(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Middleware):
        def before_process_message(self, broker: Any, message: Any) -> None:
            raise SkipMessage if message == "skip" else RuntimeError("no luck")

        def after_process_message(
            self, broker: Any, message: Any, *, result: Any = None, exception: Any = None
        ) -> None:
            raise SkipMessage

    broker.middleware.append(Broken())
    hooks = Hooks(broker)
    hooks.before("process_message", "run")
    hooks.after("process_message", "run", result=1)
    assert caplog.text.count("Unexpected failure in") == 2
    with pytest.raises(SkipMessage):
        hooks.before("process_message", "skip")
