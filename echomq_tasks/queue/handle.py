"""What every part of the queue object stands on: the name, the connection, and the scripts on one key prefix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redis.cluster import RedisCluster

from echomq_tasks.connection import Connection, connect
from echomq_tasks.connection.failures import typed_errors
from echomq_tasks.keyspace import check_queue, queue_key
from echomq_tasks.scripts import Scripts


class Handle:
    """A queue's name on a connection; :class:`~echomq_tasks.queue.Queue` is made of parts that share one.

    Parameters:
      name: 1 to 128 of ``A-Z a-z 0-9 . _ -``, not ``emq``.
      connection: the server; :func:`echomq_tasks.connect` without arguments by default.

    Raises:
      InvalidName: when the wire does not allow the name.
    """

    def __init__(self, name: str, connection: Connection | None = None) -> None:
        self.name = check_queue(name)
        self.connection = connection if connection is not None else connect()
        self.scripts = Scripts.of(self.connection)
        #: The prefix of all of its keys, ``emq:{name}:``: the one key that its scripts declare.
        self.base = queue_key(name)

    def __repr__(self) -> str:
        return f"Queue({self.name!r}, {self.connection!r})"

    def run(self, script: str, *args: bytes | str | int, repeat: bool = True) -> Any:
        """Run one script on this queue; ``repeat`` says whether it may be sent again when the connection drops."""
        return self.scripts.call(script, self.base, args, repeat=repeat)

    def key_suffixes(self, pattern: bytes = b"*") -> Iterator[bytes]:
        """What stands behind the base in the names of the queue's keys, found by a scan, which may name one twice.

        Parameters:
          pattern: only suffixes that match, as SCAN matches.

        Raises:
          ServerError: when the server cannot be asked.
        """
        client: Any = self.connection.client
        # A queue is one slot, so one node of a cluster has all of it.
        cluster = isinstance(client, RedisCluster)
        where = {"target_nodes": client.get_node_from_key(self.base.decode())} if cluster else {}
        with typed_errors(self.connection.config):
            # No queue name holds a character that is special to MATCH.
            for key in client.scan_iter(match=self.base + pattern, count=1000, **where):
                yield key.removeprefix(self.base)
