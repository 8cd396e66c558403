"""Newer wins, whatever the clocks say, whatever was lost on the way, and whatever the server has forgotten.

Two processes have one table, and clocks that may be hours apart. One holds an old value, however it has come to it; the
other writes; and once the first has heard of that, or has been told, it never gives the old value to a caller again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.eventually import eventually
from support.pairs import CLOCKS, KEY, WRITES, Pair, lose, put, refresh
from support.stepping import Cache

from echomq_tasks.cache.frames import coherence_message
from echomq_tasks.connection import Connection
from echomq_tasks.identity import brand


def alone(pair: Pair, what: str, request: int) -> None:
    """Fetch, and lose the answer to a request, or itself."""
    lose(pair.holder, what, request)
    assert pair.fetch(pair.holder, "old") == "old"


def lost(verb: Callable[[Pair], Any], what: str) -> Callable[[Pair], None]:
    def hold(pair: Pair) -> None:
        setattr(pair.holder.reach, what, True)
        verb(pair)

    return hold


def put_old(pair: Pair) -> None:
    put(pair.holder, "old")


def refresh_old(pair: Pair) -> None:
    refresh(pair.holder, "old")


def found(pair: Pair) -> None:
    pair.fetch(pair.writer, "old")
    pair.fetch(pair.holder, "none")


def forgotten(what: str) -> Callable[[Pair], None]:
    def hold(pair: Pair) -> None:
        pair.fetch(pair.holder, "old")
        pair.forget(what)

    return hold


#: How the holder has come to the old value.
HOLDS: dict[str, Callable[[Pair], None]] = {
    "loaded": lambda pair: pair.fetch(pair.holder, "old"),
    "found": found,
    "claim-lost": lambda pair: alone(pair, "missing", 1),
    "claim-unheard": lambda pair: alone(pair, "losing", 1),
    "fill-lost": lambda pair: alone(pair, "missing", 2),
    "fill-unheard": lambda pair: alone(pair, "losing", 2),
    "put": put_old,
    "put-lost": lost(put_old, "missing"),
    "put-unheard": lost(put_old, "losing"),
    "refreshed": refresh_old,
    "refresh-lost": lost(refresh_old, "missing"),
    "refresh-unheard": lost(refresh_old, "losing"),
    "expired": forgotten(KEY),
    "server-began-anew": forgotten("*"),
}
#: How the writer writes.
HOWS: dict[str, Callable[[Cache], Any]] = {**WRITES, "refresh": lambda cache: refresh(cache, "new")}


def twice(pair: Pair, write: Callable[[Cache], Any], what: str) -> None:
    """The answer is lost, or the request; and then it succeeds."""
    setattr(pair.writer.reach, what, True)
    write(pair.writer)
    write(pair.writer)


def paid(pair: Pair, write: Callable[[Cache], Any], what: str) -> None:
    """The answer is lost, or the request; and then something else is asked."""
    setattr(pair.writer.reach, what, True)
    write(pair.writer)
    pair.writer.reach.ask(lambda store: None)


#: What happens to it on its way.
WAYS: dict[str, Callable[[Pair, Callable[[Cache], Any]], Any]] = {
    "told": lambda pair, write: write(pair.writer),
    "unheard-and-again": lambda pair, write: twice(pair, write, "losing"),
    "lost-and-again": lambda pair, write: twice(pair, write, "missing"),
    "unheard-and-paid": lambda pair, write: paid(pair, write, "losing"),
    "lost-and-paid": lambda pair, write: paid(pair, write, "missing"),
}


@pytest.mark.parametrize("write", HOWS)
@pytest.mark.parametrize("hold", HOLDS)
def test_what_was_heard_to_be_old_is_given_to_nobody(standalone: Connection, hold: str, write: str) -> None:
    for way, tell in WAYS.items():
        for clocks, apart in CLOCKS.items():
            for away in (False, True):
                pair = Pair(standalone, apart)
                HOLDS[hold](pair)
                tell(pair, HOWS[write])
                pair.hear()
                # When it cannot be looked up, it is not used either.
                pair.holder.reach.missing = away
                assert pair.fetch(pair.holder, "new") == "new", (way, clocks, away)
                assert pair.fetch(pair.writer, "new") == "new", (way, clocks, away)
                assert pair.fetch(pair.holder, "new") == "new", (way, clocks, away)
                pair.close()


@pytest.mark.parametrize("way", ["told", "unheard-and-paid", "lost-and-paid"])
@pytest.mark.parametrize("write", HOWS)
def test_what_the_lane_tells_to_be_old_is_given_to_nobody(standalone: Connection, write: str, way: str) -> None:
    for hold in HOLDS.values():
        for apart in CLOCKS.values():
            pair = Pair(standalone, apart)
            hold(pair)
            pair.lane.clear()
            WAYS[way](pair, HOWS[write])
            eventually(lambda pair=pair: len(pair.lane) >= (1 if way == "told" or write == "clear" else 2))  # type: ignore[misc]
            for message in pair.lane:
                pair.holder.coherence.apply(message)
            # Not one broadcast was heard.
            assert pair.fetch(pair.holder, "new") == "new"
            pair.close()


# What says of itself to be older.


@pytest.mark.parametrize("after", ["loaded", "stored"])
def test_a_row_is_looked_up_when_news_came_that_says_to_be_older_while_it_was_loaded(pair: Pair, after: str) -> None:
    going = pair.begin(pair.holder, "old", {"loaded": 4, "stored": 6}[after])
    pair.forget()
    # By a clock that is two hours behind.
    WRITES["drop"](pair.writer)
    pair.hear(pair.holder)
    pair.holder.reach.missing = after == "loaded"
    assert pair.end(going) == "old"
    assert pair.fetch(pair.holder, "new") == "new"


def test_a_refresh_replaces_a_row_whose_version_the_server_has_forgotten(standalone: Connection) -> None:
    pair = Pair(standalone, CLOCKS["writer-ahead"])
    found(pair)
    pair.forget()
    # By a clock that is two hours behind that of the row here.
    refresh(pair.holder, "new")
    assert pair.fetch(pair.holder, "none") == "new"
    pair.close()


def test_a_row_that_is_newer_than_the_news_is_looked_up_and_kept(pair: Pair) -> None:
    pair.holder.coherence.drop(KEY)
    assert pair.fetch(pair.holder, "new") == "new"
    row = pair.holder.parts.l1.get(KEY)
    pair.hear(pair.holder)
    assert row is not None
    assert row.suspect
    asked: list[int] = []
    pair.holder.reach.between = lambda: asked.append(1)
    assert pair.fetch(pair.holder, "newest") == "new"
    assert pair.holder.parts.l1.get(KEY) is row
    assert not row.suspect
    assert len(asked) == 2
    assert pair.fetch(pair.holder, "newest") == "new"
    assert len(asked) == 2
    # It is as good as before, also when it cannot be looked up once more.
    pair.holder.coherence.back()
    pair.holder.reach.missing = True
    assert pair.fetch(pair.holder, "newest") == "new"


@pytest.mark.parametrize("write", ["put", "refresh"])
def test_a_row_stays_as_it_is_when_the_news_is_its_own(pair: Pair, write: str) -> None:
    HOWS[write](pair.holder)
    row = pair.holder.parts.l1.get(KEY)
    pair.hear()
    assert row is not None
    assert row.there
    assert not row.suspect
    assert pair.fetch(pair.holder, "newest") == "new"


@pytest.mark.parametrize("write", ["drop", "put", "tag"])
def test_news_does_not_have_the_version_of_a_value_that_a_server_has_forgotten(pair: Pair, write: str) -> None:
    pair.fetch(pair.holder, "old")
    row = pair.client.get(pair.base + KEY.encode())
    put(pair.writer, "older")
    pair.hear()
    assert pair.fetch(pair.holder, "none") == "older"
    # Another server comes in its place, which has not heard of it: the next version is above the same row once more.
    pair.forget()
    pair.client.set(pair.base + KEY.encode(), row, px=60_000)
    pair.client.set(pair.base + b"tag:top", row[:14], px=60_000)
    WRITES[write](pair.writer)
    pair.hear()
    assert pair.fetch(pair.holder, "new") == "new"


@pytest.mark.parametrize("clocks", ["holder-ahead", "writer-ahead"])
def test_news_that_comes_while_a_row_is_looked_up_is_not_forgotten_over_it(standalone: Connection, clocks: str) -> None:
    pair = Pair(standalone, CLOCKS[clocks])
    pair.fetch(pair.holder, "old")
    row = pair.holder.parts.l1.get(KEY)
    assert row is not None
    pair.holder.coherence.heard(pair.base + b"coh", coherence_message(KEY, brand("ROW", 1)))
    # It has been answered that the row is the one there.
    going = pair.begin(pair.holder, "new", 2)
    pair.forget()
    WRITES["drop"](pair.writer)
    pair.hear(pair.holder)
    # It says of itself to be newer than the news, or it does not.
    assert row.there == (clocks == "holder-ahead")
    assert pair.end(going) == "new"
    assert pair.fetch(pair.holder, "newest") == "new"
    pair.close()
