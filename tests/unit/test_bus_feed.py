"""Live events without a server: what is refused before a byte is sent, patterns, and the bounded buffer."""

from __future__ import annotations

import fnmatch
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq_tasks.bus import Bus, Event, Gap, Subscription
from echomq_tasks.bus.channel import PLAIN, Channel, check_pattern, matcher, queue_of
from echomq_tasks.bus.feed import Closed, Feed
from echomq_tasks.bus.names import near_event, warn_of_odd_events
from echomq_tasks.connection import Connection
from echomq_tasks.errors import InvalidArgument, InvalidName

NAMES = st.text("ab.-_Z9", min_size=1, max_size=12)


class Offline(Bus):
    """A bus that must not reach for a server."""

    def connect(self) -> Connection:
        raise AssertionError("a byte would have been sent")


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (lambda bus: bus.subscribe(), InvalidArgument, "which queues"),
        (lambda bus: bus.subscribe("a b"), InvalidName, "queue name"),
        (lambda bus: bus.subscribe("emq"), InvalidName, "reserved"),
        (lambda bus: bus.subscribe("mail.*"), InvalidName, r"patterns=\('mail\.\*',\)"),
        (lambda bus: bus.subscribe(b"orders"), InvalidName, "queue name"),
        (lambda bus: bus.subscribe("a", events="failed"), InvalidArgument, r"\{'failed'\}"),
        (lambda bus: bus.subscribe("a", events=[]), InvalidArgument, "None for all"),
        (lambda bus: bus.subscribe("a", events=[1]), InvalidArgument, "set of names"),
        (lambda bus: bus.subscribe(patterns="mail.*"), InvalidArgument, r"\('mail\.\*',\)"),
        (lambda bus: bus.subscribe(patterns=["a[bc]"]), InvalidName, "pattern"),
        (lambda bus: bus.subscribe(patterns=["a}:x{"]), InvalidName, "pattern"),
        (lambda bus: bus.subscribe(patterns=[""]), InvalidName, "pattern"),
        (lambda bus: bus.subscribe("a", buffer=0), InvalidArgument, "buffer"),
        (lambda bus: bus.subscribe("a", buffer=True), InvalidArgument, "buffer"),
        (lambda bus: bus.subscribe("a", catch_up="no log"), InvalidName, "log name"),
        (lambda bus: bus.asubscribe("a", catch_up=1), InvalidName, "log name"),
        (lambda bus: bus.publish("a b", "x"), InvalidName, "queue name"),
        (lambda bus: bus.publish("a", "failed"), InvalidArgument, "order.failed"),
        (lambda bus: bus.publish("a", ""), InvalidName, "event"),
        (lambda bus: bus.publish("a", "x y"), InvalidName, "event"),
        (lambda bus: bus.publish("a", 5), InvalidName, "event"),
        (lambda bus: bus.publish("a", "x", n=5), InvalidArgument, r"use str\(\)"),
        (lambda bus: bus.publish("a", "x", n="\ud800"), InvalidArgument, "surrogate"),
        (lambda bus: bus.publish("a", "x", **{"\udfff": "n"}), InvalidArgument, "surrogate"),
        (lambda bus: bus.publish("a", "x", id="EVT0KHTOWnGLuC"), InvalidArgument, "'id'"),
        (lambda bus: bus.publish("a", "x", event="failed"), InvalidArgument, "'event'"),
        (lambda bus: bus.publish("a", "x", queue="b"), InvalidArgument, "'queue'"),
    ],
)  # fmt: skip
def test_what_is_not_allowed_is_refused_before_a_byte_is_sent(
    arguments: Callable[[Bus], Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        arguments(Offline())


@given(NAMES, st.lists(st.sampled_from(["a", "b", ".", "-", "*", "?"]), min_size=1, max_size=10))
def test_a_pattern_matches_as_a_glob_does(name: str, parts: list[str]) -> None:
    pattern = "".join(parts)
    assert check_pattern(pattern) == pattern
    assert bool(matcher(pattern).fullmatch(name)) == fnmatch.fnmatchcase(name, pattern)


def test_a_pattern_of_many_stars_is_matched_at_once() -> None:
    assert not matcher("*a" * 60).fullmatch("a" * 59 + "b" * 60)


@pytest.mark.parametrize(
    "channel", [b"emq:{a}:eventsx", b"emq:{a}:x}:events", b"emq:{}:events", b"emq:{emq}:events", b"emq:{\xff}:events"]
)
def test_a_channel_that_is_no_queues_has_no_queue(channel: bytes) -> None:
    assert queue_of(channel) is None
    assert queue_of(b"emq:{a.b}:events") == "a.b"


def feed(*queues: str, patterns: tuple[str, ...] = (), events: set[str] | None = None, size: int = 100) -> Feed:
    return Feed(queues, patterns, None if events is None else frozenset(events), size, None)


def drained(subject: Feed) -> list[Any]:
    found = []
    while (item := subject.take()) is not None:
        found.append(item)
    return found


def test_a_full_buffer_loses_the_oldest_and_tells_how_many() -> None:
    subject = feed("q", size=32)
    for number in range(100):
        subject.offer(Event(str(number), "q", at=float(number)), None)
    first, *rest = drained(subject)
    assert first == Gap("overflow", 0.0, ("q",), (), first.lost)
    assert [event.event for event in rest] == [str(number) for number in range(first.lost, 100)]
    assert 28 <= len(rest) <= 32


def test_a_gap_that_overflows_is_told_with_what_was_lost_behind_it() -> None:
    subject = feed("q", "r", size=2)
    channel = Channel(PLAIN, "r")
    channel.lost_at = 5.0
    subject.miss([channel])
    for number in range(4):
        subject.offer(Event(str(number), "q", at=7.0), None)
    assert [getattr(item, "event", item) for item in drained(subject)] == [
        Gap("overflow", 5.0, ("q", "r"), (), 2), "2", "3",
    ]  # fmt: skip


def test_gaps_that_nothing_stands_between_are_one() -> None:
    subject = feed("q", "r", patterns=("x*",))
    for topic, at in (("q", 2.0), ("r", 1.0)):
        channel = Channel(PLAIN, topic)
        channel.lost_at = at
        subject.miss([channel])
    assert drained(subject) == [Gap("reconnected", 1.0, ("q", "r"))]


def test_each_event_comes_by_one_way_only() -> None:
    subject = feed("mail.a", patterns=("mail.*", "*.b"))
    ways = [("mail.a", None), ("mail.a", "mail.*"), ("mail.b", "mail.*"), ("mail.b", "*.b"), ("x.b", "*.b")]
    for number, (queue, way) in enumerate(ways):
        subject.offer(Event(str(number), queue), way)
    assert [event.event for event in drained(subject)] == ["0", "2", "4"]


def test_an_error_is_met_behind_what_was_heard_before_it_and_a_closed_feed_is_empty() -> None:
    subject = feed("q")
    subject.started.set_result(None)
    subject.offer(Event("x", "q"), None)
    subject.fail(InvalidArgument("no more"))
    assert getattr(subject.take(), "event", None) == "x"
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="no more"):
            subject.take()
    subject.offer(Event("y", "q"), None)
    assert subject.close()
    assert not subject.close()
    with pytest.raises(Closed):
        subject.take()


class KnowsAll:
    """Of a log that has given events already."""

    unlogged: frozenset[str] = frozenset()

    def __init__(self, known: str) -> None:
        self._known = known

    def hear(self, event: Event, *, wanted: bool) -> None:
        pass

    def has_given(self, event: Event) -> bool:
        return event.event == self._known

    def is_sure(self, queue: str, number: int) -> bool:
        return True


class LateBell:
    """The reader's bell, which is held up when it is emptied: until something has rung it."""

    def __init__(self, bell: Any, meanwhile: Callable[[], None]) -> None:
        self._bell = bell
        self._meanwhile = [meanwhile]

    def get(self, block: bool, timeout: float | None) -> None:
        if not block and self._meanwhile:
            self._meanwhile.pop()()
        self._bell.get(block, timeout)

    def put(self, item: None) -> None:
        self._bell.put(item)


@pytest.mark.parametrize("act", ["offer", "close"])
def test_an_event_that_rings_just_when_the_reader_looks_does_not_make_it_deaf(act: str) -> None:
    subject = Feed(["q"], (), None, 100, KnowsAll("known"))  # type: ignore[arg-type]
    subscription = Subscription(subject)
    bell = LateBell(subscription._bell, lambda: subject.offer(Event("known", "q"), None))  # noqa: SLF001
    subscription._bell = bell  # type: ignore[assignment]  # noqa: SLF001
    heard: list[Any] = []
    reader = threading.Thread(target=lambda: heard.extend(subscription), daemon=True)
    reader.start()
    while bell._meanwhile:  # noqa: SLF001
        pass
    if act == "offer":
        subject.offer(Event("new", "q"), None)
        while not heard and reader.is_alive():
            reader.join(0.001)
    subscription.close()
    reader.join(20)
    assert not reader.is_alive()
    assert [item.event for item in heard] == (["new"] if act == "offer" else [])


def test_a_subscription_whose_closing_was_interrupted_can_be_closed_again() -> None:
    class Interrupted:
        left = 0
        over = False

        def leave(self, feed: Feed) -> None:
            self.left += 1
            if self.left == 1:
                raise KeyboardInterrupt
            feed.let_go()

    subject = feed("q")
    subject.hub = hub = Interrupted()  # type: ignore[assignment]
    subscription = Subscription(subject)
    with pytest.raises(KeyboardInterrupt):
        subscription.close()
    for _ in range(2):
        subscription.close()
    assert hub.left == 2


def test_names_that_are_almost_an_events_are_told_once_and_an_apps_own_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(2):
        with caplog.at_level(logging.WARNING), pytest.raises(InvalidArgument, match="buffer"):
            Offline().subscribe("q", events={"complted", "failed", "order.completed", "done"}, buffer=0)
    (line,) = caplog.records
    assert "'complted'" in line.message
    assert "did you mean 'completed'?" in line.message
    assert near_event("failed") is None
    warn_of_odd_events(["worker_stoped"])
    assert "'worker_stopped'" in caplog.records[-1].message
