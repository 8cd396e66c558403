"""One call of a table: what to load, under which key, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from echomq_tasks.cache.freshness import Ttl

#: Why a row is loaded: nobody has it; it is due soon; it is stale; somebody wants it anew.
Mode = Literal["read", "ahead", "stale", "refresh"]


class Call(NamedTuple):
    """What a caller asks for.

    Attributes:
      id: the row.
      rest: the rest of its key.
      loader: called without arguments; its value, or an awaitable of it.
      ttl: seconds that the value is fresh, or what answers them; None is the table's.
      tags: the texts by which the row can be dropped together with others.
      marks: the ids of those tags.
    """

    id: str
    rest: bytes
    loader: Callable[[], Any]
    ttl: Ttl | None = None
    tags: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
