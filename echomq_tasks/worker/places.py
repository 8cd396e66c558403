"""The places for jobs of a worker, as the pump counts them: those of its threads, and those of its event loop."""

from __future__ import annotations

from typing import Protocol

from echomq_tasks.brokers.dramatiq.batches import Batch
from echomq_tasks.brokers.dramatiq.delivery import Delivery

Work = Delivery | Batch


class Team(Protocol):
    """Who runs what has a place."""

    def push(self, work: list[Work]) -> None:
        """Have this run."""

    def drain(self) -> list[Work]:
        """Take back what has not been started."""

    @property
    def running(self) -> list[Work]:
        """What is in hand."""

    def stranded(self) -> list[Work]:
        """Hand over what it cannot bring to its end any more."""

    def close(self) -> None:
        """Nothing more will come, and the end of all there was is told."""


class FreePlaces:
    """How many jobs there is room for. For the pump alone, so it needs no lock.

    A delivery has a place from its claim until its run has ended. What has ended and is not settled yet has none; that
    a worker holds no more jobs than it has places all the same, those that a crash would make run again included, is
    seen to where it asks for more (:meth:`echomq_tasks.worker.asking.Asking.held`).

    Places for which jobs were asked for, and no answer has come yet, are free still, but not to be given twice:
    :attr:`open` leaves them out.

    Parameters:
      capacity: how many jobs may be held at once.
      team: who runs them.
      short: jobs are short when they take less than so many seconds from claim to end, on average.
    """

    def __init__(self, capacity: int, team: Team, short: float) -> None:
        self.capacity = capacity
        self.half = max(capacity // 2, 1)
        self.team = team
        #: How many there is room for now.
        self.free = capacity
        #: For how many of these jobs were asked for.
        self.asked = 0
        self._short = short
        # Seconds from claim to end, averaged over the last few dozen jobs.
        self._pace = 1.0

    @property
    def open(self) -> int:
        """For how many jobs to ask."""
        return self.free - self.asked

    def give(self, count: int) -> None:
        """Take so many places back (:class:`echomq_tasks.brokers.dramatiq.slots.Places`)."""
        self.free += count

    def took(self, seconds: float) -> None:
        """Note how long a job had its place."""
        self._pace += (seconds - self._pace) / 16

    @property
    def is_short(self) -> bool:
        """Whether places come free so fast that one claim had better fill several."""
        return self._pace < self._short
