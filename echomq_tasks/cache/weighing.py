"""What a value costs that L1 holds as it is: not the bytes of its row, which may be compressed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from sys import getsizeof
from typing import Any, Final

_LEAVES: Final = frozenset({str, bytes, int, float, bool, type(None)})
_LISTS: Final = (tuple, list, set, frozenset, deque)


def weight(value: object, most: float = math.inf) -> int:
    """About how many bytes a value and all it holds take in this process.

    Parameters:
      value: anything; of objects with attributes only dataclasses are looked into.
      most: when it is more than that, the answer may be any number above.
    """
    if type(value) in _LEAVES:
        return getsizeof(value)
    total, left, seen = 0, [value], set[int]()
    while left and total <= most:
        each = left.pop()
        if type(each) in _LEAVES:
            total += getsizeof(each)
        elif not isinstance(each, type) and id(each) not in seen:
            seen.add(id(each))
            try:
                total += getsizeof(each)
                left.extend(_parts(each))
            except Exception:
                # A user's class may raise anything, and a thread may change it just now.
                continue
    return total


def _parts(value: Any) -> Iterable[object]:
    if isinstance(value, _LISTS):
        return value
    if isinstance(value, dict):
        return [*value, *value.values()]
    fields = getattr(type(value), "__dataclass_fields__", None)
    return [getattr(value, name, None) for name in fields] if fields else ()
