"""What a claim of a row is answered: the row, or who loads it."""

from __future__ import annotations

from typing import NamedTuple


class Hit(NamedTuple):
    """The row is there.

    Attributes:
      version: under which it was loaded or put.
      value: its bytes.
      pttl_ms: ms until the server forgets it; ten years when another runtime gave it no end.
    """

    version: str
    value: bytes
    pttl_ms: int


class Lead(NamedTuple):
    """The caller is to load the row; all others wait for it as long as it renews its lease.

    Attributes:
      version: to load and to fill under. It is newer than whatever was there, and no put or drop while the flight is on
        its way will be older, even from a machine whose clock is behind: so do not mint another one.
    """

    version: str

    @property
    def floor(self) -> str:
        """As :attr:`version`: a version below it is too old."""
        return self.version


class Follow(NamedTuple):
    """Somebody else loads the row.

    Attributes:
      owner: whose end to wait for, see :class:`~echomq_tasks.cache.frames.Wake`.
      pttl_ms: ms that its lease has left: claim again then.
    """

    owner: str
    pttl_ms: int
