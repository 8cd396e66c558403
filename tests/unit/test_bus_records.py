"""Records: what may be one, what is refused before a byte is sent, and what a codec makes of it."""

from __future__ import annotations

import enum
import pickle
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq_tasks.bus import JsonCodec, Record, Retention
from echomq_tasks.bus.records import FIRST_PAGE, next_page, packed_fields
from echomq_tasks.bus.retention import bounds
from echomq_tasks.errors import InvalidArgument, UndecodableRecord

EVT, STREAM_ID = "EVT000xY9Wvvcd", "1704117200000-1620567"


class Color(str, enum.Enum):  # noqa: UP042 - StrEnum prints as its value, this one does not
    RED = "red"


class Whole:
    """A codec of one field that must be a number."""

    def encode(self, value: Any) -> Mapping[str, str]:
        return {"n": str(value)}

    def decode(self, fields: Mapping[str, str]) -> Any:
        return int(fields["n"])


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (None, "a mapping"),
        ([("a", "b")], "a mapping"),
        ("ab", "a mapping"),
        ({}, "1 to 1000 fields, not 0"),
        ({str(number): "" for number in range(1001)}, "not 1001"),
        ({"a": 1}, r"use str\(\)"),
        ({"a": None}, r"use str\(\)"),
        ({"a": b"b"}, r"use str\(\)"),
        ({1: "a"}, r"use str\(\)"),
        ({"id": "7"}, "another name"),
        ({"a": "\ud800"}, "surrogate"),
        ({"\udfff": "a"}, "surrogate"),
        ({"a": "x" * (16 << 20)}, "16 MB"),
    ],
)
def test_what_is_no_record_is_refused_with_advice(bad: object, match: str) -> None:
    with pytest.raises(InvalidArgument, match=match):
        packed_fields(bad)


def test_the_largest_records_are_taken() -> None:
    assert len(packed_fields({str(number): "" for number in range(1000)})) == 2000
    assert len(packed_fields({"a": "x" * ((16 << 20) - 1)})[1]) == (16 << 20) - 1


def test_a_member_of_a_str_enum_is_taken_by_its_value() -> None:
    assert packed_fields({Color.RED: Color.RED}) == [b"red", b"red"]


@given(st.dictionaries(st.text().filter(lambda name: name != "id"), st.text(), min_size=1))
def test_every_text_comes_back_as_it_was(fields: dict[str, str]) -> None:
    packed = packed_fields(fields)
    assert Record.of(STREAM_ID.encode(), [b"id", EVT.encode(), *packed]).fields == fields
    assert Record.of(STREAM_ID, dict(zip(packed[::2], packed[1::2], strict=True))).fields == fields


def test_a_record_is_a_value_that_can_be_compared_hashed_and_sent_to_another_process() -> None:
    record = Record.of(STREAM_ID, [b"id", EVT.encode(), b"a", b"b"], JsonCodec())
    assert record == Record(EVT, STREAM_ID, 1_704_117_200.0, {"a": "b"})
    assert len({record, Record(EVT, STREAM_ID, 1_704_117_200.0, {"a": "b"})}) == 1
    assert pickle.loads(pickle.dumps(record)) == record
    assert record.fields | {"id": record.id} == {"a": "b", "id": EVT}  # type: ignore[operator]


def test_the_value_of_a_record_without_a_codec_are_its_fields() -> None:
    record = Record.of(STREAM_ID, [b"a", b"b"])
    assert record.value is record.fields


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_keeps_every_value_that_it_can_hold(value: Any) -> None:
    codec = JsonCodec()
    fields = codec.encode(value)
    assert list(fields) == ["json"]
    assert Record.of(STREAM_ID, packed_fields(fields), codec).value == value


def nested() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize("bad", [object(), {1, 2}, b"bytes", float("nan"), float("inf"), nested()], ids=type)
def test_what_json_cannot_hold_is_refused(bad: object) -> None:
    with pytest.raises(InvalidArgument, match="JSON cannot hold"):
        JsonCodec().encode(bad)


@pytest.mark.parametrize("fields", [{"a": "b"}, {"json": "{"}, {"json": ""}])
def test_a_record_that_json_cannot_read_says_which_and_keeps_its_fields(fields: dict[str, str]) -> None:
    record = Record(EVT, STREAM_ID, 0.0, fields, JsonCodec())
    with pytest.raises(UndecodableRecord, match=rf"{STREAM_ID} is none that JsonCodec can read .*fields"):
        _ = record.value
    assert record.fields == fields


def test_what_a_codec_raises_is_the_cause() -> None:
    assert Record(EVT, STREAM_ID, 0.0, {"n": "7"}, Whole()).value == 7
    with pytest.raises(UndecodableRecord, match="ValueError") as failure:
        _ = Record(EVT, STREAM_ID, 0.0, {"n": "seven"}, Whole()).value
    assert isinstance(failure.value.__cause__, ValueError)


@given(st.integers(1, 1000), st.integers(1, 1000), st.integers(0, 2**40))
def test_a_page_grows_by_what_it_brought_and_stays_in_bounds(page: int, records: int, size: int) -> None:
    following = next_page(page, records, size)
    assert 1 <= following <= min(1000, 2 * page)
    if size / records < 100:
        assert following == min(1000, 2 * page)
    if following > 1:
        assert following * size / records <= 1 << 20
    assert next_page(FIRST_PAGE, FIRST_PAGE, 0) == 2 * FIRST_PAGE


# -- retention ------------------------------------------------------------------------------------------------------


@given(st.none() | st.integers(0, 2**53), st.none() | st.integers(1, 10**14))
def test_bounds_come_back_from_their_text(maxlen: int | None, older_ms: int | None) -> None:
    retention = Retention(maxlen, None if older_ms is None else older_ms / 1000)
    assert Retention.read(retention.text()) == retention
    assert (retention.text() == "") == (maxlen is None and older_ms is None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("maxlen=1000 older_than_ms=86400000", Retention(1000, 86_400)),
        ("older_than_ms=1", Retention(None, 0.001)),
        ("something else", Retention()),
    ],
)
def test_bounds_are_read_as_the_hash_has_them(text: str, expected: Retention) -> None:
    assert Retention.read(text) == expected


@pytest.mark.parametrize(
    "bad", [(-1, None), (1.5, None), (True, None), ("9", None), (2**54, None), (None, 0), (None, -1), (None, "9")]
)
def test_bounds_out_of_range_are_refused(bad: tuple[Any, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"^(maxlen|older_than)\b"):
        bounds(*bad)
