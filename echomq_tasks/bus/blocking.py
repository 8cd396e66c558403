"""A connection for one blocking command at a time, which another thread can wake."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

from redis.exceptions import MovedError

from echomq_tasks.connection import Connection

#: Seconds past its block within which the server must have answered a command: a dead peer says nothing.
GRACE = 10.0


class BlockingWire:
    """Owned by one thread, which asks and closes; any other may :meth:`interrupt` it.

    Parameters:
      connection: the server.
      key: decides the node in a cluster.

    Raises:
      ServerUnavailable: and whatever else :meth:`echomq_tasks.connection.Connection.fresh` raises.
    """

    def __init__(self, connection: Connection, key: bytes) -> None:
        self._connection = connection
        self._key = key
        self._wire: Any = connection.fresh(key, blocking=True)
        self._sock: socket.socket = self._wire._sock  # noqa: SLF001 - redis-py has no public way to the socket
        self._pid = os.getpid()

    def ask(self, block: float, *command: bytes | str | int) -> Any:
        """Send a command that the server holds for up to ``block`` seconds, and read its reply.

        Raises:
          redis.RedisError, OSError: as redis-py. After any exception, one that another thread threw in here included,
            close this wire: an answer may be on its way.
        """
        try:
            self._wire.send_command(*command, check_health=False)
            return self._wire.read_response(timeout=block + GRACE)
        except MovedError:
            # The client follows the redirection, and knows the key's node from then on.
            self._connection.client.exists(self._key)
            raise

    def interrupt(self) -> None:
        """Let the thread that asks meet the end of the stream, now or at its next word."""
        # In a child of a fork the peer's end belongs to the parent.
        if os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                # Not through SSLSocket.shutdown, which takes its state from under the thread that reads.
                socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._wire.disconnect()
