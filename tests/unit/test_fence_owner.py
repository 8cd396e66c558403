"""The node that holds the fence is asked with little patience: one that hangs must not slow down all others."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from redis import Connection
from redis.connection import ConnectionPool
from support.servers import ServerProcess

from echomq_tasks.connection.owner import FenceOwner


class Silent:
    """Accepts connections and answers nothing."""

    def __init__(self) -> None:
        self.accepted = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            self.accepted += 1

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            connection.close()


@pytest.fixture
def silent() -> Iterator[Silent]:
    server = Silent()
    yield server
    server.close()


def pool_to(port: int) -> ConnectionPool:
    return ConnectionPool(connection_class=Connection, host="127.0.0.1", port=port, socket_timeout=3600)


def test_a_node_that_hangs_is_given_up_and_left_alone_for_a_while(silent: Silent) -> None:
    owner = FenceOwner(lambda: pool_to(silent.port))
    assert owner.ask() is None
    assert silent.accepted == 1
    assert owner.ask() is None
    assert silent.accepted == 1, "it was not asked again at once"
    owner.close()


def test_a_node_that_answers_is_asked_each_time_on_one_connection(server: ServerProcess) -> None:
    server.flush()
    owner = FenceOwner(lambda: pool_to(server.port))
    assert owner.ask() is None
    server.client().set("{emq}:version", "echomq:9")
    assert owner.ask() == b"echomq:9"
    before = server.client().info("stats")["total_connections_received"]
    assert owner.ask() == b"echomq:9"
    # The one that asked for the statistics is new each time.
    assert server.client().info("stats")["total_connections_received"] <= before + 2
    owner.close()
    assert owner.ask() == b"echomq:9"
    owner.close()
    server.flush()


def test_a_connection_that_broke_meanwhile_is_replaced(server: ServerProcess) -> None:
    server.flush()
    owner = FenceOwner(lambda: pool_to(server.port))
    server.client().set("{emq}:version", "echomq:9")
    assert owner.ask() == b"echomq:9"
    server.client().execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert owner.ask() == b"echomq:9"
    owner.close()
    server.flush()


def test_while_there_is_no_client_there_is_nobody_to_ask() -> None:
    assert FenceOwner(lambda: None).ask() is None
