"""A server, or one queue on it, that does not do what it is asked: when to ask again, and one log line a change."""

from __future__ import annotations

import math
import random
import time
from logging import Logger

#: Seconds before the second try, and the most before any.
_FIRST = 0.05
_MOST = 1.0


class Outage:
    """Counts failures in a row.

    Parameters:
      logger: told once when it begins and once when it is over.
      what: what fails, in words.
    """

    def __init__(self, logger: Logger, what: str) -> None:
        self._logger = logger
        self._what = what
        self._pause = _FIRST
        self._since = math.inf
        #: The monotonic second of the next try.
        self.until = 0.0
        #: The monotonic second of the last failure; minus infinity after a success.
        self.failed_at = -math.inf

    def begin(self, error: BaseException) -> None:
        """Note a failure: the next try comes after a pause, longer each time, and not when all others try."""
        self.failed_at = now = time.monotonic()
        if self._since == math.inf:
            self._since = now
            self._logger.warning("%s failed and is tried again until it succeeds: %s", self._what, error)
        else:
            self._logger.debug("%s failed again: %s", self._what, error)
        self.until = now + self._pause * random.uniform(0.5, 1.0)
        self._pause = min(self._pause * 2, _MOST)

    def end(self) -> None:
        """Note a success."""
        if self._since < math.inf:
            self._logger.info("%s succeeds again, after %.1f s.", self._what, time.monotonic() - self._since)
            self._since, self._pause, self.until = math.inf, _FIRST, 0.0
            self.failed_at = -math.inf
