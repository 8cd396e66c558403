"""A subscribed connection to one server, read and written without ever waiting for it."""

from __future__ import annotations

import ssl
import time
from collections import deque
from typing import Any

import hiredis

_CHUNK = 65536
#: At most so many chunks are read at once.
_TURN = 16
_PARTIAL = object()
_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
#: What the answers to our commands begin with, where they are lists.
ANSWERS = (b"subscribe", b"unsubscribe", b"pong")


class Broken(Exception):
    """The connection is of no more use."""


class Subscriber:
    """Owned by one thread. The server answers commands in order; messages come in between.

    It takes over the socket of a redis-py connection, whose own reader would subscribe again silently, so that nobody
    knew what was missed.

    Parameters:
      connection: connected, and of no use to anybody else.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.sock = connection._get_socket()  # noqa: SLF001 - redis-py has no public way to the socket
        self.sock.setblocking(False)
        # Errors come as they stand on the wire, with their class in front.
        self._reader = hiredis.Reader(notEnoughData=_PARTIAL)
        self._out = bytearray()
        # The commands under way, each with its channel; b"" for a PING.
        self._sent: deque[tuple[bytes, bytes]] = deque()
        #: Whether more may be there to read than the selector knows: TLS decrypts more than was asked for.
        self.unread = False
        #: Channels that are subscribed or about to be, and those that are.
        self.asked: set[bytes] = set()
        self.confirmed: set[bytes] = set()
        self._heard = self._waits_since = time.monotonic()

    def subscribe(self, channel: bytes) -> None:
        """Ask for a channel."""
        self.asked.add(channel)
        self._send(b"SUBSCRIBE", channel)

    def unsubscribe(self, channel: bytes) -> None:
        """Let go of a channel."""
        self.asked.discard(channel)
        self.confirmed.discard(channel)
        self._send(b"UNSUBSCRIBE", channel)

    def _send(self, verb: bytes, channel: bytes = b"") -> None:
        if not self._sent:
            self._waits_since = time.monotonic()
        self._out += hiredis.pack_command((verb, channel) if channel else (verb,))  # type: ignore[arg-type]
        self._sent.append((verb, channel))

    def answered(self, reply: Any) -> tuple[bytes, str] | None:
        """Take the answer to the oldest command under way; a channel that was refused, and why.

        Raises:
          Broken: when none is under way.
        """
        if not self._sent:
            raise Broken(f"the server answered what nobody asked: {reply!r}")
        verb, channel = self._sent.popleft()
        self._waits_since = time.monotonic()
        if verb != b"SUBSCRIBE":
            return None
        if isinstance(reply, hiredis.ReplyError):
            self.asked.discard(channel)
            return channel, str(reply)
        # It may have been let go of, or even asked for again, while the answer was on its way.
        if channel in self.asked and (b"UNSUBSCRIBE", channel) not in self._sent:
            self.confirmed.add(channel)
        return None

    def write(self) -> bool:
        """Send what there is to send, as far as it goes; True when something is left.

        Raises:
          Broken: when the connection broke.
        """
        try:
            while self._out:
                # A view would keep the buffer from shrinking.
                del self._out[: self.sock.send(bytes(self._out[:_CHUNK]))]
        except _LATER:
            pass
        except (OSError, ValueError) as error:
            raise Broken(str(error) or type(error).__name__) from error
        return bool(self._out)

    def read(self) -> list[Any]:
        """The replies and messages that are there; an error reply is a ``hiredis.ReplyError`` in its place.

        Raises:
          Broken: when the connection broke, and nothing was left to read before that.
        """
        replies: list[Any] = []
        self.unread = False
        for _ in range(_TURN):
            try:
                data = self.sock.recv(_CHUNK)
            except _LATER:
                return replies
            except (OSError, ValueError) as error:
                if replies:
                    return replies
                raise Broken(str(error) or type(error).__name__) from error
            if not data:
                if replies:
                    return replies
                raise Broken("the server closed the connection")
            self._heard = time.monotonic()
            try:
                self._reader.feed(data)
                while (reply := self._reader.gets()) is not _PARTIAL:
                    replies.append(reply)
            except hiredis.ProtocolError as error:
                raise Broken(f"the server sent what is no reply: {error}") from error
        self.unread = True
        return replies

    def due(self, silence: float, timeout: float) -> float:
        """When to :meth:`check` next, on the monotonic clock."""
        return max(self._heard, self._waits_since) + timeout if self._sent else self._heard + silence

    def check(self, silence: float, timeout: float) -> None:
        """Ask a server that has been silent whether it is there.

        Raises:
          Broken: when it owes an answer for too long.
        """
        if time.monotonic() < self.due(silence, timeout):
            return
        if self._sent:
            raise Broken(f"no answer for {timeout:g} seconds")
        self._send(b"PING")
        self.write()

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()
