"""Wake a main thread that waits: by a signal, or from another thread."""

from __future__ import annotations

import math
import os
import select
import signal
import time
from collections import deque
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any, Protocol

#: Held back while a process is started, until it has handlers of its own: another process's must not run in it.
HELD_BACK = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD})
#: Signals that ask for an end within so many seconds are one: a terminal, a shell and a wrapper may all pass on the
#: same Ctrl-C, and `timeout` sends its signal to the process and then to the group, in which the process is.
TOGETHER = 0.2


def ignore_from_now_on() -> None:
    """For a process that has come to its end: one signal more must not make another end of it.

    Ignored ones stay so until it is gone; handlers are taken away by the interpreter some time before.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


class Readable(Protocol):
    """What can be waited for."""

    def fileno(self) -> int:
        """Its file descriptor."""
        ...


class Alarm:
    """Collects signals, and wakes whoever :meth:`wait` s. Made, used and closed by the main thread.

    Parameters:
      numbers: the signals to collect.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self._arrived: deque[int] = deque()
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self._owner = os.getpid()
        self._before = {number: signal.signal(number, self._note) for number in numbers}
        # The kernel may interrupt another thread than the one that waits.
        self._fd_before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._last_end = -TOGETHER

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._arrived.append(number)
        self.poke()

    def poke(self) -> None:
        """Wake the main thread; from any thread."""
        try:
            os.write(self._writing, b"\0")
        except BlockingIOError:
            # Full: it is awake already.
            pass

    def wait(self, others: Sequence[Readable], timeout: float | None) -> list[Any]:
        """Wait for a signal, a poke, or one of ``others``; answers those that can be read."""
        by_descriptor = {other.fileno(): other for other in others}
        poll = select.poll()
        for descriptor in (self._reading, *by_descriptor):
            poll.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(None if timeout is None else math.ceil(timeout * 1000))]
        try:
            while os.read(self._reading, 4096):
                pass
        except BlockingIOError:
            pass
        return [by_descriptor[descriptor] for descriptor in ready if descriptor != self._reading]

    def signals(self) -> list[int]:
        """The signals since the last call; of those that ask for an end and came together, the first."""
        found: list[int] = []
        while self._arrived:
            number = self._arrived.popleft()
            if number in (signal.SIGTERM, signal.SIGINT):
                now = time.monotonic()
                if now - self._last_end < TOGETHER:
                    continue
                self._last_end = now
            found.append(number)
        return found

    def close(self) -> None:
        """Give the signals back to whoever had them; in a child of a fork, only let go of them. May be repeated."""
        if self._reading < 0:
            return
        if os.getpid() == self._owner:
            signal.set_wakeup_fd(self._fd_before)
            for number, handler in self._before.items():
                signal.signal(number, handler)
        else:
            signal.set_wakeup_fd(-1)
        os.close(self._reading)
        os.close(self._writing)
        self._reading = self._writing = -1
