"""The breaker: a server that does not serve is left alone for a while, then tried again, by one at a time."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Final

from echomq_tasks.errors import ConfigError
from echomq_tasks.forks import after_fork

_log = logging.getLogger(__name__)

#: Seconds until the first new try; each one that fails doubles them.
FIRST: Final = 0.1
MOST: Final = 5.0
#: Seconds for which a server that has refused something is not said to be back only because it serves something else.
QUIET: Final = 30.0
_TABLE: Final = re.compile(r"\{[^}]*\}")


class Breaker:
    """Whether to ask a server. Shared by all who do; one line is logged when it opens, and one when it closes.

    A user who may do some things and not others makes it open and close again and again. Each thing that is refused is
    logged once, and the pauses go on growing from where they were.

    Parameters:
      name: what the server is called in the log.
      clock: answers seconds that only go up.
    """

    def __init__(self, name: str = "the server", *, clock: Callable[[], float] | None = None) -> None:
        self.name = name
        # Looked up at each call, so that a test that freezes the clock freezes this one too.
        self._clock = clock or (lambda: time.monotonic())
        self._lock = threading.Lock()
        self._pause = 0.0
        self._again_at = 0.0
        self._probing = False
        #: What the server has refused of late, how long it was left alone for that, and until when that is remembered.
        self._refused: set[str] = set()
        self._refused_pause = self._refused_until = 0.0
        #: Whether it was said to be away for another reason.
        self._lost = False
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        # Another thread may have held it when the process forked. What is known of the server stays.
        self._lock = threading.Lock()

    @property
    def open(self) -> bool:
        """Whether the server did not serve when it was last asked."""
        return self._pause > 0.0

    @property
    def shut(self) -> bool:
        """Whether :meth:`allows` would say no; to ask this takes nobody's turn."""
        return self._pause > 0.0 and self._clock() < self._again_at

    def allows(self) -> bool:
        """Whether to ask the server now. While it is away one caller at a time may, each after a longer pause."""
        if not self._pause:
            return True
        with self._lock:
            now = self._clock()
            if self._pause and now < self._again_at:
                return False
            # Whoever comes before this one is answered waits for the next turn.
            self._again_at = now + self._pause
            self._probing = True
            return True

    def hurry(self) -> None:
        """There are signs that the server is back: let the next caller try at once."""
        with self._lock:
            self._again_at = 0.0

    def failed(self, error: BaseException) -> None:
        """The server could not serve, or refused to: a ConfigError says what the user may not."""
        # Whatever the table is.
        refused = _TABLE.sub("", str(error)) if isinstance(error, ConfigError) else ""
        with self._lock:
            opened = not self._pause
            news = opened and refused not in self._refused
            # Those who were under way when it opened fail too, which says nothing new.
            if opened or self._probing:
                before = self._pause or (self._refused_pause if refused else 0.0)
                self._pause = min(max(2 * before, FIRST), MOST)
                self._again_at = self._clock() + self._pause
                self._probing = False
            if refused:
                self._refused.add(refused)
                self._refused_pause, self._refused_until = self._pause, self._clock() + QUIET
            elif news:
                self._lost = True
        if news:
            _log.warning(
                "The cache goes on without %s, with what it holds and what it loads itself, until it serves again: %s",
                self.name, error,
            )  # fmt: skip

    def passed(self) -> bool:
        """The server has served; True when it had not before."""
        if not self._pause and not self._refused:
            return False
        with self._lock:
            closed, self._pause, self._probing = self._pause > 0.0, 0.0, False
            told, self._lost = self._lost, False
            if self._refused and self._clock() >= self._refused_until:
                self._refused.clear()
                self._refused_pause = 0.0
                told = True
        if told:
            # As loud as the loss: of a log without INFO, which is most, that would else be the last word.
            _log.warning("The cache has %s again", self.name)
        return closed
