"""Exchanges with the nodes of a cluster, through its client, which knows the slots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from redis.cluster import ClusterNode, PipelineCommand, RedisCluster
from redis.exceptions import AskError, ClusterError, MovedError, ResponseError, SlotNotCoveredError, TryAgainError

from echomq_tasks.connection import Connection
from echomq_tasks.errors import ServerUnavailable

Argument = bytes | str | int
Packed = tuple[Argument, ...]


class Nodes:
    """The nodes of a cluster, by the keys that they hold; safe to share between threads.

    Parameters:
      connection: the cluster.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def exchange(self, commands: Sequence[Packed]) -> list[Any]:
        """Send script calls and answer their replies; a refusal is an exception in its place.

        Raises:
          ServerUnavailable: when a node did not answer.
        """
        client = self._client
        with self._typed_errors():
            if len(commands) == 1:
                return [_single(client, commands[0])]
            # The node is named here, or the client asks the server for the keys of each command: one more round trip
            # for each, with the whole payload.
            stack = [
                PipelineCommand(command, {"target_nodes": self._node(command[3])}, place)
                for place, command in enumerate(commands)
            ]
            # Redirections are followed here: left to the pipeline, it also sends again, one by one, what a broken
            # connection left unanswered, and nobody would know that those commands may have run twice.
            replies: list[Any] = client.pipeline().send_cluster_commands(
                stack, raise_on_error=False, allow_redirections=False
            )
            for reply in replies:
                if isinstance(reply, (redis.ConnectionError, redis.TimeoutError)):
                    raise reply
            return [
                _single(client, command) if isinstance(reply, (MovedError, AskError, TryAgainError)) else reply
                for command, reply in zip(commands, replies, strict=True)
            ]

    def name(self, key: bytes) -> str:
        """Which node holds this key, as far as is known here; waits for nobody."""
        try:
            return str(self._client.get_node_from_key(key).name)
        except redis.RedisClusterException:
            return ""

    def of(self, keys: Iterable[bytes]) -> list[ClusterNode]:
        """The nodes that hold these keys, each once.

        Raises:
          ServerUnavailable: when a slot has none.
        """
        with self._typed_errors():
            return list({node.name: node for node in map(self._node, keys)}.values())

    def load(self, node: ClusterNode, text: str) -> ResponseError | None:
        """Have one node know a script; answers its refusal.

        The others are left alone: one that is away must not keep this one's queues from being served.

        Raises:
          ServerUnavailable: when it did not answer.
        """
        with self._typed_errors():
            try:
                self._client.execute_command("SCRIPT LOAD", text, target_nodes=node)
            except ResponseError as error:
                return error
        return None

    @property
    def _client(self) -> RedisCluster:
        client = self._connection.client
        assert isinstance(client, RedisCluster)
        return client

    def _node(self, key: Argument) -> ClusterNode:
        client = self._client
        try:
            node: ClusterNode = client.get_node_from_key(key)
        except SlotNotCoveredError:
            # So it was when the client learned the cluster's shape.
            client.nodes_manager.initialize()
            node = client.get_node_from_key(key)
        return node

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        try:
            yield
        except (redis.ConnectionError, redis.TimeoutError, redis.RedisClusterException, ClusterError, OSError) as error:
            raise ServerUnavailable(
                f"the cluster at {self._connection.config.address} did not answer: {error}; "
                "check that all slots are served (CLUSTER INFO)"
            ) from error


def _single(client: RedisCluster, command: Packed) -> Any:
    try:
        return client.execute_command(*command)
    except ResponseError as error:
        return error
