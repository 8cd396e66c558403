"""Branded ids: three letters that name the kind, then a snowflake in eleven base62 digits."""

from __future__ import annotations

import re
from hashlib import blake2b

from echomq_tasks.errors import InvalidId, InvalidName

#: Unix ms of the snowflake epoch, 2024-01-01T00:00:00Z.
EPOCH_MS = 1_704_067_200_000
#: Snowflakes are 63 bits, so that every runtime can hold one in a signed integer.
MAX_SNOWFLAKE = 2**63 - 1

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}
# Two digits a step: half the divisions of the plain loop on the path of every admission.
_PAIRS = [high + low for high in _DIGITS for low in _DIGITS]
_is_shaped = re.compile(r"[A-Z]{3}[0-9A-Za-z]{11}").fullmatch
_PAIR_VALUES = {pair: value for value, pair in enumerate(_PAIRS)}
_KIND = re.compile(r"[A-Z]{3}")
#: The largest snowflake in digits; equal length makes string order number order.
_MAX_DIGITS = "AzL8n0Y58m7"


def to_base62(number: int) -> str:
    """Write a snowflake in eleven base62 digits, most significant first.

    Raises:
      InvalidId: when ``number`` is not from 0 to 2**63 - 1.
    """
    if not 0 <= number <= MAX_SNOWFLAKE:
        raise InvalidId(f"a snowflake is from 0 to 2**63 - 1, not {number}")
    number, e = divmod(number, 3844)
    number, d = divmod(number, 3844)
    number, c = divmod(number, 3844)
    number, b = divmod(number, 3844)
    number, a = divmod(number, 3844)
    return _DIGITS[number] + _PAIRS[a] + _PAIRS[b] + _PAIRS[c] + _PAIRS[d] + _PAIRS[e]


def from_base62(digits: str) -> int:
    """Read eleven base62 digits.

    Raises:
      InvalidId: on another length, another character, or a value above 2**63 - 1.
    """
    if len(digits) != 11:
        raise InvalidId(f"a snowflake has eleven base62 digits, not {len(digits)}")
    try:
        number = _VALUES[digits[0]]
        for place in (1, 3, 5, 7, 9):
            number = number * 3844 + _PAIR_VALUES[digits[place : place + 2]]
    except KeyError:
        raise InvalidId(f"{digits!r} is not base62 (0-9, A-Z, a-z)") from None
    if number > MAX_SNOWFLAKE:
        raise InvalidId(f"{digits!r} is above 2**63 - 1, the largest snowflake")
    return number


def brand(kind: str, number: int) -> str:
    """Make the branded id of a snowflake, as in ``brand("USR", 274557032793636864) == "USR0KHTOWnGLuC"``.

    Raises:
      InvalidId: when ``kind`` is not three letters A-Z, or ``number`` is out of range.
    """
    if not _KIND.fullmatch(kind):
        raise InvalidId(f"a kind is three letters A-Z, not {kind!r}")
    return kind + to_base62(number)


def is_branded(value: object, kind: str | None = None) -> bool:
    """Tell whether ``value`` is a well-formed branded id (of ``kind``, when given)."""
    return (
        isinstance(value, str)
        and _is_shaped(value) is not None
        and value[3:] <= _MAX_DIGITS
        and (kind is None or value[:3] == kind)
    )


def _plain(text: str) -> str:
    # A member of a `str` enum passes the gate by its value, but would print as its name inside a key.
    return str.__str__(text)


def check_id(value: str, kind: str) -> str:
    """Return ``value`` when it is a branded id of ``kind``.

    Raises:
      InvalidId: when it is not; nothing was sent to a server.
    """
    if not is_branded(value, kind):
        raise InvalidId(f"{value!r} is not a {kind} id: {kind} and eleven base62 digits, as in {kind}0KHTOWnGLuC")
    return value if type(value) is str else _plain(value)


def snowflake(branded_id: str) -> int:
    """The snowflake of a branded id of any kind.

    Raises:
      InvalidId: when ``branded_id`` is malformed.
    """
    if not is_branded(branded_id):
        raise InvalidId(f"{branded_id!r} is not a branded id: three letters A-Z and eleven base62 digits")
    return from_base62(branded_id[3:])


def minted_at_ms(branded_id: str) -> int:
    """The unix ms at which a branded id was minted, by the minting process's clock."""
    return (snowflake(branded_id) >> 22) + EPOCH_MS


def group_id(group: str) -> str:
    """The wire's id of a group: a branded id names itself, any other text maps to a stable ``GRP`` id.

    The number is the 8-byte BLAKE2b digest of the UTF-8 text, big-endian, top bit cleared (wire §6).

    Raises:
      InvalidName: when ``group`` is not a non-empty string that UTF-8 can hold.
    """
    if is_branded(group):
        return _plain(group)
    if not isinstance(group, str) or not group:
        raise InvalidName(f"a group is a non-empty string, not {group!r}")
    try:
        text = group.encode()
    except UnicodeEncodeError:
        raise InvalidName(f"the group {group!r} holds a lone surrogate, which UTF-8 cannot carry") from None
    return brand("GRP", int.from_bytes(blake2b(text, digest_size=8).digest(), "big") & MAX_SNOWFLAKE)
