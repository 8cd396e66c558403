"""Reports: what a process has counted of a table, told to the server for those who look at it there."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import time
from dataclasses import dataclass
from typing import Any, Final

from echomq_tasks.cache.owners import OWNERS
from echomq_tasks.cache.parts import Parts
from echomq_tasks.cache.stats import TableStats
from echomq_tasks.cache.store import Store
from echomq_tasks.errors import ConfigError, InvalidId, ServerOutOfMemory
from echomq_tasks.forks import after_fork
from echomq_tasks.identity import brand

#: Ms that the server keeps the report of a process that says nothing more: it has ended.
KEPT_MS: Final = 600_000
#: Seconds after which a process reports although nothing has changed, to say that it is there.
STILL_THERE: Final = 120.0
#: The counters that are reported.
COUNTERS: Final = (
    "hits", "l2_hits", "loads", "coalesced", "errors", "stale", "skipped", "evictions", "entries", "bytes",
)  # fmt: skip
_MOST: Final = 2**53


@dataclass(frozen=True, slots=True)
class Report:
    """What one table has counted in one process.

    Attributes:
      host: the name of its machine.
      pid: its process id there.
      kind: the kind of the table's ids.
      age: seconds since it was told.
      stats: the counters, of that process since it was started. ``away`` is always False: this one came through.
    """

    host: str
    pid: int
    kind: str
    age: float
    stats: TableStats


class Reporter:
    """Reports what one table has counted in this process, when that has changed. Used by one thread, the beat's.

    Parameters:
      parts: the table's.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._after_fork()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        # Of the table, not of the process: a process may have several tables of one name.
        self._who = OWNERS.next()
        self._last: dict[str, Any] = {}
        self._told_at = -math.inf

    def report(self) -> bool:
        """Report; False when there is no news, or no server."""
        reach = self._parts.reach
        # To try a server that is away is left to those who need it.
        if reach is None or reach.away:
            return False
        now, counted = time.monotonic(), self._counted()
        still_there = now - self._told_at >= STILL_THERE
        if counted == self._last and not still_there:
            return False
        text = json.dumps({**counted, "host": socket.gethostname(), "pid": os.getpid(), "kind": self._parts.kind})
        if not reach.tell(lambda store: self._tell(store, text, still_there)):
            return False
        self._last = counted
        if still_there:
            self._told_at = now
        return True

    def _counted(self) -> dict[str, Any]:
        entries, size, hits, evictions = self._parts.l1.figures()
        counted = {"hits": hits, "evictions": evictions, "entries": entries, "bytes": size}
        return {**counted, **self._parts.counters.read()}

    def _tell(self, store: Store, text: str, look: bool) -> None:
        # A full server says so to whoever fills rows; this can wait. Who may not report can have a cache all the same.
        with contextlib.suppress(ServerOutOfMemory, ConfigError):
            store.scripts.call("cache_report", store.base, (self._who, text, KEPT_MS, int(look)))


def read_reports(fields: dict[bytes, bytes], now_ms: int) -> list[Report]:
    """The reports of a table that are not too old, the busiest first; what is none is left out.

    Parameters:
      fields: the hash that holds them.
      now_ms: the server's clock.
    """
    found = [report for value in fields.values() if (report := _read(value, now_ms)) is not None]
    return sorted(found, key=lambda report: (-calls(report.stats), report.host, report.pid))


def calls(stats: TableStats) -> int:
    """How often a value was asked for."""
    return stats.hits + stats.stale + stats.misses


def total(reports: list[Report]) -> TableStats:
    """The counters of several processes, added up."""
    sums = {name: sum(getattr(report.stats, name) for report in reports) for name in COUNTERS}
    return TableStats(**sums, away=False)


def _read(value: bytes, now_ms: int) -> Report | None:
    at, _, text = value.partition(b" ")
    # Whoever may write there may write anything.
    try:
        age_ms = max(now_ms - int(at), 0)
        fields = json.loads(text)
        counted = {name: _count(fields[name]) for name in COUNTERS}
        host, pid, kind = str(fields["host"]), _count(fields["pid"]), brand(fields["kind"], 0)[:3]
    except (ValueError, TypeError, KeyError, RecursionError, InvalidId):
        return None
    return Report(host, pid, kind, age_ms / 1000, TableStats(**counted, away=False)) if age_ms < KEPT_MS else None


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MOST:
        raise ValueError(value)
    return value
