"""Live events: published and heard, by name and by pattern, sharded or not, over one connection and one thread."""

from __future__ import annotations

import json
import logging
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.children import in_child
from support.eventually import eventually
from support.live import LONG, bare, event, gap, hub_threads, kill_listeners, listeners, publish, take
from support.servers import ServerProcess, free_port

from echomq_tasks.bus import Bus, Event
from echomq_tasks.bus.hub import Hub
from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import ConfigError, EchoMQError, InvalidArgument, ServerUnavailable
from echomq_tasks.keyspace import queue_key


@pytest.fixture
def bus(connection: Connection) -> Iterator[Bus]:
    with Bus(connection) as opened:
        yield opened
    eventually(lambda: not hub_threads())


@pytest.fixture
def one(standalone: Connection) -> Iterator[Bus]:
    """A bus where the engine does not matter."""
    with Bus(standalone) as opened:
        yield opened
    eventually(lambda: not hub_threads())


def test_what_is_published_after_subscribing_is_heard_with_every_field(bus: Bus, queue_name: str) -> None:
    with bus.subscribe(queue_name) as events:
        assert bus.publish(queue_name, "order.paid", actor="shop", amount="5 €", text='"\n\0🎉') == 1
        paid = Event("order.paid", queue_name, actor="shop", more={"amount": "5 €", "text": '"\n\0🎉'})
        assert bare(event(events)) == paid
    eventually(lambda: bus.publish(queue_name, "order.paid") == 0)


def test_what_goes_over_the_wire_is_one_flat_json_object(one: Bus, queue_name: str) -> None:
    client: Any = one.connect().client
    with client.pubsub() as raw:
        raw.subscribe(queue_key(queue_name, "events"))
        assert raw.get_message(timeout=LONG)["type"] == "subscribe"
        one.publish(queue_name, "a:b", text="\u2028é🎉")
        data = raw.get_message(timeout=LONG)["data"]
    begin = rb'\{"event":"a:b","at":"[0-9]{13}","queue":"' + queue_name.encode()
    assert re.fullmatch(begin + rb'","text":"\\u2028\\u00e9\\ud83c\\udf89"\}', data)


def test_only_the_events_that_were_asked_for_are_heard(bus: Bus, queue_name: str) -> None:
    with bus.subscribe(queue_name, events={"b", "failed"}) as events:
        for name in ("a", "b", "c"):
            bus.publish(queue_name, name)
        publish(bus.connect(), queue_name, '{"event":"failed","attempt":2,"duration_ms":"1500"}')
        assert [item.event for item in (event(events), event(events))] == ["b", "failed"]
        assert events.get(0) is None


def test_several_queues_and_patterns_are_one_stream_without_doubles(bus: Bus, queue_name: str) -> None:
    mine = [f"{queue_name}.{name}" for name in "abc"]
    with bus.subscribe(mine[0], mine[0], patterns=(f"{queue_name}.*", f"{queue_name}.?")) as events:
        for queue in (*mine, f"{queue_name}-other"):
            bus.publish(queue, "x", of=queue)
        # In a cluster, patterns and queues come over several connections.
        assert sorted(item.queue for item in take(events, 3) if isinstance(item, Event)) == mine
        assert events.get(0.1) is None


def test_sharded_and_plain_publishes_are_both_heard_once(bus: Bus, queue_name: str) -> None:
    with bus.subscribe(queue_name) as events:
        for number in range(10):
            publish(bus.connect(), queue_name, json.dumps({"event": str(number)}), sharded=number % 2 == 1)
        assert [event(events).event for _ in range(10)] == [str(number) for number in range(10)]
        assert events.get(0.05) is None


def test_a_hundred_subscriptions_share_one_connection_a_node_and_one_thread(bus: Bus, queue_name: str) -> None:
    queues = [f"{queue_name}-{number}" for number in range(20)]
    opened = [bus.subscribe(*queues) for _ in range(100)]
    assert len(hub_threads()) == 1
    assert len(listeners(bus.connect())) == (3 if bus.connect().is_cluster else 1)
    bus.publish(queues[7], "x")
    assert {event(each).queue for each in opened} == {queues[7]}
    for each in opened:
        each.close()
    assert not hub_threads()
    eventually(lambda: not listeners(bus.connect()))


def test_a_queue_that_nobody_listens_to_any_more_is_unsubscribed(bus: Bus, queue_name: str) -> None:
    other = f"{queue_name}-other"
    with bus.subscribe(other, patterns=("zzz*",)) as stays:
        for _ in range(3):
            with bus.subscribe(queue_name, patterns=("yyy*",)) as goes:
                assert bus.publish(queue_name, "x") == 1
                assert event(goes).event == "x"
            eventually(lambda: bus.publish(queue_name, "x") == 0)
        assert bus.publish(other, "y") == 1
        assert bare(event(stays)) == Event("y", other)
        assert len(hub_threads()) == 1


def test_get_waits_no_longer_than_it_was_told(one: Bus, queue_name: str) -> None:
    with one.subscribe(queue_name) as events:
        assert events.get(0) is None
        assert events.get(0.01) is None
        with pytest.raises(InvalidArgument, match="timeout"):
            events.get(-1)
        alarm = threading.Timer(0.02, one.publish, (queue_name, "x"))
        alarm.start()
        # Longer than any lock could wait.
        assert bare(events.get(1e11)).event == "x"
        alarm.join()


def test_closing_from_another_thread_ends_the_iteration_and_every_wait(one: Bus, queue_name: str) -> None:
    events = one.subscribe(queue_name)
    heard: list[Any] = []
    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(heard.extend, events) for _ in range(3)]
        one.publish(queue_name, "x")
        eventually(lambda: heard)
        events.close()
        events.close()
        for each in running:
            each.result(LONG)
    assert len(heard) == 1
    assert events.closed
    with pytest.raises(EchoMQError, match="closed"):
        events.get(1)


def test_a_signal_handler_may_close_what_its_thread_waits_for(one: Bus, queue_name: str) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: events.close())
    try:
        for _ in range(20):
            events = one.subscribe(queue_name)
            alarm = threading.Timer(0.002, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR1))
            alarm.start()
            assert all(isinstance(item, Event) for item in events)
            alarm.join()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_closing_the_bus_ends_its_subscriptions_and_a_later_use_opens_it_again(one: Bus, queue_name: str) -> None:
    events = one.subscribe(queue_name)
    one.close()
    assert list(events) == []
    assert not hub_threads()
    with one.subscribe(queue_name) as again:
        one.publish(queue_name, "x")
        assert event(again).event == "x"


def test_a_bus_makes_its_connection_on_first_use_and_closes_it(
    server: ServerProcess, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMQ_URL", f"valkey://127.0.0.1:{free_port()}")
    with Bus() as bus:
        with pytest.raises(ServerUnavailable):
            bus.subscribe(queue_name)
        monkeypatch.setenv("EMQ_URL", server.url)
        with bus.subscribe(queue_name) as events:
            bus.publish(queue_name, "x")
            assert event(events).event == "x"


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xff\xfe", b"no json", b"[1]", b'"failed"', b'{"event":5}', b'{"job":"x"}', b"[" * 100_000,
        b'{"event":"x","n":' + b"[" * 100_000, b'{"event":"x","attempt":' + b"9" * 5000 + b"}", b"null",
    ],
)  # fmt: skip
def test_what_is_no_event_is_skipped_with_one_line_and_the_next_is_heard(
    one: Bus, queue_name: str, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with one.subscribe(queue_name) as events, caplog.at_level(logging.WARNING):
        for _ in range(3):
            publish(one.connect(), queue_name, data)
        one.publish(queue_name, "fine")
        assert event(events).event == "fine"
    (line,) = [record for record in caplog.records if "is no event" in record.message]
    assert queue_name in line.message
    assert len(line.message) < 300


def test_foreign_events_are_read_as_they_are(one: Bus, queue_name: str) -> None:
    with one.subscribe(queue_name) as events:
        publish(one.connect(), queue_name, '{"event":"completed","job":"JOB0KHTOWnGLuC","attempt":"x","n":7,"deep":{}}')
        assert event(events) == Event("completed", queue_name, job="JOB0KHTOWnGLuC", more={"n": "7", "deep": "{}"})


def test_a_channel_that_only_looks_like_a_queues_is_not_heard(one: Bus, queue_name: str) -> None:
    client: Any = one.connect().client
    with one.subscribe(patterns=(f"{queue_name}*",)) as events:
        client.publish(f"emq:{{{queue_name}}}:x}}:events", '{"event":"x"}')
        client.publish(f"emq:{{{queue_name} b}}:events", '{"event":"x"}')
        one.publish(queue_name, "y")
        assert bare(event(events)) == Event("y", queue_name)


def test_a_slow_reader_loses_the_oldest_and_nobody_else_does(one: Bus, queue_name: str) -> None:
    with one.subscribe(queue_name, buffer=16) as slow, one.subscribe(queue_name) as fast:
        pipe: Any = one.connect().client.pipeline(transaction=False)
        for number in range(1000):
            pipe.publish(queue_key(queue_name, "events"), json.dumps({"event": str(number)}))
        pipe.execute()
        assert [event(fast).event for _ in range(1000)] == [str(number) for number in range(1000)]
        # Both were given the last one in the same step.
        lost = gap(slow)
        assert (lost.reason, lost.queues) == ("overflow", (queue_name,))
        assert lost.lost is not None
        assert [event(slow).event for _ in range(1000 - lost.lost)] == [str(n) for n in range(lost.lost, 1000)]
        assert slow.get(0) is None


def test_a_server_that_is_away_is_an_error_at_once_and_leaves_nothing(own_server: ServerProcess) -> None:
    with connect(own_server.url) as connection:
        bus = Bus(connection)
        own_server.kill()
        with pytest.raises(ServerUnavailable, match=str(own_server.port)):
            bus.subscribe("q")
        eventually(lambda: not hub_threads())
        own_server.start()
        with bus.subscribe("q") as events:
            # Away while another one is kept: still at once, and the other one lives.
            own_server.kill()
            with pytest.raises(ServerUnavailable):
                bus.subscribe("r")
            own_server.start()
            assert gap(events).reason == "reconnected"


def test_a_server_that_never_confirms_is_an_error_after_the_timeout(own_server: ServerProcess) -> None:
    with connect(own_server.url, timeout=0.5) as connection, Bus(connection).subscribe("q") as events:
        bus = Bus(connection)
        with bus.subscribe("a"):
            # What is subscribed already needs no dialling, so only the confirmation is missing.
            own_server.pause(60_000)
            with pytest.raises(ServerUnavailable):
                bus.subscribe("b")
        own_server.kill()
        own_server.start()
        assert gap(events).queues == ("q",)


def test_a_channel_that_the_acl_forbids_is_refused_with_advice(own_server: ServerProcess) -> None:
    client = own_server.client()
    client.execute_command(*"ACL SETUSER narrow on >secret ~* +@all resetchannels &emq:{allowed}:events".split())
    with connect(own_server.url, username="narrow", password="secret") as connection, Bus(connection) as bus:
        with bus.subscribe("allowed") as events:
            for refused in ({"queues": ["q"]}, {"queues": ["allowed", "q"]}, {"patterns": ["*"]}):
                with pytest.raises(ConfigError, match=r"&emq:\*.* docs/operations.md"):
                    bus.subscribe(*refused.get("queues", []), patterns=refused.get("patterns", ()))
            with pytest.raises(ConfigError, match=r"&emq:\*.* docs/operations.md"):
                bus.publish("q", "x")
            bus.publish("allowed", "x")
            assert event(events).event == "x"
            # Taken away while somebody listens: the server cuts the connection, and the reader learns why.
            client.execute_command("ACL", "SETUSER", "narrow", "resetchannels")
            with pytest.raises(ConfigError, match=r"&emq:\*"):
                take(events, 1)
    eventually(lambda: not hub_threads())


def test_credentials_that_stopped_working_and_another_version_end_the_reading(own_server: ServerProcess) -> None:
    client = own_server.client()
    client.execute_command(*"ACL SETUSER guest on >secret ~* &* +@all".split())
    with connect(own_server.url, username="guest", password="secret") as connection:
        with Bus(connection).subscribe("q") as events:
            client.execute_command("ACL", "DELUSER", "guest")
            with pytest.raises(ConfigError, match="credentials"):
                take(events, 1)
        with connect(own_server.url) as other, Bus(other).subscribe("q") as events:
            client.set("{emq}:version", "echomq:9.9.9")
            kill_listeners(other)
            with pytest.raises(EchoMQError, match=r"9\.9\.9"):
                take(events, 1)
            client.set("{emq}:version", "echomq:2.4.2")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_inherits_nothing_that_works_and_makes_its_own(bus: Bus, queue_name: str) -> None:
    with bus.subscribe(queue_name) as events:

        def child() -> list[str]:
            said = []
            for act in (lambda: events.get(1), lambda: next(iter(events))):
                try:
                    act()
                except EchoMQError as error:
                    said.append(str(error))
            events.close()
            with bus.subscribe(queue_name) as mine:
                bus.publish(queue_name, "child")
                said.append(event(mine).event)
            return said

        said = in_child(child)
        assert ["parent process" in line for line in said[:2]] == [True, True]
        assert said[2] == "child"
        # The parent's goes on as if nothing had been.
        assert event(events).event == "child"
        bus.publish(queue_name, "parent")
        assert event(events).event == "parent"


def test_a_subscription_that_is_interrupted_leaves_nothing_behind(
    own_server: ServerProcess,
) -> None:
    with connect(own_server.url) as connection, Bus(connection) as bus:
        with own_server.hung():
            before = signal.signal(signal.SIGUSR1, _interrupt)
            alarm = threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR1))
            alarm.start()
            try:
                with pytest.raises(KeyboardInterrupt):
                    bus.subscribe("q")
            finally:
                alarm.join()
                signal.signal(signal.SIGUSR1, before)
        eventually(lambda: not hub_threads())
        eventually(lambda: not listeners(connection))


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_fault_in_the_reading_thread_is_logged_and_told_and_the_next_one_is_fine(
    one: Bus, queue_name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with one.subscribe(queue_name) as events, monkeypatch.context() as patch:
        patch.setattr(Hub, "_deliver", lambda *_: 1 / 0)
        one.publish(queue_name, "x")
        with pytest.raises(EchoMQError, match="subscribe again"):
            take(events, 1)
    assert "ZeroDivisionError" in caplog.text
    with one.subscribe(queue_name) as events:
        one.publish(queue_name, "y")
        assert event(events).event == "y"


def test_a_unix_socket_and_another_database_serve_too(tmp_path: Any) -> None:
    path = tmp_path / "v.sock"
    with (
        ServerProcess(tmp_path / "data", options=["--unixsocket", str(path)]),
        connect(f"unix://{path}?db=2") as opened,
    ):
        with Bus(opened) as bus, bus.subscribe("q") as events:
            bus.publish("q", "x")
            assert bare(event(events)) == Event("x", "q")


def test_a_subscription_lives_on_when_its_bus_is_dropped(server: ServerProcess, queue_name: str) -> None:
    with connect(server.url) as connection:
        with Bus(connection).subscribe(queue_name) as events:
            publish(connection, queue_name, '{"event":"x"}')
            assert event(events).event == "x"
        assert not hub_threads()
