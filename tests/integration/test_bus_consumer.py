"""Consumers of a group: who gets what, what becomes of failures, how they stop, and what they tell."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from support.children import in_child
from support.consuming import append, pending, running
from support.eventually import eventually

import echomq_tasks.bus.consumer
from echomq_tasks.bus import Bus, Consumer, Delivery, JsonCodec, Log
from echomq_tasks.connection import Connection
from echomq_tasks.errors import InvalidArgument, WrongState

Make = Callable[..., Consumer]


@pytest.fixture
def log(standalone: Connection, queue_name: str) -> Log:
    return Log(queue_name, "audit", standalone)


@pytest.fixture
def seen() -> list[str]:
    """The numbers of the entries that a handler was given."""
    return []


@pytest.fixture
def make(log: Log, seen: list[str]) -> Make:
    """A consumer that notes what it is given, looks for the dead often, and takes nothing from the living."""

    def make(**options: Any) -> Consumer:
        log_, group = options.pop("log", log), options.pop("group", "billing")
        settings = {"start": "head", "handler": lambda delivery: seen.append(delivery.fields["n"]), "beat": 0.05}
        return Consumer(log_, group, **{**settings, **options})

    return make


def names(log: Log) -> set[str]:
    client: Any = log.connection.client
    return {row["name"].decode() for row in client.xinfo_consumers(log.key, "billing")}


def hold(log: Log, consumer: str, count: int = 1) -> None:
    """Have a consumer that is not there hold entries."""
    log.connection.client.xreadgroup("billing", consumer, {log.key: ">"}, count=count)


# -- sharing --------------------------------------------------------------------------------------------------------


def test_members_of_a_group_share_the_entries_and_groups_do_not(connection: Connection, queue_name: str) -> None:
    log = Log(queue_name, "audit", connection)
    counts: dict[str, Counter[str]] = {"a": Counter(), "b": Counter()}

    def member(group: str) -> Consumer:
        return Consumer(log, group, start="head", handler=lambda each: counts[group].update([each.fields["n"]]))

    with running(member("a"), member("a"), member("a"), member("b")):
        append(log, 500)
        eventually(lambda: all(len(count) == 500 for count in counts.values()))
    assert counts["a"] == counts["b"] == Counter({str(number): 1 for number in range(500)})
    assert [(info.lag, info.pending, info.consumers) for info in Bus(connection).groups(queue_name, "audit")] == [
        (0, 0, 0)
    ] * 2


def test_a_delivery_says_what_the_record_says_and_where_it_comes_from(log: Log, make: Make) -> None:
    kept: list[Delivery] = []
    typed = Log(log.queue, log.name, log.connection, JsonCodec())
    evt = typed.append({"order": 7})
    with running(make(log=typed, handler=kept.append)):
        eventually(lambda: kept)
    (delivery,) = kept
    assert (delivery.id, delivery.value, delivery.fields) == (evt, {"order": 7}, {"json": '{"order":7}'})
    assert (delivery.queue, delivery.log, delivery.group, delivery.deliveries) == (log.queue, "audit", "billing", 1)
    (record,) = typed.read()
    assert (delivery.record, delivery.stream_id, delivery.at) == (record, record.stream_id, record.at)


def test_a_slow_handler_reads_less_ahead_so_that_peers_find_work(
    log: Log, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(echomq_tasks.bus.consumer, "_AHEAD", 0.0)
    held: list[int] = []
    append(log, 30)
    with running(make(handler=lambda _: held.append(len(pending(log))), batch=20)):
        eventually(lambda: len(held) == 30)
    assert set(held) == {1}


def test_a_first_entry_that_takes_long_keeps_no_others_from_peers(log: Log, make: Make, seen: list[str]) -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow(delivery: Delivery) -> None:
        entered.set()
        assert leave.wait(20)

    append(log, 8)
    with running(make(handler=slow)):
        assert entered.wait(20)
        with running(make()):
            eventually(lambda: seen == [str(number) for number in range(1, 8)])
        leave.set()


def test_the_first_read_of_an_async_handler_takes_as_many_as_can_be_started(log: Log, make: Make) -> None:
    leave = threading.Event()
    started: list[str] = []

    async def handler(delivery: Delivery) -> None:
        started.append(delivery.fields["n"])
        await asyncio.to_thread(leave.wait, 20)

    append(log, 2)
    with running(make(handler=handler, concurrency=4)):
        eventually(lambda: len(started) == 2)
        append(log, 6, first=2)
        eventually(lambda: len(started) == 4)
        assert len(pending(log)) == 4
        leave.set()
        eventually(lambda: len(started) == 8)


# -- async ----------------------------------------------------------------------------------------------------------


def test_an_async_handler_runs_so_many_at_once_and_not_one_more(log: Log, make: Make) -> None:
    at_work, most, done = 0, 0, 0
    full = asyncio.Event()

    async def handler(delivery: Delivery) -> None:
        nonlocal at_work, most, done
        at_work += 1
        most = max(most, at_work)
        if at_work == 4:
            full.set()
        # Nobody goes on until four are here at once.
        await asyncio.wait_for(full.wait(), 20)
        await asyncio.sleep(0)
        at_work -= 1
        done += 1

    append(log, 40)
    consumer = make(handler=handler, concurrency=4)
    with running(consumer):
        eventually(lambda: consumer.tally.handled == 40)
    assert (most, done) == (4, 40)
    assert pending(log) == []


def test_an_async_handler_that_fails_or_is_cancelled_leaves_its_entry_pending(log: Log, make: Make) -> None:
    async def handler(delivery: Delivery) -> None:
        if delivery.fields["n"] == "0":
            raise ValueError("no")
        if delivery.fields["n"] == "1":
            raise asyncio.CancelledError
        if delivery.fields["n"] == "2":
            raise SystemExit

    *bad, _ = append(log, 4)
    consumer = make(handler=handler, concurrency=2)
    with running(consumer):
        eventually(lambda: (consumer.tally.handled, consumer.tally.failed) == (1, 3))
    assert [row["message_id"].decode() for row in pending(log)] == bad


# -- stopping -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_stop_finishes_what_is_in_hand_and_gives_the_rest_to_others_at_once(
    log: Log, make: Make, seen: list[str], kind: str
) -> None:
    entered, leave = threading.Event(), threading.Event()
    done: list[str] = []

    def plain(delivery: Delivery) -> None:
        entered.set()
        assert leave.wait(20)
        done.append(delivery.fields["n"])

    async def coroutine(delivery: Delivery) -> None:
        await asyncio.to_thread(plain, delivery)

    append(log, 5)
    stopping = make(handler=plain if kind == "plain" else coroutine)
    with running(stopping) as (run,):
        assert entered.wait(20)
        stopping.stop()
        assert run.thread.is_alive()
        leave.set()
        run.end()
    assert done == ["0"]
    assert stopping.tally.handled == 1
    # Far from min_idle; and what was never started counts as never delivered.
    given: list[int] = []
    with running(make(handler=lambda each: (seen.append(each.fields["n"]), given.append(each.deliveries)))):
        eventually(lambda: len(seen) == 4)
    assert seen == ["1", "2", "3", "4"]
    assert given == [1, 1, 1, 1]
    assert pending(log) == []


def test_a_stop_ends_an_idle_consumer_that_waits_for_long(make: Make, log: Log) -> None:
    consumer = make(beat=60)
    with running(consumer) as (run,):
        client: Any = log.connection.client
        eventually(lambda: any(each["cmd"] == "xread" and "b" in each["flags"] for each in client.client_list()))
        consumer.stop()
        # The read that it waits in would go on for a minute.
        run.thread.join(20)
        assert not run.thread.is_alive()
    assert names(log) == set()


def test_a_signal_handler_stops_a_consumer_that_runs_in_the_main_thread(log: Log, make: Make, seen: list[str]) -> None:
    append(log, 1)
    consumer = make(beat=60)
    before = signal.signal(signal.SIGUSR1, lambda *_: consumer.stop())
    watcher = threading.Thread(
        target=lambda: (eventually(lambda: consumer.tally.handled), os.kill(os.getpid(), signal.SIGUSR1))
    )
    try:
        watcher.start()
        consumer.run()
    finally:
        watcher.join()
        signal.signal(signal.SIGUSR1, before)
    assert seen == ["0"]


def test_a_consumer_that_was_stopped_before_it_runs_does_nothing(log: Log, make: Make, seen: list[str]) -> None:
    append(log, 1)
    consumer = make()
    consumer.stop()
    consumer.run()
    assert seen == []


def test_a_consumer_runs_once_at_a_time_and_not_without_a_handler(log: Log, make: Make) -> None:
    with pytest.raises(InvalidArgument, match="without a handler"):
        make(handler=None).run()
    consumer = make()
    with running(consumer):
        eventually(lambda: consumer.info() is not None)
        with pytest.raises(InvalidArgument, match="runs already"):
            consumer.run()
        with pytest.raises(InvalidArgument, match="runs already"):
            consumer.run(print)


def test_an_interrupt_in_a_handler_ends_the_run_and_loses_nothing(log: Log, make: Make, seen: list[str]) -> None:
    def interrupted(delivery: Delivery) -> None:
        raise KeyboardInterrupt

    append(log, 3)
    with pytest.raises(KeyboardInterrupt):
        make(handler=interrupted, name="me").run()
    with running(make(name="me")):
        eventually(lambda: len(seen) == 3)
    assert pending(log) == []


# -- failures -------------------------------------------------------------------------------------------------------


def test_what_the_codec_cannot_read_fails_with_its_error_and_does_not_stop_the_group(
    log: Log, make: Make, standalone: Connection
) -> None:
    typed = Log(log.queue, log.name, standalone, JsonCodec())
    typed.append(1)
    log.append({"no": "json here"})
    typed.append(2)
    given: list[Delivery] = []
    # It would not even look at the value.
    consumer = make(log=typed, handler=given.append, max_deliveries=1)
    with running(consumer):
        eventually(lambda: len(given) == 2 and consumer.tally.buried == 1)
    assert [each.value for each in given] == [1, 2]
    (dead,) = Log(log.queue, "audit.dead", standalone).read()
    assert dead.fields["no"] == "json here"
    assert dead.fields["dead.error"].startswith("UndecodableRecord: ")


def test_an_entry_that_kills_whoever_takes_it_is_buried_without_being_taken_again(
    log: Log, make: Make, seen: list[str], standalone: Connection
) -> None:
    (entry, _) = append(log, 2)
    standalone.client.xgroup_create(log.key, "billing", 0)
    hold(log, "dead")
    log.connection.client.execute_command(
        *("XCLAIM", log.key, "billing", "dead", 0, entry, "IDLE", 600_000, "RETRYCOUNT", 3)
    )
    consumer = make(max_deliveries=3)
    with running(consumer):
        eventually(lambda: consumer.tally.buried == 1 and seen == ["1"])
    (dead,) = Log(log.queue, "audit.dead", standalone).read()
    assert dead.fields["dead.error"].startswith("delivered 3 times and never finished")
    assert (dead.fields["n"], dead.fields["dead.entry"]) == ("0", entry)


def test_a_dead_log_that_takes_no_record_keeps_the_entry_pending_until_it_does(
    log: Log, make: Make, seen: list[str], standalone: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    standalone.client.set(log.key + b".dead", "not a stream")
    append(log, 1)

    def failing(delivery: Delivery) -> None:
        seen.append(delivery.fields["n"])
        if delivery.fields["n"] == "0":
            raise ValueError("boom")

    consumer = make(handler=failing, max_deliveries=1, min_idle=0.1)
    with running(consumer):
        eventually(lambda: "stays pending" in caplog.text)
        append(log, 1, first=1)
        eventually(lambda: "1" in seen)
        assert [row["times_delivered"] for row in pending(log)] >= [1]
        standalone.client.delete(log.key + b".dead")
        eventually(lambda: consumer.tally.buried == 1)
    (dead,) = Log(log.queue, "audit.dead", standalone).read()
    assert (dead.fields["n"], dead.fields["dead.error"]) == ("0", "ValueError: boom")
    # What was given up is not tried again, only buried again.
    assert seen.count("0") == 1
    assert pending(log) == []


def test_the_records_of_a_dead_log_can_be_consumed_and_die_again(log: Log, make: Make, standalone: Connection) -> None:
    def failing(delivery: Delivery) -> None:
        raise ValueError(delivery.log)

    append(log, 1)
    first = make(handler=failing, max_deliveries=1)
    with running(first):
        eventually(lambda: first.tally.buried == 1)
    second = make(log=Log(log.queue, "audit.dead", standalone), group="again", handler=failing, max_deliveries=1)
    with running(second):
        eventually(lambda: second.tally.buried == 1)
    (dead,) = Log(log.queue, "audit.dead.dead", standalone).read()
    assert (dead.fields["n"], dead.fields["dead.group"]) == ("0", "again")
    assert dead.fields["dead.error"] == "ValueError: audit.dead"


def test_a_long_error_with_odd_characters_is_kept_short_and_readable(
    log: Log, make: Make, standalone: Connection
) -> None:
    def failing(delivery: Delivery) -> None:
        raise ValueError("\ud800é" + "x" * 100_000)

    append(log, 1)
    consumer = make(handler=failing, max_deliveries=1)
    with running(consumer):
        eventually(lambda: consumer.tally.buried == 1)
    (dead,) = Log(log.queue, "audit.dead", standalone).read()
    assert dead.fields["dead.error"].startswith("ValueError: \\ud800é" + "xxx")
    assert len(dead.fields["dead.error"]) < 11_000


def test_entries_that_were_taken_over_meanwhile_are_not_handled_here(
    log: Log, make: Make, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after this process was stopped for a while: others have claimed what it had read and not started."""
    entered, leave = threading.Event(), threading.Event()

    def slow(delivery: Delivery) -> None:
        seen.append(delivery.fields["n"])
        # The first one is quick, so that the second read takes all.
        if delivery.fields["n"] == "1":
            entered.set()
            assert leave.wait(20)

    monkeypatch.setattr(echomq_tasks.bus.consumer.Pulse, "_run", lambda self: None)
    third = append(log, 4)[2]
    consumer = make(handler=slow, min_idle=0.2, beat=60)
    with running(consumer):
        assert entered.wait(20)
        eventually(lambda: min(row["time_since_delivered"] for row in pending(log)) > 150)
        log.connection.client.xclaim(log.key, "billing", "thief", 0, [third])
        leave.set()
        eventually(lambda: consumer.tally.handled == 3)
    assert seen == ["0", "1", "3"]
    assert [(row["message_id"].decode(), row["consumer"]) for row in pending(log)] == [(third, b"thief")]


# -- the trim -------------------------------------------------------------------------------------------------------


def test_a_group_behind_the_trim_is_told_how_much_it_lost_once(
    log: Log, make: Make, seen: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    append(log, 4)
    with running(make()):
        eventually(lambda: len(seen) == 4)
    append(log, 10, first=4)
    log.trim(maxlen=3, exact=True)
    told: list[int] = []
    consumer = make(on_behind=told.append)
    info = consumer.info()
    assert info is not None
    assert (info.behind, info.lag) == (7, 3)
    with running(consumer, make()):
        eventually(lambda: len(seen) == 7)
        append(log, 1, first=14)
        eventually(lambda: len(seen) == 8)
        info = consumer.info()
    assert info is not None
    assert (info.behind, info.lag) == (0, 0)
    assert caplog.text.count("has fallen behind: 7 entries") == 1
    # Two of the group share them.
    assert sorted(seen[4:]) == ["11", "12", "13", "14"]
    assert told in ([7], [])


def test_a_burst_that_is_trimmed_in_the_same_step_is_told_to_a_consumer_that_waits(
    log: Log, make: Make, seen: list[str]
) -> None:
    """A read that blocks inside XREADGROUP would be woken behind the trim, and know of nothing."""
    told: list[int] = []
    append(log, 1)
    client: Any = log.connection.client
    with running(make(on_behind=told.append, beat=60)):
        eventually(lambda: any(each["cmd"] == "xread" and "b" in each["flags"] for each in client.client_list()))
        with client.pipeline(transaction=True) as burst:
            for number in range(20):
                burst.xadd(log.key, {"n": f"burst {number}"})
            burst.xtrim(log.key, maxlen=5, approximate=False)
            burst.execute()
        eventually(lambda: len(seen) == 6)
    assert told == [15]


def test_a_group_that_is_not_behind_is_read_without_a_copy_of_the_records_at_the_ends_of_the_log(
    log: Log, make: Make, seen: list[str]
) -> None:
    """XINFO STREAM answers with the oldest and the newest record: with large ones there, that is the cost of a read."""
    client: Any = log.connection.client

    def copies() -> int:
        return int(client.info("commandstats").get("cmdstat_xinfo|stream", {"calls": 0})["calls"])

    append(log, 2)
    with running(make(batch=1)) as (run,):
        eventually(lambda: len(seen) == 2)
        before = copies()
        append(log, 20, first=2)
        eventually(lambda: len(seen) == 22)
        assert run.consumer.info() is not None
        assert copies() == before
    log.trim(maxlen=0, exact=True)
    assert run.consumer.info() is not None
    # The count does count.
    assert copies() == before + 1


def test_on_behind_that_raises_is_logged_and_harms_nothing(
    log: Log, make: Make, seen: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    append(log, 1)
    log.connection.client.xgroup_create(log.key, "billing", 0, entries_read=0)
    append(log, 5)
    log.trim(maxlen=2, exact=True)

    def failing(lost: int) -> None:
        raise ValueError("boom")

    with running(make(on_behind=failing)):
        eventually(lambda: len(seen) == 2)
    assert "on_behind of billing" in caplog.text


@pytest.mark.parametrize("held_by", ["me", "dead"])
def test_a_pending_entry_that_was_trimmed_is_dropped_and_told(
    log: Log, make: Make, seen: list[str], caplog: pytest.LogCaptureFixture, held_by: str
) -> None:
    first, *_ = append(log, 3)
    log.connection.client.xgroup_create(log.key, "billing", 0)
    hold(log, held_by, 2)
    log.trim(maxlen=2, exact=True)
    consumer = make(name="me", min_idle=0.05)
    with running(consumer):
        eventually(lambda: len(seen) == 2 and consumer.tally.dropped == 1)
    assert sorted(seen) == ["1", "2"]
    assert f"trimmed before they were finished: {first}" in caplog.text
    assert pending(log) == []


def test_an_entry_that_fails_and_is_trimmed_meanwhile_is_dropped_not_buried(
    log: Log, make: Make, standalone: Connection
) -> None:
    def failing(delivery: Delivery) -> None:
        log.trim(maxlen=0, exact=True)
        raise ValueError("boom")

    append(log, 1)
    consumer = make(handler=failing, max_deliveries=1)
    with running(consumer):
        eventually(lambda: consumer.tally.dropped == 1)
    assert consumer.tally.buried == 0
    assert not standalone.client.exists(log.key + b".dead")
    assert pending(log) == []


# -- groups ---------------------------------------------------------------------------------------------------------


def test_the_groups_of_a_log_are_told_with_lag_and_pending(log: Log, make: Make, standalone: Connection) -> None:
    bus = Bus(standalone)
    assert bus.groups(log.queue, "audit") == []
    entries = append(log, 5)
    entered, leave = threading.Event(), threading.Event()

    def handler(delivery: Delivery) -> None:
        entered.set()
        assert leave.wait(20)

    consumer = make(handler=handler)
    with running(consumer):
        assert entered.wait(20)
        standalone.client.xgroup_create(log.key, "a-stranger", entries[1])
        stranger, mine = bus.groups(log.queue, "audit")
        assert (mine.name, mine.lag, mine.pending, mine.consumers, mine.last, mine.behind) == (
            *("billing", 4, 1, 1, entries[0]),
            0,
        )
        assert mine == consumer.info()
        # In the middle of a log, without a word of how many lie before.
        assert (stranger.name, stranger.behind, stranger.pending) == ("a-stranger", None, 0)
        leave.set()
    assert make(group="nobody").info() is None


def test_a_group_that_is_deleted_under_a_consumer_is_made_again_from_its_start(
    log: Log, make: Make, seen: list[str], standalone: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus(standalone)
    append(log, 2)
    with running(make()):
        eventually(lambda: len(seen) == 2)
        assert bus.delete_group(log.queue, "audit", "billing")
        eventually(lambda: len(seen) == 4)
    assert seen == ["0", "1", "0", "1"]
    assert "was made again, and begins at head" in caplog.text
    assert bus.delete_group(log.queue, "audit", "billing")
    assert not bus.delete_group(log.queue, "audit", "billing")
    assert log.length() == 2


def test_consumers_that_are_gone_and_hold_nothing_are_removed_and_those_that_hold_something_stay(
    log: Log, make: Make, seen: list[str], standalone: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    standalone.client.xgroup_create(log.key, "billing", 0, mkstream=True)
    for number in range(5):
        standalone.client.xgroup_createconsumer(log.key, "billing", f"gone-{number}")
    append(log, 1)
    hold(log, "holds")
    consumer = make(forget=0.1)
    with running(consumer):
        eventually(lambda: names(log) == {"holds", consumer.name})
    assert names(log) == {"holds"}
    assert "removed consumers that are gone" in caplog.text
    assert [row["consumer"] for row in pending(log)] == [b"holds"]


def test_a_key_that_holds_no_log_ends_the_run_with_its_reason(log: Log, make: Make, standalone: Connection) -> None:
    standalone.client.set(log.key, "not a stream")
    with pytest.raises(WrongState, match="holds no log, but a string"):
        make().run()


# -- forks ----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_nothing_that_a_fork_inherits_runs_in_the_child_and_a_child_is_another_consumer(
    log: Log, make: Make, seen: list[str]
) -> None:
    consumer = make()
    with running(consumer):
        append(log, 1)
        eventually(lambda: seen == ["0"])

        def child() -> tuple[str, int, list[str], bool]:
            name, threads = consumer.name, threading.active_count()
            seen.clear()
            append(log, 1, first=1)
            # It may run here too, as a member of its own.
            with running(consumer):
                eventually(lambda: log.length() == 2 and pending(log) == [])
                eventually(lambda: consumer.info() is not None)
            return name, threads, seen, consumer.stopping

        name, threads, handled, stopped = in_child(child)
        assert name != consumer.name
        assert threads == 1
        assert stopped
        eventually(lambda: sorted(seen + handled) == ["0", "1"])
        assert not consumer.stopping
        append(log, 1, first=2)
        eventually(lambda: "2" in seen)
