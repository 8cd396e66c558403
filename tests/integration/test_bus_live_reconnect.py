"""A connection for events that breaks: everything is subscribed again, and each reader is told once, at its place."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from support.eventually import eventually
from support.live import event, gap, hub_threads, kill_listeners, listeners, publish, take
from support.proxy import DroppingProxy
from support.servers import ServerProcess

from echomq_tasks.bus import Bus, Event, Gap, Subscription, hub
from echomq_tasks.connection import Connection, connect


@pytest.fixture
def bus(connection: Connection) -> Iterator[Bus]:
    with Bus(connection) as opened:
        yield opened
    eventually(lambda: not hub_threads())


class Relay:
    """Passes bytes to a server and back; what is connected can be frozen, as when a cable is pulled."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._frozen: list[socket.socket] = []
        self._peers: dict[socket.socket, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._orders: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while "stop" not in self._orders:
            if "freeze" in self._orders:
                for each in self._peers:
                    self._selector.unregister(each)
                self._frozen += self._peers
                self._peers.clear()
                self._orders.remove("freeze")
            for key, _ in self._selector.select(0.005):
                self._pass_on(key.fileobj)

    def _pass_on(self, ready: object) -> None:
        if ready is self._listener:
            client = self._listener.accept()[0]
            server = socket.create_connection(("127.0.0.1", self._upstream))
            for one, other in ((client, server), (server, client)):
                self._peers[one] = other
                self._selector.register(one, selectors.EVENT_READ)
            return
        assert isinstance(ready, socket.socket)
        with contextlib.suppress(OSError):
            if data := ready.recv(65536):
                self._peers[ready].sendall(data)
                return
        for each in (ready, self._peers.pop(ready)):
            self._peers.pop(each, None)
            self._selector.unregister(each)
            each.close()

    def freeze(self) -> None:
        """From now on nothing passes on what is connected, in either direction, and nobody is told."""
        self._orders.append("freeze")
        eventually(lambda: not self._orders)

    def close(self) -> None:
        self._orders.append("stop")
        self._thread.join()
        self._selector.close()
        for each in (*self._peers, *self._frozen, self._listener):
            each.close()


def quiet(subscription: Subscription) -> bool:
    """Nothing more comes."""
    return subscription.get(0.05) is None


def test_a_killed_connection_is_told_once_to_each_and_what_follows_is_heard(bus: Bus, queue_name: str) -> None:
    others = f"{queue_name}-*"
    with bus.subscribe(queue_name) as named, bus.subscribe(patterns=(others,)) as by_pattern:
        bus.publish(queue_name, "before")
        assert event(named).event == "before"
        before = time.time()
        assert kill_listeners(bus.connect()) >= 1
        told = gap(named)
        assert told == Gap("reconnected", told.since, (queue_name,))
        assert told.since is not None
        assert before - 30 < told.since < time.time()
        assert gap(by_pattern).patterns == (others,)
        bus.publish(queue_name, "after")
        bus.publish(f"{queue_name}-x", "after")
        assert event(named).event == "after"
        assert event(by_pattern).queue == f"{queue_name}-x"
        publish(bus.connect(), queue_name, '{"event":"sharded"}', sharded=True)
        assert event(named).event == "sharded"
        assert quiet(named)
        assert quiet(by_pattern)
        assert len(hub_threads()) == 1


def test_the_gap_stands_exactly_where_events_are_missing(bus: Bus, queue_name: str) -> None:
    stop = threading.Event()

    def tell() -> None:
        number = 0
        while not stop.is_set():
            publish(bus.connect(), queue_name, json.dumps({"event": "n", "n": number}), sharded=number % 3 == 0)
            number += 1

    with bus.subscribe(queue_name) as events:
        teller = threading.Thread(target=tell)
        teller.start()
        try:
            heard: list[Event | Gap] = take(events, 50)
            for _ in range(3):
                kill_listeners(bus.connect())
                while not isinstance(heard[-1], Gap):
                    heard += take(events, 1)
                heard += take(events, 20)
        finally:
            stop.set()
            teller.join()
    assert sum(isinstance(item, Gap) for item in heard) == 3
    last, gapped = -1, False
    for item in heard:
        if isinstance(item, Gap):
            gapped = True
            continue
        number = int(item.more["n"])
        # Nothing twice, and nothing missing but where a gap said so.
        assert number > last if gapped else number == last + 1 or last == -1
        last, gapped = number, False


@pytest.mark.parametrize("cuts", [1, 5])
def test_a_line_that_is_cut_again_and_again_comes_back_each_time(
    proxy: DroppingProxy, server: ServerProcess, queue_name: str, cuts: int
) -> None:
    with (
        connect(proxy.url) as connection,
        connect(server.url) as direct,
        Bus(connection).subscribe(queue_name) as events,
    ):
        for number in range(cuts):
            proxy.cut_all()
            assert gap(events).reason == "reconnected"
            publish(direct, queue_name, json.dumps({"event": str(number)}))
            assert event(events).event == str(number)
        assert quiet(events)


def test_a_lost_confirmation_is_asked_for_again_and_told_once(
    proxy: DroppingProxy, server: ServerProcess, queue_name: str
) -> None:
    with (
        connect(proxy.url) as connection,
        connect(server.url) as direct,
        Bus(connection).subscribe(queue_name) as events,
    ):
        proxy.drop_request(b"ssubscribe", times=3)
        proxy.cut_all()
        assert gap(events).queues == (queue_name,)
        publish(direct, queue_name, '{"event":"x"}')
        assert event(events).event == "x"
        assert quiet(events)
        assert proxy.counts.dropped_requests == 3


def test_a_restarted_server_is_found_again_and_who_joined_meanwhile_has_missed_nothing(
    own_server: ServerProcess,
) -> None:
    with connect(own_server.url) as connection:
        bus = Bus(connection)
        with bus.subscribe("q") as events:
            own_server.restart()
            with bus.subscribe("q") as later:
                assert gap(events).reason == "reconnected"
                bus.publish("q", "x")
                assert event(events).event == event(later).event == "x"
                assert quiet(events)
                assert quiet(later)


def test_a_silently_dead_connection_is_noticed(
    server: ServerProcess, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_SILENCE", 0.05)
    relay = Relay(server.port)
    try:
        with (
            connect(f"valkey://127.0.0.1:{relay.port}", timeout=0.5) as connection,
            connect(server.url) as direct,
            Bus(connection).subscribe(queue_name) as events,
        ):
            # It is asked, and answers, for as long as it lives.
            assert events.get(0.3) is None
            relay.freeze()
            assert gap(events).queues == (queue_name,)
            publish(direct, queue_name, '{"event":"x"}')
            assert event(events).event == "x"
    finally:
        relay.close()


def test_a_server_that_hangs_is_waited_for(own_server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_SILENCE", 0.05)
    with (
        connect(own_server.url, timeout=0.2, connect_timeout=0.2) as connection,
        Bus(connection).subscribe("q") as events,
    ):
        own_server.pause(700)
        assert gap(events).reason == "reconnected"
        own_server.client().publish("emq:{q}:events", '{"event":"x"}')
        assert event(events).event == "x"
        assert quiet(events)


def test_a_reader_can_see_that_the_server_is_away(own_server: ServerProcess) -> None:
    with connect(own_server.url) as connection, Bus(connection) as bus:
        with bus.subscribe("q", patterns=("r*",)) as events:
            assert events.connected
            own_server.kill()
            eventually(lambda: not events.connected)
            own_server.start()
            assert gap(events).reason == "reconnected"
            assert events.connected
        assert events.connected


def test_closing_while_the_server_is_away_ends_at_once_and_leaves_no_thread(own_server: ServerProcess) -> None:
    with connect(own_server.url) as connection:
        events = Bus(connection).subscribe("q")
        own_server.kill()
        assert events.get(0.2) is None
        events.close()
        eventually(lambda: not hub_threads())


def test_thousands_of_queues_are_subscribed_again(server: ServerProcess, queue_name: str) -> None:
    queues = [f"{queue_name}-{number}" for number in range(2000)]
    with connect(server.url) as connection, Bus(connection).subscribe(*queues) as events:
        kill_listeners(connection)
        assert gap(events).queues == tuple(sorted(queues))
        publish(connection, queues[1234], '{"event":"x"}')
        assert event(events) == Event("x", queues[1234])
        assert len(listeners(connection)) == 1
        assert events.get(0) is None
