"""Puts on their way: what is heard of a row while it is put must not be forgotten before L1 has the value."""

from __future__ import annotations

import threading

from echomq_tasks.cache.frames import newer
from echomq_tasks.forks import after_fork


class Put:
    """One put, from before the server is told until L1 has the value.

    Attributes:
      id: the row.
      tags: the ids of its tags.
    """

    __slots__ = ("_newest", "_outdone", "id", "tags")

    def __init__(self, id: str, tags: tuple[str, ...]) -> None:
        self.id = id
        self.tags = tags
        self._newest: str | None = None
        self._outdone = False

    def heard(self, version: str | None) -> None:
        """The row was dropped or put, under this version; None when that is not known."""
        if version is None:
            self._outdone = True
        elif newer(version, self._newest):
            self._newest = version

    def outdone(self, version: str | None) -> bool:
        """Whether something was heard that is, or may be, newer than what was put.

        Parameters:
          version: that the server gave; None when it gave none, so that nothing is known to be older.
        """
        return self._outdone or (self._newest is not None and (version is None or newer(self._newest, version)))


class Puts:
    """Those of one table; a fork starts with none."""

    def __init__(self) -> None:
        self._after_fork()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._puts: set[Put] = set()

    def begin(self, id: str, tags: tuple[str, ...]) -> Put:
        """Hear of a row from now on."""
        put = Put(id, tags)
        with self._lock:
            self._puts.add(put)
        return put

    def end(self, put: Put) -> None:
        """It is over."""
        with self._lock:
            self._puts.discard(put)

    def heard(self, id: str, version: str | None, but: Put | None = None) -> None:
        """A row was dropped or put, or the rows of a tag; not by ``but``."""
        # Most of the time there are none.
        if self._puts:
            with self._lock:
                for put in self._puts:
                    if put is not but and (put.id == id or id in put.tags):
                        put.heard(version)

    def heard_all(self) -> None:
        """All rows were dropped."""
        with self._lock:
            for put in self._puts:
                put.heard(None)
