"""Newer wins, whatever the clocks say, whatever was lost on the way, and whatever the server has forgotten.

Two processes have one table, and clocks that may be hours apart. One holds an old value, however it has come to it; the
other writes; and once the first has heard of that, or has been told, it never gives the old value to a caller again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.caches import PATIENCE, tables
from support.children import in_child
from support.eventually import eventually
from support.proxy import DroppingProxy
from support.stepping import Cache, Going, Overhearing, SkewedStore, StraightDrive

from echomq_tasks.cache.call import Call
from echomq_tasks.cache.drive import run
from echomq_tasks.cache.frames import coherence_message, tag_id
from echomq_tasks.cache.store import Store
from echomq_tasks.cache.table import Table
from echomq_tasks.connection import Connection, connect
from echomq_tasks.identity import brand
from echomq_tasks.scripts import load_scripts

KEY = brand("ROW", 1)
TAG = "tag"
HOUR = 3600.0
#: What the clock of who holds the value is ahead, and that of who writes.
CLOCKS = {"agree": (0.0, 0.0), "holder-ahead": (HOUR, -HOUR), "writer-ahead": (-HOUR, HOUR)}


class Pair:
    """The holder and the writer."""

    def __init__(self, connection: Connection, clocks: tuple[float, float] = (HOUR, -HOUR)) -> None:
        self.name = f"order-{secrets.token_hex(6)}"
        self.client: Any = connection.client
        self.lane: list[bytes] = []
        self.holder, self.writer = (
            Cache(self.name, connection, SkewedStore(self.name, connection, skew, node), self.lane.append)
            for node, skew in enumerate(clocks)
        )
        self.base = self.holder.reach.store.base
        self.overhearing = Overhearing(connection, self.holder.reach.store)

    def close(self) -> None:
        self.overhearing.close()

    def call(self, value: Any) -> Call:
        return Call(KEY, b"", lambda: value, None, (TAG,), (tag_id(TAG),))

    def fetch(self, cache: Cache, value: Any) -> Any:
        """Ask at once; ``value`` is what a loader returns."""
        return run(cache.reader.value(self.call(value), StraightDrive()))

    def refresh(self, cache: Cache, value: Any) -> None:
        run(cache.reader.refresh(self.call(value), StraightDrive()))

    def begin(self, cache: Cache, value: Any, steps: int) -> Going:
        """Ask, and go so many steps: a claim, a load and a fill are each before one and, unless lost, after one."""
        going = Going(cache.reader.value(self.call(value), cache.drive()))
        for _ in range(steps):
            going.go_on()
        return going

    def end(self, going: Going) -> Any:
        while not going.done:
            going.go_on()
        if going.error is not None:
            raise going.error
        return going.value

    def hear(self, *caches: Cache) -> None:
        """All that was said until now."""
        for message in self.overhearing.look():
            for cache in (self.holder, self.writer):
                cache.said(*message)
        for cache in caches or (self.holder, self.writer):
            while cache.hear():
                pass

    def forget(self, what: str = "*") -> None:
        """The server knows no more of this."""
        keys = self.client.keys(self.base + what.encode())
        if keys:
            self.client.delete(*keys)


@pytest.fixture
def pair(standalone: Connection) -> Iterator[Pair]:
    made = Pair(standalone)
    yield made
    made.close()


def nth(cache: Cache, number: int, lose: Callable[[], None]) -> None:
    """Before the n-th request, counted from 1, do ``lose``."""
    looks = iter(range(1, 100))

    def between() -> None:
        # Twice a request: before it and after.
        if next(looks) == 2 * number - 1:
            lose()

    cache.reach.between = between


def alone(pair: Pair, what: str, request: int) -> None:
    """Fetch, and lose the answer to a request, or itself."""
    nth(pair.holder, request, lambda: setattr(pair.holder.reach, what, True))
    assert pair.fetch(pair.holder, "old") == "old"
    pair.holder.reach.between = lambda: None


def lost(verb: Callable[[Pair], Any], what: str) -> Callable[[Pair], None]:
    def hold(pair: Pair) -> None:
        setattr(pair.holder.reach, what, True)
        verb(pair)

    return hold


def put_old(pair: Pair) -> None:
    pair.holder.coherence.put(KEY, b"", "old", None, (TAG,))


def refresh_old(pair: Pair) -> None:
    pair.refresh(pair.holder, "old")


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
WRITES: dict[str, Callable[[Pair], Any]] = {
    "drop": lambda pair: pair.writer.coherence.drop(KEY),
    "put": lambda pair: pair.writer.coherence.put(KEY, b"", "new", None, (TAG,)),
    "tag": lambda pair: pair.writer.coherence.drop_tag(TAG),
    "clear": lambda pair: pair.writer.coherence.clear(),
    "refresh": lambda pair: pair.refresh(pair.writer, "new"),
}


def twice(pair: Pair, write: Callable[[Pair], Any], what: str) -> None:
    """The answer is lost, or the request; and then it succeeds."""
    setattr(pair.writer.reach, what, True)
    write(pair)
    write(pair)


def paid(pair: Pair, write: Callable[[Pair], Any], what: str) -> None:
    """The answer is lost, or the request; and then something else is asked."""
    setattr(pair.writer.reach, what, True)
    write(pair)
    pair.writer.reach.ask(lambda store: None)


#: What happens to it on its way.
WAYS: dict[str, Callable[[Pair, Callable[[Pair], Any]], Any]] = {
    "told": lambda pair, write: write(pair),
    "unheard-and-again": lambda pair, write: twice(pair, write, "losing"),
    "lost-and-again": lambda pair, write: twice(pair, write, "missing"),
    "unheard-and-paid": lambda pair, write: paid(pair, write, "losing"),
    "lost-and-paid": lambda pair, write: paid(pair, write, "missing"),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("hold", HOLDS)
def test_what_was_heard_to_be_old_is_given_to_nobody(standalone: Connection, hold: str, write: str) -> None:
    for way, tell in WAYS.items():
        for clocks, apart in CLOCKS.items():
            for away in (False, True):
                pair = Pair(standalone, apart)
                HOLDS[hold](pair)
                tell(pair, WRITES[write])
                pair.hear()
                # When it cannot be looked up, it is not used either.
                pair.holder.reach.missing = away
                assert pair.fetch(pair.holder, "new") == "new", (way, clocks, away)
                assert pair.fetch(pair.writer, "new") == "new", (way, clocks, away)
                assert pair.fetch(pair.holder, "new") == "new", (way, clocks, away)
                pair.close()


@pytest.mark.parametrize("way", ["told", "unheard-and-paid", "lost-and-paid"])
@pytest.mark.parametrize("write", ["drop", "put", "tag", "clear"])
def test_what_the_lane_tells_to_be_old_is_given_to_nobody(standalone: Connection, write: str, way: str) -> None:
    for hold in HOLDS.values():
        for apart in CLOCKS.values():
            pair = Pair(standalone, apart)
            hold(pair)
            pair.lane.clear()
            WAYS[way](pair, WRITES[write])
            eventually(lambda pair=pair: len(pair.lane) >= (1 if way == "told" or write == "clear" else 2))  # type: ignore[misc]
            for message in pair.lane:
                pair.holder.coherence.apply(message)
            # Not one broadcast was heard.
            assert pair.fetch(pair.holder, "new") == "new"
            pair.close()


# Between two steps.


@pytest.mark.parametrize("write", ["drop", "put", "tag"])
@pytest.mark.parametrize("lose", ["nothing", "losing"])
def test_a_put_is_not_kept_over_what_was_heard_before_it_was_done(pair: Pair, write: str, lose: str) -> None:
    def between() -> None:
        if pair.client.exists(pair.base + KEY.encode()):
            pair.holder.reach.between = lambda: None
            WRITES[write](pair)
            pair.hear(pair.holder)

    setattr(pair.holder.reach, lose, True)
    pair.holder.reach.between = between
    pair.holder.coherence.put(KEY, b"", "old", None, (TAG,))
    assert pair.fetch(pair.holder, "new") == "new"


@pytest.mark.parametrize("write", ["drop", "put", "tag", "clear"])
@pytest.mark.parametrize("first", ["ends", "is-asked-again"])
def test_a_load_without_a_lease_is_neither_kept_nor_joined_once_there_is_news(
    pair: Pair, write: str, first: str
) -> None:
    pair.holder.reach.missing = True
    going = pair.begin(pair.holder, "old", 3)
    WRITES[write](pair)
    pair.hear(pair.holder)
    if first == "is-asked-again":
        again = pair.begin(pair.holder, "new", 1)
        assert pair.end(again) == "new"
    assert pair.end(going) == "old"
    assert pair.fetch(pair.holder, "new") == "new"


@pytest.mark.parametrize("write", ["drop", "put", "tag", "clear"])
@pytest.mark.parametrize("heard", [False, True])
def test_a_load_that_outlives_what_the_server_knows_of_a_drop_stores_nothing(
    pair: Pair, write: str, heard: bool
) -> None:
    going = pair.begin(pair.holder, "old", 4)
    WRITES[write](pair)
    if heard:
        pair.hear(pair.holder)
    # As in ten minutes, or when it begins anew.
    pair.forget()
    assert pair.end(going) == "old"
    assert pair.fetch(pair.writer, "new") == "new"
    assert pair.fetch(pair.holder, "new") == "new"


@pytest.mark.parametrize("after", ["loaded", "stored"])
def test_a_row_is_looked_up_when_news_came_that_says_to_be_older_while_it_was_loaded(pair: Pair, after: str) -> None:
    going = pair.begin(pair.holder, "old", {"loaded": 4, "stored": 6}[after])
    pair.forget()
    # By a clock that is two hours behind.
    WRITES["drop"](pair)
    pair.hear(pair.holder)
    pair.holder.reach.missing = after == "loaded"
    assert pair.end(going) == "old"
    assert pair.fetch(pair.holder, "new") == "new"


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


def test_news_that_comes_while_a_row_is_looked_up_is_not_forgotten_over_it(pair: Pair) -> None:
    pair.fetch(pair.holder, "old")
    row = pair.holder.parts.l1.get(KEY)
    assert row is not None
    pair.holder.coherence.heard(pair.base + b"coh", coherence_message(KEY, brand("ROW", 1)))
    # It has been answered that the row is the one there.
    going = pair.begin(pair.holder, "new", 2)
    pair.forget()
    WRITES["drop"](pair)
    pair.hear(pair.holder)
    assert row.there
    assert pair.end(going) == "new"
    assert pair.fetch(pair.holder, "newest") == "new"


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


def test_a_refresh_without_the_server_does_not_leave_what_another_call_has_read_there(pair: Pair) -> None:
    pair.fetch(pair.writer, "old")
    pair.holder.reach.missing = True
    refresh = Going(pair.holder.reader.refresh(pair.call("new"), pair.holder.drive()))
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
    refresh = Going(pair.holder.reader.refresh(pair.call("new"), pair.holder.drive()))
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
    pair.refresh(pair.holder, "new")
    pair.holder.reach.ask(lambda store: None)
    pair.hear()
    assert pair.fetch(pair.writer, "new") == "new"


# What is owed.


@pytest.mark.parametrize("write", ["drop", "put", "tag", "clear"])
def test_what_another_process_has_applied_first_is_still_told_to_all(pair: Pair, write: str) -> None:
    assert pair.fetch(pair.holder, "old") == pair.fetch(pair.writer, "old") == "old"
    pair.writer.reach.missing = True
    WRITES[write](pair)
    # The server was told by the lane, which tells nobody else; the holder has not been told of that.
    Store(pair.name, "ROW", pair.holder.reach.store.connection).apply(
        pair.lane[-1][:14].decode(), pair.lane[-1][15:].decode()
    )
    pair.writer.reach.ask(lambda store: None)
    pair.hear(pair.holder)
    assert pair.fetch(pair.holder, "new") == "new"


@pytest.mark.parametrize("write", ["drop", "put", "tag", "clear"])
def test_what_the_lane_tells_while_the_server_is_away_is_owed(pair: Pair, write: str) -> None:
    assert pair.fetch(pair.writer, "old") == pair.fetch(pair.holder, "old") == "old"
    pair.writer.cut()
    WRITES[write](pair)
    # Whoever wrote is gone for good.
    pair.holder.reach.missing = True
    assert not pair.holder.coherence.apply(pair.lane[-1])
    assert pair.fetch(pair.holder, "new") == "new"


@pytest.mark.parametrize("write", ["drop", "put", "tag", "clear"])
def test_what_is_read_while_the_lane_tells_that_it_is_old_is_not_kept(standalone: Connection, write: str) -> None:
    pair = Pair(standalone, CLOCKS["writer-ahead"])
    pair.fetch(pair.holder, "old")
    pair.writer.cut()
    WRITES[write](pair)

    def between() -> None:
        pair.holder.reach.between = lambda: None
        assert pair.fetch(pair.holder, "none") == "old"

    pair.holder.reach.between = between
    assert pair.holder.coherence.apply(pair.lane[-1])
    assert pair.fetch(pair.holder, "new") == "new"
    pair.close()


def test_what_is_owed_while_all_is_being_paid_is_owed_on(pair: Pair) -> None:
    owed, version, paid = pair.holder.reach.owed, brand("ROW", 5), []

    class Slow(Store):
        def clear(self) -> int:
            if not paid:
                owed.everything()
                owed.row(KEY, version)
            paid.append("all")
            return 0

        def drop_many(self, row_ids: Any, version: str | None = None) -> list[str]:
            paid.extend(row_ids)
            return [version or "" for _ in row_ids]

    store = Slow(pair.name, "ROW", pair.holder.reach.store.connection)
    owed.everything()
    owed.pay(store)
    assert paid == ["all"]
    assert owed
    owed.pay(store)
    assert paid == ["all", "all", KEY]
    assert not owed


@pytest.mark.parametrize("write", ["drop", "put", "tag", "clear"])
def test_a_child_of_a_fork_gets_nothing_of_what_its_parent_could_not_drop(pair: Pair, write: str) -> None:
    pair.fetch(pair.holder, "old")
    pair.writer.reach.missing = True
    WRITES[write](pair)
    assert in_child(lambda: pair.fetch(pair.writer, "new")) == "new"
    assert pair.writer.reach.owed  # the parent does not know of it


# What is dropped all at once.


def test_a_flight_that_becomes_a_row_while_a_table_is_cleared_is_dropped(pair: Pair) -> None:
    going = pair.begin(pair.holder, "old", 4)
    store = pair.writer.reach.store
    passes: list[list[str]] = []

    def row_ids() -> Iterator[str]:
        # The scan has passed the place of the row before it comes, and that of the flight when it has gone.
        passes.append([])
        if len(passes) == 1:
            pair.end(going)
            return
        for each in Store._row_ids(store):  # noqa: SLF001 - what SCAN finds cannot be told to it
            passes[-1].append(each)
            yield each

    store._row_ids = row_ids  # type: ignore[method-assign]  # noqa: SLF001
    pair.writer.coherence.clear()
    pair.hear()
    assert len(passes) == 2
    assert pair.fetch(pair.writer, "new") == "new"
    assert pair.fetch(pair.holder, "new") == "new"


def test_who_hears_that_all_was_dropped_finds_nothing_old_on_the_server(pair: Pair) -> None:
    pair.fetch(pair.writer, "old")
    seen: list[Any] = []
    run_script = pair.writer.reach.store._run  # noqa: SLF001 - where each script is sent

    def spied(script: str, *args: Any) -> Any:
        reply = run_script(script, *args)
        if script == "cache_clear":
            seen.append(pair.client.get(pair.base + KEY.encode()))
        return reply

    pair.writer.reach.store._run = spied  # type: ignore[method-assign]  # noqa: SLF001
    pair.writer.coherence.clear()
    assert seen == [None]


@pytest.mark.parametrize("what", ["missing", "losing"])
@pytest.mark.parametrize("request_", [1, 2], ids=["claim", "fill"])
def test_after_a_refresh_whose_answer_was_lost_nobody_here_gets_what_is_older(
    standalone: Connection, what: str, request_: int
) -> None:
    pair = Pair(standalone, CLOCKS["writer-ahead"])
    pair.fetch(pair.holder, "old")
    old = pair.holder.parts.l1.get(KEY)
    going = Going(pair.holder.reader.refresh(pair.call("new"), pair.holder.drive()))
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


def test_what_is_owed_is_paid_though_nobody_asks(standalone: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echomq_tasks.cache.beat.EVERY", 0.05)
    proxy = DroppingProxy(standalone.config.port)
    with tables(standalone) as (one, _), connect(proxy.url) as own:
        writer = Table(one.name, "ROW", own)
        assert one.fetch(KEY, lambda: "old") == writer.fetch(KEY, lambda: "none") == "old"
        # Sent again once; the ear goes on hearing.
        proxy.drop_request(load_scripts()["cache_drop"].sha.encode(), times=2)
        assert not writer.invalidate(KEY)
        eventually(lambda: one.fetch(KEY, lambda: "new") == "new", PATIENCE)
        writer.close()
    proxy.close()
