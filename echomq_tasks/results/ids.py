"""Under which JOB id a message's result is kept."""

from __future__ import annotations

from hashlib import blake2b

from echomq_tasks.errors import InvalidId
from echomq_tasks.identity import MAX_SNOWFLAKE, brand, is_branded


def result_id(message_id: str) -> str:
    """The JOB id of a message's result: the message's own when it is one, else one derived from it.

    It depends on nothing but the message id, so a message that was put together again, the child of a group and the
    tail of a pipeline all find their result. The number is the 8-byte BLAKE2b digest of the UTF-8 text, big-endian, top
    bit cleared, as in a group's id (wire §6).

    Raises:
      InvalidId: when ``message_id`` is not a string that UTF-8 can hold.
    """
    if is_branded(message_id, "JOB"):
        return str.__str__(message_id)
    if not isinstance(message_id, str):
        raise InvalidId(f"a message id is a string, not {message_id!r}")
    try:
        text = message_id.encode()
    except UnicodeEncodeError:
        raise InvalidId(f"the message id {message_id!r} holds a lone surrogate, which UTF-8 cannot carry") from None
    return brand("JOB", int.from_bytes(blake2b(text, digest_size=8).digest(), "big") & MAX_SNOWFLAKE)
