"""Where something may be missing: what the reader is told, and what is known of it until then."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from echomq_tasks.bus.places import FIRST, Place

#: Why something may be missing.
Reason = Literal["reconnected", "moved", "overflow", "trimmed"]


@dataclass(frozen=True, slots=True)
class Gap:
    """Stands in a stream of events where some may be missing.

    Attributes:
      reason: ``reconnected``: the connection was away for a while; ``moved``: the queue's slot went to another node
        of the cluster; ``overflow``: the reader was too slow and its buffer full; ``trimmed``: the log that was to fill
        a gap no longer reaches back to it, or was deleted.
      since: unix seconds from which on events may be missing, by this machine's clock (for an ``overflow``, when the
        first of them happened); None when that is not known.
      queues: the queues that it is about.
      patterns: the patterns that it is about: any queue that matches one may be missing events.
      lost: how many events were thrown away, for an ``overflow``; else None, because nobody knows.
    """

    reason: Reason
    since: float | None = None
    queues: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    lost: int | None = None


@dataclass(slots=True, eq=False)
class Hole:
    """A gap in the making, which may grow until it is told, or filled from a log.

    ``starts`` has, for each queue, the newest places in its log that were seen ahead of what is missing; none when none
    was.
    """

    reason: Reason
    since: float | None = None
    starts: dict[str, tuple[Place, ...]] = field(default_factory=dict)
    patterns: set[str] = field(default_factory=set)
    lost: int = 0
    #: The queues where an event that no log keeps is missing, or may be: no log can fill that. Of each, how many such
    #: events were thrown away.
    unlogged: dict[str, int] = field(default_factory=dict)

    def merge(self, later: Hole) -> None:
        """Take in a hole that comes behind this one."""
        for queue, start in later.starts.items():
            self.starts[queue] = min(self.starts.get(queue, start), start, key=_newest)
        self.patterns |= later.patterns
        self.lost += later.lost
        for queue, lost in later.unlogged.items():
            self.unlogged[queue] = self.unlogged.get(queue, 0) + lost
        if later.since is not None and (self.since is None or later.since < self.since):
            self.since = later.since

    def gap(self, queues: Iterable[str] = (), patterns: Iterable[str] = ()) -> Gap:
        """What the reader is told; only about these, when there are some."""
        if queues or patterns:
            return Gap(self.reason, self.since, tuple(queues), tuple(patterns))
        return Gap(
            self.reason, self.since, tuple(sorted(self.starts)), tuple(sorted(self.patterns)), self._thrown(self.lost)
        )

    def unlogged_gap(self) -> Gap:
        """What the reader is told ahead of what a log gives."""
        lost = self._thrown(sum(self.unlogged.values()))
        return Gap(self.reason, self.since, tuple(sorted(self.unlogged)), lost=lost)

    def _thrown(self, lost: int) -> int | None:
        return lost if self.reason == "overflow" else None


def _newest(places: tuple[Place, ...]) -> Place:
    return max(places, default=FIRST)
