"""Whether two values are the same one: type by type, whatever their own `==` says."""

from __future__ import annotations

import math
import struct
from collections import OrderedDict, deque
from dataclasses import fields, is_dataclass
from datetime import datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any


def same(left: Any, right: Any) -> bool:
    """Tell whether both are of one type and hold the same, where 1, 1.0 and True, or 0.0 and -0.0, are not the same.

    The order counts in lists, tuples and ordered dicts only. A NaN is the same as another.
    """
    kind = type(left)
    if kind is not type(right):
        return False
    if isinstance(left, Enum):
        return left is right
    if isinstance(left, float):
        return (math.isnan(left) and math.isnan(right)) or struct.pack(">d", left) == struct.pack(">d", right)
    if isinstance(left, complex):
        return same(left.real, right.real) and same(left.imag, right.imag)
    if isinstance(left, Decimal):
        return str(left) == str(right)
    if isinstance(left, (datetime, time)):
        naive = left.replace(tzinfo=None) == right.replace(tzinfo=None) and left.fold == right.fold
        return naive and repr(left.tzinfo) == repr(right.tzinfo)
    if isinstance(left, OrderedDict):
        return same(list(left.items()), list(right.items()))
    if isinstance(left, dict):
        return _same_unordered(list(left.items()), list(right.items()))
    if isinstance(left, (set, frozenset)):
        return _same_unordered(list(left), list(right))
    if isinstance(left, deque) and left.maxlen != right.maxlen:
        return False
    if isinstance(left, (list, tuple, deque)):
        return len(left) == len(right) and all(map(same, left, right))
    if is_dataclass(left):
        return all(
            same(getattr(left, field.name), getattr(right, field.name)) for field in fields(left) if field.compare
        )
    return bool(left == right)


def _same_unordered(left: list[Any], right: list[Any]) -> bool:
    right = list(right)
    for item in left:
        place = next((place for place, other in enumerate(right) if same(item, other)), None)
        if place is None:
            return False
        del right[place]
    return not right
