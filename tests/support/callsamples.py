"""Calls whose keys must never change."""

from __future__ import annotations

import re
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, auto
from fractions import Fraction
from ipaddress import ip_address, ip_network
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from echomq_tasks.cache.canonical import canonical
from echomq_tasks.cache.keys import KeyMaker


class Colour(Enum):
    RED = 1
    BLUE = object()


class Level(IntEnum):
    LOW = 1


class Rights(Flag):
    READ = auto()
    WRITE = auto()


class Point(NamedTuple):
    x: int
    y: int


class Sku(str):
    __slots__ = ()


@dataclass
class Money:
    amount: Decimal
    currency: str
    session: Any = field(default=None, compare=False)


def price(sku: str, /, amount: int = 1, *more: Any, currency: str = "EUR", **options: Any) -> None:
    """A function with every kind of parameter."""


def user(user_id: str) -> None:
    """A function of one argument."""


VALUES: dict[str, Any] = {
    "none": None,
    "true": True,
    "false": False,
    "int": 1,
    "int -1": -1,
    "int large": 2**64,
    "float": 1.0,
    "float -0": -0.0,
    "float nan": float("nan"),
    "float inf": float("inf"),
    "complex": 1 - 2j,
    "str": "1",
    "str empty": "",
    "str beyond": "\U0001f600é",
    "str surrogate": "\udcff",
    "bytes": b"1",
    "bytearray": bytearray(b"1"),
    "tuple": (1, (2, "3")),
    "list": [1, [2, "3"]],
    "set": {f"key-{number}" for number in range(5)} | {1, None, b"x"},
    "frozenset": frozenset(f"key-{number}" for number in range(5)),
    "dict": {"b": 1, "a": {"d": 1, "c": [2]}, 7: None},
    "ordered dict": OrderedDict([("b", 1), ("a", 2)]),
    "defaultdict": defaultdict(list, a=[1]),
    "deque": deque([1, 2], 3),
    "ellipsis": ...,
    "range": range(1, 9, 2),
    "datetime": datetime(2026, 10, 25, 2, 30),
    "datetime fold": datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
    "datetime utc": datetime(2026, 10, 25, 2, 30, 1, 5, tzinfo=timezone.utc),  # noqa: UP017 - as users write it
    "date": date(2026, 10, 25),
    "time": time(2, 30, tzinfo=timezone(timedelta(hours=-3), "BRT")),
    "timedelta": timedelta(days=-1, microseconds=5),
    "timezone": timezone.utc,  # noqa: UP017
    "zone": ZoneInfo("Asia/Tokyo"),
    "decimal": Decimal("1.0"),
    "decimal 2": Decimal("1.00"),
    "decimal big": Decimal("1E+40"),
    "fraction": Fraction(1, 3),
    "uuid": UUID(int=5),
    "path": PurePosixPath("/srv/./data"),
    "pattern": re.compile("a+", re.IGNORECASE),
    "ipv4": ip_address("10.0.0.1"),
    "ipv6": ip_address("::ffff:10.0.0.1"),
    "network": ip_network("10.0.0.0/8"),
    "class": dict,
    "enum": Colour.RED,
    "enum object": Colour.BLUE,
    "int enum": Level.LOW,
    "flag": Rights.READ | Rights.WRITE,
    "named tuple": Point(1, 2),
    "str subclass": Sku("1"),
    "dataclass": Money(Decimal("9.90"), "EUR", session=object()),
}

CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "one": (price, ("a",), {}),
    "all": (price, ("a", 2, None, 3.5), {"currency": "CHF", "z": 1, "sku": "b", "y": [Money(Decimal(1), "CHF")]}),
    "id": (user, ("USR0KHTOWnGLuC",), {}),
    "no id": (user, ("USR0KHTOWnGLu",), {}),
    "other kind": (user, ("ORD0KHTOWnGLuC",), {}),
}


def forms() -> dict[str, str]:
    """The canonical bytes of every value, and the key of every call, as text."""
    texts = {name: canonical(value).decode("latin-1") for name, value in VALUES.items()}
    for name, (function, args, kwargs) in CALLS.items():
        key = KeyMaker(function, "USR").key(args, kwargs)
        texts[f"call {name}"] = f"{key.id} {key.rest.hex()}"
    return texts
