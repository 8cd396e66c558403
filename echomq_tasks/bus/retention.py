"""Retention: within which bounds a log is kept, written once beside the queue and applied by whoever tends it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from echomq_tasks.errors import InvalidArgument
from echomq_tasks.scripts import Scripts
from echomq_tasks.scripts.arguments import seconds_to_ms, whole

_MAXLEN = re.compile(r"\bmaxlen=(\d+)")
_OLDER = re.compile(r"\bolder_than_ms=(\d+)")


@dataclass(frozen=True, slots=True)
class Retention:
    """What a log keeps; at least one of the two is given.

    Attributes:
      maxlen: the newest so many records.
      older_than: those that are at most so many seconds old.
    """

    maxlen: int | None = None
    older_than: float | None = None

    @classmethod
    def read(cls, text: str) -> Retention:
        """The bounds as the hash ``retention`` has them."""
        maxlen, older = _MAXLEN.search(text), _OLDER.search(text)
        return cls(int(maxlen[1]) if maxlen else None, int(older[1]) / 1000 if older else None)

    def text(self) -> str:
        """The bounds as the hash has them, "" when there are none.

        Raises:
          InvalidArgument: when one is out of range.
        """
        maxlen, older = bounds(self.maxlen, self.older_than)
        words = [f"maxlen={maxlen}" if self.maxlen is not None else ""]
        words += [f"older_than_ms={older}" if self.older_than is not None else ""]
        return " ".join(filter(None, words))


def bounds(maxlen: int | None, older_than: float | None) -> tuple[int | str, int | str]:
    """Bounds as scripts take them, in records and ms; "" where there is none.

    Raises:
      InvalidArgument: when one is out of range.
    """
    most: int | str = "" if maxlen is None else whole(maxlen, "maxlen", 0)
    if older_than is None:
        return most, ""
    milliseconds = seconds_to_ms(older_than, "older_than")
    if not milliseconds:
        raise InvalidArgument("older_than is a number of seconds above 0; maxlen=0 keeps no record at all")
    return most, milliseconds


def keep_retention(scripts: Scripts, base: bytes) -> int:
    """Trim every log of a queue to what its retention says; answers how many records went.

    Cheap where there is nothing to do, and bounded: about ten thousand records a log, and whole nodes of a stream (a
    hundred records by default), so that a log may be a little longer than its bounds.

    Parameters:
      scripts: the server's.
      base: the queue's prefix, :func:`echomq_tasks.keyspace.queue_key`.

    Raises:
      ServerError: when the server cannot be asked.
    """
    return int(scripts.call("log_retain", base))
