"""Unix socket, Cluster and Sentinel: the same connection whatever serves it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from support.clusters import ClusterProcess
from support.eventually import eventually
from support.servers import ServerProcess, free_port, server_binary

from echomq_tasks.connection import connect
from echomq_tasks.connection.fence import FENCE_KEY, WIRE_VERSION
from echomq_tasks.errors import ServerUnavailable, VersionMismatch


@pytest.fixture
def clean(server: ServerProcess) -> ServerProcess:
    server.flush()
    return server


def test_a_unix_socket_is_served(tmp_path: Path) -> None:
    path = tmp_path / "v.sock"
    with (
        ServerProcess(tmp_path / "data", options=["--unixsocket", str(path)]),
        connect(f"unix://{path}?db=2") as connection,
    ):
        assert connection.client.client_info()["db"] == 2
        own = connection.fresh(b"key", blocking=True)
        own.send_command("PING")
        assert own.read_response() == b"PONG"
        own.disconnect()


@pytest.mark.cluster
def test_a_cluster_is_fenced_once_at_the_slots_owner(cluster: ClusterProcess) -> None:
    cluster.flush()
    with connect(cluster.url) as connection:
        assert connection.is_cluster
        assert connection.server.name == "valkey"
        assert cluster.client().get(FENCE_KEY) == WIRE_VERSION.encode()
        for index in range(20):
            connection.client.set(f"key{index}", index)
    cluster.client().set(FENCE_KEY, "other")
    try:
        with pytest.raises(VersionMismatch, match="'other'"):
            connect(cluster.url)
    finally:
        cluster.flush()


@pytest.mark.cluster
def test_in_a_cluster_a_connection_of_ones_own_goes_to_the_keys_node(cluster: ClusterProcess) -> None:
    cluster.flush()
    with connect(cluster.url) as connection:
        ports = set()
        for key in (b"{a}", b"{b}", b"{c}", b"{d}"):
            own = connection.fresh(key, blocking=True)
            own.send_command("SET", key, "1")
            assert own.read_response() == b"OK"
            ports.add(own.port)
            own.disconnect()
        assert len(ports) > 1


@pytest.mark.cluster
def test_a_cluster_with_one_node_known_by_several_names_needs_only_one_that_answers(cluster: ClusterProcess) -> None:
    dead = free_port()
    alive = cluster.nodes[1].port
    with connect(f"valkey+cluster://127.0.0.1:{dead},127.0.0.1:{alive}") as connection:
        assert connection.client.set("key", "1")


def test_cluster_towards_a_server_that_is_none_is_server_unavailable(clean: ServerProcess) -> None:
    with pytest.raises(ServerUnavailable, match="Cluster mode is not enabled"):
        connect(f"valkey+cluster://127.0.0.1:{clean.port}")


@contextmanager
def watching(master: ServerProcess, directory: Path) -> Iterator[int]:
    """Run a Sentinel that knows ``master`` as "main" and its replicas; yield its port."""
    port = free_port()
    config = directory / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {directory}\nsentinel monitor main 127.0.0.1 {master.port} 1\n"
        "user watcher on >watch +@all\n"
    )
    log = (directory / "sentinel.log").open("wb")
    with log, subprocess.Popen([server_binary(), config, "--sentinel"], stdout=log, stderr=log) as process:
        try:
            with redis.Redis(port=port) as client:
                eventually(lambda: answers(client) and client.sentinel_slaves("main"), message="the replica is known")
            yield port
        finally:
            process.kill()


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.exceptions.ConnectionError:
        return False


@pytest.mark.slow
def test_sentinel_leads_to_the_master_and_after_a_failover_to_the_next(
    own_server: ServerProcess, tmp_path: Path
) -> None:
    replica = ServerProcess(tmp_path / "replica", options=["--replicaof", "127.0.0.1", str(own_server.port)])
    with replica, watching(own_server, tmp_path) as port:
        eventually(lambda: replica.client().info("replication")["master_link_status"] == "up")
        url = f"valkey+sentinel://127.0.0.1:{port}/main/1?sentinel_username=watcher&sentinel_password=watch"
        with connect(url) as connection:
            connection.client.set("key", "before")
            own = connection.fresh(b"key", blocking=True)
            assert own.port == own_server.port
            own.disconnect()
            with redis.Redis(port=port) as client:
                client.execute_command("SENTINEL", "FAILOVER", "main")

            def port_of_a_new_one() -> int:
                try:
                    own = connection.fresh(b"key", blocking=True)
                except ServerUnavailable:
                    return 0  # for a moment there is no master
                own.disconnect()
                return int(own.port)

            eventually(lambda: port_of_a_new_one() == replica.port, 30, "failed over")
            # The pool's connections to the demoted master were dropped when the new address was learned.
            assert connection.client.set("key", "after")
            with redis.Redis(port=replica.port, db=1) as client:
                assert client.get("key") == b"after"


def test_a_sentinel_that_does_not_know_the_master_is_server_unavailable(clean: ServerProcess, tmp_path: Path) -> None:
    port = free_port()
    with pytest.raises(ServerUnavailable, match="led to a master 'main'"):
        connect(f"valkey+sentinel://127.0.0.1:{port}/main")
