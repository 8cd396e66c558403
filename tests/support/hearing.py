"""A raw subscriber: what is said on a queue's channel, heard with plain redis-py and judged by nothing of ours."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any, Self

from redis.cluster import RedisCluster

from echomq_tasks.connection import Connection

#: Said by a script on the channel's own node, so that it comes behind all that was said there before.
_END = b"that was all"
#: Seconds within which a busy machine must have passed a message on.
_PATIENCE = 30.0


class Ear:
    """Subscribed to ``emq:{queue}:events``, or to another channel, from its making on."""

    def __init__(
        self, connection: Connection, queue: str, *, sharded: bool = False, channel: str | None = None
    ) -> None:
        self._client: Any = connection.client
        self.channel = channel or f"emq:{{{queue}}}:events"
        self._publish = "SPUBLISH" if sharded else "PUBLISH"
        self._pubsub = self._client.pubsub()
        self._sharded = sharded
        (self._pubsub.ssubscribe if sharded else self._pubsub.subscribe)(self.channel)
        assert self._next()["type"] == ("ssubscribe" if sharded else "subscribe")

    def _next(self) -> Any:
        if self._sharded and isinstance(self._client, RedisCluster):
            message = self._pubsub.get_sharded_message(timeout=_PATIENCE)
        else:
            message = self._pubsub.get_message(timeout=_PATIENCE)
        assert message is not None, f"nothing was heard within {_PATIENCE:g} s"
        return message

    def raw(self) -> list[bytes]:
        """The messages since the last call, as they were sent."""
        say = f"return redis.call('{self._publish}', KEYS[1], ARGV[1])"
        assert self._client.eval(say, 1, self.channel, _END) >= 1
        found: list[bytes] = []
        while (data := self._next()["data"]) != _END:
            found.append(data)
        return found

    def heard(self) -> list[dict[str, str]]:
        """The events since the last call, each one valid JSON of flat strings."""
        return [strict(data) for data in self.raw()]

    def names(self, *more: str) -> list[str] | list[tuple[str | None, ...]]:
        """The names of the events since the last call; with more fields, tuples of these too."""
        events = self.heard()
        if not more:
            return [event["event"] for event in events]
        return [tuple(event.get(field) for field in ("event", *more)) for event in events]

    def close(self) -> None:
        """Hang up."""
        self._pubsub.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def strict(data: bytes) -> dict[str, str]:
    """A message as the wire has it: one object of flat strings in valid JSON, no name twice, and sound Unicode."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        assert len(set(names)) == len(names), data
        return dict(pairs)

    def no_number(text: str) -> Any:
        raise AssertionError(f"{text} in {data!r}")

    fields = json.loads(
        data.decode(), object_pairs_hook=once, parse_int=no_number, parse_float=no_number, parse_constant=no_number
    )
    assert isinstance(fields, dict), data
    for name, value in fields.items():
        assert isinstance(value, str), data
        name.encode()
        value.encode()
    return fields
