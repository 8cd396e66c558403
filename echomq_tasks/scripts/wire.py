"""One connection's bytes: send packed commands, read replies, with the least work between the two."""

from __future__ import annotations

import _socket
import os
import socket
import ssl
import struct
import threading
from typing import Any

import hiredis
import redis
from redis.exceptions import ResponseError

#: How often a reply is looked for before the thread goes to sleep: some 200 us in all. A server on the same machine
#: answers a script in 30 to 60 us, and to put a thread to sleep and wake it costs more than that (docs/performance.md).
_LOOKS = 150
#: After so many replies in a row that took longer, the server is far away, and looking is given up ...
_PATIENCE = 16
#: ... but for one exchange in so many, which notices when that has changed.
_EVERY = 512
#: With more threads than these in the process, nobody looks.
_FEW_THREADS = 2
_CHUNK = 65536


class Looks:
    """How often to look for a reply before sleeping; learns from how that went. Shared by the wires of a server.

    Its counters are changed by many threads without a lock: a lost update only makes it learn a little later.
    """

    def __init__(self) -> None:
        # With one processor the server cannot answer while we look.
        self._enabled = len(os.sched_getaffinity(0)) > 1 if hasattr(os, "sched_getaffinity") else True
        self._misses = 0
        self._skipped = 0

    def allowed(self) -> int:
        """How often to look this time."""
        # Each look gives the interpreter up and takes it back, which among many threads costs more than it saves.
        if not self._enabled or threading.active_count() > _FEW_THREADS:
            return 0
        if self._misses < _PATIENCE:
            return _LOOKS
        self._skipped += 1
        return _LOOKS if self._skipped % _EVERY == 0 else 0

    def hit(self) -> None:
        """A look found the reply."""
        self._misses = 0

    def miss(self) -> None:
        """All looks were in vain."""
        self._misses += 1


def plain_socket(connection: Any) -> socket.socket | None:
    """The socket of a connected redis-py connection; None under TLS, and when it is not Python's own, as gevent's."""
    sock: socket.socket = connection._sock  # noqa: SLF001 - redis-py has no public way to the socket
    return sock if isinstance(sock, _socket.socket) and not isinstance(sock, ssl.SSLSocket) else None


def reader_for(connection: Any) -> hiredis.Reader:
    """A reader of a redis-py connection's replies, which turns an error into its exception; a nested one stays in its
    place."""
    to_error = connection._parser.parse_error  # noqa: SLF001
    return hiredis.Reader(protocolError=redis.InvalidResponse, replyError=to_error)


class Wire:
    """A connection for scripts; used by one thread at a time.

    It takes over the socket of a connected redis-py connection. A plain socket is set to block, with its timeout kept
    by the kernel, because Python asks the kernel whether a socket with a timeout of its own is ready before each call.
    Under TLS, and on sockets that are not Python's own, all goes through redis-py.

    Parameters:
      connection: a redis-py connection of its own, connected.
      timeout: seconds a send or a reply may take.
      looks: how often to look before sleeping.
    """

    def __init__(self, connection: Any, timeout: float, looks: Looks) -> None:
        self._connection = connection
        self._looks = looks
        self._timeout = timeout
        self._sock = plain_socket(connection)
        if self._sock is not None:
            seconds, microseconds = divmod(int(timeout * 1_000_000), 1_000_000)
            limit = struct.pack("@ll", seconds, microseconds)
            self._sock.settimeout(None)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            self._reader = reader_for(connection)

    def exchange(self, packed: bytes, count: int) -> list[Any]:
        """Send packed commands and read ``count`` replies; an error reply is an exception in its place.

        Raises:
          redis.TimeoutError: when the timeout ended.
          redis.ConnectionError, OSError: when the connection broke. Then, or on any other exception, close this wire:
            answers may be left in it.
        """
        if self._sock is None:
            return self._exchange_through_client(packed, count)
        self.send(packed)
        return self.receive(count)

    def fileno(self) -> int | None:
        """The descriptor that becomes readable with a reply; None when replies come through redis-py."""
        return None if self._sock is None else self._sock.fileno()

    def send(self, packed: bytes) -> None:
        """Send packed commands, for :meth:`receive` to read their replies; on a plain socket only.

        Raises: as :meth:`exchange`.
        """
        assert self._sock is not None
        try:
            self._sock.sendall(packed)
        except BlockingIOError:
            # What the kernel says when SO_RCVTIMEO or SO_SNDTIMEO has passed.
            raise redis.TimeoutError(f"not sent within {self._timeout:g} seconds") from None

    def receive(self, count: int, *, late: bool = False) -> list[Any]:
        """Wait for ``count`` replies to what was sent.

        Parameters:
          count: how many.
          late: whether the first should be there by now, and is not waited for.

        Raises: as :meth:`exchange`.
        """
        sock = self._sock
        assert sock is not None
        replies: list[Any] = []
        try:
            data = sock.recv(_CHUNK, socket.MSG_DONTWAIT) if late else self._first(sock)
            while True:
                if not data:
                    raise redis.ConnectionError("the server closed the connection")
                self._reader.feed(data)
                while (reply := self._reader.gets()) is not False:
                    if isinstance(reply, redis.ConnectionError):
                        raise reply
                    replies.append(reply)
                if len(replies) >= count:
                    return replies
                data = sock.recv(_CHUNK)
        except BlockingIOError:
            raise redis.TimeoutError(f"no answer within {self._timeout:g} seconds") from None

    def _first(self, sock: socket.socket) -> bytes:
        looks = self._looks.allowed()
        for _ in range(looks):
            try:
                data = sock.recv(_CHUNK, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            self._looks.hit()
            return data
        if looks:
            self._looks.miss()
        return sock.recv(_CHUNK)

    def _exchange_through_client(self, packed: bytes, count: int) -> list[Any]:
        replies: list[Any] = []
        self._connection.send_packed_command([packed], check_health=False)
        for _ in range(count):
            try:
                replies.append(self._connection.read_response())
            except ResponseError as error:
                replies.append(error)
        return replies

    def closed_by_peer(self) -> bool:
        """Tell whether the server has closed this idle connection, or sent what nobody asked for."""
        try:
            return bool(self._connection.can_read(0))
        except (redis.ConnectionError, OSError):
            return True

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()
