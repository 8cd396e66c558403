"""Records of a retained log: what an entry says, and how a value becomes one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from echomq_tasks.bus.places import Place, evt_id
from echomq_tasks.errors import InvalidArgument, UndecodableRecord
from echomq_tasks.scripts.arguments import shown

#: One script call unpacks a record's fields, and Lua unpacks no more than 8,000 values.
MAX_FIELDS = 1000
#: The largest record, in bytes of its names and values.
MAX_BYTES = 16 << 20
#: How many records are fetched in one go: at first, and at most; fewer when so many would hold more bytes than this.
FIRST_PAGE = 100
_LONGEST_PAGE, _PAGE_BYTES = 1000, 1 << 20


class Codec(Protocol):
    """How values are kept in a log's records, which are flat pairs of strings."""

    def encode(self, value: Any) -> Mapping[str, str]:
        """The fields of the record that keeps ``value``: at least one, none called ``id``."""

    def decode(self, fields: Mapping[str, str]) -> Any:
        """The value that a record with these fields keeps; raise when it is none of yours."""


class JsonCodec:
    """Keeps any value that JSON can hold in one field, ``json``."""

    def encode(self, value: Any) -> Mapping[str, str]:
        """The field.

        Raises:
          InvalidArgument: when JSON has no way to write the value: then encode it to what JSON has, or use a codec of
            your own.
        """
        try:
            return {"json": json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))}
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgument(f"JSON cannot hold {shown(value)}: {error}") from None

    def decode(self, fields: Mapping[str, str]) -> Any:
        """The value in the field.

        Raises:
          ValueError: when there is no such field, or it is no JSON.
        """
        if "json" not in fields:
            raise ValueError(f"there is no field 'json' among {shown(sorted(fields))}")
        return json.loads(fields["json"])


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a log.

    Attributes:
      id: its EVT id; None of a foreign entry whose stream id has none: before 2024, or more than 22 bits behind
        the dash.
      stream_id: where it stands, ``<unix ms>-<number>``.
      at: unix seconds at which it was minted, by its writer's clock.
      fields: names and values without ``id``; bytes that are not UTF-8, which other writers may leave, as ``\\xff``.
    """

    id: str | None
    stream_id: str
    at: float
    fields: Mapping[str, str] = field(hash=False)
    codec: Codec | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(
        cls, entry_id: bytes | str, pairs: Mapping[bytes, bytes] | Sequence[bytes], codec: Codec | None = None
    ) -> Record:
        """The record in a stream's entry.

        Parameters:
          entry_id: the entry's id.
          pairs: its fields, as a mapping or as names and values in turn.
          codec: what reads its value.
        """
        place = Place.of_entry(entry_id)
        mine = evt_id(place)
        items = pairs.items() if isinstance(pairs, Mapping) else zip(pairs[::2], pairs[1::2], strict=True)
        fields = {_text(name): _text(value) for name, value in items}
        # A stranger's `id` is a field as any other: what names the record is where it stands.
        if mine is not None and fields.get("id") == mine:
            del fields["id"]
        return cls(mine, str(place), place.ms / 1000, fields, codec)

    @property
    def value(self) -> Any:
        """What the log's codec makes of the fields; the fields themselves without a codec.

        Raises:
          UndecodableRecord: when the codec cannot read it. The records behind it are not concerned.
        """
        if self.codec is None:
            return self.fields
        try:
            return self.codec.decode(self.fields)
        except Exception as error:
            raise UndecodableRecord(
                f"the record {self.stream_id} is none that {type(self.codec).__name__} can read "
                f"({type(error).__name__}: {error}): look at its `fields`, or skip it"
            ) from error


def packed_fields(fields: object) -> list[bytes]:
    """Check a record's fields, and pack them as names and values in turn.

    Raises:
      InvalidArgument: when they cannot be a record; nothing was sent.
    """
    if not isinstance(fields, Mapping):
        raise InvalidArgument(f"a record is a mapping of str to str, as {{'order': '7'}}, not {shown(fields)}")
    if not 1 <= len(fields) <= MAX_FIELDS:
        raise InvalidArgument(f"a record has 1 to {MAX_FIELDS} fields, not {len(fields)}")
    packed: list[bytes] = []
    for name, value in fields.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgument(
                f"a record is a mapping of str to str, not of {shown(name)} to {shown(value)}: use str(), or give the "
                "log a codec, as JsonCodec()"
            )
        if name == "id":
            raise InvalidArgument("a record's field 'id' is the wire's own, its EVT id: use another name")
        try:
            packed += name.encode(), value.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(
                f"the field {shown(name)} of a record holds a lone surrogate, which UTF-8 cannot carry"
            ) from None
    if sum(map(len, packed)) > MAX_BYTES:
        raise InvalidArgument(f"a record is {MAX_BYTES >> 20} MB at most: store the data elsewhere and log its address")
    return packed


def next_page(page: int, records: int, size: int) -> int:
    """How many records to fetch after a page of ``page`` brought so many ``records`` of ``size`` bytes."""
    return max(1, min(_LONGEST_PAGE, page * 2, _PAGE_BYTES * records // max(size, 1)))


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")
