"""Which event loop has which stream."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

from redis.exceptions import TimeoutError as RedisTimeoutError

from echomq_tasks.connection import Connection
from echomq_tasks.errors import EchoMQError
from echomq_tasks.forks import after_fork
from echomq_tasks.keyspace import NODE_PREFIX
from echomq_tasks.scripts.stream import Stream
from echomq_tasks.scripts.wire import plain_socket

#: So often a loop asks for a stream in vain, before one is opened: many loops live for one question.
_FEW: Final = 8
#: Seconds after which it is tried again to open one.
_PAUSE: Final = 1.0

#: Runs a function that blocks, elsewhere than in the loop.
Elsewhere = Callable[[Callable[[], Any]], Awaitable[Any]]


class Streams:
    """The streams of a server, one for each event loop that asks it often.

    A cluster has none, nor has a server behind TLS, nor a loop that cannot watch a socket.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._possible = not connection.is_cluster
        self._again_at = 0.0
        self._begin()
        after_fork(self._after_fork)

    @classmethod
    def of(cls, connection: Connection) -> Streams:
        """Those of a connection, which close with it."""
        return connection.companion(cls)

    def _after_fork(self) -> None:
        for stream in list(self._streams.values()):
            stream.forget()
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._streams: WeakKeyDictionary[asyncio.AbstractEventLoop, Stream] = WeakKeyDictionary()
        self._asked: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()

    def here(self) -> Stream | None:
        """That of the running loop."""
        stream = self._streams.get(asyncio.get_running_loop())
        return None if stream is None or stream.closed else stream

    async def begin(self, elsewhere: Elsewhere) -> Stream | None:
        """Open that of the running loop, when it has none; None when it should do without.

        Raises:
          ServerUnavailable: when it did not answer in time. Of one that cannot be connected to, whoever asks it in
            another way will be told.
        """
        if not self._possible or time.monotonic() < self._again_at:
            return None
        loop = asyncio.get_running_loop()
        with self._lock:
            asked = self._asked[loop] = self._asked.get(loop, 0) + 1
        if asked <= _FEW:
            return None
        # The other tasks do without until there is one.
        self._again_at = time.monotonic() + _PAUSE
        try:
            connection = await elsewhere(self._dial)
        except EchoMQError as error:
            if isinstance(error.__cause__, RedisTimeoutError):
                raise
            return None
        self._again_at = 0.0
        return self._start(loop, connection)

    def _dial(self) -> Any:
        return self._connection.fresh(NODE_PREFIX, blocking=False)

    def _start(self, loop: asyncio.AbstractEventLoop, connection: Any) -> Stream | None:
        sock, config = plain_socket(connection), self._connection.config
        found = self.here()
        if sock is None or found is not None:
            self._possible = sock is not None
            connection.disconnect()
            return found
        try:
            stream = Stream(connection, sock, config.timeout, config.address)
        except NotImplementedError:
            self._possible = False
            connection.disconnect()
            return None
        with self._lock:
            self._streams[loop] = stream
        return stream

    def close(self) -> None:
        """Close them all."""
        with self._lock:
            streams = list(self._streams.items())
            self._streams.clear()
        for loop, stream in streams:
            stream.end(loop)
