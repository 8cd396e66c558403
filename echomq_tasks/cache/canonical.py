"""The canonical bytes of a value: the same in every process, whatever the hash seed or the Python version.

Each value is a tag, its size and its bytes, so no two values share a form. Types count: ``1``, ``1.0``, ``True`` and
``"1"`` differ, and so do ``Decimal("1.0")`` and ``Decimal("1.00")``, which print differently. The order of a set or
dict does not count. Only content is read, by the built-in types' own methods: no ``__eq__``, ``__hash__`` or
``__iter__`` of a user's class is called.
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from struct import Struct
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from echomq_tasks.errors import UnstableKey

#: How deep values may be nested. A caller's own recursion must not decide what can be written.
MAX_DEPTH = 100

_double = Struct(">d").pack
_NAN = bytes.fromhex("7ff8000000000000")
_Parts = list[bytes]
#: The ids of the containers that a value stands in.
_Trail = tuple[int, ...]
_Writer = Callable[[Any, _Parts, _Trail], None]


def canonical(value: object) -> bytes:
    """The canonical bytes of a value.

    Raises:
      UnstableKey: when it is, or holds, something without a form that another process would know again (a function, a
        lock, an object known by its address), or contains itself, or is nested more than 100 deep.
    """
    if type(value) is str:
        # As :func:`_str` writes it: most arguments are one.
        data = value.encode("utf-8", "surrogatepass")
        return b"s%d:%b" % (len(data), data)
    parts: _Parts = []
    _write(value, parts, ())
    return b"".join(parts)


def type_name(kind: type) -> str:
    """The name of a class as it stands in canonical bytes, as in ``shop.models:Money``."""
    return f"{kind.__module__}:{kind.__qualname__}"


def _write(value: object, parts: _Parts, trail: _Trail) -> None:
    kind = type(value)
    try:
        writer = _WRITERS.get(kind)
    except TypeError:
        # A metaclass may leave its classes without a hash.
        writer = None
    if writer is not None:
        writer(value, parts, trail)
    else:
        _write_other(value, kind, parts, trail)


def _write_other(value: Any, kind: type, parts: _Parts, trail: _Trail) -> None:
    if issubclass(kind, Enum):
        # By name: what a member is worth may change, and may have no stable form. A mix of flags may have no name.
        _text(type_name(kind), parts, b"e")
        _write(int(value._value_) if issubclass(kind, Flag) else value._name_, parts, trail)
    elif issubclass(kind, type):
        _class(value, parts)
    elif issubclass(kind, _BASES):
        _extended(value, kind, parts, trail)
    elif is_dataclass(kind):
        _record(value, kind, parts, trail)
    else:
        raise UnstableKey(f"{_a(kind)} has no form that another process would know again")


def _a(kind: type) -> str:
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"an object of the type {name}"


# -- plain values -------------------------------------------------------------------------------------------------


def _data(data: bytes, parts: _Parts, tag: bytes) -> None:
    parts.append(b"%b%d:" % (tag, len(data)))
    parts.append(data)


def _text(text: str, parts: _Parts, tag: bytes) -> None:
    # Lone surrogates, as in the name of a file that is no UTF-8, have a form too.
    _data(str.encode(text, "utf-8", "surrogatepass"), parts, tag)


def _constant(data: bytes) -> _Writer:
    return lambda value, parts, trail: parts.append(data)


def _str(value: str, parts: _Parts, trail: _Trail) -> None:
    _text(value, parts, b"s")


def _bytes(value: bytes, parts: _Parts, trail: _Trail) -> None:
    _data(bytes(memoryview(value)), parts, b"b")


def _bytearray(value: bytearray, parts: _Parts, trail: _Trail) -> None:
    _data(bytes(memoryview(value)), parts, b"B")


def _int(value: int, parts: _Parts, trail: _Trail) -> None:
    # Hexadecimal: the decimal digits of a huge number are limited, and slow.
    parts.append(b"i%x;" % int.__index__(value))


def _float(value: float, parts: _Parts, trail: _Trail) -> None:
    # Zero keeps its sign. A NaN is as good as another: the bits behind it differ from one machine to the next.
    parts.append(b"f" + (_double(value) if float.__eq__(value, value) else _NAN))


def _complex(value: complex, parts: _Parts, trail: _Trail) -> None:
    parts.append(b"c")
    _float(value.real, parts, trail)
    _float(value.imag, parts, trail)


# -- containers ---------------------------------------------------------------------------------------------------


def _within(value: object, trail: _Trail) -> _Trail:
    if id(value) in trail:
        raise UnstableKey(f"{_a(type(value))} contains itself")
    if len(trail) >= MAX_DEPTH:
        raise UnstableKey(f"what is nested more than {MAX_DEPTH} deep has no form here")
    return (*trail, id(value))


def _items(items: Iterable[object], count: int, parts: _Parts, tag: bytes, trail: _Trail) -> None:
    parts.append(b"%b%d:" % (tag, count))
    for item in items:
        _write(item, parts, trail)


def _alone(value: object, trail: _Trail) -> bytes:
    parts: _Parts = []
    _write(value, parts, trail)
    return b"".join(parts)


def _list(value: list[Any], parts: _Parts, trail: _Trail) -> None:
    _items(list.__iter__(value), list.__len__(value), parts, b"l", _within(value, trail))


def _tuple(value: tuple[Any, ...], parts: _Parts, trail: _Trail) -> None:
    _items(tuple.__iter__(value), tuple.__len__(value), parts, b"t", _within(value, trail))


def _unordered(items: Iterable[object], parts: _Parts, tag: bytes, trail: _Trail) -> None:
    written = sorted(_alone(item, trail) for item in items)
    parts.append(b"%b%d:" % (tag, len(written)))
    parts.extend(written)


def _set(value: set[Any], parts: _Parts, trail: _Trail) -> None:
    _unordered(set.__iter__(value), parts, b"S", _within(value, trail))


def _frozenset(value: frozenset[Any], parts: _Parts, trail: _Trail) -> None:
    _unordered(frozenset.__iter__(value), parts, b"Z", _within(value, trail))


def _dict(value: dict[Any, Any], parts: _Parts, trail: _Trail) -> None:
    inner = _within(value, trail)
    pairs = sorted((_alone(key, inner), _alone(item, inner)) for key, item in dict.items(value))
    parts.append(b"d%d:" % len(pairs))
    for pair in pairs:
        parts.extend(pair)


def _ordered_dict(value: OrderedDict[Any, Any], parts: _Parts, trail: _Trail) -> None:
    # The one dict whose order counts, for its own `==` too.
    inner = _within(value, trail)
    pairs = list(OrderedDict.items(value))
    parts.append(b"O%d:" % len(pairs))
    for key, item in pairs:
        _write(key, parts, inner)
        _write(item, parts, inner)


def _defaultdict(value: defaultdict[Any, Any], parts: _Parts, trail: _Trail) -> None:
    parts.append(b"D")
    _write(value.default_factory, parts, trail)
    _dict(value, parts, trail)


def _deque(value: deque[Any], parts: _Parts, trail: _Trail) -> None:
    parts.append(b"q")
    _write(value.maxlen, parts, trail)
    _items(deque.__iter__(value), deque.__len__(value), parts, b"l", _within(value, trail))


# -- the standard library -----------------------------------------------------------------------------------------


def _named(name: bytes, read: Callable[[Any], tuple[object, ...]]) -> _Writer:
    """A type with a name of our own, because modules move from one Python to the next, and what makes its values."""

    def write(value: Any, parts: _Parts, trail: _Trail) -> None:
        content = read(value)
        parts.append(b"k%b.%d:" % (name, len(content)))
        for item in content:
            _write(item, parts, trail)

    return write


def zone_name(zone: tzinfo | None) -> tuple[str | int, ...] | None:
    """What a time zone is known by: the key of a ZoneInfo, the offset in µs and the name of a fixed one.

    Returns None of no zone, and an empty tuple when the zone is of another type, or a ZoneInfo without a key.
    """
    if zone is None:
        return None
    if type(zone) is timezone:
        return (zone.utcoffset(None) // timedelta(microseconds=1), zone.tzname(None))
    if type(zone) is ZoneInfo and zone.key is not None:
        return (zone.key,)
    return ()


def _zone(zone: tzinfo | None) -> tuple[str | int, ...] | None:
    name = zone_name(zone)
    if name == () and isinstance(zone, ZoneInfo) and zone.key is not None:
        name = (type_name(type(zone)), zone.key)
    if name == ():
        raise UnstableKey(f"a time zone of the type {type(zone).__qualname__} has no name: use zoneinfo.ZoneInfo(name)")
    return name


def _instant(value: datetime) -> tuple[object, ...]:
    zone = _zone(value.tzinfo)
    return datetime.isoformat(value, "T", "microseconds")[:26], value.fold, zone


def _time(value: time) -> tuple[object, ...]:
    zone = _zone(value.tzinfo)
    return time.isoformat(value, "microseconds")[:15], value.fold, zone


def _network(value: IPv4Network | IPv6Network) -> tuple[object, ...]:
    return value.network_address.packed, value.prefixlen


def _class(kind: type, parts: _Parts) -> None:
    """A class as a value: by its name, when that name leads to this class and no other."""
    found: object = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    if found is not kind:
        raise UnstableKey(f"the class {kind.__qualname__} cannot be found by its name, so another may bear it too")
    _text(type_name(kind), parts, b"C")


# -- classes of the user ------------------------------------------------------------------------------------------


def _state(value: object) -> dict[str, Any]:
    """The attributes of an instance, in its dict and its slots."""
    state = object.__getstate__(value)
    inner, slots = state if isinstance(state, tuple) else (state, None)
    return {**(inner or {}), **(slots or {})}


def _extended(value: Any, kind: type, parts: _Parts, trail: _Trail) -> None:
    """A subclass of a built-in type: its name, what the built-in part holds, and its attributes."""
    base = next(base for base in kind.__mro__ if base in _EXTENSIBLE)
    _text(type_name(kind), parts, b"x")
    _WRITERS[base](value, parts, trail)
    _dict(_state(value), parts, _within(value, trail))


def _record(value: Any, kind: Any, parts: _Parts, trail: _Trail) -> None:
    """A dataclass: its name and the fields that its `==` looks at."""
    inner = _within(value, trail)
    content: dict[str, Any] = {}
    names = [field.name for field in fields(kind) if field.compare]
    if "__dataclass_fields__" not in kind.__dict__:
        # A plain subclass of a dataclass: nothing says which of its attributes count.
        content = {name: item for name, item in _state(value).items() if name not in kind.__dataclass_fields__}
    for name in names:
        try:
            content[name] = getattr(value, name)
        except AttributeError:
            raise UnstableKey(f"{_a(kind)} has no value in its field {name!r}") from None
    _text(type_name(kind), parts, b"o")
    _dict(content, parts, inner)


_EXTENSIBLE: dict[type, _Writer] = {
    str: _str,
    bytes: _bytes,
    bytearray: _bytearray,
    int: _int,
    float: _float,
    complex: _complex,
    OrderedDict: _ordered_dict,
    defaultdict: _defaultdict,
    deque: _deque,
    list: _list,
    tuple: _tuple,
    dict: _dict,
    set: _set,
    frozenset: _frozenset,
    datetime: _named(b"datetime", _instant),
    date: _named(b"date", lambda value: (date.isoformat(value),)),
    time: _named(b"time", _time),
    timedelta: _named(b"timedelta", lambda value: (value.days, value.seconds, value.microseconds)),
    # Not `str()` alone: the decimal context may ask for a small `e`.
    Decimal: _named(b"decimal", lambda value: (Decimal.__str__(value).upper(),)),
}
_BASES = tuple(_EXTENSIBLE)
_WRITERS: dict[type, _Writer] = {
    **_EXTENSIBLE,
    type(None): _constant(b"N"),
    bool: lambda value, parts, trail: parts.append(b"T" if value else b"F"),
    type(...): _constant(b"."),
    UUID: _named(b"uuid", lambda value: (value.bytes,)),
    Fraction: _named(b"fraction", lambda value: (value.numerator, value.denominator)),
    range: _named(b"range", lambda value: (value.start, value.stop, value.step)),
    timezone: _named(b"timezone", lambda value: _zone(value) or ()),
    ZoneInfo: _named(b"zoneinfo", lambda value: _zone(value) or ()),
    re.Pattern: _named(b"pattern", lambda value: (value.pattern, value.flags)),
    PosixPath: _named(b"posixpath", lambda value: (str(value),)),
    WindowsPath: _named(b"windowspath", lambda value: (str(value),)),
    PurePosixPath: _named(b"pureposixpath", lambda value: (str(value),)),
    PureWindowsPath: _named(b"purewindowspath", lambda value: (str(value),)),
    # Their text changed with Python 3.13.
    IPv4Address: _named(b"ipv4", lambda value: (value.packed,)),
    IPv6Address: _named(b"ipv6", lambda value: (value.packed, value.scope_id)),
    IPv4Network: _named(b"ipv4net", _network),
    IPv6Network: _named(b"ipv6net", _network),
}
