"""Upkeep of the queues that a worker serves, in a thread of its own: it may take long, and claims must not wait."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from dramatiq.logging import get_logger

from echomq_tasks.errors import EchoMQError
from echomq_tasks.scripts.courier import Couriers, Errand, wait_for
from echomq_tasks.worker.outage import Outage

if TYPE_CHECKING:
    from echomq_tasks.worker.line import Line


#: Seconds between two looks at whether a queue whose node is away can be tended again.
_AWAY = 1.0
#: Seconds that its end waits for couriers.
_PARTING = 1.0


class Tender(threading.Thread):
    """Sweeps, fires repeats, delivers to parents and trims, each when it is due.

    In a cluster a courier does it for each queue, so that a node which does not answer holds up its own queues only.

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
        # In a cluster, by the queue.
        self._outages: dict[str, Outage] = {}
        self._errands: dict[str, Errand] = {}
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
        wait_for(self._errands.values(), _PARTING)

    def _tend(self) -> float:
        """Do what is due; answers when there is something to do again."""
        next_due = math.inf
        for line in self._lines():
            if self._ended:
                break
            if line.apart:
                next_due = min(next_due, self._send(line))
                continue
            tending = line.tending
            if max(tending.due, self._outage.until) <= time.monotonic():
                self._do(line, self._outage)
            next_due = min(next_due, max(tending.due, self._outage.until))
        return next_due

    def _do(self, line: Line, outage: Outage) -> None:
        before = line.tending.stirred
        try:
            line.tending.on_beat()
            outage.end()
        except EchoMQError as error:
            outage.begin(error)
        if line.tending.stirred != before:
            self._worked(line)

    def _send(self, line: Line) -> float:
        """Have a courier do what is due; answers when to look again, unless it is asked before."""
        name = line.queue_name
        if (errand := self._errands.get(name)) is not None:
            if not errand.done:
                return math.inf
            del self._errands[name]
            try:
                errand.result()
            except BaseException:
                self.logger.exception("The upkeep of queue %r failed; it goes on.", name)
                return time.monotonic() + 1.0
        if line.is_away:
            return time.monotonic() + _AWAY
        if (outage := self._outages.get(name)) is None:
            outage = self._outages[name] = Outage(self.logger, f"The upkeep of queue {name!r}")
        due = max(line.tending.due, outage.until)
        if due > time.monotonic():
            return due
        errand = self._errands[name] = Couriers.of(line.queue.connection).send(partial(self._do, line, outage))
        errand.when_done(self._asked.set)
        return math.inf
