"""Where a record stands in a log, and what a caller may name a place by: a record, a stream id, or a time."""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import Final, NamedTuple

from echomq_tasks.errors import InvalidArgument
from echomq_tasks.identity import EPOCH_MS, MAX_SNOWFLAKE, brand, check_id, is_branded, snowflake
from echomq_tasks.scripts.arguments import in_ms, shown

#: What names a place: an EVT id, a stream id as ``"1700000000000-5"``, an aware datetime, or unix seconds.
Position = str | datetime | float

_STREAM_ID = re.compile(r"([0-9]{1,20})-([0-9]{1,20})")
#: Both numbers of a stream's id are of 64 bits; of ours, the second has 22.
_MAX: Final = 2**64 - 1
_LOW_BITS: Final = 22
_MAX_SECONDS = 250_000_000_000


class Place(NamedTuple):
    """The id of a stream's entry: unix ms, and a number within it."""

    ms: int
    low: int

    @classmethod
    def of_entry(cls, entry_id: bytes | str) -> Place:
        """The place of an entry that the server named."""
        ms, _, low = (entry_id.decode() if isinstance(entry_id, bytes) else entry_id).partition("-")
        return cls(int(ms), int(low))

    def __str__(self) -> str:
        return f"{self.ms}-{self.low}"

    def before(self) -> Place:
        """The place before this one; there is none before 0-0."""
        if self.low:
            return Place(self.ms, self.low - 1)
        return Place(self.ms - 1, _MAX) if self.ms else self


#: No entry stands at the first, and none that can be followed at the last.
FIRST: Final = Place(0, 0)
LAST: Final = Place(_MAX, _MAX)


def evt_id(place: Place) -> str | None:
    """The EVT id of a place; None where a stranger's stream id has none."""
    number = (place.ms - EPOCH_MS) << _LOW_BITS | place.low
    return brand("EVT", number) if place.low >> _LOW_BITS == 0 and 0 <= number <= MAX_SNOWFLAKE else None


def place_of(record_id: str | None) -> Place | None:
    """Where the record with this EVT id stands; None when it is no EVT id."""
    return minted_place(snowflake(record_id)) if record_id is not None and is_branded(record_id, "EVT") else None


def minted_place(number: int) -> Place:
    """Where the record with this snowflake stands."""
    return Place((number >> _LOW_BITS) + EPOCH_MS, number & ((1 << _LOW_BITS) - 1))


def behind(start: Position | None, after: Position | None) -> Place:
    """The place behind which a reader begins: at ``start``, or after ``after``, or at the head when both are None.

    Raises:
      InvalidArgument, InvalidId: when it is malformed, or both are given.
    """
    if start is not None and after is not None:
        raise InvalidArgument("give start= or after=, not both")
    if after is not None:
        found = _place(after, "after")
        # All of a millisecond is at its time, so what is after that time is behind all of it.
        return found if isinstance(found, Place) else Place(math.floor(found), _MAX)
    if start is None:
        return FIRST
    found = _place(start, "start")
    return (found if isinstance(found, Place) else Place(math.ceil(found), 0)).before()


def upto(end: Position | None, before: Position | None) -> Place:
    """The last place that a reader looks at: ``end``, or the one before ``before``, or the top when both are None.

    Raises:
      InvalidArgument, InvalidId: when it is malformed, or both are given.
    """
    if end is not None and before is not None:
        raise InvalidArgument("give end= or before=, not both")
    if before is not None:
        found = _place(before, "before")
        return (found if isinstance(found, Place) else Place(math.ceil(found), 0)).before()
    if end is None:
        return LAST
    found = _place(end, "end")
    return found if isinstance(found, Place) else Place(math.floor(found), _MAX)


def _place(position: Position, what: str) -> Place | float:
    """The place that is named, or a time in unix ms."""
    if isinstance(position, str):
        if match := _STREAM_ID.fullmatch(position):
            place = Place(int(match[1]), int(match[2]))
            if max(place) <= _MAX:
                return place
        elif position[:3] == "EVT":
            return minted_place(snowflake(check_id(position, "EVT")))
    elif isinstance(position, datetime):
        if position.utcoffset() is None:
            raise InvalidArgument(
                f"{what}={position!r} has no time zone: use an aware datetime, as datetime.now(timezone.utc)"
            )
        return in_ms(position.timestamp())
    elif isinstance(position, (int, float)) and not isinstance(position, bool) and 0 <= position <= _MAX_SECONDS:
        # The time of a record, taken as seconds, must name its millisecond again.
        return in_ms(position)
    raise InvalidArgument(
        f"{what} is an EVT id, a stream id as '1700000000000-5', an aware datetime or unix seconds, not "
        f"{shown(position)}"
    )
