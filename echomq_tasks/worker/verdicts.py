"""Waiting for the server's verdict on a run, where somebody is to be told of it in the thread that ran it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import repeat, starmap
from typing import Any


class Awaited:
    """The verdicts on the members of one delivery, which its thread waits for.

    Parameters:
      count: how many.
    """

    #: Whether a thread waits, which is free for other jobs the sooner it is told.
    holds_thread = True

    def __init__(self, count: int) -> None:
        self._left = count
        self._gate = threading.Lock()
        self._gate.acquire()
        self._come = count <= 0

    def arrive(self) -> None:
        """One more is known, or will never be."""
        self._left -= 1
        if self._left <= 0 and not self._come:
            self._come = True
            self._gate.release()

    def wait(self) -> None:
        """Wait for all; may be called again after an exception that was thrown into the thread."""
        while not self._come:
            # Not without end: whoever would open the gate may be gone.
            self._gate.acquire(timeout=1.0)


class Told(Awaited):
    """The verdicts on the members of one delivery that no thread waits for: what is to be done then is put somewhere.

    Not before :meth:`left`, too: the hooks that came before have to be through with the delivery's context.
    """

    holds_thread = False

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._is_left = False
        self._then: list[tuple[Any]] = []
        self._put: Iterator[None] = iter(())
        self._wake: Callable[[], None] = lambda: None

    def arrive(self) -> None:
        """One more is known, or will never be."""
        super().arrive()
        self._go_on()

    def left(self, then: Any, put: Callable[[Any], None], wake: Callable[[], None]) -> None:
        """Have ``then`` put somewhere once all are known, once, and somebody woken for it.

        By this thread, or the one that brings the last verdict.
        """
        if not self._is_left:
            self._then[:] = [(then,)]
            # One call into C: nothing that is thrown into this thread, and no other thread, comes in between.
            self._put = starmap(put, starmap(self._then.pop, repeat(())))
            self._wake = wake
            self._is_left = True
        self._go_on()

    def _go_on(self) -> None:
        if self._come and self._is_left:
            with suppress(IndexError):
                next(self._put)
            self._wake()

    def wait(self) -> None:
        """Nobody waits."""
