"""The beat: one thread that now and then lets the tables of a connection report what they have counted."""

from __future__ import annotations

import atexit
import logging
import os
import random
import threading
import time
import weakref
from multiprocessing.util import Finalize
from typing import Final, Protocol

from echomq_tasks.forks import after_fork

_log = logging.getLogger(__name__)

#: Seconds between two beats, give or take a fifth, so that processes started together do not report together.
EVERY: Final = 5.0
#: Reporting takes at most this part of a processor's time: to sum the hits of a big table is work, too.
_PART: Final = 1 / 200
#: Seconds that closing, and the end of the process, wait for the last reports.
_PATIENCE: Final = 1.0


class Reports(Protocol):
    """Who has something to report."""

    def report(self) -> object:
        """Report it; never called by two threads at once."""


class Beat:
    """Calls ``report`` of all who were added, in a thread that ends when there is nobody left.

    They are held weakly, and report a last time when they are removed, when this is closed, and when the process ends.
    After a fork the child has none, until they are added there.

    Parameters:
      every: seconds between two beats.
    """

    def __init__(self, every: float | None = None) -> None:
        self._every = every
        self._after_fork()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._change = threading.Condition()
        self._all: weakref.WeakSet[Reports] = weakref.WeakSet()
        #: Those who are to report a last time.
        self._leaving: list[Reports] = []
        self._thread: threading.Thread | None = None

    def add(self, one: Reports) -> None:
        """Let ``one`` report from now on."""
        with self._change:
            self._all.add(one)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="echomq-cache-beat", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError as error:
                    # At the end of the interpreter, for one. A cache works without.
                    self._thread = None
                    _log.debug("Nothing is reported of the cache: %s", error)
                    return
                _END.wait_for(self)

    def remove(self, one: Reports) -> None:
        """Let ``one`` report once more, and then no more."""
        with self._change:
            if one in self._all and self._thread is not None:
                self._leaving.append(one)
            self._all.discard(one)
            self._change.notify()

    def close(self) -> bool:
        """Let all report once more, and end the thread; waits for that a moment at most. False when there was none."""
        thread = self.dismiss()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_PATIENCE)
        return thread is not None

    def dismiss(self) -> threading.Thread | None:
        """As :meth:`close`, without waiting; the thread that ends, if there is one."""
        with self._change:
            if self._thread is not None:
                self._leaving += self._all
            self._all.clear()
            self._change.notify()
            return self._thread

    def _run(self) -> None:
        at = self._next(0.0)
        while True:
            due, leaving = self._due(at)
            if not due:
                return
            begun = time.thread_time()
            while due:
                # One at a time, so that nobody is kept alive by it while the others report.
                one = due.pop()
                with self._change:
                    wanted = leaving or one in self._all
                if wanted:
                    self._let(one)
                del one
            # Those who leave do not make the others wait for longer.
            if not leaving:
                at = self._next(time.thread_time() - begun)

    def _next(self, busy: float) -> float:
        """When the next beat is, after one that took so much of a processor's time."""
        every = EVERY if self._every is None else self._every
        return time.perf_counter() + max(every * random.uniform(0.8, 1.2), busy / _PART)

    def _let(self, one: Reports) -> None:
        try:
            one.report()
        except Exception:
            _log.exception("A cache table could not report what it has counted")

    def _due(self, at: float) -> tuple[list[Reports], bool]:
        """Wait until then: those who are to report, and whether it is the last time; nobody when nobody is left."""
        with self._change:
            while self._all and not self._leaving:
                left = at - time.perf_counter()
                if left > 0:
                    self._change.wait(left)
                elif due := list(self._all):
                    return due, False
            due, self._leaving = self._leaving, []
            if not due:
                self._thread = None
            return due, True


class _End:
    """Lets the beats of this process report a last time when it ends."""

    def __init__(self) -> None:
        self._beats: weakref.WeakSet[Beat] = weakref.WeakSet()
        self._process = 0

    def wait_for(self, beat: Beat) -> None:
        """Have a beat's last reports at the end of this process, which a child of a fork does not take over."""
        self._beats.add(beat)
        if self._process != os.getpid():
            self._process = os.getpid()
            atexit.register(self._ended)
            # Processes of multiprocessing, as the workers of Dramatiq, end without the other.
            Finalize(None, self._ended, exitpriority=0)

    def _ended(self) -> None:
        threads = [beat.dismiss() for beat in list(self._beats)]
        until = time.monotonic() + _PATIENCE
        for thread in threads:
            if thread is not None:
                thread.join(max(until - time.monotonic(), 0.0))


_END: Final = _End()
