"""What all parts of a table share."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from echomq_tasks.cache.flights import Flights
from echomq_tasks.cache.freshness import Freshness
from echomq_tasks.cache.l1 import L1
from echomq_tasks.cache.reach import Reach
from echomq_tasks.cache.row import Row
from echomq_tasks.cache.stats import Counters
from echomq_tasks.cache.values import Codec
from echomq_tasks.cache.wakes import Wakes

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What all parts of a table share.

    Attributes:
      name: the table's.
      kind: the kind of its ids.
      codec: writes and reads its values.
      freshness: how long they are fresh.
      lease: seconds that another process waits for one that has died with a load.
      wait: seconds that a caller waits for another one's load; None is for ever.
      reach: its server; None when it has none.
    """

    name: str
    kind: str
    codec: Codec
    freshness: Freshness
    lease: float
    wait: float | None
    l1: L1
    reach: Reach | None
    flights: Flights = field(default_factory=Flights)
    wakes: Wakes = field(default_factory=Wakes)
    counters: Counters = field(default_factory=Counters)
    told: set[str] = field(default_factory=set)
    #: Of a codec that has one for each row; None of others.
    _for_row: Callable[[bytes], Codec] | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_for_row", getattr(self.codec, "for_row", None))

    def codec_of(self, id: str, rest: bytes) -> Codec:
        """The codec of one row."""
        if self._for_row is None:
            return self.codec
        return self._for_row(f"{self.name}:{id}:".encode() + rest)

    def value(self, row: Row) -> Any:
        """The value of a row, of which no other reader has the same object, unless it cannot be changed.

        Raises:
          Undecodable: when the codec cannot read what it wrote.
        """
        return row.value if row.payload is None else self.codec_of(row.id, row.rest).decode(row.payload)

    def tell_once(self, text: str, *args: object) -> None:
        """Log what would else be logged at every call."""
        message = text % args
        if message not in self.told and len(self.told) < 100:
            self.told.add(message)
            _log.warning("The cache table %s: %s", self.name, message)
