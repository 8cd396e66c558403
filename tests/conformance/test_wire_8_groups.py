"""Wire §8, consumer groups: as other runtimes make, share and read them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from conformance.scenarios import scenario
from support.consuming import running
from support.eventually import eventually
from wire.handwriting import Wire, text

from echomq_tasks.bus import Consumer, Delivery, Log
from echomq_tasks.connection import Connection
from echomq_tasks.errors import InvalidArgument

Make = Callable[..., Consumer]


class Seen:
    """A handler that notes what it is given, and raises when it is told to."""

    def __init__(self) -> None:
        self.numbers: list[str] = []
        self.deliveries: list[int] = []
        self.failing: set[str] = set()

    def __call__(self, delivery: Delivery) -> None:
        self.numbers.append(delivery.fields["n"])
        self.deliveries.append(delivery.deliveries)
        if delivery.fields["n"] in self.failing:
            raise ValueError(f"no {delivery.fields['n']}")


@pytest.fixture
def log(connection: Connection, queue_name: str) -> Log:
    return Log(queue_name, "audit", connection)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def make(log: Log, seen: Seen) -> Make:
    """A consumer of the group ``billing`` that looks for the dead often."""

    def make(**options: Any) -> Consumer:
        settings = {"start": "head", "handler": seen, "min_idle": 0.2, "beat": 0.05}
        return Consumer(log, "billing", **{**settings, **options})

    return make


def append(log: Log, *numbers: int) -> list[str]:
    """Append records; answers where they stand."""
    log.append_many([{"n": str(number)} for number in numbers])
    return [record.stream_id for record in log.read()][-len(numbers) :]


def xgroup(wire: Wire, *words: str | int) -> Any:
    """XGROUP or XREADGROUP by hand; KEY stands for the stream."""
    key = f"{wire.base}stream:audit"
    return text(wire.client.execute_command(*(key if word == "KEY" else word for word in words)))


def groups(wire: Wire) -> list[dict[str, Any]]:
    """XINFO GROUPS as it is."""
    return [text(row) for row in wire.client.xinfo_groups(f"{wire.base}stream:audit")]


def hold(wire: Wire, consumer: str, count: int) -> None:
    """Have a consumer read entries by hand, and leave them pending."""
    xgroup(wire, "XREADGROUP", "GROUP", "billing", consumer, "COUNT", count, "STREAMS", "KEY", ">")


def pending(wire: Wire) -> list[tuple[str, str, int]]:
    """Who holds what, delivered how often."""
    rows = wire.client.xpending_range(f"{wire.base}stream:audit", "billing", "-", "+", 100)
    return [(text(row["message_id"]), text(row["consumer"]), row["times_delivered"]) for row in rows]


def idle(wire: Wire) -> int:
    """For how many ms nothing was heard of the only pending entry."""
    (row,) = wire.client.xpending_range(f"{wire.base}stream:audit", "billing", "-", "+", 2)
    return int(row["time_since_delivered"])


# -- groups: the start ----------------------------------------------------------------------------------------------


@scenario("8.06.1", "the start (`head` or `new`) is always declared")
@pytest.mark.parametrize("start", ["head", "new"])
def test_a_group_begins_where_it_is_declared_to(log: Log, wire: Wire, make: Make, seen: Seen, start: str) -> None:
    append(log, 1, 2, 3)
    with running(make(start=start)):
        (group,) = eventually(lambda: log.length() and groups(wire))
        append(log, 4)
        eventually(lambda: "4" in seen.numbers)
    assert group["name"] == "billing"
    assert seen.numbers == (["1", "2", "3", "4"] if start == "head" else ["4"])
    (group,) = groups(wire)
    # Every entry of the log is accounted for, so that the lag is exact.
    assert (group["entries-read"], group["lag"], group["pending"]) == (4, 0, 0)


@scenario("8.06.2", "a consumer without a declared start is refused, and nothing is sent")
@pytest.mark.parametrize("start", [None, "", "0", "$", "tail", 0])
def test_no_start_but_head_or_new_is_taken(log: Log, wire: Wire, start: Any) -> None:
    with pytest.raises(InvalidArgument, match="head"):
        Consumer(log, "billing", start=start)
    with pytest.raises(TypeError):
        Consumer(log, "billing")  # type: ignore[call-arg]
    assert wire.read("stream:audit") is None


@scenario("8.06.3", "a group is made on a log that is not there yet, and on one that was trimmed before")
@pytest.mark.parametrize("start", ["head", "new"])
@pytest.mark.parametrize("trimmed", [True, False])
def test_a_group_that_is_made_has_lost_nothing(
    log: Log, wire: Wire, make: Make, seen: Seen, start: str, trimmed: bool
) -> None:
    if trimmed:
        append(log, 1, 2, 3)
        log.trim(maxlen=1, exact=True)
    consumer = make(start=start)
    with running(consumer):
        eventually(lambda: wire.do("EXISTS", "stream:audit") and groups(wire))
        append(log, 4)
        eventually(lambda: "4" in seen.numbers)
    assert seen.numbers == (["3", "4"] if trimmed and start == "head" else ["4"])
    assert consumer.tally.behind == 0
    assert groups(wire)[0]["lag"] == 0


@scenario("8.06.4", "a group that is there stays as it is, whoever made it")
def test_a_group_of_another_runtime_goes_on_where_it_is(log: Log, wire: Wire, make: Make, seen: Seen) -> None:
    _, second, _ = append(log, 1, 2, 3)
    xgroup(wire, "XGROUP", "CREATE", "KEY", "billing", second)
    (found,) = groups(wire)
    info = make().info()
    assert info is not None
    assert found["entries-read"] is None
    assert (info.lag, info.behind, info.last, info.consumers) == (found["lag"], None, second, 0)
    with running(make(start="head")):
        eventually(lambda: seen.numbers == ["3"])
        append(log, 4)
        eventually(lambda: seen.numbers == ["3", "4"])
    assert groups(wire)[0]["pending"] == 0


# -- groups: own first ----------------------------------------------------------------------------------------------


@scenario("8.07.1", "a consumer first drains its own pending list, then reads new entries")
def test_what_a_consumer_held_when_it_died_comes_first(log: Log, wire: Wire, make: Make, seen: Seen) -> None:
    append(log, 1, 2, 3, 4)
    xgroup(wire, "XGROUP", "CREATE", "KEY", "billing", 0)
    hold(wire, "me", 2)
    hold(wire, "you", 1)
    # Far from being idle: nobody may take what the other one holds.
    with running(make(name="me", min_idle=60, batch=1)):
        eventually(lambda: len(seen.numbers) == 3)
    assert seen.numbers == ["1", "2", "4"]
    assert seen.deliveries == [2, 2, 1]
    assert [holder for _, holder, _ in pending(wire)] == ["you"]


# -- groups: the dead -----------------------------------------------------------------------------------------------


@scenario("8.08.1", "on each beat it reclaims (`XAUTOCLAIM`) what dead peers hold")
def test_what_a_dead_peer_holds_is_claimed_after_min_idle(log: Log, wire: Wire, make: Make, seen: Seen) -> None:
    append(log, 1, 2, 3)
    xgroup(wire, "XGROUP", "CREATE", "KEY", "billing", 0)
    hold(wire, "dead", 2)
    with running(make()):
        eventually(lambda: len(seen.numbers) == 3)
    assert dict(zip(seen.numbers, seen.deliveries, strict=True)) == {"1": 2, "2": 2, "3": 1}
    assert groups(wire)[0]["pending"] == 0


@scenario("8.08.2", "an entry that its living consumer is still at work on is not reclaimed")
def test_a_long_handler_keeps_its_entry(log: Log, wire: Wire, make: Make, seen: Seen) -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow(delivery: Delivery) -> None:
        entered.set()
        assert leave.wait(20)

    append(log, 1)
    slowly = make(handler=slow, name="slow", min_idle=0.6)
    quick = make(min_idle=0.6)
    with running(slowly) as (run,):
        assert entered.wait(20)
        with running(quick):
            # Renewed every quarter of min_idle, so it would have been idle for long enough by then.
            for _ in range(5):
                eventually(lambda: idle(wire) >= 50)
                eventually(lambda: idle(wire) < 50)
            assert pending(wire) == [(next(iter(log.read())).stream_id, "slow", 1)]
            append(log, 2)
            eventually(lambda: seen.numbers == ["2"])
            leave.set()
            eventually(lambda: groups(wire)[0]["pending"] == 0)
        run.end()
    assert (slowly.tally.handled, quick.tally.handled) == (1, 1)


# -- groups: attempts -----------------------------------------------------------------------------------------------


@scenario("8.09.1", "`attempts` = the entry's delivery count")
def test_the_handler_sees_how_often_the_entry_was_delivered(log: Log, wire: Wire, make: Make, seen: Seen) -> None:
    (entry,) = append(log, 1)
    xgroup(wire, "XGROUP", "CREATE", "KEY", "billing", 0)
    hold(wire, "dead", 1)
    wire.do("XCLAIM", "stream:audit", "billing", "dead", 0, entry, "IDLE", 60_000, "RETRYCOUNT", 3)
    with running(make(max_deliveries=9)):
        eventually(lambda: seen.deliveries == [4])


# -- groups: a failing handler --------------------------------------------------------------------------------------


@scenario("8.10.1", "a handler that fails leaves the entry un-acked")
def test_a_failed_entry_stays_pending_and_the_others_go_on(log: Log, wire: Wire, make: Make, seen: Seen) -> None:
    first, *_ = append(log, 1, 2, 3)
    seen.failing = {"1"}
    consumer = make(min_idle=60, name="me")
    with running(consumer):
        eventually(lambda: consumer.tally.handled == 2)
    assert seen.numbers == ["1", "2", "3"]
    assert pending(wire) == [(first, "me", 1)]


@scenario("8.10.2", "additive: what fails too often goes to the log `<log>.dead`, with its fields and its error")
def test_an_entry_that_fails_too_often_is_buried_as_a_record(log: Log, wire: Wire, make: Make, seen: Seen) -> None:
    entry, _ = append(log, 1, 2)
    seen.failing = {"1"}
    with running(make(max_deliveries=3)):
        eventually(lambda: wire.do("EXISTS", "stream:audit.dead"))
        append(log, 3)
        eventually(lambda: "3" in seen.numbers)
    assert seen.numbers.count("1") == 3
    assert groups(wire)[0]["pending"] == 0
    original = next(iter(log.read()))
    ((entry_id, fields),) = wire.read("stream:audit.dead")
    (dead,) = Log(log.queue, "audit.dead", log.connection).read()
    assert fields == {
        "id": dead.id, "dead.id": original.id, "n": "1", "dead.error": "ValueError: no 1", "dead.entry": entry,
        "dead.group": "billing", "dead.deliveries": "3",
    }  # fmt: skip
    assert (entry_id, next(iter(fields))) == (dead.stream_id, "id")
