"""How many jobs a worker may hold: as many as it has threads to start them."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Places(Protocol):
    """Where a delivery gives its place back."""

    def give(self, count: int) -> None:
        """Take so many places back."""


class Slots:
    """Free places for jobs.

    A consumer takes places before it claims, and each job gives its place back when it is settled, so no worker keeps
    a job that another one could start.

    Parameters:
      capacity: how many jobs may be held at once.
      shared: the places of the whole worker, when several consumers feed its threads; a job takes one of each.
    """

    def __init__(self, capacity: int, shared: Slots | None = None) -> None:
        #: How many jobs may be held at once, those of the other consumers included.
        self.capacity: int = capacity if shared is None else min(capacity, shared.capacity)
        self._free = capacity
        self._half = max(capacity // 2, 1)
        self._shared = shared
        # How many free places are worth waking a thread for.
        self._enough = 1
        self._closed = False
        self._changed = threading.Condition()

    def take(self, wanted: int) -> int:
        """Take up to ``wanted`` places; answers how many there were."""
        with self._changed:
            taken = 0 if self._closed else max(min(wanted, self._free), 0)
            if taken and self._shared is not None:
                taken = self._shared.take(taken)
            self._free -= taken
            return taken

    def give(self, count: int) -> None:
        """Give places back."""
        with self._changed:
            self._free += count
            if self._free >= self._enough:
                self._changed.notify_all()
        if self._shared is not None:
            self._shared.give(count)

    def gather(self, patience: float) -> None:
        """Wait until half of all places are free, but no longer than ``patience`` seconds.

        Jobs that end together are then replaced by one claim; woken for each place, a thread would claim one by one.
        """
        if self._shared is not None:
            self._shared.gather(patience)
            return
        with self._changed:
            if self._closed or self._free >= self._half:
                return
            self._enough = self._half
            try:
                self._changed.wait(patience)
            finally:
                self._enough = 1
                self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """True once no more places are offered: the worker shuts down."""
        return self._closed or (self._shared is not None and self._shared.closed)

    def close(self) -> None:
        """Offer no more places; those that are taken can still be given back."""
        with self._changed:
            self._closed = True

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for a free place; True when there is one now."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while self._closed or self._free <= 0:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    return False
        return self._shared is None or self._shared.wait(max(deadline - time.monotonic(), 0.0))
