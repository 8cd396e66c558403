"""Places of a log: what a caller may name one by, and what is refused before a byte is sent."""

from __future__ import annotations

import enum
import math
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq_tasks.bus.places import FIRST, LAST, Place, behind, evt_id, minted_place, upto
from echomq_tasks.errors import InvalidArgument, InvalidId
from echomq_tasks.identity import EPOCH_MS, MAX_SNOWFLAKE, brand, from_base62

MAX = 2**64 - 1
EVT, MS, LOW = "EVT000xY9Wvvcd", 1_704_117_200_000, 1_620_567


class Named(str, enum.Enum):  # noqa: UP042 - StrEnum prints as its value, this one does not
    RECORD = EVT


@given(st.integers(0, MAX_SNOWFLAKE))
def test_a_place_and_its_id_name_each_other(number: int) -> None:
    place = minted_place(number)
    assert evt_id(place) == brand("EVT", number)
    assert from_base62(brand("EVT", number)[3:]) == (place.ms - EPOCH_MS) << 22 | place.low
    assert Place.of_entry(str(place).encode()) == place
    assert behind(None, brand("EVT", number)) == upto(brand("EVT", number), None) == place


@given(st.integers(0, MAX), st.integers(0, MAX))
def test_a_place_that_no_record_can_have_has_no_id(ms: int, low: int) -> None:
    found = evt_id(Place(ms, low))
    ours = low < 2**22 and EPOCH_MS <= ms < EPOCH_MS + 2**41
    assert (found is not None) == ours


@given(st.tuples(st.integers(0, MAX), st.integers(0, MAX)).filter(lambda place: place > (0, 0)))
def test_the_place_before_is_the_highest_of_the_lower_ones(numbers: tuple[int, int]) -> None:
    place = Place(*numbers)
    before = place.before()
    assert before < place
    following = Place(before.ms + 1, 0) if before.low == MAX else Place(before.ms, before.low + 1)
    assert following == place


def test_the_ends() -> None:
    assert behind(None, None) == FIRST == FIRST.before() == behind(0, None)
    assert upto(None, None) == LAST == upto(f"{MAX}-{MAX}", None)


@pytest.mark.parametrize("position", [EVT, f"{MS}-{LOW}", Named.RECORD])
def test_a_record_is_included_or_not(position: str) -> None:
    place = Place(MS, LOW)
    assert behind(position, None) == place.before()
    assert behind(None, position) == place
    assert upto(position, None) == place
    assert upto(None, position) == place.before()


@pytest.mark.parametrize(
    "instant",
    [
        MS / 1000,
        MS // 1000,
        datetime.fromtimestamp(MS / 1000, UTC),
        datetime.fromtimestamp(MS / 1000, timezone(timedelta(hours=-7))),
    ],
)
def test_a_time_is_all_of_its_millisecond(instant: float | datetime) -> None:
    assert behind(instant, None) == Place(MS - 1, MAX)
    assert behind(None, instant) == Place(MS, MAX)
    assert upto(instant, None) == Place(MS, MAX)
    assert upto(None, instant) == Place(MS - 1, MAX)


@given(st.integers(0, 250_000_000_000_000))
def test_the_time_of_a_record_names_its_millisecond(ms: int) -> None:
    assert behind(None, ms / 1000) == upto(ms / 1000, None) == Place(ms, MAX)


def test_a_time_between_two_milliseconds_is_rounded_inwards() -> None:
    between = (MS + 0.25) / 1000
    assert behind(between, None) == behind(None, between) == Place(MS, MAX)
    assert upto(between, None) == upto(None, between) == Place(MS, MAX)


@pytest.mark.parametrize(
    "bad",
    [
        "", "-", "+", "$", "0", str(MS), f"{MS}-", f"-{LOW}", f"({MS}-{LOW}", f"{MS}-{LOW}\n", f"{MS}-*", "٣-٣",
        "1-1-1", f"{MAX + 1}-0", f"0-{MAX + 1}", "new", "head", "EV", b"1-1", True, -1, -0.5, math.nan, math.inf,
        10**13, [], {}, datetime(2026, 1, 1), (1, 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["start", "after", "end", "before"])
def test_what_names_no_place_is_refused_by_the_name_of_its_argument(bad: object, name: str) -> None:
    gate = behind if name in ("start", "after") else upto
    args = (bad, None) if name in ("start", "end") else (None, bad)
    with pytest.raises(InvalidArgument, match=rf"^{name}\b"):
        gate(*args)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", ["EVT", "EVT000xY9Wvvc", "EVTzzzzzzzzzzz", "EVT000xY9Wvvcé"])
def test_a_malformed_record_id_is_refused(bad: str) -> None:
    with pytest.raises(InvalidId):
        behind(bad, None)


def test_an_id_of_another_kind_is_no_place() -> None:
    with pytest.raises(InvalidArgument, match="an EVT id"):
        upto("JOB000xY9Wvvcd", None)


@pytest.mark.parametrize("gate", [behind, upto])
def test_a_bound_is_included_or_not_but_not_both(gate: object) -> None:
    with pytest.raises(InvalidArgument, match="not both"):
        gate(EVT, EVT)  # type: ignore[operator]
