"""A real cluster on loopback: three masters, no replicas."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

from support.eventually import eventually
from support.servers import ServerProcess

SLOTS = 16_384
MASTERS = 3
#: Milliseconds. Short enough that a killed node is noticed within a test, long enough for a busy machine.
NODE_TIMEOUT = 5_000
#: The bus listens 10,000 above the port and must, like it, stay below the range for outgoing connections. No other
#: server may take a port here, or it could sit on a bus.
PORTS = range(20_000, 22_000)


class ClusterProcess:
    """Three masters that share the slots evenly; ``nodes`` are plain servers, in slot order."""

    def __init__(self, directory: Path) -> None:
        self.nodes = [self._node(directory / f"node{index}") for index in range(MASTERS)]
        self._client: RedisCluster | None = None

    @staticmethod
    def _node(directory: Path) -> ServerProcess:
        return ServerProcess(
            directory,
            options=[
                *("--cluster-enabled", "yes"),
                *("--cluster-node-timeout", str(NODE_TIMEOUT)),
            ],
            ports=PORTS,
        )

    @property
    def url(self) -> str:
        """The URL for ``connect``; it names the first node."""
        return f"valkey+cluster://127.0.0.1:{self.nodes[0].port}"

    def start(self) -> None:
        """Start the nodes, join them and wait until each of them says that the cluster is whole."""
        try:
            for node in self.nodes:
                node.start()
            self._join()
            for node in self.nodes:
                eventually(partial(whole, node), 30, f"cluster whole, seen from port {node.port}")
        except BaseException:
            self.stop()
            raise

    def _join(self) -> None:
        for index, node in enumerate(self.nodes):
            first, last = index * SLOTS // MASTERS, (index + 1) * SLOTS // MASTERS - 1
            node.client().execute_command("CLUSTER ADDSLOTSRANGE", first, last)
            # Different epochs from the start, or the nodes spend a second or two settling who is older.
            node.client().execute_command("CLUSTER SET-CONFIG-EPOCH", index + 1)
        for node in self.nodes[1:]:
            node.client().execute_command("CLUSTER MEET", "127.0.0.1", self.nodes[0].port)

    def client(self) -> RedisCluster:
        """A plain cluster client (bytes, no retries); closed by stop()."""
        if self._client is None:
            self._client = RedisCluster(host="127.0.0.1", port=self.nodes[0].port, retry=Retry(NoBackoff(), 0))
        return self._client

    def flush(self) -> None:
        """Drop every key on every node."""
        for node in self.nodes:
            node.flush()

    def stop(self) -> None:
        """Stop every node."""
        if self._client is not None:
            self._client.close()
            self._client = None
        for node in self.nodes:
            node.stop()

    def __enter__(self) -> ClusterProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def whole(node: ServerProcess) -> bool:
    client: redis.Redis = node.client()
    state = client.execute_command("CLUSTER INFO")
    return bool(
        state["cluster_state"] == "ok"
        and int(state["cluster_slots_ok"]) == SLOTS
        and int(state["cluster_known_nodes"]) == MASTERS
        # One to each other node and one from it: without, what is published here is not heard there.
        and len(client.execute_command("CLUSTER LINKS")) == 2 * (MASTERS - 1)
    )
