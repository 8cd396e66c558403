"""How long a row is fresh, when it is refreshed early, and how long a stale one still serves.

::

    loaded                          early          until                     expires
      |------- fresh, from L1 ---------|-- fresh, ----|-- stale: served while ----|-- gone: the next
      |                                |   a refresh  |   one refresh runs, or    |   caller loads
      |                                |   starts     |   while loading fails     |   and waits
      |<-------- refresh_ahead ------->|              |<-------- stale ---------->|
      |<-------------------- ttl -------------------->|
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from echomq_tasks.errors import InvalidArgument
from echomq_tasks.scripts.arguments import shown

#: The longest time to live, in seconds: ten years.
LONGEST: Final = 10 * 365 * 86_400.0
#: Seconds until a refresh that failed is tried again; doubled each time.
FIRST_PAUSE: Final = 1.0
MOST_PAUSE: Final = 60.0
#: Ms by which two clocks may differ over the life of a row.
_DRIFT_MS: Final = 50

#: Seconds that a value is fresh, or what answers them for a value.
Ttl = float | Callable[[Any], float]


class Times(NamedTuple):
    """When a row changes its state, on the monotonic clock; see the picture above."""

    early: float
    until: float
    expires: float


def seconds(value: object, what: str, least: float = 0.0, most: float = LONGEST) -> float:
    """``value`` as a number of seconds in this span.

    Raises:
      InvalidArgument: when it is not.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise InvalidArgument(f"{what} is a number of seconds from {least:g} to {most:g}, not {shown(value)}")
    return float(value)


def ratio(value: object, what: str) -> float:
    """``value`` as a number from 0 up to, but not including, 1.

    Raises:
      InvalidArgument: when it is not.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise InvalidArgument(f"{what} is a number from 0 to less than 1, not {shown(value)}")
    return float(value)


@dataclass(frozen=True, slots=True)
class Freshness:
    """What a table promises of its rows' age; see :class:`~echomq_tasks.cache.table.Table` for the parameters.

    Raises:
      InvalidArgument: when one of them is out of range.
    """

    ttl: Ttl
    jitter: float = 0.1
    stale: float = 0.0
    refresh_ahead: float | None = None
    soft: float | None = None
    hard: float | None = None

    def __post_init__(self) -> None:
        if not callable(self.ttl):
            seconds(self.ttl, "ttl")
        ratio(self.jitter, "jitter")
        seconds(self.stale, "stale")
        if self.refresh_ahead is not None:
            if not 0 < ratio(self.refresh_ahead, "refresh_ahead"):
                raise InvalidArgument("refresh_ahead is a part of the ttl, above 0: leave it out for no early refresh")
        for value, what in ((self.soft, "the soft loader_timeout"), (self.hard, "the hard loader_timeout")):
            if value is not None:
                seconds(value, what)
        if self.soft is not None and not self.stale:
            raise InvalidArgument("a soft loader_timeout falls back to a stale value: it needs stale= too")

    def ttl_of(self, value: Any, ttl: Ttl | None) -> float:
        """Seconds that a value is fresh.

        Parameters:
          value: what was loaded.
          ttl: what the call asks for; None is the table's.

        Raises:
          InvalidArgument: when a callable answers what is no number of seconds.
        """
        asked = self.ttl if ttl is None else ttl
        return seconds(asked(value) if callable(asked) else asked, "ttl")

    def loaded(self, ttl: float, now: float) -> Times:
        """The times of a row that was loaded now."""
        return self._times(ttl, ttl, ttl + self.stale, now)

    def found(self, left: float, ttl: Ttl | None, now: float) -> Times:
        """The times of a row that the server will forget in ``left`` seconds."""
        asked = self.ttl if ttl is None else ttl
        fresh = max(left - self.stale, 0.0)
        return self._times(fresh, fresh if callable(asked) else asked, left, now)

    def _times(self, fresh: float, ttl: float, left: float, now: float) -> Times:
        # Many processes read one row at one time, and should not all come back for it at one time.
        spread = 1.0 + self.jitter * (2.0 * random.random() - 1.0)
        until = now + fresh * spread
        # Where nothing is served stale, the rest that jitter leaves is no time to serve a stale row either.
        expires = now + left if self.stale else until
        if self.refresh_ahead is None:
            return Times(until, until, expires)
        return Times(now + max(fresh - ttl * (1.0 - self.refresh_ahead), 0.0) * spread, until, expires)

    def kept_ms(self, ttl: float) -> int:
        """Ms that the server keeps a row."""
        return max(int((ttl + self.stale) * 1000), 1)

    @property
    def fresh_ms(self) -> int:
        """Least ms that a row on the server must have left to be fresh."""
        return int(self.stale * 1000) + 1

    @staticmethod
    def newer_ms(expires: float, now: float) -> int:
        """Least ms that a row on the server must have left to be newer than one that expires here at ``expires``."""
        return max(int((expires - now) * 1000), 0) + _DRIFT_MS

    @staticmethod
    def pause(failures: int) -> float:
        """Seconds until a refresh that failed so often in a row is tried again."""
        longest = min(FIRST_PAUSE * 2.0 ** min(failures - 1, 10), MOST_PAUSE)
        return longest * random.uniform(0.75, 1.0)
