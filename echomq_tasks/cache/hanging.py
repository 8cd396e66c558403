"""The loads that nobody waits for any more, and that cannot be stopped: threads past their hard time limit."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from echomq_tasks.errors import LoadTimeout
from echomq_tasks.forks import after_fork


class Hanging:
    """Those of one table, by id and rest of the key. A loader that hangs must not take a thread at each call."""

    def __init__(self) -> None:
        self._after_fork()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        # Reentrant: a load may end in the thread that just notes it. The child of a fork has none of the threads.
        self._lock = threading.RLock()
        self._all: dict[tuple[str, bytes], set[Future[Any]]] = {}

    def leave(self, id: str, rest: bytes, load: Future[Any]) -> None:
        """A load is left to itself."""
        with self._lock:
            self._all.setdefault((id, rest), set()).add(load)
        load.add_done_callback(lambda load: self._ended(id, rest, load))

    def _ended(self, id: str, rest: bytes, load: Future[Any]) -> None:
        with self._lock:
            loads = self._all.get((id, rest), set())
            loads.discard(load)
            if not loads:
                self._all.pop((id, rest), None)

    def check(self, id: str, rest: bytes) -> None:
        """Return if no such load of this key still runs.

        Raises:
          LoadTimeout: when one does.
        """
        # Most of the time there are none.
        if self._all and (id, rest) in self._all:
            raise LoadTimeout(
                "the loader of this value has not returned within its hard loader_timeout before, and still runs: "
                "until it has returned it is not called again"
            )
