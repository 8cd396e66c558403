"""One pub/sub connection to one server, read and written without ever waiting for it."""

from __future__ import annotations

import math
import ssl
import time
from collections import deque
from typing import Any, NamedTuple

import hiredis

from echomq_tasks.bus.channel import Channel

_CHUNK = 65536
#: At most so many bytes are read before another link has its turn.
_TURN = 16 * _CHUNK
_PARTIAL = object()
_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
PING = b"ping"


class LinkBroken(Exception):
    """The connection is of no more use."""


class Sent(NamedTuple):
    """A command whose answer is still to come; ``channel`` is None for a PING."""

    verb: bytes
    channel: Channel | None


class Link:
    """A subscribed connection; owned by the hub's thread.

    It takes over the socket of a redis-py connection, whose own reader would wait for the end of a message that is half
    there, drops replies that are no push, and subscribes again silently.

    Parameters:
      connection: connected, and of no use to anybody else.
      name: the node, as ``host:port``; empty outside of a cluster.
    """

    def __init__(self, connection: Any, name: str) -> None:
        self.name = name
        self._connection = connection
        self.sock = connection._get_socket()  # noqa: SLF001 - redis-py has no public way to the socket
        self.sock.setblocking(False)
        # Errors come as they stand on the wire, with their class in front.
        self._reader = hiredis.Reader(notEnoughData=_PARTIAL)
        self._out = bytearray()
        #: One entry for each command under way: the server answers in order.
        self.sent: deque[Sent] = deque()
        #: What is subscribed here, or about to be.
        self.channels: set[Channel] = set()
        #: Channels that were lost, and whose subscription here is not confirmed yet; then those that are.
        self.settling: set[Channel] = set()
        self.settled: list[Channel] = []
        #: Messages that wait until the readers have been told of the gap before them.
        self.held: list[Any] = []
        #: When the first of them came.
        self.held_at = math.inf
        self.heard = time.monotonic()
        #: When the server last had a chance to answer, for as long as it owes us something.
        self.asked = self.heard

    def ask(self, verb: bytes, channel: Channel | None = None) -> None:
        """Send a command: each is answered once."""
        words = (verb,) if channel is None else (verb, channel.name)
        if not self.sent:
            self.asked = time.monotonic()
        self._out += hiredis.pack_command(words)  # type: ignore[arg-type]
        self.sent.append(Sent(verb, channel))

    def answered(self) -> Sent:
        """Take the command that this answer is to."""
        if not self.sent:
            raise LinkBroken("the server answered what nobody asked")
        self.asked = time.monotonic()
        return self.sent.popleft()

    def patience(self) -> float:
        """From when on the server has been silent, on the monotonic clock."""
        return max(self.asked, self.heard) if self.sent else self.heard

    def write(self) -> bool:
        """Send what there is to send, as far as it goes; True when something is left.

        Raises:
          LinkBroken: when the connection broke.
        """
        try:
            while self._out:
                # A view would keep the buffer from shrinking.
                del self._out[: self.sock.send(bytes(self._out[:_CHUNK]))]
        except _LATER:
            pass
        except (OSError, ValueError) as error:
            raise LinkBroken(str(error) or type(error).__name__) from error
        return bool(self._out)

    def read(self) -> list[Any]:
        """The replies and messages that are there; an error reply is a ``hiredis.ReplyError`` in its place.

        Raises:
          LinkBroken: when the connection broke, and nothing was left to read before that.
        """
        replies: list[Any] = []
        taken = 0
        while taken < _TURN:
            try:
                data = self.sock.recv(_CHUNK)
            except _LATER:
                break
            except (OSError, ValueError) as error:
                if replies:
                    break
                raise LinkBroken(str(error) or type(error).__name__) from error
            if not data:
                if replies:
                    break
                raise LinkBroken("the server closed the connection")
            taken += len(data)
            self.heard = time.monotonic()
            try:
                self._reader.feed(data)
                while (reply := self._reader.gets()) is not _PARTIAL:
                    replies.append(reply)
            except hiredis.ProtocolError as error:
                raise LinkBroken(f"the server sent what is no reply: {error}") from error
        return replies

    def unread(self) -> bool:
        """Whether bytes wait where no selector sees them: TLS decrypts more than was asked for."""
        return isinstance(self.sock, ssl.SSLSocket) and self.sock.pending() > 0

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()

    def __repr__(self) -> str:
        return f"<Link to {self.name or 'the server'}, {len(self.channels)} channels>"
