"""The ceiling: commands on a bare socket, packed and parsed by hiredis, and by redis-py, with nothing of ours."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

import hiredis
import redis

T = TypeVar("T")
Command = tuple[Any, ...]


class Bare:
    """A socket to a server that wants no password."""

    def __init__(self, url: str) -> None:
        where = redis.Redis.from_url(url).connection_pool.connection_kwargs
        if "path" in where:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(where["path"])
        else:
            self._socket = socket.create_connection((where["host"], where["port"]))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()

    def run(self, *commands: Command) -> list[Any]:
        """Send the commands in one go, and answer their replies."""
        self._socket.sendall(b"".join([hiredis.pack_command(command) for command in commands]))
        return [self.reply() for _ in commands]

    def reply(self) -> Any:
        """The next reply; raises when it is an error."""
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
        if isinstance(reply, Exception):
            raise reply
        return reply


class Client:
    """redis-py, as :class:`Bare` does it."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)
        self._client.ping()

    def run(self, *commands: Command) -> list[Any]:
        """Send the commands in one go, and answer their replies."""
        if len(commands) == 1:
            return [self._client.execute_command(*commands[0])]
        with self._client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            return pipeline.execute()


def ceiling(variant: str, url: str) -> tuple[Bare | Client, int] | None:
    """Of `socket`, `socket-100` or `redis-py-100`: who sends, and how many commands in one go; None of another."""
    name, _, size = variant.rpartition("-") if variant[-1].isdigit() else (variant, "", "1")
    makers: dict[str, type[Bare] | type[Client]] = {"socket": Bare, "redis-py": Client}
    return (makers[name](url), int(size)) if name in makers else None


def bulk(variant: str) -> int:
    """How many times as many a variant needs that takes a hundred or more at a time, not to end too soon."""
    return 10 if variant.endswith("00") else 1


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of ``size``."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk
