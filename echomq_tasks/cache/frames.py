"""What goes over the wire for a cache: versions, coherence messages, wakes and the ids of tags (wire §9)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Final, Literal, NamedTuple, cast

from echomq_tasks.errors import InvalidName
from echomq_tasks.identity import MAX_SNOWFLAKE, brand, check_id, is_branded
from echomq_tasks.scripts.arguments import shown

#: A row is its version in so many bytes, then the value.
VERSION_BYTES: Final = 14
#: In a coherence message it stands for all rows of the table, whatever their version.
EVERYTHING: Final = "TAG00000000000"

What = Literal["filled", "failed", "released", "dropped"]

_MESSAGE = re.compile(rb"([A-Z]{3}[0-9A-Za-z]{11}):([A-Z]{3}[0-9A-Za-z]{11})")
_WAKE = re.compile(
    rb"([A-Z]{3}[0-9A-Za-z]{11}) (filled|failed|released|dropped) ([A-Za-z0-9._-]{1,64}) (.*)", re.DOTALL
)


class Wake(NamedTuple):
    """How a flight has ended, for those who follow its owner.

    Attributes:
      id: the row.
      what: ``filled``: the row is there; ``failed``: the loader raised, ``payload`` tells what; ``released``: nothing
        was stored; ``dropped``: the row was dropped while the flight was on its way. But for ``failed``, claim again.
      owner: whose flight it was.
      payload: what the owner has to say.
    """

    id: str
    what: What
    owner: str
    payload: bytes


def newer(version: str, other: str | None) -> bool:
    """Whether ``version`` is newer than ``other``: the last 11 bytes count, the kinds do not. Anything is newer than
    None."""
    return other is None or version[3:] > other[3:]


def coherence_message(row_id: str, version: str) -> bytes:
    """The 29 bytes that tell of a newer version of a row, or of all rows of a tag.

    Raises:
      InvalidId: when one of them is not a branded id.
    """
    # Of any kind, but well-formed.
    return f"{check_id(row_id, row_id[:3])}:{check_id(version, version[:3])}".encode()


def read_coherence(data: bytes) -> tuple[str, str] | None:
    """The row, or the tag, and the version of a coherence message; None when it is something else."""
    found = _MESSAGE.fullmatch(data)
    if found is None:
        return None
    row_id, version = found[1].decode(), found[2].decode()
    return (row_id, version) if is_branded(row_id) and is_branded(version) else None


def read_wake(data: bytes) -> Wake | None:
    """What a message of a table's wake channel says; None when it is something else."""
    found = _WAKE.fullmatch(data)
    if found is None:
        return None
    return Wake(found[1].decode(), cast(What, found[2].decode()), found[3].decode(), found[4])


def tag_id(tag: str) -> str:
    """The id of a tag: a stable ``TAG`` id from the 8-byte BLAKE2b digest of its UTF-8, as groups have one.

    Raises:
      InvalidName: when ``tag`` is not a non-empty string that UTF-8 can hold.
    """
    if not isinstance(tag, str) or not tag:
        raise InvalidName(f"a tag is a non-empty string, not {tag!r}")
    # As plain text: what a subclass is equal to is its own affair.
    return _tag_id(str.__str__(tag))


@lru_cache(maxsize=1024)
def _tag_id(tag: str) -> str:
    try:
        text = tag.encode()
    except UnicodeEncodeError:
        raise InvalidName(f"the tag {tag!r} holds a lone surrogate, which UTF-8 cannot carry") from None
    return brand("TAG", int.from_bytes(blake2b(text, digest_size=8).digest(), "big") & MAX_SNOWFLAKE)


def tag_texts(tags: object) -> tuple[str, ...]:
    """What should be tags, as a tuple; whether each is a text, :func:`tag_id` tells.

    Raises:
      InvalidName: when it is one text, or nothing that can be gone through.
    """
    if isinstance(tags, (str, bytes)) or not isinstance(tags, Iterable):
        raise InvalidName(f"tags are several texts, as in ('user:7',), or () for none, not {shown(tags)}")
    return tuple(tags)
