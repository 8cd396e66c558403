"""What the worker processes have done, in memory that they share with the harness: the same for every queue.

Needs nothing but the standard library, as it is imported in every environment.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

#: Numbers a worker process has: how many jobs it ran, how many delays it noted, and the delays in nanoseconds.
CELLS = 4096
#: Worker processes there can be.
SLOTS = 4


class Tally:
    """The shared numbers. A process writes to its own slot only; children that it forks write to it in its place."""

    def __init__(self, path: str | os.PathLike[str], slot: int = 0) -> None:
        with open(path, "r+b") as file:
            self._cells = memoryview(mmap.mmap(file.fileno(), CELLS * SLOTS * 8)).cast("q")
        self._base = slot * CELLS

    @classmethod
    def create(cls, path: Path) -> Tally:
        """Make the file that the processes share."""
        path.write_bytes(bytes(CELLS * SLOTS * 8))
        return cls(path)

    def count(self) -> None:
        """Note a job that ran. No thread can get in between: the interpreter switches at calls and jumps only."""
        self._cells[self._base] += 1

    def arrived(self, sent: float) -> None:
        """Note a job that was sent at that time, one job at a time."""
        delay = int((time.time() - sent) * 1e9)
        noted = self._cells[self._base + 1]
        self._cells[self._base + 2 + noted] = delay
        self._cells[self._base + 1] = noted + 1

    def clear(self) -> None:
        """Forget everything."""
        for cell in range(CELLS * SLOTS):
            self._cells[cell] = 0

    def ran(self) -> list[int]:
        """How many jobs each worker process ran."""
        return [self._cells[slot * CELLS] for slot in range(SLOTS)]

    def delays(self) -> list[float]:
        """Seconds from sending to start, of all that arrived."""
        found: list[float] = []
        for first in range(0, CELLS * SLOTS, CELLS):
            noted = self._cells[first + 1]
            found.extend(self._cells[cell] / 1e9 for cell in range(first + 2, first + 2 + noted))
        return found
