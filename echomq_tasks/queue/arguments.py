"""Check a caller's arguments before a byte is sent, and put them into the wire's units."""

from __future__ import annotations

import math

from echomq_tasks.errors import InvalidArgument
from echomq_tasks.queue.model import Retry

#: Scores are doubles: whole numbers up to 2**53 are exact.
EXACT = 2**53
#: The longest delay and the last run-at, in seconds: a run-at past year 9999 is none that Python can show.
_MAX_SECONDS = 250_000_000_000
#: A payload travels as one bulk string, whose default limit on the server is 512 MB.
_MAX_PAYLOAD = 512 << 20


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
    # Rounded to the microsecond first: 0.3 * 1000 is a hair above 300, which must not become 301.
    return math.ceil(round(seconds * 1000, 3))


def payload_bytes(payload: bytes | bytearray | memoryview | str) -> bytes:
    """The bytes of a payload; text as UTF-8.

    Raises:
      InvalidArgument: when it is neither bytes nor text, holds lone surrogates, or is above 512 MB.
    """
    if isinstance(payload, str):
        try:
            payload = payload.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"the payload holds a lone surrogate, which UTF-8 cannot carry: {error}") from None
    elif isinstance(payload, (bytearray, memoryview)):
        payload = bytes(payload)
    elif not isinstance(payload, bytes):
        raise InvalidArgument(f"a payload is bytes or str, not {type(payload).__name__}: encode it, as with json.dumps")
    if len(payload) > _MAX_PAYLOAD:
        raise InvalidArgument(f"a payload is 512 MB at most, not {len(payload)} bytes: store it and send its address")
    return payload


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


def lease_ms(lease: float) -> int:
    """Whole milliseconds of a lease in seconds, at least one.

    Raises:
      InvalidArgument: when ``lease`` is not a number of seconds above 0.
    """
    return whole(seconds_to_ms(lease, "lease"), "lease in milliseconds", 1)


def retry_args(retry: Retry) -> tuple[bytes | str | int, ...]:
    """What job_retry takes behind the id and the token.

    Raises:
      InvalidArgument: when the delay, the limit or the payload is out of range.
    """
    delay = seconds_to_ms(retry.delay, "delay")
    limit = -1 if retry.max_retries is None else whole(retry.max_retries, "max_retries", 0)
    if not isinstance(retry.error, str):
        raise InvalidArgument(f"an error is a text, not {shown(retry.error)}")
    error = retry.error.encode(errors="backslashreplace")
    if retry.payload is None:
        return delay, limit, error, 1, b""
    return delay, limit, error, 0, payload_bytes(retry.payload)
