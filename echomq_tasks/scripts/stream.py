"""A connection of an event loop: what many tasks ask is under way on it at once, and answered in order."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import Any, Final

import redis

from echomq_tasks.errors import ServerUnavailable
from echomq_tasks.scripts.wire import reader_for

_CHUNK: Final = 65536


class Stream:
    """A connection of one event loop, in whose thread all is called.

    The loop knows it as long as it is open, and it knows no loop: so it goes when the loop does.

    Parameters:
      connection: a redis-py connection of its own, connected.
      sock: its socket, a plain one.
      timeout: seconds that a reply may take.
      address: of the server, for errors.
    """

    def __init__(self, connection: Any, sock: socket.socket, timeout: float, address: str) -> None:
        self._connection = connection
        self._sock = sock
        self._timeout = timeout
        self._address = address
        self._reader = reader_for(connection)
        #: Who waits, for how many replies and since when, in the order in which the server answers.
        self._waiting: deque[tuple[asyncio.Future[list[Any]], int, float]] = deque()
        self._came: list[Any] = []
        self._unsent = bytearray()
        self._timed = False
        self.closed = False
        sock.setblocking(False)
        asyncio.get_running_loop().add_reader(sock.fileno(), self._readable)

    async def ask(self, packed: bytes, count: int) -> list[Any]:
        """Send packed commands, and wait for ``count`` replies; a refusal is an exception in its place.

        Whoever is cancelled meanwhile disturbs nobody else.

        Raises:
          ServerUnavailable: when the connection broke, or no answer came in time: caused by a TimeoutError of redis-py.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[Any]] = loop.create_future()
        self._waiting.append((answer, count, loop.time()))
        if not self._timed:
            self._time(loop, self._timeout)
        if self.closed:
            self._break(redis.ConnectionError("it was closed"))
        elif self._unsent:
            self._unsent += packed
        elif sent := self._send(packed):
            if sent < len(packed):
                self._send_later(loop, packed[sent:])
        else:
            self._send_later(loop, packed)
        return await answer

    # Sending.

    def _send(self, data: bytes | bytearray) -> int:
        try:
            return self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self._break(redis.ConnectionError(str(error)))
            return len(data)

    def _send_later(self, loop: asyncio.AbstractEventLoop, data: bytes) -> None:
        self._unsent += data
        loop.add_writer(self._sock.fileno(), self._writable, loop)

    def _writable(self, loop: asyncio.AbstractEventLoop) -> None:
        sent = self._send(self._unsent)
        if not self.closed:
            del self._unsent[:sent]
            if not self._unsent:
                loop.remove_writer(self._sock.fileno())

    # Receiving.

    def _readable(self) -> None:
        if self.closed:
            return
        try:
            data = self._sock.recv(_CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            return self._break(redis.ConnectionError(str(error)))
        if not data:
            return self._break(redis.ConnectionError("the server closed the connection"))
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                if not self._waiting:
                    # As a server says before it closes a connection.
                    return self._break(redis.ConnectionError(f"the server said unasked: {reply!r:.100}"))
                self._take(reply)
        except redis.RedisError as error:
            self._break(error)

    def _take(self, reply: Any) -> None:
        answer, count, _ = self._waiting[0]
        self._came.append(reply)
        if len(self._came) == count:
            came, self._came = self._came, []
            self._waiting.popleft()
            if not answer.done():
                answer.set_result(came)

    # The end.

    def _time(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        # One timer at a time, for whoever waits longest: to make one for each question is a tenth of what that costs.
        self._timed = True
        loop.call_later(seconds, self._late, loop)

    def _late(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timed = False
        if not self._waiting:
            return
        left = self._waiting[0][2] + self._timeout - loop.time()
        if left > 0:
            self._time(loop, left)
        else:
            self._break(redis.TimeoutError(f"no answer within {self._timeout:g} seconds"))

    def _break(self, cause: Exception) -> None:
        self.close(asyncio.get_running_loop())
        while self._waiting:
            answer, _, _ = self._waiting.popleft()
            if not answer.done():
                error = ServerUnavailable(f"the connection to {self._address} failed before an answer came: {cause}")
                error.__cause__ = cause
                answer.set_exception(error)

    def close(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Close it: in the thread of its loop; or anywhere with None, when that is closed."""
        if self.closed:
            return
        self.closed = True
        if loop is not None:
            loop.remove_reader(self._sock.fileno())
            loop.remove_writer(self._sock.fileno())
        self._connection.disconnect()

    def end(self, loop: asyncio.AbstractEventLoop) -> None:
        """From any thread: whoever waits is told that the connection broke, once the loop runs."""
        try:
            loop.call_soon_threadsafe(self._break, redis.ConnectionError("it was closed"))
        except RuntimeError:
            self.close(None)  # the loop is closed

    def forget(self) -> None:
        """In the child of a fork: read nothing more of what is the parent's."""
        self.closed = True
