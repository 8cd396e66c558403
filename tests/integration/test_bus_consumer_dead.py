"""What becomes of entries that fail: when they are tried again, what their deliveries count, and what is buried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.consuming import append, pending, running
from support.eventually import eventually
from support.proxy import DroppingProxy

import echomq_tasks.bus.member
import echomq_tasks.bus.replay
from echomq_tasks.bus import Bus, Consumer, Delivery, Log, Record
from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import InvalidArgument, InvalidName, WrongState

Make = Callable[..., Consumer]


@pytest.fixture
def log(standalone: Connection, queue_name: str) -> Log:
    return Log(queue_name, "audit", standalone)


def failing(delivery: Delivery) -> None:
    """A handler that can do nothing."""
    raise ValueError(f"no {delivery.fields.get('n')}")


def member(log: Log, group: str = "billing", **options: Any) -> Consumer:
    """A consumer that looks for the dead often."""
    return Consumer(log, group, **{"start": "head", "handler": failing, "beat": 0.05, **options})


def bury(log: Log, group: str = "billing") -> None:
    """Have a group give up all that is new to it."""
    consumer = member(log, group, max_deliveries=1)
    unread = log.length()
    with running(consumer):
        eventually(lambda: consumer.tally.buried == unread)


def dead(log: Log) -> list[Record]:
    """The records of the dead log."""
    return list(Log(log.queue, f"{log.name}.dead", log.connection).read())


# -- the next try ---------------------------------------------------------------------------------------------------


def test_an_entry_that_is_not_due_is_neither_counted_nor_renewed_by_another_run(log: Log) -> None:
    given: list[str] = []

    def handler(delivery: Delivery) -> None:
        given.append(delivery.fields["n"])
        if delivery.fields["n"] == "0":
            raise ValueError("not today")
        if given.count("1") < 3:
            raise SystemExit
        consumer.stop()

    first, _ = append(log, 2)
    consumer = member(log, handler=handler, name="me", min_idle=60)
    with pytest.raises(SystemExit):
        consumer.run()
    (row,) = eventually(lambda: [row for row in pending(log)[:1] if row["time_since_delivered"] > 100])
    with pytest.raises(SystemExit):
        consumer.run()
    consumer.run()
    assert given == ["0", "1", "1", "1"]
    (left,) = pending(log)
    assert (left["message_id"].decode(), left["times_delivered"]) == (first, 1)
    assert left["time_since_delivered"] >= row["time_since_delivered"]


def test_an_entry_that_is_due_when_the_connection_was_lost_is_counted(
    proxy: DroppingProxy, queue_name: str, log: Log
) -> None:
    given: list[int] = []

    def handler(delivery: Delivery) -> None:
        given.append(delivery.deliveries)
        if len(given) == 1:
            raise ValueError("not today")

    append(log, 1)
    with connect(proxy.url) as connection:
        # It looks for what is idle once in a minute, and so finds its own only because it looks for what it lost.
        consumer = member(Log(queue_name, "audit", connection), handler=handler, min_idle=0.1, beat=60)
        with running(consumer):
            eventually(lambda: consumer.tally.failed == 1 and pending(log)[0]["time_since_delivered"] > 300)
            proxy.cut_all()
            eventually(lambda: consumer.tally.handled == 1)
    assert given == [1, 2]


def test_a_drain_of_many_pending_entries_passes_over_those_that_are_not_due(log: Log, standalone: Connection) -> None:
    """More than are looked at in one step."""
    append(log, 250)
    standalone.client.xgroup_create(log.key, "billing", 0)
    standalone.client.xreadgroup("billing", "me", {log.key: ">"}, count=250)
    given: list[int] = []

    def handler(delivery: Delivery) -> None:
        number = int(delivery.fields["n"])
        given.append(number)
        if number % 2:
            raise ValueError("odd")
        if number == 200 and given.count(number) == 1:
            raise SystemExit

    consumer = member(log, handler=handler, name="me", min_idle=60, beat=60)
    with pytest.raises(SystemExit):
        consumer.run()
    with running(consumer):
        eventually(lambda: consumer.tally.handled == 125)
        eventually(lambda: consumer.tally.failed == 125)
    assert sorted(given) == sorted([*range(250), 200])
    assert {row["times_delivered"] for row in pending(log)} == {2}


def test_an_error_that_cannot_be_printed_buries_its_entry_all_the_same(log: Log) -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise TypeError("no words")

    def handler(delivery: Delivery) -> None:
        raise Broken

    append(log, 1)
    consumer = member(log, handler=handler, max_deliveries=2, min_idle=0.05)
    with running(consumer):
        eventually(lambda: consumer.tally.buried == 1)
    assert dead(log)[0].fields["dead.error"].startswith("Broken, which cannot be printed")


# -- the dead log ---------------------------------------------------------------------------------------------------


def test_a_dead_record_tells_how_many_fields_of_a_very_wide_entry_it_has_no_room_for(log: Log) -> None:
    client: Any = log.connection.client
    client.xadd(log.key, {f"f{number}": str(number) for number in range(3500)})
    client.xadd(log.key, {f"f{number}": str(number) for number in range(3000)})
    bury(log)
    wide, fits = (record.fields for record in dead(log))
    assert (wide["f2999"], wide["dead.truncated"], "f3000" in wide) == ("2999", "500", False)
    assert ("dead.truncated" in fits, fits["f2999"], fits["dead.group"]) == (False, "2999", "billing")


@pytest.mark.parametrize("retention", [None, {"maxlen": 400}, {"maxlen": 150}, {"older_than": 3600}])
def test_a_dead_log_keeps_the_newest_unless_it_has_a_retention_of_its_own(
    log: Log, monkeypatch: pytest.MonkeyPatch, retention: dict[str, int] | None
) -> None:
    monkeypatch.setattr(echomq_tasks.bus.member, "_MOST_DEAD", 200)
    graves = Log(log.queue, "audit.dead", log.connection)
    if retention is not None:
        graves.retain(**retention)
    client: Any = log.connection.client
    with client.pipeline() as pipe:
        for number in range(1, 351):
            # Of 2024 and of next to nothing: the time bound drops them all.
            pipe.xadd(graves.key, {"n": str(number)}, id=f"1704067200000-{number}")
        pipe.execute()
    append(log, 1)
    bury(log)
    # At whole nodes of the stream, a hundred records each.
    least, most = {400: (351, 351), 150: (150, 250), 3600: (1, 100), None: (200, 300)}[
        None if retention is None else next(iter(retention.values()))
    ]
    assert least <= graves.length() <= most
    assert dead(log)[-1].fields["dead.error"] == "ValueError: no 0"


# -- replay ---------------------------------------------------------------------------------------------------------


def test_what_a_group_has_given_up_goes_back_to_it_and_to_no_other(
    connection: Connection, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(echomq_tasks.bus.replay, "_PAGE", 2)
    log, bus = Log(queue_name, "audit", connection), Bus(connection)
    append(log, 5)
    bury(log)
    bury(log, "mails")
    assert len(dead(log)) == 10
    assert bus.replay_dead(queue_name, "audit", "billing", limit=3) == 3
    assert [info.pending for info in bus.groups(queue_name, "audit")] == [3, 0]
    given: dict[str, list[tuple[str, int]]] = {"billing": [], "mails": []}

    def noting(group: str) -> Consumer:
        note = given[group].append
        return member(log, group, handler=lambda each: note((each.fields["n"], each.deliveries)), max_deliveries=1)

    with running(noting("billing"), noting("mails")):
        eventually(lambda: sorted(given["billing"]) == [("0", 1), ("1", 1), ("2", 1)])
        assert bus.replay_dead(queue_name, "audit", limit=0) == 0
        assert bus.replay_dead(queue_name, "audit") == 7
        eventually(lambda: len(given["billing"]) == 5 and len(given["mails"]) == 5)
    assert sorted(given["mails"]) == [(str(number), 1) for number in range(5)]
    assert dead(log) == []
    assert [info.pending for info in bus.groups(queue_name, "audit")] == [0, 0]
    assert bus.replay_dead(queue_name, "audit") == 0


def test_what_fails_again_after_its_return_is_buried_again(log: Log) -> None:
    append(log, 1)
    bury(log)
    assert Bus(log.connection).replay_dead(log.queue, "audit") == 1
    consumer = member(log, max_deliveries=2, min_idle=0.05)
    with running(consumer):
        eventually(lambda: consumer.tally.buried == 1)
    assert consumer.tally.failed == 2
    assert [record.fields["dead.deliveries"] for record in dead(log)] == ["2"]


def test_what_cannot_go_back_stays_in_the_dead_log_and_is_told(
    log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus(log.connection)
    client: Any = log.connection.client
    append(log, 3)
    bury(log)
    bury(log, "gone")
    client.xtrim(log.key, maxlen=2, approximate=False)
    assert bus.delete_group(log.queue, "audit", "gone")
    last = log.read(reverse=True, count=1)
    entry = next(iter(last)).stream_id
    # Written by hands that know little of ids.
    for odd in ("", "-", "+", entry.split("-")[0], f"0{entry}", "9" * 40, "\x00"):
        client.xadd(log.key + b".dead", {"dead.entry": odd, "dead.group": "billing"})
    client.xadd(log.key + b".dead", {"n": "nobody's"})
    assert bus.replay_dead(log.queue, "audit") == 2
    assert sorted(row["message_id"].decode() for row in pending(log)) == [each.stream_id for each in log.read()]
    assert len(dead(log)) == 3 + 1 + 7 + 1
    assert "11 records of the log audit.dead stay there" in caplog.text


def test_an_entry_that_is_in_somebodys_hand_again_is_left_to_them(log: Log) -> None:
    (entry,) = append(log, 1)
    bury(log)
    client: Any = log.connection.client
    client.xclaim(log.key, "billing", "somebody", 0, [entry], force=True)
    (before,) = pending(log)
    assert Bus(log.connection).replay_dead(log.queue, "audit") == 1
    (row,) = pending(log)
    assert (row["consumer"], row["times_delivered"]) == (b"somebody", before["times_delivered"])
    assert dead(log) == []


def test_a_replay_refuses_what_names_nothing(log: Log) -> None:
    bus = Bus(log.connection)
    assert bus.replay_dead(log.queue, "audit") == 0
    with pytest.raises(InvalidName):
        bus.replay_dead(log.queue, "audit", "a b")
    with pytest.raises(InvalidName):
        bus.replay_dead(log.queue, "a:b")
    with pytest.raises(InvalidName, match="123 characters"):
        bus.replay_dead(log.queue, "x" * 124)
    with pytest.raises(InvalidArgument):
        bus.replay_dead(log.queue, "audit", limit=-1)
    log.connection.client.set(log.key + b".dead", "not a stream")
    with pytest.raises(WrongState, match="holds no log"):
        bus.replay_dead(log.queue, "audit")
