"""What caches tell each other: only what is well-formed is read, and what is written is read back."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from echomq_tasks.cache.frames import EVERYTHING, Wake, coherence_message, newer, read_coherence, read_wake, tag_id
from echomq_tasks.cache.versions import Versions
from echomq_tasks.errors import InvalidId, InvalidName
from echomq_tasks.identity import MAX_SNOWFLAKE, brand, is_branded

ROW, VERSION = "USR0KHTOWnGLuC", "VER0NgWEfAEJfs"

branded = st.builds(brand, st.from_regex(r"[A-Z]{3}", fullmatch=True), st.integers(0, MAX_SNOWFLAKE))


@given(branded, branded)
def test_a_coherence_message_has_29_bytes_and_is_read_back(row_id: str, version: str) -> None:
    message = coherence_message(row_id, version)
    assert message == f"{row_id}:{version}".encode()
    assert len(message) == 29
    assert read_coherence(message) == (row_id, version)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"USR0KHTOWnGLuC",
        b"USR0KHTOWnGLuC:",
        b"USR0KHTOWnGLuC:VER0NgWEfAEJfs\n",
        b"USR0KHTOWnGLuC:VER0NgWEfAEJfsX",
        b"USR0KHTOWnGLuC VER0NgWEfAEJfs",
        b"usr0KHTOWnGLuC:VER0NgWEfAEJfs",
        b"USRzzzzzzzzzzz:VER0NgWEfAEJfs",
        b"USR0KHTOWnGLuC:VERzzzzzzzzzzz",
        b"\xff" * 29,
    ],
)
def test_what_is_no_coherence_message_is_none(data: bytes) -> None:
    assert read_coherence(data) is None


@pytest.mark.parametrize("bad", ["", "USR", "USR0KHTOWnGLu", "USRzzzzzzzzzzz", "usr0KHTOWnGLuC", "USR0KHTOWnGLuC\n"])
def test_a_malformed_id_or_version_is_never_told(bad: str) -> None:
    with pytest.raises(InvalidId):
        coherence_message(bad, VERSION)
    with pytest.raises(InvalidId):
        coherence_message(ROW, bad)


@given(
    branded,
    st.sampled_from(["filled", "failed", "released", "dropped"]),
    st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True),
    st.binary(max_size=50),
)
@example(ROW, "failed", "me", b" a b\n\x00")
def test_a_wake_is_read_with_whatever_it_carries(row_id: str, what: str, owner: str, payload: bytes) -> None:
    data = f"{row_id} {what} {owner} ".encode() + payload
    assert read_wake(data) == Wake(row_id, what, owner, payload)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "data", [b"", b"x", b"USR0KHTOWnGLuC filled me", b"USR0KHTOWnGLuC done me ", b"USR0KHTOWnGLuC filled m\xc3\xa9 "]
)
def test_what_is_no_wake_is_none(data: bytes) -> None:
    assert read_wake(data) is None


@given(st.binary(max_size=60))
def test_nothing_that_is_heard_raises(data: bytes) -> None:
    assert read_coherence(data) is None or len(data) == 29
    assert read_wake(data) is None or len(data) > 14


def test_versions_compare_by_their_last_eleven_bytes() -> None:
    assert newer("AAA0NgWEfAEJft", "ZZZ0NgWEfAEJfs")
    assert not newer("ZZZ0NgWEfAEJfs", "AAA0NgWEfAEJfs")
    assert newer("USR0NgWEfAEKa0", "USR0NgWEfAEKZz")
    assert newer("USR00000000000", None)


def test_processes_that_are_cut_off_do_not_give_one_version_to_two_values() -> None:
    # By the clock of whoever has stored what both of them had.
    ahead = brand("ROW", MAX_SNOWFLAKE // 2)
    versions = [Versions().mint("ROW", ahead) for _ in range(5)]
    assert all(newer(version, ahead) for version in versions)
    assert len(set(versions)) == 5


def test_the_id_of_a_tag_is_the_same_everywhere() -> None:
    assert tag_id("user:7") == "TAG2HubRhc83NS"
    assert tag_id("é") == "TAG6RmK3srnF4p"


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_text_has_a_tag_of_its_own(tag: str) -> None:
    assert is_branded(tag_id(tag), "TAG")
    assert tag_id(tag) != tag_id(tag + "x")
    assert tag_id(tag) != EVERYTHING


@pytest.mark.parametrize("tag", ["", None, 7, b"user:7", ["user:7"], "a\ud800"])
def test_what_is_no_text_is_no_tag(tag: object) -> None:
    with pytest.raises(InvalidName):
        tag_id(tag)  # type: ignore[arg-type]
