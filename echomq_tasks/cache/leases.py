"""The leases of the flights that this process leads: one thread renews all that are held for long."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from echomq_tasks.forks import after_fork

_log = logging.getLogger(__name__)

#: Seconds after which a thread that has nothing to renew ends.
_IDLE: Final = 10.0


class _Held:
    __slots__ = ("due", "every", "renew")

    def __init__(self, renew: Callable[[], bool], every: float) -> None:
        self.renew = renew
        self.every = every
        self.due = time.monotonic() + every


class Leases:
    """Renews leases every third of their time, for as long as they are held."""

    def __init__(self) -> None:
        self._after_fork()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._change = threading.Condition()
        self._held: dict[int, _Held] = {}
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        #: When the thread looks next, and how long it waits for more while nothing is held. To wake it for each load
        #: would cost more than the load's own bookkeeping.
        self._looks_at = 0.0
        self._every = _IDLE

    @contextmanager
    def held(self, lease: float, renew: Callable[[], bool]) -> Iterator[None]:
        """Hold a lease inside of the block.

        Parameters:
          lease: its seconds.
          renew: renews it, and answers whether that is to be done again.
        """
        held = _Held(renew, lease / 3)
        number = next(self._numbers)
        try:
            with self._change:
                self._held[number] = held
                self._every = min(self._every, held.every)
                if self._thread is None or not self._thread.is_alive():
                    self._start()
                elif held.due < self._looks_at:
                    self._change.notify()
            yield
        finally:
            # In the child of a fork that happened inside of the block it is not there.
            self._held.pop(number, None)

    def _start(self) -> None:
        thread = self._thread = threading.Thread(target=self._run, name="echomq-cache-leases", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # The load goes on, at worst beside another process's, and the next one tries again.
            self._thread = None
            _log.debug("Leases are not renewed now: %s", error)

    def _run(self) -> None:
        quiet_since = time.monotonic()
        while True:
            with self._change:
                if self._thread is not threading.current_thread():
                    return  # another one has taken over
                now = time.monotonic()
                if self._held:
                    quiet_since = now
                elif now - quiet_since >= _IDLE:
                    self._thread = None
                    return
                dues = [held.due for held in list(self._held.values())]
                self._looks_at = min(dues, default=now + self._every)
                if self._looks_at > now:
                    self._change.wait(self._looks_at - now)
                    continue
                due = [(number, held) for number, held in list(self._held.items()) if held.due <= now]
            for number, held in due:
                held.due = time.monotonic() + held.every
                if number in self._held and not self._renewed(held):
                    self._held.pop(number, None)

    def _renewed(self, held: _Held) -> bool:
        try:
            return held.renew()
        except Exception:
            # Without its lease the flight is loaded a second time at worst.
            _log.exception("A lease could not be renewed")
            return False
