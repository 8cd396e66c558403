"""The line between the main process and one that it has started."""

from __future__ import annotations

import json
from multiprocessing.connection import Connection, Pipe
from typing import Any


class Channel:
    """One end of a pipe that carries small messages both ways; whoever dies, the other end hears of it.

    That holds as long as no third process has a copy of the end that died: who forks closes those in the child.
    """

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Both ends of a new one."""
        one, other = Pipe()
        return cls(one), cls(other)

    @classmethod
    def inherited(cls, descriptor: int) -> Channel:
        """The end that this process was started with."""
        return cls(Connection(descriptor))

    def fileno(self) -> int:
        """Its file descriptor, to wait for."""
        return self._connection.fileno()

    def send(self, **message: Any) -> bool:
        """Send a message; False when nobody is there any more."""
        try:
            self._connection.send_bytes(json.dumps(message).encode())
        except OSError:
            return False
        return True

    def receive(self) -> dict[str, Any] | None:
        """The next message, waited for; None when the other end is gone."""
        try:
            message: dict[str, Any] = json.loads(self._connection.recv_bytes())
        except (OSError, EOFError):
            return None
        return message

    def waiting(self) -> bool:
        """Whether :meth:`receive` would answer at once."""
        try:
            return self._connection.poll()
        except OSError:
            return True

    def close(self) -> None:
        """Close this end."""
        self._connection.close()
