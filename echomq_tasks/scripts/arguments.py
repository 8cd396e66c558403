"""Check a caller's arguments before a byte is sent, and put them into the wire's units."""

from __future__ import annotations

import math

from echomq_tasks.errors import InvalidArgument

#: Scores are doubles: whole numbers up to 2**53 are exact.
EXACT = 2**53
#: The longest delay and the last run-at, in seconds: a run-at past year 9999 is none that Python can show.
_MAX_SECONDS = 250_000_000_000


def shown(value: object) -> str:
    """A value as a refusal shows it: never too long, and whatever its repr does."""
    try:
        text = repr(value)
    except Exception:
        # As of a number with more digits than Python prints.
        return f"a {type(value).__name__} that cannot be printed"
    return text if len(text) <= 200 else f"{text[:200]}..."


def seconds_to_ms(seconds: float, what: str) -> int:
    """Whole milliseconds of a duration in seconds, rounded up so that nothing runs early.

    Raises:
      InvalidArgument: when ``seconds`` is not a number from 0 to 250,000,000,000.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise InvalidArgument(f"{what} is a number of seconds, not {shown(seconds)}")
    if not 0 <= seconds <= _MAX_SECONDS:
        raise InvalidArgument(f"{what} is a number of seconds from 0 to {_MAX_SECONDS}, not {shown(seconds)}")
    return math.ceil(in_ms(seconds))


def in_ms(seconds: float) -> float:
    """Milliseconds, a whole number where that is meant: a product is a hair off, as 0.3 * 1000 is above 300."""
    milliseconds = seconds * 1000
    nearest = round(milliseconds)
    return nearest if math.isclose(milliseconds, nearest, rel_tol=1e-15, abs_tol=0.0005) else milliseconds


def whole(value: int, what: str, least: int, most: int | None = None) -> int:
    """Return ``value`` when it is a whole number in this span.

    Raises:
      InvalidArgument: when it is not; ``what`` names it.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= (EXACT if most is None else most):
        span = f"from {least} up" if most is None else f"from {least} to {most}"
        raise InvalidArgument(f"{what} is a whole number {span}, not {shown(value)}")
    # A member of an IntEnum is a whole number too, but not one that goes over the wire.
    return int(value)
