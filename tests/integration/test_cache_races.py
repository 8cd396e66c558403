"""The races of a table one by one, each played out step by step over a real server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.children import in_child
from support.pairs import KEY, WRITES, Pair
from support.stepping import Cache, Going

from echomq_tasks.identity import brand
from echomq_tasks.keyspace import cache_key


@pytest.fixture(params=WRITES)
def write(request: pytest.FixtureRequest) -> Callable[[Cache], Any]:
    return WRITES[request.param]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("until", ["claimed", "loaded", "stored"])
@pytest.mark.parametrize("there", [False, True])
def test_who_asks_after_a_write_does_not_join_who_asked_while_it_was_told(
    two: Pair, write: Callable[[Cache], Any], when: str, until: str, there: bool
) -> None:
    if there:
        two.fetch(two.b, "old")
        until = "claimed"
    begun: list[Going] = []
    calls = iter(("before", "after"))

    def between() -> None:
        if next(calls, None) == when:
            begun.append(two.begin(two.a, "old", until))

    two.a.reach.between = between
    write(two.a)
    two.a.reach.between = lambda: None
    (going,) = begun
    if when == "before":
        # A load that begins once the server was told is as new as the write.
        assert two.fetch(two.a, "new") == "new"
    assert two.end(going) in ("old", "new")
    if when == "before":
        assert two.fetch(two.a, "new") == "new"


@pytest.mark.parametrize("until", ["claimed", "loaded", "stored"])
@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("first", ["ends", "is-asked-again"])
def test_a_value_on_its_way_here_while_another_process_writes_is_not_kept(
    two: Pair, write: Callable[[Cache], Any], until: str, there: bool, first: str
) -> None:
    if there:
        two.fetch(two.b, "old")
        until = "claimed"
    going = two.begin(two.a, "old", until)
    write(two.b)
    two.hear(two.a, two.b)
    if first == "ends":
        assert two.end(going) == "old"
        assert two.fetch(two.a, "new") == "new"
    else:
        assert two.fetch(two.a, "new") == "new"
        assert two.end(going) == "old"
    assert two.fetch(two.a, "new") == "new"
    assert two.fetch(two.b, "new") == "new"


def test_a_row_that_was_read_just_before_it_was_dropped_is_not_kept(two: Pair, write: Callable[[Cache], Any]) -> None:
    two.fetch(two.b, "old")
    two.a.reach.store.claim(KEY, "other", 1000)  # a hit, so that the next one is looked for first
    asked = iter(range(2))

    def between() -> None:
        if next(asked, None) == 1:  # it has its answer
            write(two.b)
            two.hear(two.a, two.b)

    two.a.reach.between = between
    assert two.fetch(two.a, "none") == "old"
    assert two.fetch(two.a, "new") == "new"


@pytest.mark.parametrize("until", ["claimed", "loaded"])
def test_a_load_that_was_too_late_is_not_kept_before_its_process_hears_why(
    two: Pair, write: Callable[[Cache], Any], until: str
) -> None:
    going = two.begin(two.a, "old", until)
    write(two.b)
    assert two.end(going) == "old"
    assert two.fetch(two.a, "new") == "new"


def test_a_write_that_the_server_was_not_told_of_is_told_when_it_is_back(
    two: Pair, write: Callable[[Cache], Any]
) -> None:
    assert two.fetch(two.a, "old") == two.fetch(two.b, "old") == "old"
    two.a.cut()
    write(two.a)
    assert two.fetch(two.a, "new") == "new"
    two.hear(two.b)
    assert two.fetch(two.b, "new") == "old"  # which nobody could tell it
    two.a.heal()
    assert two.fetch(two.a, "new") == "new"
    two.hear(two.a, two.b)
    assert two.fetch(two.b, "new") == "new"
    assert not two.a.reach.owed


def test_a_write_whose_answer_was_lost_is_told_once_more(two: Pair, write: Callable[[Cache], Any]) -> None:
    two.fetch(two.b, "old")
    two.a.reach.losing = True
    write(two.a)
    assert two.a.reach.owed
    two.a.reach.ask(lambda store: None)
    assert not two.a.reach.owed
    two.hear(two.a, two.b)
    assert two.fetch(two.a, "new") == "new"
    assert two.fetch(two.b, "new") == "new"


def test_more_writes_than_are_kept_drop_the_whole_table(two: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echomq_tasks.cache.owed._MOST", 3)
    two.fetch(two.b, "old")
    two.a.cut()
    two.a.coherence.drop(KEY)
    for number in range(2, 6):
        two.a.coherence.drop(brand("ROW", number))
    two.a.heal()
    assert two.fetch(two.a, "new") == "new"
    two.hear(two.a, two.b)
    assert two.fetch(two.b, "new") == "new"


def test_a_child_of_a_fork_gets_nothing_of_what_its_parent_could_not_drop(two: Pair) -> None:
    two.fetch(two.b, "old")
    two.a.cut()
    two.a.coherence.drop(KEY)
    two.a.heal()

    def child() -> Any:
        return two.fetch(two.a, "new"), bool(two.a.reach.owed)

    assert in_child(child) == ("new", False)
    # Which does not know of it.
    assert two.a.reach.owed


def test_what_was_missed_is_found_out_by_a_look_at_the_version(two: Pair, write: Callable[[Cache], Any]) -> None:
    assert two.fetch(two.a, "old") == "old"
    two.a.cut()
    write(two.b)
    two.a.heal()
    assert two.fetch(two.a, "new") == "new"
    two.a.cut()
    two.a.heal()
    row = two.a.parts.l1.get(KEY)
    assert row is not None
    assert row.suspect
    assert two.fetch(two.a, "newest") == "new"  # nothing was written, so it stands
    assert two.a.parts.l1.get(KEY) is row
    assert not row.suspect


def test_messages_that_are_missed_while_a_value_is_on_its_way_make_it_suspect(two: Pair) -> None:
    two.fetch(two.b, "old")
    going = two.begin(two.a, "old", "claimed")
    two.a.cut()
    two.b.coherence.drop(KEY)
    two.a.heal()
    assert two.end(going) == "old"
    assert two.fetch(two.a, "new") == "new"


def test_a_value_that_cannot_be_checked_serves_on(two: Pair) -> None:
    two.fetch(two.a, "old")
    two.a.cut()
    two.a.coherence.back()
    assert two.fetch(two.a, "new") == "old"
    assert two.a.parts.counters.read()["skipped"] == 1


def test_a_value_of_the_server_replaces_one_that_was_loaded_without_it(two: Pair) -> None:
    # By a clock that is ahead: what is there in the end is the server's, or it would be checked at every call.
    two.a.cut()
    assert two.fetch(two.a, "alone") == "alone"
    row = two.a.parts.l1.get(KEY)
    assert row is not None
    row.version = brand("ROW", 2**62)
    two.fetch(two.b, "shared")
    two.a.heal()
    assert two.fetch(two.a, "new") == "shared"
    assert two.a.parts.l1.get(KEY) is not row


def test_a_leader_that_could_not_be_heard_leaves_no_lease_behind(two: Pair) -> None:
    two.a.reach.losing = True
    assert two.fetch(two.a, "alone") == "alone"
    assert two.client.get(cache_key(two.name, KEY, "flight")) is None
