"""Wait for a condition with a deadline; the one place in the tests that sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL = 0.005


def eventually(predicate: Callable[[], T], timeout: float = 10.0, message: str = "") -> T:
    """Call ``predicate`` every few milliseconds until it is truthy, and return what it returned.

    ``timeout`` is in seconds; the predicate is asked at least once, and once more after the deadline. An exception
    from the predicate goes straight up. Raises AssertionError with ``message`` and the last value otherwise.
    """
    deadline = _now() + timeout
    while True:
        late = _now() >= deadline
        value = predicate()
        if value:
            return value
        if late:
            waited_for = message or getattr(predicate, "__qualname__", repr(predicate))
            raise AssertionError(f"not true within {timeout:g} s: {waited_for} (last value: {value!r})")
        time.sleep(POLL)


def _now() -> float:
    # freezegun stops time.monotonic; a deadline that stands still would turn a failing test into a hanging one.
    return time.clock_gettime(time.CLOCK_MONOTONIC)
