"""Ears: what is said after they are ready is heard, what may have been missed is told, and nothing is left behind."""

from __future__ import annotations

import contextlib
import gc
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.children import in_child
from support.counting import nodes
from support.eventually import eventually
from support.servers import ServerProcess
from support.tables import MINUTE, A, B

from echomq_tasks.cache import line
from echomq_tasks.cache.claims import Follow, Lead
from echomq_tasks.cache.ear import Ear
from echomq_tasks.cache.frames import coherence_message, read_wake
from echomq_tasks.cache.store import Store
from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import ConfigError, ServerUnavailable

COH = b"ecc:{ears}:coh"
WAKE = b"ecc:{ears}:wake"


class Listener:
    """An ear, and all that it was told."""

    def __init__(self, connection: Connection, *channels: bytes) -> None:
        self.said: list[tuple[bytes, bytes]] = []
        self.told: list[str] = []
        self.ear = Ear(
            connection,
            channels or (COH, WAKE),
            self.on_message,
            on_lost=lambda: self.told.append("lost"),
            on_back=lambda: self.told.append("back"),
        )

    def on_message(self, channel: bytes, data: bytes) -> None:
        self.said.append((channel, data))

    def hears(self, connection: Connection, channel: bytes = COH) -> None:
        """Say something, and see that it is heard."""
        before = len(self.said)
        publish(connection, channel, b"%d" % before)
        eventually(lambda: (channel, b"%d" % before) in self.said[before:], message=f"{self.ear} hears {channel!r}")


def publish(connection: Connection, channel: bytes, data: bytes) -> None:
    client: Any = connection.client
    target = {"target_nodes": client.get_node_from_key(channel)} if connection.is_cluster else {}
    client.execute_command("PUBLISH", channel, data, **target)


def subscribers(connection: Connection) -> list[tuple[Any, dict[str, str]]]:
    return [(node, each) for node in nodes(connection) for each in node.client_list() if int(each["sub"]) > 0]


def cut(connection: Connection) -> None:
    """End the connection of every subscriber."""
    for node, each in subscribers(connection):
        node.client_kill_filter(_id=each["id"])


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "echomq-cache-ear"]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    gc.collect()
    eventually(lambda: not threads(), message="no thread is left")


def test_whatever_is_said_once_an_ear_is_ready_is_heard_in_order(connection: Connection) -> None:
    listener = Listener(connection)
    assert not listener.ear.hears
    listener.ear.ready()
    said = [(channel, b"%d" % n) for n in range(100) for channel in (COH, WAKE)]
    for channel, data in said:
        publish(connection, channel, data)
    eventually(lambda: len(listener.said) == len(said))
    assert listener.said == said
    assert listener.told == []
    listener.ear.close()


def test_ears_of_a_connection_share_one_thread_and_one_socket(connection: Connection) -> None:
    # In a cluster their channels are of different slots.
    channels = [b"ecc:{ears%d}:coh" % n for n in range(9)]
    listeners = [Listener(connection, channel) for channel in channels]
    for listener, channel in zip(listeners, channels, strict=True):
        # At once: whoever is ready misses nothing.
        listener.ear.ready()
        listener.hears(connection, channel)
    assert len(threads()) == 1
    assert len(subscribers(connection)) == 1
    assert [len(listener.said) for listener in listeners] == [1] * 9


def test_a_channel_is_heard_by_all_who_want_it_until_the_last_has_gone(standalone: Connection) -> None:
    first, second, other = Listener(standalone, COH), Listener(standalone, COH, WAKE), Listener(standalone, WAKE)
    for listener in (first, second, other):
        listener.ear.ready()
    first.ear.close()
    second.hears(standalone)
    assert first.said == []
    assert not first.ear.hears
    second.ear.close()
    other.hears(standalone, WAKE)
    eventually(lambda: standalone.client.pubsub_numsub(COH)[0][1] == 0, message="the channel is let go of")
    first.ear.ready()
    first.hears(standalone)
    assert first.told == ["back"]


def test_the_thread_and_the_socket_end_with_the_last_ear(connection: Connection) -> None:
    listener = Listener(connection)
    listener.ear.ready()
    listener.ear.close()
    eventually(lambda: not threads() and not subscribers(connection), message="all has ended")
    listener.ear.ready()
    listener.hears(connection)
    assert listener.told == ["back"]
    listener.ear.close()


def test_an_ear_that_nobody_refers_to_ends_by_itself(standalone: Connection) -> None:
    # The listener and its ear refer to each other, as a table and its ear do.
    Listener(standalone).ear.ready()
    gc.collect()
    eventually(lambda: not threads() and not subscribers(standalone), message="all has ended")


def test_closing_the_connection_ends_it_and_the_ear_can_begin_anew(
    standalone: Connection, server: ServerProcess
) -> None:
    with connect(server.url) as connection:
        listener = Listener(connection)
        listener.ear.ready()
        connection.close()
        assert threads() == []
        assert listener.told == ["lost"]
        assert not listener.ear.hears
        listener.ear.ready()
        listener.hears(standalone)
        assert listener.told == ["lost", "back"]


def test_what_may_have_been_missed_is_told_and_then_all_is_heard_again(connection: Connection) -> None:
    listeners = Listener(connection), Listener(connection, COH)
    for listener in listeners:
        listener.ear.ready()
    for told in (["lost", "back"], ["lost", "back"] * 2):
        cut(connection)
        for listener in listeners:
            eventually(lambda listener=listener, told=told: listener.told == told, message="told")
            listener.ear.ready()
            listener.hears(connection)
    assert len(threads()) == 1


def test_ready_waits_for_a_connection_that_is_just_being_made_again(standalone: Connection) -> None:
    listener = Listener(standalone)
    listener.ear.ready()
    for _ in range(20):
        cut(standalone)
        listener.ear.ready()
    # The last cut may not have been noticed yet, and what is said meanwhile is missed.
    eventually(lambda: publish(standalone, COH, b"again") or (COH, b"again") in listener.said, message="heard again")
    assert listener.told == ["lost", "back"] * (len(listener.told) // 2)


def test_while_the_server_is_away_ready_says_so_at_once_and_the_ear_comes_back_by_itself(
    own_server: ServerProcess,
) -> None:
    with connect(own_server.url, timeout=30) as connection:
        listener = Listener(connection)
        listener.ear.ready()
        own_server.kill()
        eventually(lambda: listener.told == ["lost"])
        late = Listener(connection, WAKE)
        for each in (listener, late, listener):
            with pytest.raises(ServerUnavailable):
                each.ear.ready(timeout=60)
        own_server.start()
        eventually(lambda: listener.told == ["lost", "back"], message="back by itself")
        eventually(lambda: late.ear.hears)
        listener.hears(connection)
        late.hears(connection, WAKE)
        assert late.told == []


def test_a_server_that_is_away_from_the_start_is_no_reason_to_wait(own_server: ServerProcess) -> None:
    with connect(own_server.url) as connection:
        own_server.kill()
        listener = Listener(connection)
        with pytest.raises(ServerUnavailable):
            listener.ear.ready(timeout=60)
        own_server.start()
        eventually(lambda: listener.ear.hears)
        assert listener.told == []


def test_a_server_that_says_nothing_is_given_up(own_server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "_SILENCE", 0.1)
    with connect(own_server.url, timeout=1, connect_timeout=1) as connection:
        listener = Listener(connection)
        listener.ear.ready()
        # A ping that is answered changes nothing.
        pings = lambda: own_server.client().info("commandstats").get("cmdstat_ping", {}).get("calls", 0)  # noqa: E731
        before = pings()
        eventually(lambda: pings() > before + 1)
        assert listener.told == []
        with own_server.hung():
            eventually(lambda: listener.told == ["lost"], 20)
        eventually(lambda: listener.told == ["lost", "back"], 20)
        listener.hears(connection)


def test_a_listener_that_raises_is_logged_and_the_others_hear(
    standalone: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("not my day")

    bad = Ear(standalone, [COH], fail, on_lost=fail, on_back=fail)
    listener = Listener(standalone)
    for ear in (bad, listener.ear):
        ear.ready()
    listener.hears(standalone)
    cut(standalone)
    eventually(lambda: listener.told == ["lost", "back"])
    bad.ready()
    listener.hears(standalone)
    assert caplog.text.count("ValueError: not my day") == 4


def test_an_ear_closed_by_its_own_listener_hears_no_more(standalone: Connection) -> None:
    heard: list[bytes] = []

    def once(channel: bytes, data: bytes) -> None:
        heard.append(data)
        ear.close()

    ear = Ear(standalone, [COH], once)
    other = Listener(standalone)
    ear.ready()
    other.ear.ready()
    for _ in range(3):
        other.hears(standalone)
    assert heard == [b"0"]


def test_who_may_not_hear_a_channel_is_told_so_and_others_go_on(
    own_server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "_REFUSED", 0.05)
    rights = ["ACL", "SETUSER", "some", "on", ">p", "~*", "+@all", "resetchannels", "&ecc:{ears}:*"]
    own_server.client().execute_command(*rights)
    with connect(own_server.url, username="some", password="p") as connection:
        listener, denied = Listener(connection), Listener(connection, b"ecc:{secret}:coh")
        listener.ear.ready()
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"&ecc:\*"):
                denied.ear.ready()
        listener.hears(connection)
        cut(connection)
        eventually(lambda: listener.told == ["lost", "back"])
        own_server.client().execute_command("ACL", "SETUSER", "some", "&ecc:*")
        eventually(lambda: denied.ear.hears, message="allowed at last")
        denied.hears(connection, b"ecc:{secret}:coh")
        # What was never heard was not lost either.
        assert denied.told == []


def test_a_child_is_deaf_until_it_is_ready_and_leaves_its_parents_ear_alone(standalone: Connection) -> None:
    listener = Listener(standalone)
    listener.ear.ready()

    def child() -> list[str]:
        assert not listener.ear.hears
        listener.ear.ready()
        listener.hears(standalone)
        standalone.close()
        return listener.told

    assert in_child(child) == ["back", "lost"]
    assert listener.told == []
    listener.hears(standalone)
    assert len(subscribers(standalone)) == 1


def test_a_flood_is_heard_to_its_end(standalone: Connection) -> None:
    listener = Listener(standalone)
    listener.ear.ready()
    script = "for i = 1, 20000 do redis.call('PUBLISH', KEYS[1], ARGV[1] .. i) end"
    standalone.client.eval(script, 1, COH, b"x" * 200)
    eventually(lambda: len(listener.said) == 20_000)
    assert listener.said[-1] == (COH, b"x" * 200 + b"20000")
    assert listener.told == []


class TlsFront:
    """A port that speaks TLS in front of a server."""

    def __init__(self, context: ssl.SSLContext, upstream: int) -> None:
        self._context = context
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._context.wrap_socket(self._listener.accept()[0], server_side=True)
                upstream = socket.create_connection(("127.0.0.1", self._upstream))
                self._open += [client, upstream]
                for source, target in ((client, upstream), (upstream, client)):
                    threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def test_an_ear_hears_by_tls(standalone: Connection, server: ServerProcess, tmp_path: Path) -> None:
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    out = ["-subj", "/CN=localhost", "-keyout", tmp_path / "key", "-out", tmp_path / "pem"]
    subprocess.run(["openssl", "req", "-x509", *new_key, *out], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pem", tmp_path / "key")
    front = TlsFront(context, server.port)
    try:
        with connect(f"valkeys://127.0.0.1:{front.port}?ssl_cert_reqs=none") as connection:
            listener = Listener(connection)
            listener.ear.ready()
            listener.hears(standalone)
            data = [b"%d" % n * 2000 for n in range(500)]
            for each in data:
                publish(standalone, COH, each)
            eventually(lambda: [each for _, each in listener.said[1:]] == data)
            cut(standalone)
            eventually(lambda: listener.told == ["lost", "back"])
            listener.hears(standalone)
            listener.ear.close()
            eventually(lambda: not threads())
    finally:
        front.close()


def test_what_a_store_does_is_heard(connection: Connection, queue_name: str) -> None:
    store = Store(queue_name, "USR", connection)
    listener = Listener(connection, *store.channels)
    listener.ear.ready()
    lead = store.claim(A, "me", MINUTE)
    assert isinstance(lead, Lead)
    assert isinstance(store.claim(A, "you", MINUTE), Follow)
    store.fail(A, "me", b"boom")
    dropped = store.drop(B)
    coh, wake = store.channels
    eventually(lambda: len(listener.said) == 2)
    (_, told), (_, message) = sorted(listener.said, reverse=True)
    woken = read_wake(told)
    assert woken is not None
    assert (woken.id, woken.what, woken.owner, woken.payload) == (A, "failed", "me", b"boom")
    assert message == coherence_message(B, dropped)
    assert {channel for channel, _ in listener.said} == {coh, wake}
    listener.ear.close()
