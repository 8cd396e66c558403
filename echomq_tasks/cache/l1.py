"""L1: the rows that a process holds. Reading takes no lock; who writes does."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from itertools import islice
from typing import Any, NamedTuple

from echomq_tasks.cache.frames import newer
from echomq_tasks.cache.row import Row
from echomq_tasks.forks import after_fork

#: So many rows that are gone may stand in the queue for eviction before it is swept.
_SLACK = 64
#: The hits of so many rows are added up at once, and seconds between two such parts.
_PART = 10_000
_BREATH = 0.0001


class Figures(NamedTuple):
    """What an L1 holds, and what it has seen.

    Attributes:
      entries: its rows.
      bytes: what they cost, about.
      hits: how often rows were used; raised without a lock, so a few may be missing.
      evictions: how many rows had to go to make room.
    """

    entries: int
    bytes: int
    hits: int
    evictions: int


class L1:
    """Rows by id, bounded by their number and size.

    Who is to go is found by second chance: the oldest, unless it was used since it was last looked at. To use a row is
    to raise its ``hits``, so that a hit writes nothing that is shared.

    Parameters:
      max_entries: at most so many rows; 0 holds none.
      max_bytes: at most so many bytes of encoded values, with what a row costs itself; None is any number.
    """

    def __init__(self, max_entries: int = 10_000, max_bytes: int | None = None) -> None:
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._empty()
        self._evictions = 0
        #: Raised each time that messages may have been missed.
        self.epoch = 0
        after_fork(self._after_fork)

    def _empty(self) -> None:
        self._rows: dict[str, Row] = {}
        # Every row of _rows once, oldest first, and some that are gone.
        self._queue: deque[Row] = deque()
        self._tagged: dict[str, set[str]] = {}
        self._bytes = 0
        #: Of all rows, as far as they are counted; the others know what is missing.
        self._hits = 0

    def _after_fork(self) -> None:
        torn = self._lock.locked()
        self._lock = threading.Lock()
        if torn:
            # A thread that the child does not have was writing.
            for row in list(self._rows.values()):
                row.leave()
            self._empty()
        # Nobody in the child has heard yet of what happened since.
        self.suspect()

    def __len__(self) -> int:
        return len(self._rows)

    def figures(self) -> Figures:
        """What it holds and what it has seen."""
        at = 0
        while True:
            with self._lock:
                # What comes and goes between two parts moves the others: one that is missed is counted the next time.
                self._queue.rotate(-at)
                for row in islice(self._queue, _PART):
                    if row.hits != row.counted:
                        self._count(row)
                self._queue.rotate(at)
                at += _PART
                if at >= len(self._queue):
                    self._sweep()
                    return Figures(len(self._rows), self._bytes, self._hits, self._evictions)
            # Long enough for those who want to write to come in between.
            time.sleep(_BREATH)

    def _sweep(self) -> None:
        """Notice rows that are gone; here there are none."""

    def _count(self, row: Row) -> None:
        hits = row.hits
        self._hits += hits - row.counted
        row.counted = hits

    def get(self, id: str) -> Row | None:
        """The row under ``id``, in whatever state it is."""
        return self._rows.get(id)

    def put(self, row: Row, epoch: int, *, over: Row | None = None, unless: Callable[[], bool] | None = None) -> bool:
        """Hold a row in place of an older one.

        Parameters:
          row: the row.
          epoch: that of the time when its value was asked for; the row is suspect when messages were missed since.
          over: a row that is older whatever its version says, because its value was asked for before.
          unless: asked once nobody else can write: True and the row is not taken, but the older one goes all the same.

        Returns:
          Whether it was taken: not when a newer one is there, or when it alone is too big.
        """
        with self._lock:
            old = self._rows.get(row.id)
            outdone = unless is not None and unless()
            if old is not None:
                if old is not over and self._stays(old, row, outdone):
                    return False
                self._drop(old)
            if outdone:
                return False
            if self.max_entries <= 0 or (self.max_bytes is not None and row.size > self.max_bytes):
                return False
            row.suspect = epoch != self.epoch or row.doubt is not None
            return self._insert(row)

    @staticmethod
    def _stays(old: Row, row: Row, outdone: bool) -> bool:
        if old.anchored == row.anchored:
            # Both versions are the server's, or both are this process's own.
            return newer(old.version, row.version)
        return old.anchored or outdone

    def _insert(self, row: Row) -> bool:
        self._rows[row.id] = row
        self._queue.append(row)
        self._arrived(row)
        self._evict()
        return row.there

    def _arrived(self, row: Row) -> None:
        self._bytes += row.size
        for tag in row.tags:
            self._tagged.setdefault(tag, set()).add(row.id)
        row.there = True
        row.open()

    def _drop(self, row: Row) -> None:
        self._rows.pop(row.id, None)
        self._left(row)
        # A row that is written again and again leaves its dead there, which nobody evicts.
        if len(self._queue) > 2 * len(self._rows) + _SLACK:
            self._queue = deque(each for each in self._queue if each.there)

    def _left(self, row: Row) -> None:
        row.leave()
        self._bytes -= row.size
        self._count(row)
        for tag in row.tags:
            if (ids := self._tagged.get(tag)) is not None:
                ids.discard(row.id)
                if not ids:
                    del self._tagged[tag]

    def _evict(self) -> None:
        while len(self._rows) > self.max_entries or (self.max_bytes is not None and self._bytes > self.max_bytes):
            row = self._queue.popleft()
            if not row.there:
                continue
            if row.hits != row.seen:
                row.seen = row.hits
                self._queue.append(row)
                continue
            self._drop(row)
            self._evictions += 1

    def kill(self, id: str, version: str | None = None, *, doubt: bool = True) -> bool:
        """There is something newer than the row under ``id``, of this version: drop it; True when it went.

        One that says of itself to be newer still is kept, but checked before it is used again: the server may have
        forgotten that row before it gave the version. A row to which the server gave this version is what is newer.

        Parameters:
          id: the row.
          version: None is newer than any.
          doubt: False when nobody can check a row: then its word is taken.
        """
        with self._lock:
            row = self._rows.get(id)
            return row is not None and self._outdone(row, version, doubt)

    def _outdone(self, row: Row, version: str | None, doubt: bool) -> bool:
        if version is not None:
            if row.anchored and row.version[3:] == version[3:]:
                return False
            if row.anchored and newer(row.version, version):
                if doubt:
                    row.doubt, row.suspect = object(), True
                    row.open()
                return False
        self._drop(row)
        return True

    def kill_tag(self, tag: str, version: str | None = None, *, doubt: bool = True) -> int:
        """As :meth:`kill`, of all rows with a tag; answers how many went."""
        with self._lock:
            rows = [self._rows.get(id) for id in self._tagged.get(tag, ())]
            return sum([self._outdone(row, version, doubt) for row in rows if row is not None])

    def suspect(self) -> None:
        """Messages may have been missed: no row is used again before it was checked."""
        with self._lock:
            self.epoch += 1
            for row in self._rows.values():
                row.suspect = True
                row.open()

    def trust(self, row: Row, epoch: int, doubt: object | None = None) -> bool:
        """A row was checked, and is as good as before.

        Parameters:
          row: the row.
          epoch: that of the time before it was checked.
          doubt: the row's at that time.

        Returns:
          False when it is gone, or to be checked again, for what has come meanwhile.
        """
        with self._lock:
            if not row.there or epoch != self.epoch or row.doubt is not doubt:
                return False
            row.suspect, row.doubt = False, None
            row.open()
            return True

    def postpone(self, row: Row) -> bool:
        """Let a row have no early refresh any more; False when it had none."""
        with self._lock:
            if row.early >= row.until:
                return False
            row.early = row.until
            row.open()
            return True

    def alias(self, table: dict[Any, Row], name: Hashable, row: Row) -> None:
        """Let ``table[name]`` lead to a row, for as long as it is there."""
        with self._lock:
            if row.there and name not in table:
                row.alias(table, name)

    def clear(self) -> int:
        """Drop all rows; answers how many."""
        with self._lock:
            rows = list(self._rows.values())
            for row in rows:
                self._drop(row)
            self._queue.clear()
            return len(rows)
