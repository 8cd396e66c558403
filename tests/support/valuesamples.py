"""Values of every kind that a codec keeps, and classes for them."""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from hypothesis import strategies as st


class Sku(str):
    __slots__ = ()


class MyZone(tzinfo):
    """A time zone that no name leads to."""

    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(hours=1)


class Unhashable(type):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(cls, other: object) -> bool:
        return True


class OfUnhashable(metaclass=Unhashable):
    """An object whose class cannot be looked up."""


class Colour(enum.Enum):
    RED = 1
    BLUE = (2, "b")


class Level(enum.IntEnum):
    LOW = 1


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: Any
    y: Any = None


@dataclass
class Order:
    number: Any
    note: Any = None
    tags: Any = field(default_factory=list, compare=True)


@dataclass(frozen=True, slots=True)
class Money:
    amount: Any
    currency: Any = "EUR"


CLASSES = [Colour, Level, Rights, Point, Order, Money]


ZONES = st.sampled_from(
    [None, UTC, timezone(timedelta(hours=-3), "BRT"), timezone(timedelta(microseconds=7)), ZoneInfo("Europe/Berlin")]
)
TEXT = (
    st.text() | st.text(alphabet=st.characters(categories=["Cs"])) | st.sampled_from(["", "~dec", "~", "\ud83d\ude00"])
)
ATOMS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**1024, -(10**600), Colour.RED, Colour.BLUE, Level.LOW, Rights.READ, Rights(3), Rights(0)])
    | st.floats()
    | st.complex_numbers()
    | TEXT
    | st.binary()
    | st.decimals().filter(lambda number: not number.is_snan())
    | st.fractions()
    | st.uuids(allow_nil=True)
    | st.dates()
    | st.timedeltas()
    | st.builds(lambda at, fold, zone: at.replace(fold=fold, tzinfo=zone), st.datetimes(), st.integers(0, 1), ZONES)
    | st.builds(lambda at, fold, zone: at.replace(fold=fold, tzinfo=zone), st.times(), st.integers(0, 1), ZONES)
    | ZONES
)
HASHABLE = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3) | st.builds(Point, inner, st.none())
    ),
    max_leaves=4,
)
VALUES = st.recursive(
    HASHABLE | st.binary().map(bytearray),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.sets(HASHABLE, max_size=3)
        | st.dictionaries(TEXT, inner, max_size=3)
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.dictionaries(TEXT, inner, max_size=3).map(OrderedDict)
        | st.builds(deque, st.lists(inner, max_size=3), st.sampled_from([None, 3]))
        | st.lists(HASHABLE, max_size=4).map(Counter)
        | st.builds(Order, inner, inner, inner)
        | st.builds(Money, inner, inner)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=8,
)
