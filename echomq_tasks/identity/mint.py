"""The monotone mint: one per process and server, safe for threads and forks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from echomq_tasks.forks import after_fork
from echomq_tasks.identity.branded import EPOCH_MS, brand


class Mint:
    """Mints snowflakes that only go up, whatever the clock does.

    The state is ``last = ts << 12 | seq`` and the next id takes ``max(now << 12, last + 1)``: a burst counts up
    ``seq``, an exhausted millisecond borrows from the next one, and a clock that steps back never repeats an id and
    never blocks.

    Parameters:
      node: called for each id; answers the node id (0 to 1023) that this process holds now.
      clock: answers unix seconds; the wall clock by default.
    """

    def __init__(self, node: Callable[[], int], *, clock: Callable[[], float] | None = None) -> None:
        self._node = node
        # Looked up at each call, so that a test that freezes `time.time` freezes the mint too.
        self._clock = clock or (lambda: time.time())
        self._last = self._last_node = -1
        self._lock = threading.Lock()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        # Another thread may have held the lock when the process forked. The state stays: ids go on upwards.
        self._lock = threading.Lock()

    def snowflake(self) -> int:
        """Mint the next snowflake."""
        node = self._node()
        now = max(int(self._clock() * 1000) - EPOCH_MS, 0) << 12
        with self._lock:
            following = self._last + 1
            if node != self._last_node:
                # The node stands above the sequence: within one millisecond a lower node would mint a lower id.
                following = ((self._last >> 12) + 1) << 12
                self._last_node = node
            self._last = last = max(now, following)
        return (last >> 12) << 22 | node << 12 | (last & 0xFFF)

    def mint(self, kind: str) -> str:
        """Mint a branded id of ``kind``, as in ``mint("JOB")``."""
        return brand(kind, self.snowflake())
