"""Identity: known answers of the wire, the base62 codec, the mint under every clock, groups."""

from __future__ import annotations

import enum
import hashlib
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import freezegun
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.children import in_child

from echomq_tasks.errors import InvalidId, InvalidName
from echomq_tasks.identity import (
    EPOCH_MS,
    MAX_SNOWFLAKE,
    Mint,
    brand,
    check_id,
    from_base62,
    group_id,
    is_branded,
    minted_at_ms,
    snowflake,
    to_base62,
)

SNOWFLAKES = st.integers(0, MAX_SNOWFLAKE)


def node_7() -> int:
    return 7


# -- branded ids --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "number", "branded"),
    [
        ("USR", 274557032793636864, "USR0KHTOWnGLuC"),
        ("USR", 320636799581945856, "USR0NgWEfAEJfs"),
        ("JOB", 0, "JOB00000000000"),
        ("JOB", 61, "JOB0000000000z"),
        ("JOB", 62, "JOB00000000010"),
        ("JOB", MAX_SNOWFLAKE, "JOBAzL8n0Y58m7"),
    ],
)
def test_known_answers_hold_in_both_directions(kind: str, number: int, branded: str) -> None:
    assert brand(kind, number) == branded
    assert snowflake(branded) == number
    assert is_branded(branded, kind)


def test_a_known_id_says_when_it_was_minted_and_by_whom() -> None:
    assert minted_at_ms("EVT000xY9Wvvcd") == 1704117200000
    assert snowflake("EVT000xY9Wvvcd") & (2**22 - 1) == 1620567
    assert minted_at_ms("JOB00000000000") == EPOCH_MS


@given(SNOWFLAKES)
def test_every_snowflake_survives_base62(number: int) -> None:
    digits = to_base62(number)
    assert len(digits) == 11
    assert from_base62(digits) == number
    assert is_branded("JOB" + digits)


@given(SNOWFLAKES, SNOWFLAKES)
def test_byte_order_is_number_order(one: int, other: int) -> None:
    assert (to_base62(one).encode() < to_base62(other).encode()) == (one < other)


@given(st.integers(MAX_SNOWFLAKE + 1, 2**70) | st.integers(max_value=-1))
def test_a_number_outside_63_bits_is_refused(number: int) -> None:
    with pytest.raises(InvalidId):
        to_base62(number)


@given(st.integers(MAX_SNOWFLAKE + 1, 62**11 - 1))
def test_digits_above_63_bits_are_refused(number: int) -> None:
    alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    digits = ""
    while len(digits) < 11:
        number, value = divmod(number, 62)
        digits = alphabet[value] + digits
    with pytest.raises(InvalidId):
        from_base62(digits)
    assert not is_branded("JOB" + digits)


@pytest.mark.parametrize("digits", ["zzzzzzzzzzz", "AzL8n0Y58m8", "0" * 10, "0" * 12, "", "0000000000-", "000000000é"])
def test_malformed_digits_are_refused(digits: str) -> None:
    with pytest.raises(InvalidId):
        from_base62(digits)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "JOB",
        "job0KHTOWnGLuC",
        "JOb0KHTOWnGLuC",
        "JO10KHTOWnGLuC",
        "JOB0KHTOWnGLu",
        "JOB0KHTOWnGLuCC",
        "JOB0KHTOWnGLuC\n",
        "JOB0KHTOWnGLu\n",
        " JOB0KHTOWnGLuC",
        "JOB0KHTOWnGLu-",
        "JOB0KHTOWnGLu٣",
        "ÄOB0KHTOWnGLuC",
        "JOBzzzzzzzzzzz",
        "JOBAzL8n0Y58m8",
        b"JOB0KHTOWnGLuC",
        None,
        42,
        ["JOB0KHTOWnGLuC"],
    ],
)
def test_a_malformed_id_is_refused_everywhere(value: object) -> None:
    assert not is_branded(value)
    with pytest.raises(InvalidId):
        check_id(value, "JOB")  # type: ignore[arg-type]
    with pytest.raises(InvalidId):
        snowflake(value)  # type: ignore[arg-type]
    with pytest.raises(InvalidId):
        minted_at_ms(value)  # type: ignore[arg-type]


def test_an_id_of_another_kind_is_refused_by_name() -> None:
    assert is_branded("USR0KHTOWnGLuC")
    assert not is_branded("USR0KHTOWnGLuC", "JOB")
    with pytest.raises(InvalidId, match="not a JOB id"):
        check_id("USR0KHTOWnGLuC", "JOB")


@pytest.mark.parametrize("kind", ["job", "JO", "JOBS", "JO1", "JOB\n", "", "ÄOB"])
def test_a_malformed_kind_is_refused(kind: str) -> None:
    with pytest.raises(InvalidId, match="three letters"):
        brand(kind, 1)


def test_a_member_of_a_str_enum_is_taken_by_its_value() -> None:
    class Ids(str, enum.Enum):  # noqa: UP042 - StrEnum prints as its value, this one does not
        FIRST = "JOB0KHTOWnGLuC"

    assert f"{check_id(Ids.FIRST, 'JOB')}" == "JOB0KHTOWnGLuC"
    assert f"{group_id(Ids.FIRST)}" == "JOB0KHTOWnGLuC"


# -- groups -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tenant-1", "ünïcode ☃", "x" * 10_000, "JOB0KHTOWnGLu", "0"])
def test_a_group_name_maps_to_the_top_63_bits_of_its_blake2b(name: str) -> None:
    digest = hashlib.blake2b(name.encode("utf-8"), digest_size=8).digest()
    expected = int.from_bytes(digest, "big") & 0x7FFF_FFFF_FFFF_FFFF
    assert group_id(name)[:3] == "GRP"
    assert snowflake(group_id(name)) == expected


def test_the_id_of_one_group_name_is_pinned_for_ever() -> None:
    # Another runtime, or another release, that maps it elsewhere would split the lane in two.
    assert group_id("tenant-1") == "GRP2U8SIEpSI6d"


def test_a_branded_id_names_its_own_group() -> None:
    assert group_id("USR0KHTOWnGLuC") == "USR0KHTOWnGLuC"


@given(st.text(min_size=1).filter(lambda text: text.isascii()))
def test_every_other_text_maps_to_a_group_id(name: str) -> None:
    assert is_branded(group_id(name))
    assert group_id(name) == group_id(str(name))


@pytest.mark.parametrize("name", ["", "\ud800", "a\udfffb", None, b"tenant", 7])
def test_a_group_that_utf8_cannot_carry_is_refused(name: object) -> None:
    with pytest.raises(InvalidName):
        group_id(name)  # type: ignore[arg-type]


# -- the mint -----------------------------------------------------------------------------------------------------


def parts(number: int) -> tuple[int, int, int]:
    """Milliseconds since the epoch, node, sequence."""
    return number >> 22, number >> 12 & 0x3FF, number & 0xFFF


def test_an_id_carries_the_time_the_node_and_the_sequence() -> None:
    mint = Mint(node_7, clock=lambda: (EPOCH_MS + 123_456) / 1000)
    assert parts(mint.snowflake()) == (123_456, 7, 0)
    assert parts(mint.snowflake()) == (123_456, 7, 1)
    assert mint.mint("JOB").startswith("JOB")


def test_an_exhausted_millisecond_borrows_from_the_next() -> None:
    mint = Mint(node_7, clock=lambda: (EPOCH_MS + 1000) / 1000)
    numbers = [mint.snowflake() for _ in range(4096 + 3)]
    assert parts(numbers[4095]) == (1000, 7, 4095)
    assert [parts(number) for number in numbers[4096:]] == [(1001, 7, 0), (1001, 7, 1), (1001, 7, 2)]
    assert numbers == sorted(set(numbers))


def test_a_clock_that_steps_back_repeats_nothing_and_does_not_wait() -> None:
    times = itertools.chain([5000, 5000, 4000, 0, -1, 4999], itertools.repeat(5001))
    mint = Mint(node_7, clock=lambda: (EPOCH_MS + next(times)) / 1000)
    numbers = [parts(mint.snowflake()) for _ in range(7)]
    assert numbers == [(5000, 7, sequence) for sequence in range(6)] + [(5001, 7, 0)]


def test_a_frozen_clock_that_is_moved_back_repeats_nothing() -> None:
    mint = Mint(node_7)
    with freezegun.freeze_time("2026-03-01 12:00:00") as frozen:
        first = mint.mint("JOB")
        frozen.move_to("2025-01-01")
        second = mint.mint("JOB")
        frozen.move_to("2026-03-01 12:00:01")
        third = mint.mint("JOB")
    assert first < second < third
    assert minted_at_ms(first) == minted_at_ms(second) == 1772366400000
    assert minted_at_ms(third) == 1772366401000


def test_ids_go_up_also_when_the_node_id_changes_for_a_lower_one() -> None:
    nodes = iter([900, 900, 5, 5, 1023, 0])
    mint = Mint(lambda: next(nodes), clock=lambda: (EPOCH_MS + 1000) / 1000)
    numbers = [mint.snowflake() for _ in range(6)]
    assert numbers == sorted(set(numbers))
    assert [parts(number)[1] for number in numbers] == [900, 900, 5, 5, 1023, 0]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1023)), min_size=2, max_size=50))
def test_ids_go_up_under_any_clock_and_any_node(steps: list[tuple[int, int]]) -> None:
    given_steps = iter(steps)
    now = [0, 0]

    def node() -> int:
        now[0], now[1] = next(given_steps)
        return now[1]

    mint = Mint(node, clock=lambda: (EPOCH_MS + now[0]) / 1000)
    numbers = [mint.snowflake() for _ in steps]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("clock", [None, lambda: (EPOCH_MS + 1) / 1000])
def test_eight_threads_share_one_mint(clock: Callable[[], float] | None) -> None:
    mint = Mint(node_7, clock=clock)
    barrier = threading.Barrier(8)

    def run(_: int) -> list[int]:
        barrier.wait(10)
        return [mint.snowflake() for _ in range(5000)]

    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(run, range(8)))
    for numbers in runs:
        assert numbers == sorted(numbers)
    assert len(set(itertools.chain(*runs))) == 8 * 5000


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_forked_while_another_thread_holds_the_lock_can_mint() -> None:
    inside, leave = threading.Event(), threading.Event()

    mint = Mint(node_7)
    first = mint.snowflake()

    def hold() -> None:
        with mint._lock:  # noqa: SLF001 - the state that a fork copies
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(10)
    try:
        child_id = in_child(lambda: mint.mint("JOB"), timeout=10)
    finally:
        leave.set()
        thread.join()
    assert snowflake(child_id) > first
