"""Newer wins among refreshes: whoever asks after one gets what it has loaded, or what is newer still."""

from __future__ import annotations

import pytest
from support.caches import tables
from support.pairs import CLOCKS, KEY, TAG, Pair, call, refresh
from support.stepping import Going

from echomq_tasks.cache.frames import coherence_message
from echomq_tasks.connection import Connection


@pytest.mark.parametrize("until", ["claimed", "loaded"])
@pytest.mark.parametrize("where", ["here", "there"])
def test_a_refresh_does_not_take_what_began_before_it(two: Pair, until: str, where: str) -> None:
    going = two.begin(two.a if where == "here" else two.b, "old", until)
    refresh = two.begin(two.a, "new", "claimed", refresh=True)
    assert two.end(refresh)[1] == "new"
    assert two.end(going) in ("old", "new")
    two.hear(two.a, two.b)
    assert two.fetch(two.a, "newest") == "new"
    assert two.fetch(two.b, "newest") == "new"


def test_who_asks_after_a_refresh_does_not_join_who_has_read_the_old_value_meanwhile(two: Pair) -> None:
    two.fetch(two.b, "old")
    refresh = two.begin(two.a, "new", "loaded", refresh=True)
    # As by the news of an earlier drop; else who asks meanwhile joins the refresh.
    two.a.parts.flights.detach(KEY)
    reading = two.begin(two.a, "none", "claimed")
    assert two.end(refresh)[1] == "new"
    assert two.fetch(two.a, "none") == "new"
    assert two.end(reading) == "old"
    assert two.fetch(two.a, "none") == "new"


def test_a_refresh_is_told_to_the_others_whether_the_server_is_there_or_not(two: Pair) -> None:
    assert two.fetch(two.a, "old") == two.fetch(two.b, "old") == "old"
    for cut, value in ((False, "new"), (True, "newer")):
        if cut:
            two.a.cut()
        assert two.end(two.begin(two.a, value, "claimed", refresh=True))[1] == value
        if cut:
            two.a.heal()
            two.fetch(two.a, value)
        two.hear(two.a, two.b)
        assert two.fetch(two.b, value) == value
        assert two.fetch(two.a, value) == value


def test_a_refresh_that_was_dropped_over_leaves_no_older_value_here(two: Pair) -> None:
    two.fetch(two.a, "old")
    refresh = two.begin(two.a, "new", "loaded", refresh=True)
    two.b.coherence.drop(KEY)
    assert two.end(refresh)[1] == "new"
    assert two.fetch(two.a, "newest") == "newest"


def test_a_refresh_without_the_server_does_not_leave_what_another_call_has_read_there(pair: Pair) -> None:
    pair.fetch(pair.writer, "old")
    pair.holder.reach.missing = True
    refresh = Going(pair.holder.reader.refresh(call("new"), pair.holder.drive()))
    for _ in range(3):
        refresh.go_on()
    # As by the news of an earlier drop; else who asks meanwhile joins the refresh.
    pair.holder.parts.flights.detach(KEY)
    reading = pair.begin(pair.holder, "none", 2)
    pair.end(refresh)
    assert pair.end(reading) == "old"
    assert pair.fetch(pair.holder, "new") == "new"
    pair.hear()
    assert pair.fetch(pair.writer, "new") == "new"


def test_a_refresh_that_comes_too_late_tells_of_the_newer_value(pair: Pair) -> None:
    pair.fetch(pair.writer, "old")
    refresh = Going(pair.holder.reader.refresh(call("new"), pair.holder.drive()))
    for _ in range(4):
        refresh.go_on()
    # Its lease has ended, and another process has loaded the row, which tells nobody of that.
    pair.forget(f"{KEY}:flight")
    lead = pair.holder.reach.store.claim(KEY, "other", 1000, (TAG,), least_ms=2**53)
    assert pair.holder.reach.store.fill(
        KEY, "other", lead.version, pair.holder.parts.codec.encode("newer"), 60_000, (TAG,)  # type: ignore[union-attr]
    )  # fmt: skip
    pair.end(refresh)
    pair.hear()
    assert pair.fetch(pair.writer, "none") == "newer"
    assert pair.fetch(pair.holder, "none") == "newer"


def test_a_refresh_whose_value_the_server_does_not_take_drops_the_old_one(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.fetch(pair.writer, "old")
    monkeypatch.setattr("echomq_tasks.cache.store._MAX_VALUE", 5)
    refresh(pair.holder, "new")
    pair.holder.reach.ask(lambda store: None)
    pair.hear()
    assert pair.fetch(pair.writer, "new") == "new"


@pytest.mark.parametrize("what", ["missing", "losing"])
@pytest.mark.parametrize("request_", [1, 2], ids=["claim", "fill"])
def test_after_a_refresh_whose_answer_was_lost_nobody_here_gets_what_is_older(
    standalone: Connection, what: str, request_: int
) -> None:
    pair = Pair(standalone, CLOCKS["writer-ahead"])
    pair.fetch(pair.holder, "old")
    old = pair.holder.parts.l1.get(KEY)
    going = Going(pair.holder.reader.refresh(call("new"), pair.holder.drive()))
    going.go_on()
    if request_ == 1:
        setattr(pair.holder.reach, what, True)
    going.go_on()
    going.go_on()
    # News from before, whose sender's clock is ahead: who comes does not wait for this refresh, and finds the old row.
    late = coherence_message(KEY, pair.writer.reach.store.mint())
    pair.holder.coherence.heard(pair.holder.reach.store.channels[0], late)
    assert old is not None
    if pair.fetch(pair.holder, "between") == "old":
        assert pair.holder.parts.l1.get(KEY) is not None
    if request_ == 2:
        setattr(pair.holder.reach, what, True)
    pair.end(going)
    assert pair.fetch(pair.holder, "new") != "old"
    row = pair.holder.parts.l1.get(KEY)
    assert row is None or row.value != "old"
    pair.close()


@pytest.mark.parametrize("until", ["loaded", "stored"])
def test_a_load_that_began_before_a_refresh_without_the_server_is_not_kept_over_it(pair: Pair, until: str) -> None:
    going = pair.begin(pair.holder, "old", until)
    pair.holder.reach.missing = True
    refresh(pair.holder, "new")
    pair.end(going)
    # The one that has stored leaves the new value here; the other one pays first, so that all load anew.
    assert pair.fetch(pair.holder, "newest") == {"loaded": "newest", "stored": "new"}[until]


def test_another_table_of_the_process_lets_no_caller_join_a_load_from_before_a_refresh(pair: Pair) -> None:
    pair.writer.coherence._siblings.join(pair.holder.coherence)  # noqa: SLF001 - as two tables of one name have it
    pair.writer.reach.owed = pair.holder.reach.owed
    # Its version is an hour ahead of that which the refresh has, to which the server gives none.
    lead = pair.begin(pair.holder, "old", "loaded")
    pair.writer.reach.missing = True
    refresh(pair.writer, "new")
    assert pair.end(pair.begin(pair.holder, "newest", 1)) == "newest"
    assert pair.end(lead) == "old"
    assert pair.fetch(pair.holder, "newest") == "newest"


def test_a_refresh_takes_no_row_that_is_looked_for(pair: Pair) -> None:
    pair.fetch(pair.writer, "old")
    assert pair.look(pair.holder, "none") == "old"
    refresh(pair.holder, "new")
    assert pair.fetch(pair.holder, "none") == "new"


def test_a_refresh_beside_another_load_is_not_kept_over_a_drop(pair: Pair) -> None:
    going = pair.begin(pair.holder, "old", "claimed")
    pair.holder.reach.missing = True
    refresh = pair.begin(pair.holder, "loaded", 3, refresh=True)
    pair.holder.coherence.drop(KEY)
    assert pair.end(refresh)[1] == "loaded"
    assert pair.fetch(pair.holder, "new") == "new"
    pair.end(going)


def test_a_refresh_whose_value_is_not_kept_leaves_no_older_one(standalone: Connection) -> None:
    with tables(standalone, 1) as (table,):
        assert table.fetch(KEY, lambda: "old") == "old"
        assert table.refresh(KEY, lambda: "new", ttl=0) == "new"
        assert table.fetch(KEY, lambda: "newest") == "newest"
