"""Upkeep of the queues that a worker serves, in a thread of its own: it may take long, and claims must not wait."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from dramatiq.logging import get_logger

from echomq_tasks.errors import EchoMQError
from echomq_tasks.worker.outage import Outage

if TYPE_CHECKING:
    from echomq_tasks.worker.line import Line


class Tender(threading.Thread):
    """Sweeps, fires repeats, delivers to parents and trims, each when it is due.

    Parameters:
      lines: the queues, as they are at each moment.
      worked: told of a line whose queue may hold more to claim, or know of another time to look at it.
    """

    def __init__(self, lines: Callable[[], Collection[Line]], worked: Callable[[Line], None]) -> None:
        super().__init__(daemon=True, name="echomq-tender")
        self.logger = get_logger(__name__, type(self))
        self._lines = lines
        self._worked = worked
        self._asked = threading.Event()
        self._outage = Outage(self.logger, "The upkeep of queues")
        self._ended = False

    def ask(self) -> None:
        """Have it look what is due: a claim told of chores, or there is a new queue."""
        self._asked.set()

    def stop(self) -> None:
        """Have it end after the chore it is at; join it then."""
        self._ended = True
        self._asked.set()

    def run(self) -> None:
        """Work until :meth:`stop`."""
        while not self._ended:
            try:
                due = self._tend()
            except BaseException:
                self.logger.exception("The upkeep of queues failed; it goes on.")
                due = time.monotonic() + 1.0
            self._asked.wait(min(max(due - time.monotonic(), 0.0), 3600.0))
            self._asked.clear()

    def _tend(self) -> float:
        """Do what is due; answers when there is something to do again."""
        next_due = math.inf
        for line in self._lines():
            tending = line.tending
            if self._ended:
                break
            if max(tending.due, self._outage.until) <= time.monotonic():
                before = tending.stirred
                try:
                    tending.on_beat()
                    self._outage.end()
                except EchoMQError as error:
                    self._outage.begin(error)
                if tending.stirred != before:
                    self._worked(line)
            next_due = min(next_due, max(tending.due, self._outage.until))
        return next_due
