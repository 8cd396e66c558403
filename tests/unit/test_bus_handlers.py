"""What the decorators of a bus take, keep and refuse; none of it talks to a server."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

import echomq_tasks.bus.bus
import echomq_tasks.bus.names
from echomq_tasks.bus import Bus, Consumer, Log, Runner, buses_with_handlers
from echomq_tasks.bus.groups import dead_log
from echomq_tasks.bus.handlers import registered
from echomq_tasks.connection import Connection
from echomq_tasks.errors import InvalidArgument, InvalidName


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> Bus:
    """A bus that must not connect."""

    def refuse() -> Connection:
        raise AssertionError("a decorator connects")

    monkeypatch.setattr(echomq_tasks.bus.bus, "connect", refuse)
    return Bus()


def function(event: Any) -> None:
    """Some handler."""


async def coroutine(event: Any) -> None:
    """Some async handler."""


class Callable_:
    """A handler that is an object."""

    def __call__(self, event: Any) -> None:
        """Nothing."""


def test_a_decorator_answers_the_function_itself_and_registers_it(bus: Bus) -> None:
    assert bus.on("failed", "dead", queues=["orders"], gaps=True)(function) is function
    assert bus.on()(coroutine) is coroutine
    assert bus.consumer("orders", "audit", group="billing", start="new", threads=3, name="me")(function) is function
    named, every = registered(bus).live
    assert (named.events, named.queues, named.patterns, named.gaps) == (
        *(frozenset({"failed", "dead"}), ("orders",), ()),
        True,
    )
    assert (every.events, every.queues, every.patterns, every.gaps) == (None, (), ("*",), False)
    (group,) = registered(bus).groups
    assert (group.queue, group.log, group.group, group.threads) == ("orders", "audit", "billing", 3)
    assert group.settings.start == "new"


def test_a_bus_with_handlers_is_found_for_as_long_as_it_is_there() -> None:
    first, second, empty = Bus(), Bus(), Bus()
    second.on("failed")(function)
    first.consumer("q", "audit", group="g", start="head")(function)
    registered(empty)
    found = buses_with_handlers()
    assert [bus for bus in found if bus in (first, second, empty)] == [second, first]
    del first, found
    gc.collect()
    assert [bus for bus in buses_with_handlers() if bus in (second, empty)] == [second]


@pytest.mark.parametrize(
    ("arguments", "named", "error"),
    [
        ((1,), {}, InvalidArgument),
        (("",), {}, InvalidArgument),
        ((["failed"],), {}, InvalidArgument),
        (("failed",), {"queues": "orders"}, InvalidArgument),
        (("failed",), {"queues": ["a b"]}, InvalidName),
        (("failed",), {"queues": ["emq"]}, InvalidName),
        (("failed",), {"patterns": "mail.*"}, InvalidArgument),
        (("failed",), {"patterns": ["a b*"]}, InvalidName),
        (("failed",), {"catch_up": "no log"}, InvalidName),
    ],
)
def test_a_live_handler_that_could_not_run_is_refused_at_once(
    bus: Bus, arguments: Any, named: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        bus.on(*arguments, **named)(function)
    assert registered(bus).live == []


def test_what_cannot_be_called_is_no_handler(bus: Bus) -> None:
    with pytest.raises(InvalidArgument, match="function of one event"):
        bus.on("failed")("no function")  # type: ignore[type-var]
    with pytest.raises(InvalidArgument, match="function of one delivery"):
        bus.consumer("q", "audit", group="g", start="head")(None)  # type: ignore[type-var]


def wrapped() -> Callable[[Any], None]:
    """What a decorator makes, as one that passes on more than it is called with."""

    def made(event: Any) -> None:
        """Nothing."""

    made.__wrapped__ = lambda event, database: None  # type: ignore[attr-defined]
    return made


NOT_OF_ONE = [lambda: None, lambda first, second: None, lambda *, event: None, threading.Event().set]
OF_ONE = [print, [].append, dict.fromkeys, lambda *several: None, lambda event, more=1: None, Callable_(), wrapped()]


@pytest.mark.parametrize("wrong", NOT_OF_ONE)
def test_a_function_that_cannot_be_called_with_one_argument_is_refused_at_once(
    bus: Bus, standalone: Connection, wrong: Any
) -> None:
    with pytest.raises(InvalidArgument, match=r"decorates a function of one event, but .* takes "):
        bus.on("failed")(wrong)
    with pytest.raises(InvalidArgument, match=r"a handler is a function of one delivery, but .* takes "):
        bus.consumer("q", "audit", **GOOD)(wrong)
    consumer = Consumer(Log("q", "audit", standalone), **GOOD)
    with pytest.raises(InvalidArgument, match="function of one delivery"):
        consumer.run(wrong)
    with pytest.raises(InvalidArgument, match="function of one delivery"):
        Consumer(Log("q", "audit", standalone), handler=wrong, **GOOD)
    with pytest.raises(InvalidArgument, match=r"on_behind is a function of one number, but .* takes "):
        bus.consumer("q", "audit", on_behind=wrong, **GOOD)
    found = registered(bus)
    assert (found.live, found.groups) == ([], [])


@pytest.mark.parametrize("right", OF_ONE)
def test_whatever_can_be_called_with_one_argument_is_taken(bus: Bus, right: Any) -> None:
    assert bus.on("failed")(right) is right
    assert bus.consumer("q", "audit", **GOOD, on_behind=right)(right) is right


def test_an_event_that_is_almost_one_of_the_library_is_told_once(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(echomq_tasks.bus.names, "_told", set())
    bus.on("failed", "order.paid", "faild")(function)
    bus.on("faild")(function)
    assert len(registered(bus).live) == 2
    (record,) = caplog.records
    assert "'faild'" in record.getMessage()
    assert "did you mean 'failed'?" in record.getMessage()


@pytest.mark.parametrize("log", ["audit", None, b"audit"])
def test_a_consumer_of_what_is_no_log_is_refused(log: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"takes a log, as bus\.log"):
        Consumer(log, **GOOD)


GOOD: dict[str, Any] = {"group": "billing", "start": "head"}


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"group": "a b"}, InvalidName),
        ({"group": ""}, InvalidName),
        ({"group": "x" * 129}, InvalidName),
        ({"group": b"billing"}, InvalidName),
        ({"name": "a:b"}, InvalidName),
        ({"name": "é"}, InvalidName),
        ({"start": "0"}, InvalidArgument),
        ({"batch": 0}, InvalidArgument),
        ({"batch": 1001}, InvalidArgument),
        ({"batch": True}, InvalidArgument),
        ({"concurrency": 0}, InvalidArgument),
        ({"concurrency": 2}, InvalidArgument),  # of a function that is not async
        ({"min_idle": 0}, InvalidArgument),
        ({"min_idle": "30"}, InvalidArgument),
        ({"min_idle": float("nan")}, InvalidArgument),
        ({"max_deliveries": 0}, InvalidArgument),
        ({"beat": 61}, InvalidArgument),
        ({"beat": 0}, InvalidArgument),
        ({"forget": -1}, InvalidArgument),
        ({"on_behind": 5}, InvalidArgument),
        ({"on_behind": coroutine}, InvalidArgument),
    ],
)
def test_a_consumer_with_settings_out_of_range_is_refused_at_once(
    bus: Bus, standalone: Connection, wrong: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        bus.consumer("q", "audit", **{**GOOD, **wrong})(function)
    with pytest.raises(error):
        Consumer(Log("q", "audit", standalone), handler=function, **{**GOOD, **wrong})
    assert registered(bus).groups == []


@pytest.mark.parametrize(("queue", "log"), [("a b", "audit"), ("q", "a:b"), ("emq", "audit"), ("q", "x" * 124)])
def test_a_log_that_cannot_be_is_refused_at_once(bus: Bus, queue: str, log: str) -> None:
    with pytest.raises(InvalidName):
        bus.consumer(queue, log, **GOOD)(function)
    with pytest.raises(InvalidName):
        bus.groups("q" if queue == "q" else queue, "a:b")


def test_a_dead_log_has_room_for_its_name() -> None:
    assert dead_log("x" * 123) == "x" * 123 + ".dead"
    with pytest.raises(InvalidName, match="123 characters at most"):
        dead_log("x" * 124)


def test_threads_are_for_functions_and_concurrency_for_coroutines(bus: Bus) -> None:
    with pytest.raises(InvalidArgument, match="use concurrency"):
        bus.consumer("q", "audit", **GOOD, threads=2)(coroutine)
    with pytest.raises(InvalidArgument, match="make 2 consumers"):
        bus.consumer("q", "audit", **GOOD, concurrency=2)(Callable_())
    bus.consumer("q", "audit", **GOOD, concurrency=2)(coroutine)


def test_two_handlers_of_one_group_on_one_bus_are_refused(bus: Bus) -> None:
    bus.consumer("q", "audit", **GOOD)(function)
    with pytest.raises(InvalidArgument, match="a group of its own"):
        bus.consumer("q", "audit", **GOOD)(function)
    bus.consumer("q", "audit", group="mails", start="head")(function)
    bus.consumer("q", "other", **GOOD)(function)


def test_consumers_have_names_of_their_own_that_tell_the_process(bus: Bus, standalone: Connection) -> None:
    log = Log("q", "audit", standalone)
    names = {Consumer(log, "billing", start="head").name for _ in range(100)}
    assert len(names) == 100
    bus.consumer("q", "audit", **GOOD, threads=2, name="pod")(function)
    bus.consumer("q", "other", **GOOD, name="pod")(function)
    two, one = registered(bus).groups
    assert [two.consumer(standalone, place).name for place in range(2)] == ["pod-1", "pod-2"]
    assert one.consumer(standalone).name == "pod"


def test_every_setting_of_a_registered_group_reaches_its_consumers(bus: Bus, standalone: Connection) -> None:
    wanted: dict[str, Any] = {
        "group": "billing", "start": "new", "name": "pod", "batch": 7, "concurrency": 3, "min_idle": 11.0,
        "max_deliveries": 13, "beat": 17.0, "forget": 19.0, "on_behind": function,
    }  # fmt: skip
    bus.consumer("q", "audit", **wanted)(coroutine)
    (group,) = registered(bus).groups
    assert group.settings.options() == wanted
    alone = Consumer(Log("q", "audit", standalone), handler=coroutine, **wanted)
    assert alone.settings == group.settings == group.consumer(standalone).settings


def test_a_runner_of_nothing_starts_and_stops(bus: Bus) -> None:
    with Runner([bus]) as runner:
        assert not runner.running
        assert runner.stop()
