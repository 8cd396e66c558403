"""One delivery of a record to a consumer group's handler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from echomq_tasks.bus.records import Record


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a consumer's handler is given.

    Attributes:
      record: the record.
      queue: the queue whose log it stands in.
      log: the log's name.
      group: the group that it was delivered to.
      deliveries: how often the group was given it, this time included: above 1, somebody failed or died with it.
    """

    record: Record
    queue: str
    log: str
    group: str
    deliveries: int = 1

    @property
    def id(self) -> str | None:
        """The record's EVT id; None of a foreign entry that has none."""
        return self.record.id

    @property
    def stream_id(self) -> str:
        """Where the record stands in its log, ``<unix ms>-<number>``: the one name that every entry has."""
        return self.record.stream_id

    @property
    def at(self) -> float:
        """Unix seconds at which the record was minted."""
        return self.record.at

    @property
    def fields(self) -> Mapping[str, str]:
        """The record's names and values."""
        return self.record.fields

    @property
    def value(self) -> Any:
        """What the log's codec makes of the fields; the fields themselves without a codec."""
        return self.record.value
