"""Check what a queue's caller gives before a byte is sent, and put it into the wire's units."""

from __future__ import annotations

from echomq_tasks.errors import InvalidArgument
from echomq_tasks.events import event_text
from echomq_tasks.queue.model import Complete, Discard, Retry
from echomq_tasks.scripts.arguments import EXACT as EXACT
from echomq_tasks.scripts.arguments import seconds_to_ms as seconds_to_ms
from echomq_tasks.scripts.arguments import shown as shown
from echomq_tasks.scripts.arguments import whole as whole

#: A payload travels as one bulk string, whose default limit on the server is 512 MB.
_MAX_PAYLOAD = 512 << 20
#: How much of an error's first line an event tells.
_MESSAGE = 500


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


def about_text(settlement: Complete | Retry | Discard) -> str:
    """What a settlement's event tells beside the job, as its script takes it."""
    about = settlement.about
    if about is not None:
        rest = {name: value for name, value in about.items() if name != "actor"}
        return event_text(about.get("actor"), rest)
    if isinstance(settlement, Retry) and settlement.error:
        return event_text(None, {"message": settlement.error.partition("\n")[0][:_MESSAGE]})
    return ""
