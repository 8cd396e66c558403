"""Waiting for the flights of other processes: who follows one is woken by its end, and by whatever may have hid it."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Final

from echomq_tasks.cache.frames import Wake
from echomq_tasks.forks import after_fork

#: Kept of what was heard since the last claim: of one row, little is said at once.
_MOST: Final = 16


class Waiter:
    """One flight that may have to follow another process's; see :meth:`Wakes.expect`."""

    __slots__ = ("_heard", "_lock", "_said", "_woken")

    def __init__(self, lock: threading.Lock) -> None:
        # Shared: hardly anybody ever waits.
        self._lock = lock
        self._heard: list[Wake] = []
        self._said = False
        self._woken: Future[None] | None = None

    def forget(self) -> None:
        """Begin anew, before a claim: what was said until now is in its answer."""
        with self._lock:
            self._heard, self._said, self._woken = [], False, None

    @property
    def woken(self) -> Future[None]:
        """Done when something was said since."""
        with self._lock:
            if self._woken is None:
                self._woken = Future()
                if self._said:
                    self._woken.set_result(None)
            return self._woken

    def said(self, wake: Wake | None) -> None:
        """Something was said; None when something may have been."""
        with self._lock:
            if wake is not None and len(self._heard) < _MOST:
                self._heard.append(wake)
            told, self._said = self._said, True
            woken = self._woken
        if woken is not None and not told:
            woken.set_result(None)

    def of(self, owner: str) -> Wake | None:
        """How the flight of ``owner`` has ended; None when nobody said."""
        with self._lock:
            return next((wake for wake in self._heard if wake.owner == owner), None)


class Wakes:
    """Who waits in this process, by row."""

    def __init__(self) -> None:
        self._after_fork()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[str, list[Waiter]] = {}

    def expect(self, id: str) -> Waiter:
        """Hear of the flights for a row from now on."""
        waiter = Waiter(self._lock)
        with self._lock:
            self._waiters.setdefault(id, []).append(waiter)
        return waiter

    def done(self, id: str, waiter: Waiter) -> None:
        """It waits no more."""
        with self._lock:
            # In the child of a fork that happened meanwhile it is not there.
            waiters = self._waiters.get(id, [])
            if waiter in waiters:
                waiters.remove(waiter)
            if not waiters:
                self._waiters.pop(id, None)

    def heard(self, wake: Wake) -> None:
        """A flight has ended."""
        with self._lock:
            waiters = list(self._waiters.get(wake.id, ()))
        for waiter in waiters:
            waiter.said(wake)

    def shake(self) -> None:
        """Wakes may have been missed: let all claim again."""
        with self._lock:
            waiters = [waiter for each in self._waiters.values() for waiter in each]
        for waiter in waiters:
            waiter.said(None)
