"""A place for one process at a time."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from echomq_tasks.worker.process import Process

#: A process that was ready for so many seconds has not died of how it was started.
STEADY = 10.0
#: Seconds before the second start in a row, doubled up to the most.
_PAUSE, _LONGEST = 1.0, 30.0


class Slot:
    """Who is in a place, who is to take it over once ready, who is on the way out, and when the next is due.

    Parameters:
      name: what its processes are called.
      function: what they run, as ``MODULE:FUNCTION``; None for actors.
    """

    def __init__(self, name: str, function: str | None = None) -> None:
        self.name = name
        self.function = function
        self.current: Process | None = None
        self.coming: Process | None = None
        self.leaving: list[Process] = []
        self.due: float | None = None
        #: Whether another follows the current one.
        self.wanted = True
        #: Whether one of them was ever ready.
        self.proven = False
        self._early = 0

    def processes(self) -> Iterator[Process]:
        """All that are there."""
        if self.current is not None:
            yield self.current
        if self.coming is not None:
            yield self.coming
        yield from self.leaving

    def discard(self, process: Process) -> None:
        """Forget one that has ended."""
        if process is self.current:
            self.current = None
        elif process is self.coming:
            self.coming = None
        else:
            self.leaving.remove(process)

    def leave(self) -> None:
        """The current one is on its way out."""
        if self.current is not None:
            self.leaving.append(self.current)
            self.current = None

    def pause_after(self, process: Process | None) -> float:
        """Seconds to wait before the next start, now that this one has died, or could not be started (None)."""
        lived = 0.0 if process is None else process.lived()
        self._early = 0 if lived >= STEADY else self._early + 1
        if self._early == 0 or (self._early == 1 and lived):
            return 0.0
        longest = min(_LONGEST, _PAUSE * 2.0 ** min(self._early - 1, 10))
        # Processes that died together do not come back together.
        return longest * random.uniform(0.7, 1.0)

    def start_in(self, seconds: float) -> None:
        """Note that the next is due then."""
        self.due = time.monotonic() + seconds
