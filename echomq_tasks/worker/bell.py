"""Waking a thread that sleeps in ``poll()``."""

from __future__ import annotations

import contextlib
import os
import weakref
from itertools import repeat, starmap

#: Eight bytes are what an eventfd takes, and a pipe does not mind.
_STROKE = b"\1\0\0\0\0\0\0\0"


class Bell:
    """A descriptor that becomes readable when somebody rings; any thread may ring, one thread waits.

    It is closed when nobody refers to it any more, and not before: who rings late must not write into a file that has
    got its number since.
    """

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self._read = self._write = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._read, self._write = os.pipe()
            os.set_blocking(self._read, False)
            os.set_blocking(self._write, False)
        for descriptor in {self._read, self._write}:
            weakref.finalize(self, os.close, descriptor)
        self._armed: list[tuple[int, bytes]] = []
        # One call into C: an exception that is thrown into who rings must not come between the two halves.
        self._once = starmap(os.write, starmap(self._armed.pop, repeat(())))

    def fileno(self) -> int:
        """What to wait for."""
        return self._read

    def ring(self) -> None:
        """Wake who waits, or who waits next."""
        # Full, it is readable all the same.
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, _STROKE)

    def arm(self) -> None:
        """Have the first :meth:`ring_once` ring; for who is about to wait."""
        self._armed[:] = [(self._write, _STROKE)]

    def ring_once(self) -> None:
        """Ring, if nobody else has since it was armed."""
        with contextlib.suppress(BlockingIOError, IndexError):
            next(self._once)

    def clear(self) -> None:
        """Have the next wait wait for the next ring."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._read, 4096)) == 4096:
                pass
