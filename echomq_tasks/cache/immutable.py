"""Which values may be shared: the ones that nobody who gets them can change for the others."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import EnumType
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

_ATOMS: Final[frozenset[type]] = frozenset(
    {
        type(None), bool, int, float, complex, str, bytes, type(...), range, Decimal, Fraction, UUID, date, timedelta,
        timezone, ZoneInfo, re.Pattern, PosixPath, WindowsPath, PurePosixPath, PureWindowsPath, IPv4Address,
        IPv6Address, IPv4Network, IPv6Network,
    }
)  # fmt: skip
_ZONES: Final = (type(None), timezone, ZoneInfo)
_DEEPEST: Final = 50


def immutable(value: object, _depth: int = 0) -> bool:
    """Tell whether a value and all it holds cannot be changed: False whenever that is not certain.

    Of classes of the user these can be: enumerations, named tuples, and frozen dataclasses whose fields are all they
    have.
    """
    kind = type(value)
    if type(kind) is EnumType:
        return True
    try:
        if kind in _ATOMS:
            return True
    except TypeError:
        # A metaclass may leave its classes without a hash.
        return False
    if isinstance(value, (datetime, time)):
        return kind in (datetime, time) and type(value.tzinfo) in _ZONES
    if _depth >= _DEEPEST:
        return False
    if isinstance(value, (tuple, frozenset)):
        return _bare(kind, value) and all(immutable(item, _depth + 1) for item in value)
    return _frozen(kind, value, _depth)


def _bare(kind: type, value: object) -> bool:
    """Whether this is a tuple, a frozenset or a named tuple, and not a subclass with attributes of its own."""
    if kind is tuple or kind is frozenset:
        return True
    return kind.__base__ is tuple and hasattr(kind, "_fields") and not hasattr(value, "__dict__")


def _frozen(kind: Any, value: object, depth: int) -> bool:
    parameters = kind.__dict__.get("__dataclass_params__")
    if parameters is None or not parameters.frozen or kind.__base__ is not object:
        return False
    names = [field.name for field in fields(kind)]
    if getattr(value, "__dict__", {}).keys() - set(names):
        return False
    return all(hasattr(value, name) and immutable(getattr(value, name), depth + 1) for name in names)
