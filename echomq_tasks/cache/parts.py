"""What all parts of a table share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from echomq_tasks.cache.flights import Flights
from echomq_tasks.cache.freshness import Freshness
from echomq_tasks.cache.hanging import Hanging
from echomq_tasks.cache.l1 import L1
from echomq_tasks.cache.reach import Reach
from echomq_tasks.cache.row import Row
from echomq_tasks.cache.stats import Counters
from echomq_tasks.cache.values import Codec
from echomq_tasks.cache.wakes import Wakes
from echomq_tasks.errors import JobCancelled, Undecodable, Unencodable

_log = logging.getLogger(__name__)


class Unreadable(Undecodable):
    """A row that cannot be read, and not an error of a loader, which may be an Undecodable too."""


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
    hanging: Hanging = field(default_factory=Hanging)
    counters: Counters = field(default_factory=Counters)
    told: set[Hashable] = field(default_factory=set)
    #: Of a codec that has one for each row; None of others.
    _for_row: Callable[[bytes], Codec] | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_for_row", getattr(self.codec, "for_row", None))

    def codec_of(self, id: str, rest: bytes) -> Codec:
        """The codec of one row."""
        if self._for_row is None:
            return self.codec
        return self._for_row(f"{self.name}:{id}:".encode() + rest)

    def decoded(self, id: str, rest: bytes, payload: bytes) -> Any:
        """The value of a row's bytes.

        Raises:
          Unreadable: when the codec cannot read them, whatever it raises: it may be a user's own.
        """
        try:
            return self.codec_of(id, rest).decode(payload)
        except JobCancelled:
            raise
        except Undecodable as error:
            raise Unreadable(str(error)) from error
        except Exception as error:
            self._codec_failed("decode", error)
            raise Unreadable(f"the codec failed: {type(error).__name__}") from error

    def encoded(self, id: str, rest: bytes, value: Any) -> bytes:
        """The bytes of a value.

        Raises:
          Unencodable: when the codec has none, whatever it raises.
        """
        try:
            payload: object = self.codec_of(id, rest).encode(value)
        except (JobCancelled, Unencodable):
            raise
        except Exception as error:
            self._codec_failed("encode", error)
            raise Unencodable(f"the codec failed: {type(error).__name__}") from error
        if not isinstance(payload, bytes):
            raise Unencodable(f"the encode() of a codec returns bytes, not {type(payload).__name__}")
        return payload

    def shared(self, value: Any) -> bool:
        """Whether one ``value`` may be given to all readers."""
        try:
            return bool(self.codec.immutable(value))
        except JobCancelled:
            raise
        except Exception as error:
            self._codec_failed("immutable", error)
            return False

    def _codec_failed(self, verb: str, error: Exception) -> None:
        self.tell_once(
            "the %s() of its codec fails with %s, and should raise nothing but Undecodable or Unencodable: %.200s",
            verb, type(error).__name__, error, kind=(verb, type(error)),
        )  # fmt: skip

    def value(self, row: Row) -> Any:
        """The value of a row, of which no other reader has the same object, unless it cannot be changed.

        Raises:
          Unreadable: when the codec cannot read what it wrote.
        """
        return row.value if row.payload is None else self.decoded(row.id, row.rest, row.payload)

    def tell_once(self, text: str, *args: object, kind: Hashable | None = None) -> None:
        """Log what would else be logged at every call.

        Parameters:
          kind: two messages of one kind are the same, whatever they say; None for the message itself.
        """
        message = text % args
        kind = message if kind is None else kind
        if kind not in self.told and len(self.told) < 100:
            self.told.add(kind)
            _log.warning("The cache table %s: %s", self.name, message)
