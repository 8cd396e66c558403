"""What comes while a write is told, or a value is on its way: nobody who asks afterwards gets what is older."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.pairs import KEY, TAG, WRITES, Pair, put
from support.stepping import CutReach, Going

from echomq_tasks.cache.call import Call
from echomq_tasks.cache.frames import tag_id
from echomq_tasks.identity import brand

#: Versions that no clock gives: of long ago, and of a time to come.
OLD, FAR = brand("ROW", 1), brand("ROW", 2**62)


# While a write is told.


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("whose", ["own", "lane"])
def test_who_asks_while_the_server_is_told_does_not_get_what_is_here(pair: Pair, write: str, whose: str) -> None:
    pair.fetch(pair.holder, "old")
    pair.writer.cut()
    WRITES[write](pair.writer)
    # The row has expired there, and not yet here.
    pair.forget()
    got: list[Any] = []
    pair.between(pair.holder, lambda: got.append(pair.fetch(pair.holder, "new")))
    if whose == "own":
        WRITES[write](pair.holder)
    else:
        pair.holder.coherence.apply(pair.lane[-1])
    assert got == ["new"]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("lose", ["missing", "losing"])
@pytest.mark.parametrize("leads", [True, False], ids=["with-a-lease", "without-a-lease"])
def test_a_load_from_before_a_write_was_lost_is_neither_joined_nor_kept(
    pair: Pair, write: str, lose: str, leads: bool
) -> None:
    begun: list[Going] = []

    def begin() -> None:
        pair.holder.reach.missing = not leads
        begun.append(pair.begin(pair.holder, "old", 4 if leads else 3))
        setattr(pair.holder.reach, lose, True)

    pair.between(pair.holder, begin)
    assert not WRITES[write](pair.holder)
    assert pair.fetch(pair.holder, "new") == "new"
    assert pair.end(begun[0]) == "old"
    assert pair.fetch(pair.holder, "new") == "new"


@pytest.mark.parametrize("lose", ["nothing", "missing", "losing"])
def test_a_load_from_before_a_put_is_not_joined_where_l1_has_no_room_for_what_was_put(pair: Pair, lose: str) -> None:
    begun: list[Going] = []

    def begin() -> None:
        begun.append(pair.begin(pair.holder, "old", "loaded"))
        setattr(pair.holder.reach, lose, True)

    pair.holder.parts.l1.max_entries = 0
    pair.between(pair.holder, begin)
    put(pair.holder, "new")
    assert pair.fetch(pair.holder, "new") == "new"
    assert pair.end(begun[0]) == "old"


@pytest.mark.parametrize("write", ["drop", "tag"])
def test_what_is_loaded_once_the_server_was_told_of_a_drop_stays(pair: Pair, write: str) -> None:
    pair.between(pair.holder, lambda: pair.fetch(pair.holder, "new"), when="after")
    WRITES[write](pair.holder)
    row = pair.holder.parts.l1.get(KEY)
    assert row is not None
    assert pair.fetch(pair.holder, "newer") == "new"
    assert pair.holder.parts.l1.get(KEY) is row


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("whose", ["own", "heard"])
@pytest.mark.parametrize("lose", ["nothing", "losing"])
def test_a_put_is_not_kept_over_what_is_written_before_it_is_done(
    pair: Pair, write: str, whose: str, lose: str
) -> None:
    def meanwhile() -> None:
        WRITES[write](pair.holder if whose == "own" else pair.writer)
        if whose == "heard":
            pair.hear(pair.holder)

    setattr(pair.holder.reach, lose, True)
    pair.between(pair.holder, meanwhile, when="after")
    put(pair.holder, "old")
    assert pair.fetch(pair.holder, "new") == "new"


@pytest.mark.parametrize(
    ("versions", "kept"), [([OLD], True), ([FAR], False), ([FAR, OLD], False), ([OLD, FAR], False)]
)
@pytest.mark.parametrize("id", [KEY, tag_id(TAG)], ids=["row", "tag"])
def test_a_put_is_kept_unless_something_newer_is_heard_before_it_is_done(
    pair: Pair, id: str, versions: list[str], kept: bool
) -> None:
    def hear() -> None:
        for version in versions:
            pair.holder.coherence.gone(id, version)

    pair.between(pair.holder, hear, when="after")
    put(pair.holder, "new")
    assert good(pair) == kept
    # Nothing is kept of a put that is over.
    assert not pair.holder.coherence._puts._puts  # noqa: SLF001 - nothing else tells


def test_a_put_does_not_replace_a_newer_value_that_was_read_meanwhile(pair: Pair) -> None:
    def meanwhile() -> None:
        put(pair.writer, "newer")
        assert pair.fetch(pair.holder, "none") == "newer"

    pair.between(pair.holder, meanwhile, when="after")
    put(pair.holder, "new")
    assert pair.fetch(pair.holder, "none") == "newer"


@pytest.mark.parametrize("write", WRITES)
def test_a_put_is_looked_up_when_messages_were_missed_before_it_was_done(pair: Pair, write: str) -> None:
    def miss() -> None:
        pair.holder.cut()
        WRITES[write](pair.writer)
        pair.holder.heal()

    pair.between(pair.holder, miss, when="after")
    put(pair.holder, "old")
    assert pair.fetch(pair.holder, "new") == "new"


# While a value is on its way.


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("until", ["claimed", "loaded", "stored"])
def test_a_value_is_not_kept_when_it_comes_amid_what_is_done_about_news(pair: Pair, write: str, until: str) -> None:
    going = pair.begin(pair.holder, "old", until)
    WRITES[write](pair.writer)
    l1 = pair.holder.parts.l1
    for name in ("kill", "kill_tag", "clear"):
        let_go: Callable[..., Any] = getattr(l1, name)

        def then_end(*args: Any, let_go: Callable[..., Any] = let_go, **options: Any) -> Any:
            gone = let_go(*args, **options)
            if not going.done:
                # It would have been too late for the server, too, had that not forgotten.
                pair.end(going)
            return gone

        setattr(l1, name, then_end)
    pair.hear(pair.holder)
    assert going.done
    assert pair.fetch(pair.holder, "new") == "new"


@pytest.mark.parametrize("looks", [False, True])
def test_news_between_the_end_of_a_flight_and_its_landing_is_not_missed(pair: Pair, looks: bool) -> None:
    if looks:
        pair.fetch(pair.writer, "old")
    flights = pair.holder.parts.flights
    ended: list[Any] = []
    end = flights.end

    def then_hear(flight: Any) -> None:
        end(flight)
        if not ended:
            ended.append(flight)
            pair.writer.coherence.drop(KEY)
            pair.hear(pair.holder)

    flights.end = then_hear  # type: ignore[method-assign]
    assert (pair.look if looks else pair.fetch)(pair.holder, "old") == "old"
    assert ended
    assert pair.fetch(pair.holder, "new") == "new"


@pytest.mark.parametrize("write", ["drop", "put", "tag", "clear"])
@pytest.mark.parametrize("first", ["ends", "is-asked-again"])
def test_a_load_without_a_lease_is_neither_kept_nor_joined_once_there_is_news(
    pair: Pair, write: str, first: str
) -> None:
    pair.holder.reach.missing = True
    going = pair.begin(pair.holder, "old", 3)
    WRITES[write](pair.writer)
    pair.hear(pair.holder)
    if first == "is-asked-again":
        again = pair.begin(pair.holder, "new", 1)
        assert pair.end(again) == "new"
    row = pair.holder.parts.l1.get(KEY)
    assert pair.end(going) == "old"
    # Nor does it push out what came after the news.
    assert pair.holder.parts.l1.get(KEY) is row
    assert pair.fetch(pair.holder, "new") == "new"


@pytest.mark.parametrize("write", ["drop", "put", "tag", "clear"])
@pytest.mark.parametrize("heard", [False, True])
def test_a_load_that_outlives_what_the_server_knows_of_a_drop_stores_nothing(
    pair: Pair, write: str, heard: bool
) -> None:
    going = pair.begin(pair.holder, "old", 4)
    WRITES[write](pair.writer)
    if heard:
        pair.hear(pair.holder)
    # As in ten minutes, or when it begins anew.
    pair.forget()
    assert pair.end(going) == "old"
    assert pair.fetch(pair.writer, "new") == "new"
    assert pair.fetch(pair.holder, "new") == "new"


def test_a_value_of_another_key_with_the_same_id_is_not_kept_over_a_drop(pair: Pair) -> None:
    going = pair.begin(pair.writer, "other", 1)
    mine = Going(pair.writer.reader.value(Call(KEY, b"0123456789abcdef", lambda: "old"), pair.writer.drive()))
    for _ in range(2):
        mine.go_on()
    pair.holder.coherence.drop(KEY)
    pair.hear()
    pair.writer.reach.missing = True
    pair.end(mine)
    assert pair.writer.parts.l1.get(KEY) is None
    pair.end(going)


def test_messages_that_are_missed_while_a_row_is_looked_up_are_not_forgotten_over_it(pair: Pair) -> None:
    pair.fetch(pair.holder, "old")
    pair.holder.coherence.back()
    # It has been answered that the row is the one there.
    going = pair.begin(pair.holder, "new", 2)
    assert not going.done
    pair.holder.cut()
    pair.writer.coherence.drop(KEY)
    pair.holder.heal()
    assert pair.end(going) == "new"
    assert pair.fetch(pair.holder, "newest") == "new"


@pytest.mark.parametrize("asked", ["looked-for", "found", "led", "alone", "shut"])
def test_a_value_that_was_asked_for_after_messages_were_missed_need_not_be_looked_up(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    if asked in ("looked-for", "found"):
        pair.fetch(pair.writer, "value")
    pair.holder.cut()
    pair.holder.heal()
    pair.holder.reach.missing = asked == "alone"
    monkeypatch.setattr(CutReach, "shut", asked == "shut")
    assert (pair.look if asked == "looked-for" else pair.fetch)(pair.holder, "value") == "value"
    assert good(pair)


def test_a_value_that_was_waited_for_need_not_be_looked_up_when_messages_were_missed_meanwhile(pair: Pair) -> None:
    going = pair.begin(pair.writer, "value", "claimed")
    waiting = pair.begin(pair.holder, "none", 10)
    assert not waiting.done
    pair.holder.cut()
    pair.holder.heal()
    pair.end(going)
    assert pair.end(waiting) == "value"
    assert good(pair)


def good(pair: Pair) -> bool:
    """Whether the holder has the row, and may use it at once."""
    row = pair.holder.parts.l1.get(KEY)
    return row is not None and not row.suspect


def test_a_load_that_was_led_after_a_drop_is_kept_when_that_is_heard_late(pair: Pair) -> None:
    pair.holder.coherence.drop(KEY)
    going = pair.begin(pair.holder, "new", "loaded")
    pair.hear(pair.holder)
    # Who asks now may join it, and what it stores is looked up once.
    joins = pair.begin(pair.holder, "newer", 1)
    assert pair.end(going) == "new"
    assert pair.end(joins) == "new"
    row = pair.holder.parts.l1.get(KEY)
    assert row is not None
    assert row.suspect
    assert pair.fetch(pair.holder, "newest") == "new"


@pytest.mark.parametrize("write", WRITES)
def test_who_asks_after_the_lane_was_heard_does_not_join_a_load_from_before(pair: Pair, write: str) -> None:
    # Its version is an hour ahead of that which the writer gives to its own.
    going = pair.begin(pair.holder, "old", "loaded")
    pair.writer.cut()
    WRITES[write](pair.writer)
    pair.holder.reach.missing = True
    assert not pair.holder.coherence.apply(pair.lane[-1])
    assert pair.end(pair.begin(pair.holder, "new", 1)) == "new"
    assert pair.end(going) == "old"
    assert pair.fetch(pair.holder, "newest") == "new"


def test_a_tag_is_dropped_above_a_row_that_took_long_to_load(pair: Pair) -> None:
    going = pair.begin(pair.holder, "old", "loaded")
    # What is known of the tag's rows ends before a row can that is stored only now.
    pair.forget("tag:top")
    pair.end(going)
    pair.writer.coherence.drop_tag(TAG)
    pair.hear()
    assert pair.fetch(pair.writer, "new") == "new"
    assert pair.fetch(pair.holder, "new") == "new"
