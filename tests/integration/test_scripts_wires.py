"""The executor's own connections: kept, bounded, left when the master moved, and plain only where that is safe."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from typing import Any

import pytest
import redis
from support.eventually import eventually
from support.servers import ServerProcess

from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import ConfigError, ServerUnavailable
from echomq_tasks.queue import Queue
from echomq_tasks.scripts import executor
from echomq_tasks.scripts.wire import Looks, Wire


def ours(client: redis.Redis) -> set[str]:
    """The ids of the connections that this library has to the server."""
    return {each["id"] for each in client.client_list() if each.get("lib-name", "").startswith("echomq")}


def test_a_demoted_master_is_left_for_where_the_address_leads_now(
    own_server: ServerProcess, server: ServerProcess, queue_name: str
) -> None:
    with connect(own_server.url) as connection:
        queue = Queue(queue_name, connection)
        queue.enqueue("1")
        before = ours(own_server.client())
        own_server.client().replicaof("127.0.0.1", str(server.port))
        with pytest.raises(ServerUnavailable, match=r"READONLY|read only"):
            queue.enqueue("2")
        assert not before & ours(own_server.client())
        own_server.client().replicaof("NO", "ONE")
        assert not queue.enqueue("3").duplicate


def test_what_a_demoted_master_refused_runs_once_on_the_next(
    standalone: Connection, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(queue_name, standalone)
    queue.enqueue("warm")
    exchange = Wire.exchange
    refusals = [redis.ReadOnlyError("You can't write against a read only replica.")]

    def refused_once(self: Wire, packed: bytes, count: int) -> list[Any]:
        return [refusals.pop()] * count if refusals else exchange(self, packed, count)

    monkeypatch.setattr(Wire, "exchange", refused_once)
    assert not queue.enqueue("moved").duplicate
    assert queue.counts().pending == 2


def test_a_burst_of_threads_leaves_no_more_connections_than_the_limit(
    standalone: Connection, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "_MOST_IDLE", 4)
    queue = Queue(queue_name, standalone)
    start = threading.Barrier(30)

    def burst() -> None:
        start.wait(20)
        queue.counts()

    threads = [threading.Thread(target=burst) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(queue.scripts._idle) <= 4  # noqa: SLF001


def test_a_connection_unused_for_long_is_closed(
    standalone: Connection, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(queue_name, standalone)
    queue.counts()
    ((used, wire),) = queue.scripts._idle  # noqa: SLF001
    queue.scripts._idle[0] = (used - 2 * executor._IDLE_SECONDS, wire)  # noqa: SLF001
    queue.scripts._put_back(queue.scripts._open())  # noqa: SLF001
    assert [each for _, each in queue.scripts._idle if each is wire] == []  # noqa: SLF001
    eventually(lambda: wire._connection._sock is None)  # noqa: SLF001


def test_a_user_without_rights_is_told_which_it_needs(own_server: ServerProcess, queue_name: str) -> None:
    own_server.client().acl_setuser(
        "low", enabled=True, passwords=["+secret"], keys=["{emq}:*"], commands=["+@all"], channels=["*"]
    )
    with connect(own_server.url, username="low", password="secret") as connection:
        with pytest.raises(ConfigError, match=r"~emq:\*"):
            Queue(queue_name, connection).enqueue("x")


class GreenSocket:
    """A socket as gevent's: it has Python's methods, but is none of Python's own."""

    def __init__(self, sock: socket.socket) -> None:
        self._real = sock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_a_socket_that_is_not_pythons_own_goes_through_the_client(standalone: Connection) -> None:
    connection = standalone.fresh(b"x", blocking=False)
    green = GreenSocket(connection._sock)  # noqa: SLF001
    connection._sock = connection._parser._sock = green  # noqa: SLF001
    wire = Wire(connection, 1.0, Looks())
    assert green.gettimeout() is not None  # the timeout is still Python's to keep
    assert wire.exchange(b"*1\r\n$4\r\nPING\r\n", 1) == [b"PONG"]
    wire.close()


def test_everything_but_the_embedded_server_works_without_posix() -> None:
    code = "import sys; sys.modules['fcntl'] = None; import echomq_tasks\n" + (
        "from echomq_tasks.errors import EmbeddedUnavailable\n"
        "try: echomq_tasks.connect('embedded://')\n"
        "except EmbeddedUnavailable as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "EMQ_URL" in done.stdout
