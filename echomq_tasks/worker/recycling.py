"""Count the jobs that a process runs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

from dramatiq import Broker, MessageProxy, Middleware


class JobCount(Middleware):
    """Tells once when a number of jobs has begun: somewhat before it, by chance, up to a tenth.

    Processes that share their work evenly would otherwise all make room at the same time. Counted as they begin, those
    that run side by side are no excess: beyond the number come only those that were claimed already and begin before
    they can be given back.

    Parameters:
      most: the number.
      reached: called by the thread that begins the last of them.
    """

    def __init__(self, most: int, reached: Callable[[], None]) -> None:
        self.most = most - random.randint(0, most // 10)
        self._reached = reached
        # Its next() is one step for the interpreter, whatever the threads do.
        self._numbers = itertools.count(1)

    def add_to(self, broker: Broker) -> None:
        """Count for this broker: before its other middleware, which may have a message skipped."""
        broker.middleware.insert(0, self)

    def before_process_message(self, broker: Broker, message: MessageProxy) -> None:
        """One more."""
        if next(self._numbers) == self.most:
            self._reached()
