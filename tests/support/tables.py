"""The raw keys of a cache table, read and written with plain commands, the way another runtime does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from wire.handwriting import Wire

from echomq_tasks.connection import Connection
from support.hearing import Ear

#: Rows of a table of the kind USR.
A, B, C = (f"USR0NgWEfAEJ0{letter}" for letter in "ABC")
#: Versions: of long ago, in their order, and one that no clock has reached.
OLD, OLDER_BY_CASE, NEXT = "USR0NgWEfAEKZz", "USR0NgWEfAEKa0", "USR0NgWEfAEKa1"
FAR = "USR9zzzzzzzzzz"
AFTER_FAR = "USRA0000000000"
MINUTE = 60_000


class Rows(Wire):
    """As :class:`Wire`, for the keys behind ``ecc:{table}:``."""

    def __init__(self, connection: Connection, table: str) -> None:
        super().__init__(connection, table)
        self._connection = connection
        self.base = f"ecc:{{{table}}}:"

    def write(self, row_id: str, frame: str | bytes, px: int | None = MINUTE) -> None:
        """Write a row as another runtime does."""
        self.do("SET", row_id, frame, *([] if px is None else ["PX", px]))

    def frame(self, row_id: str) -> bytes | None:
        """A row as it stands there."""
        found: bytes | None = self.client.get(self.base + row_id)
        return found

    def left(self, suffix: str) -> int:
        """The ms that a key has left."""
        return int(self.do("PTTL", suffix))

    def end(self, suffix: str) -> int:
        """When a key ends, unix ms."""
        return int(self.do("PEXPIRETIME", suffix))

    @contextmanager
    def listening(self, channel: str = "coh") -> Iterator[Ear]:
        """Hear a channel of the table; take its :meth:`Ear.raw`."""
        with Ear(self._connection, "", channel=self.base + channel) as ear:
            yield ear
