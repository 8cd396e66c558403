"""Catching up: what a subscription missed is read from the log that keeps the same events, without loss or doubles."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator

import pytest
from support.eventually import eventually
from support.live import Teller, event, gap, hub_threads, kept_away, kill_listeners, numbers, publish, take
from support.servers import ServerProcess

from echomq_tasks.bus import Bus, Event, Gap, Subscription
from echomq_tasks.bus.places import Place, evt_id
from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import ConfigError, WrongState
from echomq_tasks.queue import Queue


@pytest.fixture
def teller(connection: Connection, queue_name: str) -> Iterator[Teller]:
    made = Teller(connection, queue_name)
    with made.bus:
        yield made
    eventually(lambda: not hub_threads())


@pytest.fixture
def one(standalone: Connection, queue_name: str) -> Iterator[Teller]:
    """Where the engine does not matter."""
    made = Teller(standalone, queue_name)
    with made.bus:
        yield made
    eventually(lambda: not hub_threads())


def follow(teller: Teller, **options: object) -> Subscription:
    return teller.bus.subscribe(teller.queue, catch_up="lifecycle", **options)  # type: ignore[arg-type]


def count(first: int, behind: int) -> list[str]:
    return [str(number) for number in range(first, behind)]


def miss(teller: Teller, events: int) -> None:
    """Let events be published while the connection is away."""
    teller.tell(events, live=False)
    kill_listeners(teller.bus.connect())


def test_what_was_missed_comes_from_the_log_and_then_what_is_live(teller: Teller) -> None:
    teller.tell(5)
    with follow(teller) as events:
        teller.tell(3)
        assert numbers(take(events, 3)) == count(5, 8)
        miss(teller, 700)
        teller.tell(3)
        heard = take(events, 703)
        assert numbers(heard) == count(8, 711)
        assert all(isinstance(item, Event) and item.id and item.queue == teller.queue for item in heard)
        teller.tell(2)
        assert numbers(take(events, 2)) == count(711, 713)
        assert events.get(0.05) is None


def test_before_anything_was_seen_it_begins_where_the_log_ended_when_it_subscribed(teller: Teller) -> None:
    teller.tell(5)
    with follow(teller) as events:
        miss(teller, 3)
        assert numbers(take(events, 3)) == count(5, 8)
        assert events.get(0.05) is None


def test_a_log_that_begins_during_the_gap_is_read_from_its_head(one: Teller) -> None:
    with follow(one) as events:
        miss(one, 3)
        assert numbers(take(events, 3)) == count(0, 3)


def test_nothing_is_lost_or_doubled_while_a_publisher_goes_on_through_kills(teller: Teller) -> None:
    stop = threading.Event()

    def tell() -> None:
        while not stop.is_set():
            teller.tell()

    with follow(teller) as events:
        publisher = threading.Thread(target=tell)
        publisher.start()
        try:
            heard: list[Event | Gap] = []
            for _ in range(6):
                heard += take(events, 40)
                kill_listeners(teller.bus.connect())
        finally:
            stop.set()
            publisher.join()
        heard += take(events, teller.told - len(heard))
        assert numbers(heard) == count(0, teller.told)
        assert events.get(0.05) is None


def test_an_apps_own_event_that_was_missed_comes_from_the_log_too(teller: Teller) -> None:
    connection = teller.bus.connect()
    Queue(teller.queue, connection).keep_events("lifecycle")
    with follow(teller, events={"order.paid"}) as events:
        teller.bus.publish(teller.queue, "order.paid", n="0")
        first = event(events)
        with kept_away(connection):
            for number in (1, 2):
                teller.bus.publish(teller.queue, "order.paid", n=str(number))
        teller.bus.publish(teller.queue, "order.paid", n="3")
        heard = [first, *take(events, 3)]
        assert numbers(heard) == count(0, 4)
        records = list(teller.bus.log(teller.queue, "lifecycle").read())
        assert [getattr(item, "id", None) for item in heard] == [record.id for record in records]
        assert [item.fields() | {"id": ""} for item in heard if isinstance(item, Event)] == [
            {**record.fields, "id": ""} for record in records
        ]
        assert events.get(0.05) is None


def in_an_hour(teller: Teller) -> str:
    """Where a record goes whose writer's clock is an hour ahead."""
    place = teller.place()[1]
    return str(Place(place.ms + 3_600_000, place.low))


@pytest.mark.parametrize("away", [False, True])
def test_a_log_that_is_begun_anew_below_what_was_given_is_told_and_silences_nothing(one: Teller, away: bool) -> None:
    connection = one.bus.connect()
    Queue(one.queue, connection).keep_events("lifecycle")
    with follow(one) as events:
        with kept_away(connection):
            connection.client.xadd(one.key, {"event": "x", "n": "fast"}, id=in_an_hour(one))
        one.bus.publish(one.queue, "x", n="above")
        assert numbers(take(events, 2)) == ["fast", "above"]
        if away:
            with kept_away(connection):
                connection.client.delete(one.key)
                one.bus.publish(one.queue, "x", n="0")
        else:
            connection.client.delete(one.key)
            one.bus.publish(one.queue, "x", n="0")
        one.bus.publish(one.queue, "x", n="1")
        told = gap(events)
        assert told == Gap("trimmed", told.since, (one.queue,))
        assert numbers(take(events, 2)) == ["0", "1"]
        # The next gap is filled from the new log.
        with kept_away(connection):
            one.bus.publish(one.queue, "x", n="2")
        one.bus.publish(one.queue, "x", n="3")
        assert numbers(take(events, 2)) == ["2", "3"]
        assert events.get(0.05) is None


def test_a_log_that_is_gone_for_good_does_not_silence_what_no_log_keeps(one: Teller) -> None:
    connection = one.bus.connect()
    with follow(one) as events:
        one.tell(3, live=False)
        kill_listeners(connection)
        assert numbers(take(events, 3)) == count(0, 3)
        connection.client.delete(one.key)
        connection.client.set(one.key, "something else")
        evt = evt_id(Place(one.place()[1].ms - 60_000, 0))
        for number in "34":
            publish(connection, one.queue, json.dumps({"event": "x", "n": number, "id": evt}))
        assert numbers(take(events, 3)) == ["trimmed", "3", "4"]


def test_a_log_that_lost_its_end_gives_nothing_twice(one: Teller) -> None:
    connection = one.bus.connect()
    with follow(one) as events:
        one.tell(3)
        kept = connection.client.dump(one.key)
        one.tell(2)
        assert numbers(take(events, 5)) == count(0, 5)
        # As after a failover to a replica that was behind.
        connection.client.restore(one.key, 0, kept, replace=True)
        kill_listeners(connection)
        assert events.get(0.3) is None
        with kept_away(connection):
            one.tell(2)
        assert numbers(take(events, 2)) == ["5", "6"]
        assert events.get(0.05) is None


def test_an_id_that_somebody_made_up_does_not_end_the_catching_up(one: Teller) -> None:
    connection = one.bus.connect()

    def make_up(count: int) -> None:
        for number in range(count):
            evt = evt_id(Place(one.place()[1].ms + 10**12 + number, 0))
            publish(connection, one.queue, json.dumps({"event": "x", "n": "odd", "id": evt}))
        assert numbers(take(events, count)) == ["odd"] * count

    with follow(one) as events:
        one.tell(1)
        assert numbers(take(events, 1)) == ["0"]
        make_up(1)
        with kept_away(connection):
            one.tell(2)
        assert numbers(take(events, 2)) == ["1", "2"]
        # With nothing else to hold on to, something may be missing, but once.
        make_up(20)
        with kept_away(connection):
            one.tell(1)
        assert gap(events).reason == "trimmed"
        one.tell(1)
        assert numbers(take(events, 1)) == ["4"]
        with kept_away(connection):
            one.tell(1)
        assert numbers(take(events, 1)) == ["5"]
        assert events.get(0.05) is None


def test_what_was_read_by_other_means_is_not_given_again(one: Teller) -> None:
    log = one.bus.log(one.queue, "lifecycle")
    with follow(one) as events:
        one.tell(5)
        past = list(log.read())
        events.has_read(one.queue, past[3].stream_id)
        assert numbers(take(events, 1)) == ["4"]
        with kept_away(one.bus.connect()):
            one.tell(3)
            events.has_read(one.queue, list(log.read())[6].id or "")
        one.tell(1)
        assert numbers(take(events, 2)) == ["7", "8"]
        one.bus.connect().client.delete(one.key)
        events.has_read(one.queue, in_an_hour(one))
        one.tell(1)
        assert numbers(take(events, 2)) == ["trimmed", "9"]


def test_the_filter_holds_for_the_log_too(one: Teller) -> None:
    with follow(one, events={"failed"}) as events:
        one.tell(1, "failed")
        for name in ("note", "failed", "note", "failed"):
            one.tell(1, name, live=False)
        miss(one, 1)
        one.tell(1, "failed")
        assert numbers(take(events, 4)) == ["0", "2", "4", "6"]
        assert events.get(0.05) is None


def test_a_log_that_was_trimmed_meanwhile_is_a_gap_and_then_what_it_still_has(one: Teller) -> None:
    log = one.bus.log(one.queue, "lifecycle")
    with follow(one) as events:
        one.tell(2)
        assert numbers(take(events, 2)) == ["0", "1"]
        one.tell(10, live=False)
        log.trim(4, exact=True)
        miss(one, 1)
        told = gap(events)
        assert told == Gap("trimmed", told.since, (one.queue,))
        assert numbers(take(events, 5)) == count(8, 13)
        # All of it gone, and the whole log.
        one.tell(2, live=False)
        log.trim(0, exact=True)
        kill_listeners(one.bus.connect())
        assert gap(events).reason == "trimmed"
        one.tell(1)
        assert numbers(take(events, 1)) == ["15"]
        one.bus.connect().client.delete(one.key)
        kill_listeners(one.bus.connect())
        assert gap(events).reason == "trimmed"
        assert events.get(0.05) is None


def test_a_log_that_was_trimmed_of_what_was_seen_is_no_gap(one: Teller) -> None:
    log = one.bus.log(one.queue, "lifecycle")
    with follow(one) as events:
        one.tell(8)
        assert numbers(take(events, 8)) == count(0, 8)
        for left in (3, 1):
            log.trim(left, exact=True)
            kill_listeners(one.bus.connect())
            one.tell(1)
            assert numbers(take(events, 1)) == [str(one.told - 1)]
        log.trim(0, exact=True)
        kill_listeners(one.bus.connect())
        assert events.get(0.3) is None
        one.tell(1)
        assert numbers(take(events, 1)) == [str(one.told - 1)]


def test_without_a_log_the_gap_is_told_once_for_all_queues(one: Teller) -> None:
    queues = [f"{one.queue}-{number}" for number in range(3)]
    with one.bus.subscribe(*queues, catch_up="lifecycle") as events:
        kill_listeners(one.bus.connect())
        told = gap(events)
        assert told == Gap("reconnected", told.since, tuple(queues))
        one.bus.publish(queues[0], "x")
        assert event(events).event == "x"


def test_a_log_that_cannot_be_read_is_a_gap(one: Teller, caplog: pytest.LogCaptureFixture) -> None:
    client = one.bus.connect().client
    with follow(one) as events, caplog.at_level(logging.WARNING):
        one.tell(1)
        client.delete(one.key)
        client.set(one.key, "something else")
        kill_listeners(one.bus.connect())
        assert numbers(take(events, 2)) == ["0", "reconnected"]
        assert "holds no log" in caplog.text
    with pytest.raises(WrongState, match="holds no log"):
        follow(one)
    assert not hub_threads()


def test_an_acl_that_forbids_the_log_is_an_error_when_subscribing(own_server: ServerProcess) -> None:
    own_server.client().execute_command(*"ACL SETUSER deaf on >secret ~{emq}:* &emq:* +@all".split())
    with connect(own_server.url, username="deaf", password="secret") as connection:
        with pytest.raises(ConfigError, match="ACL"):
            Bus(connection).subscribe("q", catch_up="lifecycle")
        assert not hub_threads()


def test_patterns_whose_logs_must_not_be_looked_for_are_a_gap(own_server: ServerProcess) -> None:
    own_server.client().execute_command(*"ACL SETUSER blind on >secret ~* &* +@all -scan".split())
    with connect(own_server.url, username="blind", password="secret") as connection:
        teller = Teller(connection, "mail.a")
        with teller.bus.subscribe(patterns=("mail.*",), catch_up="lifecycle") as events:
            teller.tell(1)
            miss(teller, 2)
            heard = take(events, 4)
            # What was seen is known without looking.
            assert numbers(heard) == ["0", "1", "2", "reconnected"]
            assert isinstance(heard[-1], Gap)
            assert (heard[-1].queues, heard[-1].patterns) == ((), ("mail.*",))


@pytest.mark.parametrize("buffer", [1, 16, 500])
def test_a_full_buffer_is_filled_from_the_log(one: Teller, buffer: int) -> None:
    with follow(one, buffer=buffer) as events:
        one.tell(3)
        assert numbers(take(events, 3)) == count(0, 3)
        one.tell(700)
        heard = take(events, 300)
        one.tell(100)
        heard += take(events, 500)
        assert numbers(heard) == count(3, 803)
        assert events.get(0.05) is None


def test_what_no_log_keeps_passes_and_is_told_when_it_is_lost(one: Teller) -> None:
    with follow(one, buffer=8) as events, one.bus.subscribe(one.queue) as fast:
        one.tell(1)
        one.bus.publish(one.queue, "mine", n="a")
        one.tell(1)
        assert numbers(take(events, 3)) == ["0", "a", "1"]
        one.bus.publish(one.queue, "mine", n="b")
        one.tell(10)
        # Each event is given to the slow one first.
        take(fast, 14)
        heard = take(events, 11)
        assert numbers(heard) == ["overflow", *count(2, 12)]
        assert isinstance(heard[0], Gap)
        assert heard[0].lost is not None
        assert events.get(0.05) is None


def test_a_queue_of_which_something_came_that_no_log_keeps_is_told_and_filled(one: Teller) -> None:
    other = Teller(one.bus.connect(), f"{one.queue}.other")
    with one.bus.subscribe(one.queue, other.queue, catch_up="lifecycle") as events:
        one.tell(1)
        other.tell(1)
        publish(one.bus.connect(), one.queue, '{"event":"mine","n":"a"}')
        assert numbers(take(events, 3)) == ["0", "0", "a"]
        with kept_away(one.bus.connect()):
            one.tell(1)
            other.tell(1)
        told = gap(events)
        assert told == Gap("reconnected", told.since, (one.queue,))
        assert numbers(take(events, 2)) == ["1", "1"]
        assert events.get(0.05) is None


def test_a_pattern_of_which_no_queue_has_the_log_is_a_gap(one: Teller) -> None:
    pattern = f"{one.queue}.*"
    with one.bus.subscribe(patterns=(pattern,), catch_up="lifecycle") as events:
        kill_listeners(one.bus.connect())
        told = gap(events)
        assert told == Gap("reconnected", told.since, (), (pattern,))
        # Of a queue that was heard it is known which.
        one.bus.publish(f"{one.queue}.a", "x")
        assert event(events).event == "x"
        kill_listeners(one.bus.connect())
        told = gap(events)
        assert told == Gap("reconnected", told.since, (f"{one.queue}.a",))
        assert events.get(0.05) is None


def test_ids_that_are_none_and_records_that_name_no_event_do_no_harm(one: Teller) -> None:
    client = one.bus.connect().client
    with follow(one) as events:
        one.tell(1)
        for data in ('{"event":"x","n":"odd","id":"EVTzzzzzzzzzzz"}', '{"event":"x","n":"odder","id":7}'):
            publish(one.bus.connect(), one.queue, data)
        assert numbers(take(events, 3)) == ["0", "odd", "odder"]
        client.xadd(one.key, {b"\xff": b"\xfe"}, id=str(one.place()[1]))
        client.xadd(one.key, {"event": "by hand", "n": "hand"}, id=str(one.place()[1]))
        miss(one, 1)
        assert numbers(take(events, 2)) == ["reconnected", "hand"]


def test_patterns_catch_up_with_queues_that_were_seen_and_with_new_ones(
    teller: Teller, queue_name: str, connection: Connection
) -> None:
    seen, new, named, other = (Teller(connection, f"{queue_name}{end}") for end in (".a", ".b", ".c", "-d"))
    old = Teller(connection, f"{queue_name}.old")
    old.tell(5, live=False)
    # By the server's clock, to which the subscription looks, the old ones have to be of another millisecond.
    begun = connection.client.time()  # type: ignore[union-attr]
    eventually(lambda: connection.client.time() > (begun[0], begun[1] + 2000))  # type: ignore[union-attr,operator]
    with teller.bus.subscribe(named.queue, patterns=(f"{queue_name}.*",), catch_up="lifecycle") as events:
        seen.tell(1)
        assert event(events).queue == seen.queue
        for each in (seen, new, named, other):
            each.tell(2, live=False)
        kill_listeners(connection)
        # In a cluster the nodes come back one after the other, and may be told twice of a queue, but filled once.
        heard = take(events, 6)
        by_queue = {each.queue: numbers([item for item in heard if getattr(item, "queue", "") == each.queue])
                    for each in (seen, new, named)}  # fmt: skip
        assert by_queue == {seen.queue: ["1", "2"], new.queue: ["0", "1"], named.queue: ["0", "1"]}
        new.tell(1)
        assert numbers(take(events, 1)) == ["2"]
        assert events.get(0.05) is None


def test_a_server_that_goes_away_again_while_the_log_is_read_is_waited_for(own_server: ServerProcess) -> None:
    with connect(own_server.url) as connection:
        teller = Teller(connection, "q")
        with follow(teller) as events:
            teller.tell(1)
            teller.tell(700, live=False)
            kill_listeners(connection)
            heard = take(events, 100)
            own_server.kill()
            while (item := events.get(0.2)) is not None:
                heard.append(item)
            assert len(heard) < 701
            own_server.start()
            teller.tell(5)
            heard += take(events, 706 - len(heard))
            assert numbers(heard) == count(0, 706)
            assert events.get(0.05) is None


def test_an_error_that_ends_it_is_met_even_when_the_log_cannot_be_reached_any_more(own_server: ServerProcess) -> None:
    client = own_server.client()
    client.execute_command(*"ACL SETUSER guest on >secret ~* &* +@all".split())
    with connect(own_server.url, username="guest", password="secret") as connection:
        teller = Teller(connection, "q")
        with follow(teller) as events:
            teller.tell(1)
            assert numbers(take(events, 1)) == ["0"]
            kill_listeners(connection)
            eventually(lambda: events._feed._items)  # noqa: SLF001 - the gap is there, and not read yet
            client.execute_command("ACL", "SETUSER", "guest", "off")
            client.execute_command("CLIENT", "KILL", "USER", "guest")
            eventually(lambda: events._feed._error)  # noqa: SLF001
            assert gap(events).reason == "reconnected"
            with pytest.raises(ConfigError, match="credentials"):
                take(events, 1)
