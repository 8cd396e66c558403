"""JSON with tags: what JSON cannot say is an object with one name that starts with ``~``, as ``{"~dec": "9.90"}``.

Only exact types go in, so the same types come out. Classes of the user are the ones a :class:`Schema` knows; a name
on the wire is looked up there and never imported.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import fields
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from functools import cached_property
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from echomq_tasks.cache.canonical import MAX_DEPTH, zone_name
from echomq_tasks.cache.schema import Schema, is_named_tuple
from echomq_tasks.errors import Unencodable

_MICROSECOND: Final = timedelta(microseconds=1)
#: Above this many bits an int is kept in hexadecimal: JSON's decimal digits are limited by the interpreter.
_LONG_INT: Final = 1024
_INFINITY: Final = float("inf")


class Packer:
    """Turns one value into what JSON can hold.

    Parameters:
      schema: the classes that may be written.
      plain: whether a tag is refused, because others than us read the JSON.

    Attributes:
      tagged: whether a tag was needed: what has none is read without looking for them.
    """

    def __init__(self, schema: Schema, *, plain: bool = False) -> None:
        self._names = schema.names
        self._plain = plain
        self._trail: list[int] = []
        self.tagged = False

    def pack(self, value: Any) -> Any:
        """A tree of None, bool, int, float, str, list and dict with str keys.

        Raises:
          Unencodable: when the value, or one it holds, could not come back as the same type.
        """
        kind = type(value)
        if kind is str or kind is bool or value is None:
            return value
        if kind is int:
            return value if value.bit_length() <= _LONG_INT else self._tag("int", f"{value:x}")
        if kind is float:
            return value if -_INFINITY < value < _INFINITY else self._tag("float", repr(value))
        if kind in _ATOMS:
            tag, write, _ = _ATOMS[kind]
            return self._tag(tag, write(value))
        if id(value) in self._trail:
            raise Unencodable(f"a {kind.__qualname__} contains itself")
        if len(self._trail) >= MAX_DEPTH:
            raise Unencodable(f"the value is nested more than {MAX_DEPTH} deep")
        self._trail.append(id(value))
        packed = self._container(value, kind)
        self._trail.pop()
        return packed

    def _tag(self, tag: str, content: Any) -> dict[str, Any]:
        if self._plain:
            raise Unencodable(
                f"the value needs the tag ~{tag}, and other runtimes read this row as plain JSON: return None, bool, "
                "int, float, str, lists and dicts with str keys, or give the table a codec"
            )
        self.tagged = True
        return {"~" + tag: content}

    def _container(self, value: Any, kind: type) -> Any:
        if kind is list:
            return [self.pack(item) for item in value]
        if kind is dict:
            return self._dict(value)
        if kind in _COLLECTIONS:
            tag, write, _ = _COLLECTIONS[kind]
            return self._tag(tag, [self.pack(item) for item in write(value)])
        name = self._names.get(kind)
        if name is None:
            raise Unencodable(_advice(kind))
        if issubclass(kind, Enum):
            # A flag may be a mix of members, which has no name of its own.
            return self._tag("enum", [name, value._value_ if issubclass(kind, Flag) else value._name_])
        if is_named_tuple(kind):
            return self._tag("ntup", [name, [self.pack(item) for item in value]])
        return self._tag("data", [name, {key: self.pack(item) for key, item in _fields(value, kind).items()}])

    def _dict(self, value: dict[Any, Any]) -> Any:
        for key in value:
            if type(key) is not str or (key[:1] == "~" and not self._plain):
                return self._tag("dict", [[self.pack(key), self.pack(item)] for key, item in value.items()])
        return {key: self.pack(item) for key, item in value.items()}


class Unpacker:
    """Brings tagged values back; its :meth:`hook` is the ``object_hook`` of :func:`json.loads`."""

    def __init__(self, schema: Schema) -> None:
        self._classes = schema.classes

    def hook(self, found: dict[str, Any]) -> Any:
        """The value of one JSON object, whose content is brought back already.

        Raises:
          ValueError: on an unknown tag; and whatever a value's own type raises on content that is none of its own.
        """
        if len(found) != 1:
            return found
        [(name, content)] = found.items()
        if name[:1] != "~":
            return found
        read = _READERS.get(name[1:])
        return read(content) if read is not None else self._object(name, content)

    def _object(self, tag: str, content: Any) -> Any:
        name, state = content
        kind: Any = self._classes[name]
        if tag == "~enum" and issubclass(kind, Enum):
            return kind(state) if issubclass(kind, Flag) else kind[state]
        if tag == "~ntup" and is_named_tuple(kind):
            return kind._make(state)
        if tag != "~data" or state.keys() != {field.name for field in fields(kind)}:
            raise ValueError(f"{tag} of {name} is none of ours")
        # As it was: a `__post_init__` that ran once must not run on its own result.
        made = object.__new__(kind)
        for key, item in state.items():
            object.__setattr__(made, key, item)
        return made


def _advice(kind: type) -> str:
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if issubclass(kind, Enum) or is_named_tuple(kind) or "__dataclass_fields__" in kind.__dict__:
        return (
            f"the class {name} is not known here: name it in the function's return annotation, or let it be known by "
            f"codec=TypedCodec(types=[{kind.__qualname__}])"
        )
    return f"{name} would not come back as the same type: return plain types or a dataclass, or give the table a codec"


def _fields(value: Any, kind: Any) -> dict[str, Any]:
    names = [field.name for field in fields(kind)]
    # What a `cached_property` has kept is computed anew; any other attribute would be lost.
    extra = [
        name
        for name in getattr(value, "__dict__", ())
        if name not in names and not isinstance(getattr(kind, name, None), cached_property)
    ]
    missing = [name for name in names if not hasattr(value, name)]
    if extra or missing or kind.__new__ is not object.__new__:
        what = (
            f"the attribute {extra[0]!r}, which is no field" if extra else "a field without a value, or its own __new__"
        )
        raise Unencodable(f"a {kind.__qualname__} has {what}, so it would not come back the same: declare its fields")
    return {name: getattr(value, name) for name in names}


# -- built-in types: the tag, how to write a value, how to read it --------------------------------------------------


def _zone(zone: tzinfo | None) -> Any:
    name = zone_name(zone)
    if name == ():
        raise Unencodable(f"a time zone of the type {type(zone).__qualname__} has no name: use zoneinfo.ZoneInfo(name)")
    if name is None or len(name) == 1:
        return name and name[0]
    return list(name)


def _read_zone(content: Any) -> tzinfo | None:
    if content is None or isinstance(content, str):
        return None if content is None else ZoneInfo(content)
    offset, name = content
    plain = timezone(offset * _MICROSECOND)
    return plain if plain.tzname(None) == name else timezone(offset * _MICROSECOND, name)


def _write_moment(value: Any) -> list[Any]:
    return [value.replace(tzinfo=None).isoformat(), value.fold, _zone(value.tzinfo)]


def _read_datetime(content: Any) -> datetime:
    text, fold, zone = content
    return datetime.fromisoformat(text).replace(fold=fold, tzinfo=_read_zone(zone))


def _read_time(content: Any) -> time:
    text, fold, zone = content
    return time.fromisoformat(text).replace(fold=fold, tzinfo=_read_zone(zone))


def _write_bytes(value: bytes | bytearray) -> str:
    return b64encode(value).decode()


def _read_bytes(content: Any) -> bytes:
    return b64decode(content, validate=True)


def _pairs(value: Any) -> list[list[Any]]:
    return [list(pair) for pair in value.items()]


def _write_deque(value: Any) -> list[Any]:
    return [value.maxlen, list(value)]


def _read_fraction(text: str) -> Fraction:
    above, below = text.split("/")
    return Fraction(int(above, 16), int(below, 16))


_Kinds = dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]]
_ATOMS: Final[_Kinds] = {
    Decimal: ("dec", str, Decimal),
    datetime: ("dt", _write_moment, _read_datetime),
    date: ("date", date.isoformat, date.fromisoformat),
    time: ("time", _write_moment, _read_time),
    timedelta: ("td", lambda value: value // _MICROSECOND, lambda content: content * _MICROSECOND),
    timezone: ("tz", _zone, _read_zone),
    ZoneInfo: ("zone", _zone, _read_zone),
    UUID: ("uuid", lambda value: value.hex, UUID),
    bytes: ("bytes", _write_bytes, _read_bytes),
    bytearray: ("barr", _write_bytes, lambda content: bytearray(_read_bytes(content))),
    complex: ("cplx", lambda value: [repr(value.real), repr(value.imag)], lambda parts: complex(*map(float, parts))),
    Fraction: ("frac", lambda value: f"{value.numerator:x}/{value.denominator:x}", _read_fraction),
}
_COLLECTIONS: Final[_Kinds] = {
    tuple: ("tup", list, tuple),
    set: ("set", list, set),
    frozenset: ("fset", list, frozenset),
    OrderedDict: ("odict", _pairs, OrderedDict),
    Counter: ("count", _pairs, lambda content: Counter(dict(content))),
    deque: ("deque", _write_deque, lambda content: deque(content[1], content[0])),
}
_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "int": lambda content: int(content, 16),
    "float": float,
    "dict": dict,
    **{tag: read for tag, _, read in (*_ATOMS.values(), *_COLLECTIONS.values())},
}
