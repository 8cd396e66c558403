"""When a connection that broke is tried again."""

from __future__ import annotations

import math
import time

#: Seconds: one that breaks twice within these is not tried again for as long.
_SHORT = 1.0


class Breaks:
    """The breaks of one connection: a first one is a mishap, a second one right after it an outage. For one thread.

    Attributes:
      until: the monotonic second before which it is not tried again.
    """

    __slots__ = ("_last", "until")

    def __init__(self) -> None:
        self.until = 0.0
        self._last = -math.inf

    def broke(self) -> bool:
        """Note that it broke; answers whether it did so shortly before, too, and is to be left alone for a while."""
        now = time.monotonic()
        again = now - self._last < _SHORT
        self._last = now
        if again:
            self.until = now + _SHORT
        return again

    def failed(self) -> None:
        """Note that it could not be made: that is to be left alone for a while."""
        self.until = time.monotonic() + _SHORT
