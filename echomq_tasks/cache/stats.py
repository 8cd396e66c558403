"""What a table has counted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from echomq_tasks.forks import after_fork

_NAMES: Final = ("l2_hits", "loads", "coalesced", "errors", "stale", "skipped")


@dataclass(frozen=True, slots=True)
class TableStats:
    """The counters of one table in this process, since it was made or the fork that this process came from.

    Attributes:
      hits: values from L1. Counted without a lock: among many threads a few may be missing.
      l2_hits: values from the server.
      loads: how often a loader ran.
      coalesced: how often a caller waited for another one's load, of this process or of another.
      errors: how often a loader raised.
      stale: how often an old value was given while a new one was on its way, or could not be had.
      skipped: how often the server was not asked, or did not serve.
      evictions: rows that had to make room in L1.
      entries: rows in L1.
      bytes: what they cost, about.
      away: whether the server did not serve when it was last asked.
    """

    hits: int
    l2_hits: int
    loads: int
    coalesced: int
    errors: int
    stale: int
    skipped: int
    evictions: int
    entries: int
    bytes: int
    away: bool

    @property
    def misses(self) -> int:
        """How often L1 had no value."""
        return self.l2_hits + self.loads + self.coalesced

    @property
    def hit_rate(self) -> float:
        """The part of the calls that no loader ran for, from 0 to 1; 0 when there were none."""
        calls = self.hits + self.stale + self.misses
        return (calls - self.loads) / calls if calls else 0.0


class Counters:
    """Counts what is no hit of L1; those are counted by the rows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Called with the name of each counter that is raised, and the row; in the thread to which it happens.
        self.observer: Callable[[str, str], None] | None = None
        self.reset()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self._counts = dict.fromkeys(_NAMES, 0)

    def add(self, name: str, id: str) -> None:
        """Count one, of a row."""
        with self._lock:
            self._counts[name] += 1
        if self.observer is not None:
            self.observer(name, id)

    def read(self) -> dict[str, int]:
        """All of them."""
        with self._lock:
            return dict(self._counts)
