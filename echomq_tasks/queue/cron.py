"""When repeats run: cron expressions in a time zone, and the grid of a fixed interval. Pure functions, no clock.

Instants are unix milliseconds. An expression has five fields (minute, hour, day of month, month, day of week) or six
(second first), read as Debian's cron reads them. Where a zone puts its clock forward or back:

- A time of day (five fields, neither minute nor hour begins with ``*``) runs once a day all the same: one that is
  skipped runs as the gap ends, one that comes twice runs the first time.
- Any other expression goes by the clock on the wall: what is skipped does not run, what comes twice runs twice.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from echomq_tasks.errors import InvalidArgument

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
#: As far as cronsim looks.
_HORIZON = timedelta(days=50 * 366)
#: Zones change their offset for weeks at least (Morocco's Ramadan), so a look this often misses no change.
_STRIDE = timedelta(days=5)
_LONGEST = 1000


@dataclass(frozen=True, slots=True)
class Cron:
    """A checked expression in its zone; :func:`parse` makes it.

    Attributes:
      expression: its fields, one space between them.
      tz: the name of the zone.
      zone: the zone.
    """

    expression: str
    tz: str
    zone: tzinfo

    @property
    def time_of_day(self) -> bool:
        """Whether it names times of day, which no change of the clock may skip or double."""
        minute, hour, *rest = self.expression.split()
        return len(rest) == 3 and not minute.startswith("*") and not hour.startswith("*")


def parse(expression: str, tz: str = "UTC") -> Cron:
    """Check a cron expression and the name of a time zone.

    Raises:
      InvalidArgument: with cronsim's reason for an expression, or the zone that was likely meant.
    """
    zone = _zone(tz)
    if not isinstance(expression, str) or len(expression) > _LONGEST:
        raise InvalidArgument(f"a cron expression is a text of at most {_LONGEST} characters, not {expression!r:.80}")
    fields = " ".join(expression.split())
    try:
        CronSim(fields, datetime(2000, 1, 1))
    except CronSimError as error:
        raise InvalidArgument(
            f"the cron expression {expression!r} is not one: {error}. Write five fields (minute, hour, day of month, "
            "month, day of week) or six (second first)"
        ) from None
    return Cron(fields, tz, zone)


def _zone(tz: str) -> tzinfo:
    if tz == "UTC":
        return UTC
    try:
        return ZoneInfo(tz)
    except (KeyError, ValueError, TypeError, AttributeError, OSError):
        # Whatever is no file of the zone database: a directory of it, a path out of it, no text at all.
        pass
    known = {name.lower(): name for name in available_timezones()}
    near = difflib.get_close_matches(str(tz).lower(), known, n=1)
    hint = f"did you mean {known[near[0]]!r}?" if near else "use a name as 'Europe/Athens'"
    raise InvalidArgument(f"there is no time zone {tz!r}: {hint}")


def next_run(cron: Cron, after_ms: int) -> int | None:
    """The first occurrence after an instant; None when there is none within cronsim's horizon of 50 years."""
    after = _EPOCH + timedelta(seconds=after_ms // 1000)
    try:
        run = _next_time_of_day(cron, after) if cron.time_of_day else _next_on_the_wall(cron, after)
    except OverflowError:
        # The search has come to the end of datetime.
        return None
    return None if run is None else (run - _EPOCH) // _SECOND * 1000


def next_runs(cron: Cron, after_ms: int) -> tuple[int, int]:
    """The first occurrence after an instant, and the milliseconds from it to the one that follows.

    Raises:
      InvalidArgument: when it does not occur.
    """
    run = next_run(cron, after_ms)
    following = None if run is None else next_run(cron, run)
    if run is None or following is None:
        raise InvalidArgument(
            f"the cron expression {cron.expression!r} does not occur twice in the next 50 years: look at its days"
        )
    return run, following - run


def is_run(cron: Cron, ms: float) -> bool:
    """Whether an instant is an occurrence. A score that another runtime or a hand wrote may be none."""
    # Up to year 5138: nothing beyond is due, and datetime ends.
    if not 0 < ms < 100_000_000_000_000 or ms % 1000:
        return False
    return next_run(cron, int(ms) - 1000) == ms


def next_on_grid(run_ms: int, every_ms: int, now_ms: int) -> int:
    """The first of ``run_ms + k * every_ms`` after ``now_ms``."""
    return run_ms + ((now_ms - run_ms) // every_ms + 1) * every_ms


def _next_time_of_day(cron: Cron, after: datetime) -> datetime | None:
    for run in CronSim(cron.expression, after.astimezone(cron.zone)):
        found = run.astimezone(UTC)
        # Begun in the second pass of a doubled hour, it names times of the first one too.
        if found > after:
            return found
    return None


def _next_on_the_wall(cron: Cron, after: datetime) -> datetime | None:
    """Search stretch by stretch of one offset to UTC each; inside of one, the wall is plain arithmetic."""
    offset = _offset(after, cron.zone)
    horizon = after + _HORIZON
    while after < horizon:
        found = next(CronSim(cron.expression, (after + offset).replace(tzinfo=None)), None)
        if found is None:
            return None
        run = found.replace(tzinfo=UTC) - offset
        change = _first_change(after, run, offset, cron.zone)
        if change is None:
            return run
        after, offset = change - _SECOND, _offset(change, cron.zone)
    # Each time that it names falls into an hour that is skipped.
    return None


def _offset(instant: datetime, zone: tzinfo) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta()


def _first_change(after: datetime, until: datetime, offset: timedelta, zone: tzinfo) -> datetime | None:
    """The first second in (after, until] at which the zone has another offset."""
    if zone is UTC:
        return None
    low = after
    while low < until:
        high = min(low + _STRIDE, until)
        if _offset(high, zone) != offset:
            while high - low > _SECOND:
                middle = low + (high - low) // _SECOND // 2 * _SECOND
                if _offset(middle, zone) == offset:
                    low = middle
                else:
                    high = middle
            return high
        low = high
    return None
