"""Connecting: the fence, the floor, typed errors, connections of one's own, threads and forks, Sentinel and Cluster."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from support.eventually import eventually
from support.servers import ServerProcess, free_port

from echomq_tasks.connection import Connection, connect
from echomq_tasks.connection.fence import FENCE_KEY
from echomq_tasks.errors import ConfigError, ServerUnavailable, VersionMismatch


@pytest.fixture
def clean(server: ServerProcess) -> ServerProcess:
    server.flush()
    return server


# --- errors at connect


def test_nobody_there_is_server_unavailable_with_the_address_and_no_password() -> None:
    port = free_port()
    with pytest.raises(ServerUnavailable, match=rf"valkey://127\.0\.0\.1:{port}/0.*EMQ_URL") as caught:
        connect(f"valkey://joe:hush@127.0.0.1:{port}")
    assert "hush" not in str(caught.value)
    assert isinstance(caught.value, ConnectionError)


def test_a_server_that_never_answers_is_server_unavailable() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(ServerUnavailable, match="Timeout"),
    ):
        connect(host="127.0.0.1", port=listener.getsockname()[1], timeout=0.05)


def test_wrong_or_missing_credentials_are_a_config_error(own_server: ServerProcess) -> None:
    own_server.client().config_set("requirepass", "right")
    for options in ({"password": "wrong"}, {}, {"username": "nobody", "password": "right"}):
        with pytest.raises(ConfigError, match="username and password") as caught:
            connect(own_server.url, **options)
        assert "wrong" not in str(caught.value).replace("WRONGPASS", "")
    with connect(own_server.url, password="right") as connection:
        assert connection.client.ping()


def test_a_user_who_may_not_read_the_fence_is_told_which_keys_to_allow(clean: ServerProcess) -> None:
    clean.client().acl_setuser("nokeys", enabled=True, passwords=["+pw"], commands=["+@all"])
    try:
        with pytest.raises(ConfigError, match=r"ACL.*\{emq\}:\*"):
            connect(clean.url, username="nokeys", password="pw")
    finally:
        clean.client().acl_deluser("nokeys")


# --- the client


def test_a_server_that_restarts_is_reached_again_by_the_same_client(own_server: ServerProcess) -> None:
    with connect(own_server.url) as connection:
        connection.client.set("key", "value")
        own_server.kill()
        with pytest.raises(redis.exceptions.ConnectionError):
            connection.client.get("key")
        own_server.start()
        assert connection.client.get("key") == b"value"


def test_threads_share_one_connection(standalone: Connection) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: standalone.client.incr("counter"), range(400)))
    assert standalone.client.get("counter") == b"400"


def test_a_forked_child_talks_on_sockets_of_its_own(standalone: Connection) -> None:
    own = standalone.fresh(b"key", blocking=True)
    own.send_command("BLPOP", "list", 0)
    parent_id = standalone.client.client_id()

    def child() -> bool:
        return standalone.client.client_id() != parent_id and bool(standalone.client.rpush("list", "x"))

    assert in_fork(child)
    # The parent's connections are as they were: the parked one gets its answer, the pooled one is still the same.
    assert own.read_response() == [b"list", b"x"]
    assert standalone.client.client_id() == parent_id
    own.disconnect()


def test_closing_in_a_forked_child_leaves_the_parent_connected(standalone: Connection) -> None:
    parent_id = standalone.client.client_id()
    assert in_fork(lambda: standalone.close() is None)
    assert standalone.client.client_id() == parent_id


def test_a_closed_connection_connects_again_when_it_is_used(clean: ServerProcess) -> None:
    connection = connect(clean.url, client_name="again")
    connection.close()
    own = connection.fresh(b"key", blocking=False)
    own.disconnect()
    assert connection.client.ping()
    connection.close()
    connection.close()
    eventually(lambda: all(client["name"] != "again" for client in clean.client().client_list()))


def test_closing_frees_every_pooled_connection(clean: ServerProcess) -> None:
    connection = connect(clean.url, client_name="closing")
    connection.client.ping()
    connection.close()
    eventually(lambda: all(client["name"] != "closing" for client in clean.client().client_list()))


def test_a_refused_connection_leaves_no_socket_behind(clean: ServerProcess) -> None:
    clean.client().set(FENCE_KEY, "other")
    with pytest.raises(VersionMismatch):
        connect(clean.url, client_name="refused")
    eventually(lambda: all(client["name"] != "refused" for client in clean.client().client_list()))


def test_its_text_holds_no_password(clean: ServerProcess) -> None:
    clean.client().acl_setuser("joe", enabled=True, passwords=["+hush"], keys=["*"], commands=["+@all"])
    try:
        with connect(clean.url, username="joe", password="hush") as connection:
            assert repr(connection) == f"<Connection to {clean.url}/0>"
    finally:
        clean.client().acl_deluser("joe")


# --- a connection of one's own


def test_a_blocking_connection_waits_longer_than_the_reply_timeout(clean: ServerProcess) -> None:
    with connect(clean.url, timeout=0.1) as connection:
        own = connection.fresh(b"list", blocking=True)
        own.send_command("BLPOP", "list", 0.3)
        assert own.read_response() is None
        own.disconnect()


def test_a_connection_that_does_not_block_keeps_the_reply_timeout(clean: ServerProcess) -> None:
    with connect(clean.url, timeout=0.1) as connection:
        own = connection.fresh(b"list", blocking=False)
        own.send_command("BLPOP", "list", 0)
        with pytest.raises(redis.exceptions.TimeoutError):
            own.read_response()
        own.disconnect()


def test_a_connection_of_ones_own_is_not_from_the_pool(clean: ServerProcess) -> None:
    with connect(clean.url, max_connections=1) as connection:
        own = [connection.fresh(b"key", blocking=False) for _ in range(3)]
        ids = {connection.client.client_id()}
        for each in own:
            each.send_command("CLIENT", "ID")
            ids.add(each.read_response())
        assert len(ids) == 4
        connection.client.connection_pool.disconnect()
        own[0].send_command("PING")
        assert own[0].read_response() == b"PONG"
        for each in own:
            each.disconnect()


def test_a_connection_of_ones_own_to_a_dead_server_is_server_unavailable(own_server: ServerProcess) -> None:
    with connect(own_server.url) as connection:
        own_server.kill()
        with pytest.raises(ServerUnavailable, match=str(own_server.port)):
            connection.fresh(b"key", blocking=True)


def in_fork(function: Callable[[], Any]) -> bool:
    """Run ``function`` in a forked child; True when it returned something true."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if function() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
