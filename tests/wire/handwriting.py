"""Read and write a queue's keys with plain commands, the way another runtime does: nothing here uses our scripts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redis.cluster import RedisCluster

from echomq_tasks.connection import Connection


class Wire:
    """The raw keys of one queue; every ``suffix`` stands behind the queue's base, as in ``do("ZCARD", "pending")``."""

    def __init__(self, connection: Connection, queue: str) -> None:
        self.client: Any = connection.client
        self.base = f"emq:{{{queue}}}:"

    def do(self, command: str, suffix: str, *args: str | bytes | int | float) -> Any:
        """Run one command on one key and return its reply, bytes as text."""
        return text(self.client.execute_command(command, self.base + suffix, *args))

    def keys(self) -> Iterator[str]:
        """The suffixes of every key of the queue that holds state of its own.

        What a call was answered (``replies``) is no part of its effect; ``flow:parents`` and ``gauto`` only say again,
        for people and for our own admissions, what rows and ``glimit`` say.
        """
        for key in self.client.scan_iter(match=self.base + "*", count=1000):
            if (suffix := text(key).removeprefix(self.base)) not in ("replies", "flow:parents", "gauto"):
                yield suffix

    def everything(self) -> dict[str, Any]:
        """Every key of the queue with its whole value: text, dict (hash, zset with scores), list (stream), set."""
        return {suffix: self.read(suffix) for suffix in self.keys()}

    def read(self, suffix: str) -> Any:
        """One key's whole value."""
        key = self.base + suffix
        match text(self.client.type(key)):
            case "hash":
                return text(self.client.hgetall(key))
            case "zset":
                return {text(member): score for member, score in self.client.zrange(key, 0, -1, withscores=True)}
            case "list":
                return text(self.client.lrange(key, 0, -1))
            case "set":
                return {text(member) for member in self.client.smembers(key)}
            case "string":
                return text(self.client.get(key))
            case "stream":
                return text(self.client.xrange(key))
            case "none":
                return None
            case other:
                raise AssertionError(f"{key} is a {other}, which no key of a queue is")

    def row(self, job_id: str) -> dict[str, str]:
        """A job's row, {} when it has none."""
        return self.read(f"job:{job_id}") or {}

    def ids(self, suffix: str) -> list[str]:
        """The members of a zset in order."""
        return list(self.read(suffix) or {})

    def ring(self) -> list[str]:
        """The lanes in the ring, head first."""
        return list(self.read("ring") or [])

    def running(self) -> dict[str, int]:
        """`gactive` as numbers."""
        return {group: int(count) for group, count in (self.read("gactive") or {}).items()}

    def wakes(self) -> int:
        """How many wake tokens lie there."""
        return int(self.do("LLEN", "wake"))

    def expire(self, *job_ids: str) -> None:
        """Let the leases of active jobs be over."""
        for job_id in job_ids:
            assert self.do("ZADD", "active", "XX", "CH", 1, job_id) == 1, f"{job_id} is not active"

    def come_due(self, *job_ids: str) -> None:
        """Let the time of scheduled jobs have come."""
        for job_id in job_ids:
            assert self.do("ZADD", "schedule", "XX", "CH", 1, job_id) == 1, f"{job_id} is not scheduled"

    def now_ms(self) -> int:
        """The server's clock, unix ms."""
        if isinstance(self.client, RedisCluster):
            seconds, micros = self.client.time(target_nodes=self.client.get_node_from_key(self.base))
        else:
            seconds, micros = self.client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def dumps(self) -> dict[bytes, bytes]:
        """Every key of the server (the fence, node leases and kept answers left out), serialized.

        A refusal must not change them.
        """
        found = self.client.scan_iter(count=1000)
        keys = sorted(key for key in found if not key.startswith(b"{emq}:") and not key.endswith(b"}:replies"))
        return {key: self.client.dump(key) for key in keys}


def text(value: Any) -> Any:
    """Bytes as text, down through lists and dicts; binary that is not UTF-8 stays bytes."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, (list, tuple)):
        return [text(item) for item in value]
    if isinstance(value, dict):
        return {text(name): text(item) for name, item in value.items()}
    return value
