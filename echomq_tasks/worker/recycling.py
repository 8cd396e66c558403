"""Count the jobs that a process has run."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

from dramatiq import Broker, MessageProxy, Middleware


class JobCount(Middleware):
    """Tells once when a number of jobs is reached: somewhat before it, by chance, up to a tenth.

    Processes that share their work evenly would otherwise all make room at the same time.

    Parameters:
      most: the number.
      reached: called by the thread that ran the last of them.
    """

    def __init__(self, most: int, reached: Callable[[], None]) -> None:
        self.most = most - random.randint(0, most // 10)
        self._reached = reached
        # Its next() is one step for the interpreter, whatever the threads do.
        self._numbers = itertools.count(1)

    def after_process_message(
        self, broker: Broker, message: MessageProxy, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        """One more."""
        if next(self._numbers) == self.most:
            self._reached()

    def after_skip_message(self, broker: Broker, message: MessageProxy) -> None:
        """A message that a hook skipped counts, too."""
        if next(self._numbers) == self.most:
            self._reached()
