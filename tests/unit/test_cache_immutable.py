"""Which values may be shared by all callers, and which may not."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from support.valuesamples import Colour, Money, MyZone, OfUnhashable, Order, Point, Rights, Sku

from echomq_tasks.cache.immutable import immutable
from echomq_tasks.cache.pickled import PickleCodec
from echomq_tasks.cache.values import PlainCodec, TypedCodec

# -- which values may be shared -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loose:
    """Frozen, but it keeps more than its fields."""

    x: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "more", [])


class Named(tuple[int]):
    """Called as a named tuple is, but it has a dict."""

    _fields = ()


class MoneyWithNotes(Money):
    pass


class PointWithNotes(Point):
    pass


IMMUTABLE = [
    None, True, 1, 1.5, "a", b"a", 1j, Decimal(1), Fraction(1), UUID(int=1), date(2026, 1, 1), datetime(2026, 1, 1),
    datetime(2026, 1, 1, tzinfo=ZoneInfo("UTC")), time(1, tzinfo=UTC), timedelta(1), UTC, (), (1, ("a",)),
    frozenset({1}), Colour.BLUE, Rights(3), Money(1), Money((1,)), Point(1), range(3), PurePosixPath("a"),
]  # fmt: skip
MUTABLE = [
    [], {}, set(), bytearray(), deque(), ([],), (1, (2, [])), frozenset({(1, Order)}), Order(1), Money([]), Point([]),
    Loose(1), Named(), MoneyWithNotes(1), PointWithNotes(1), Sku("a"), object(), lambda: None, Counter(),
    OfUnhashable(), datetime(2026, 1, 1, tzinfo=MyZone()), Order, Order(1, 2, ()),
]  # fmt: skip


@pytest.mark.parametrize("value", IMMUTABLE, ids=repr)
def test_a_value_that_nobody_can_change_may_be_shared(value: Any) -> None:
    for codec in (TypedCodec(), PlainCodec(), PickleCodec(b"0123456789abcdef")):
        assert codec.immutable(value)


@pytest.mark.parametrize("value", MUTABLE, ids=lambda value: type(value).__name__)
def test_any_other_value_may_not(value: Any) -> None:
    assert not immutable(value)
    assert not immutable((value,))


def test_a_value_nested_very_deep_is_not_followed_to_its_end() -> None:
    value: Any = ()
    for _ in range(5000):
        value = (value,)
    assert not immutable(value)
