"""Fast local keys: what finds a row in this process without writing the call's canonical bytes.

A fast key may only be equal to another when both calls have the same canonical bytes. So it is built of exact built-in
types alone, whose ``==`` and ``hash`` are known, and carries the type wherever Python holds two types equal. What could
be changed is copied. For all else, and for what is large, the answer is None, and the canonical bytes decide.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import EnumType
from typing import Any, Final
from uuid import UUID

FastKey = Callable[[tuple[Any, ...], Mapping[str, Any]], Hashable | None]

#: Values of these exact types differ from each other, and from every tuple, by themselves.
PLAIN: Final = frozenset({str, int, type(None)})
#: These need their type beside them, and nothing else.
_SIMPLE: Final = frozenset({bool, bytes, date, timedelta})
_DEEPEST: Final = 5
#: The most items of a list, a dict or a set that are copied.
_MOST: Final = 32


class _Slow(Exception):
    """This value needs its canonical bytes."""


def _float(value: float, depth: int) -> Hashable:
    if value:
        if value != value:
            # A NaN is not equal to itself: it would never be found again, and only fill the table.
            raise _Slow
        return (float, value)
    return (float, repr(value))


def _datetime(value: datetime, depth: int) -> Hashable:
    # `==` overlooks the fold, and the zone of equal instants.
    if value.fold or not (value.tzinfo is None or value.tzinfo is UTC):
        raise _Slow
    return (datetime, value)


def _tuple(value: tuple[Any, ...], depth: int) -> Hashable:
    if depth >= _DEEPEST:
        raise _Slow
    return (tuple, *[_wrapped(item, depth + 1) for item in value])


def _copy(value: Any, depth: int) -> Hashable:
    if depth >= _DEEPEST or len(value) > _MOST:
        raise _Slow
    kind = type(value)
    if PLAIN.issuperset(map(type, value)):
        return (kind, *value)
    return (kind, *[_wrapped(item, depth + 1) for item in value])


def _unordered(value: Any, depth: int) -> Hashable:
    if depth >= _DEEPEST or len(value) > _MOST:
        raise _Slow
    return (type(value), frozenset([_wrapped(item, depth + 1) for item in value]))


def _dict(value: dict[Any, Any], depth: int) -> Hashable:
    if depth >= _DEEPEST or len(value) > _MOST:
        raise _Slow
    # In the order that it has: another one only means another fast key.
    depth += 1
    return (dict, *[_wrapped(part, depth) for pair in value.items() for part in pair])


_WRAPPERS: Final[dict[type, Callable[[Any, int], Hashable]]] = {
    bool: lambda value, depth: (bool, value),
    bytes: lambda value, depth: (bytes, value),
    float: _float,
    tuple: _tuple,
    list: _copy,
    dict: _dict,
    set: _unordered,
    frozenset: _unordered,
    date: lambda value, depth: (date, value),
    datetime: _datetime,
    timedelta: lambda value, depth: (timedelta, value),
    # 1.0 and 1.00 are equal, but are not the same argument.
    Decimal: lambda value, depth: (Decimal, str(value)),
    UUID: lambda value, depth: (UUID, value.int),
    type: lambda value, depth: (type, value),
}


def _wrapped(value: Any, depth: int = 0) -> Hashable:
    """A stand-in for a value that is equal only to that of the same value."""
    kind = type(value)
    if kind is str or kind is int or value is None:
        return value  # type: ignore[no-any-return]
    if type(kind) is EnumType:
        # Members are singletons, but their class may have an `==` of its own.
        name = value._name_
        if type(name) is str:
            return (kind, name)
        raise _Slow
    try:
        return _WRAPPERS[kind](value, depth)
    except (KeyError, TypeError, RuntimeError):
        # Another type, or one whose metaclass leaves it without a hash; or a thread changes the value just now.
        raise _Slow from None


def never(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """No fast key at all: each call needs its canonical bytes."""


def of_one(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable | None:
    """The fast key of a call of a function with a single parameter."""
    if kwargs:
        if not args and len(kwargs) == 1:
            [(name, value)] = kwargs.items()
            if type(name) is str and (type(value) is str or type(value) is int):
                # As below, in one step.
                return (dict, 0, name, value)
        return of_many(args, kwargs)
    try:
        # No length is asked for: this line is most of what a hit costs.
        (value,) = args
    except ValueError:
        return of_many(args, kwargs)
    kind = type(value)
    if kind is str or kind is int:
        return value  # type: ignore[no-any-return]
    try:
        if kind in _SIMPLE or (kind is float and value and value == value):
            # As it is wrapped, but for the tuple around it: what has names begins with another class.
            return (kind, value)
        return (_wrapped(value),)
    except (_Slow, TypeError):
        return None


def of_many(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable | None:
    """The fast key of a call of any function."""
    try:
        if not kwargs:
            if PLAIN.issuperset(map(type, args)):
                return args
            return tuple([_wrapped(value) for value in args])
        # No positional argument is wrapped into a class, so this cannot be mistaken for a call without names.
        key: list[Hashable] = [dict, len(args)]
        if args:
            key += args if PLAIN.issuperset(map(type, args)) else [_wrapped(value) for value in args]
        for name, value in kwargs.items():
            if type(name) is not str:
                return None
            key += name, (value if type(value) in PLAIN else _wrapped(value))
        return tuple(key)
    except (_Slow, TypeError):
        return None


def of_value(value: object) -> Hashable | None:
    """The fast key of one value, as what a function's own ``key=`` answers."""
    return of_one((value,), {})


def without(places: frozenset[int], kept: int | None, counts: Callable[[str], bool], inner: FastKey) -> FastKey:
    """The fast keys of a function some of whose arguments do not count.

    Parameters:
      places: where the ignored positional arguments stand.
      kept: how many positional arguments are looked at, when those behind are ignored as a whole.
      counts: tells whether an argument given by name counts.
      inner: makes the key of what is left.
    """

    (single, *more) = places or (None,)

    def fast(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable | None:
        # What is left stands at the same place in every call, so two calls still differ if their arguments do.
        if single is None or more:
            left = tuple([value for place, value in enumerate(args[:kept]) if place not in places])
        else:
            left = args[:single] + args[single + 1 : kept]
        return inner(left, {name: value for name, value in kwargs.items() if counts(name)} if kwargs else kwargs)

    return fast
