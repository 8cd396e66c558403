"""What the server, or another process, was not told is told later, and nobody reads there what is older meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.caches import PATIENCE, tables
from support.children import in_child
from support.eventually import eventually
from support.pairs import CLOCKS, KEY, TAG, WRITES, Pair, lose, put, refresh
from support.proxy import DroppingProxy

from echomq_tasks.cache.frames import coherence_message, tag_id
from echomq_tasks.cache.reach import Full
from echomq_tasks.cache.store import Store
from echomq_tasks.cache.table import Table
from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import ServerUnavailable
from echomq_tasks.identity import brand
from echomq_tasks.scripts import load_scripts

V3, V5 = brand("ROW", 3), brand("ROW", 5)


@pytest.mark.parametrize("write", WRITES)
def test_what_another_process_has_applied_first_is_still_told_to_all(pair: Pair, write: str) -> None:
    assert pair.fetch(pair.holder, "old") == pair.fetch(pair.writer, "old") == "old"
    pair.writer.reach.missing = True
    WRITES[write](pair.writer)
    # The server was told by the lane, which tells nobody else; the holder has not been told of that.
    Store(pair.name, "ROW", pair.holder.reach.store.connection).apply(
        pair.lane[-1][:14].decode(), pair.lane[-1][15:].decode()
    )
    pair.writer.reach.ask(lambda store: None)
    pair.hear(pair.holder)
    assert pair.fetch(pair.holder, "new") == "new"


@pytest.mark.parametrize("write", WRITES)
def test_what_the_lane_tells_while_the_server_is_away_is_owed(pair: Pair, write: str) -> None:
    assert pair.fetch(pair.writer, "old") == pair.fetch(pair.holder, "old") == "old"
    pair.writer.cut()
    WRITES[write](pair.writer)
    # Whoever wrote is gone for good.
    pair.holder.reach.missing = True
    assert not pair.holder.coherence.apply(pair.lane[-1])
    assert pair.fetch(pair.holder, "new") == "new"


@pytest.mark.parametrize("write", WRITES)
def test_what_is_read_while_the_lane_tells_that_it_is_old_is_not_kept(standalone: Connection, write: str) -> None:
    pair = Pair(standalone, CLOCKS["writer-ahead"])
    pair.fetch(pair.holder, "old")
    pair.writer.cut()
    WRITES[write](pair.writer)

    def between() -> None:
        pair.holder.reach.between = lambda: None
        assert pair.fetch(pair.holder, "none") == "old"

    pair.holder.reach.between = between
    assert pair.holder.coherence.apply(pair.lane[-1])
    assert pair.fetch(pair.holder, "new") == "new"
    pair.close()


class Told(Store):
    """A server that notes what it is told."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(pair.name, "ROW", pair.connection)
        self.told: list[Any] = []
        #: Done once at the next of these, before it ends.
        self.meanwhile: Callable[[], Any] | None = None

    def _tell(self, *what: Any) -> None:
        self.told.append(what)
        do, self.meanwhile = self.meanwhile, None
        if do is not None:
            do()

    def clear(self) -> int:
        self._tell("all")
        return 0

    def drop_many(self, row_ids: Any, version: str | None = None) -> list[str]:
        self._tell(*row_ids, version)
        return [version or "" for _ in row_ids]

    def drop_mark(self, mark: str, version: str | None = None) -> str:
        self._tell(mark, version)
        return version or ""


def test_what_is_owed_while_all_is_being_paid_is_owed_on(pair: Pair) -> None:
    owed, store = pair.holder.reach.owed, Told(pair)

    def again() -> None:
        owed.everything()
        owed.row(KEY, V5)

    owed.row(KEY, V3)
    # Which comes in its place.
    owed.everything()
    store.meanwhile = again
    owed.pay(store)
    assert store.told == [("all",)]
    assert owed
    owed.pay(store)
    assert store.told == [("all",), ("all",), (KEY, V5)]
    assert not owed


@pytest.mark.parametrize("what", ["row", "tag"])
def test_what_is_owed_again_while_it_is_being_paid_is_owed_on(pair: Pair, what: str) -> None:
    owed, store = pair.holder.reach.owed, Told(pair)
    owe, id = (owed.row, KEY) if what == "row" else (owed.tag, tag_id(TAG))
    owe(id, V3)
    store.meanwhile = lambda: owe(id, V5)
    owed.pay(store)
    assert owed
    owed.pay(store)
    assert store.told == [(id, V3), (id, V5)]
    assert not owed


def test_what_is_owed_is_paid_under_the_newest_version_that_others_were_told(pair: Pair) -> None:
    owed, store = pair.holder.reach.owed, Told(pair)
    other = brand("ROW", 2)
    for owe, id in ((owed.row, KEY), (owed.tag, tag_id(TAG))):
        owe(id, V5)
        owe(id, V3)
    owed.row(other, V3)
    owed.pay(store)
    assert store.told == [(KEY, other, V5), (tag_id(TAG), V5)]


def put_alone(pair: Pair, what: str) -> None:
    lose(pair.holder, what)
    assert not put(pair.holder, "mine")


def refresh_alone(pair: Pair, what: str, request: int) -> None:
    lose(pair.holder, what, request)
    refresh(pair.holder, "mine")


def refresh_too_big(pair: Pair) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("echomq_tasks.cache.store._MAX_VALUE", 5)
        refresh(pair.holder, "mine")


def put_among_many(pair: Pair) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("echomq_tasks.cache.owed._MOST", 0)
        put_alone(pair, "missing")


ALONE: dict[str, Callable[[Pair], None]] = {
    "put-lost": lambda pair: put_alone(pair, "missing"),
    "put-unheard": lambda pair: put_alone(pair, "losing"),
    "put-among-many": put_among_many,
    "refresh-lost": lambda pair: refresh_alone(pair, "missing", 1),
    "refresh-unheard": lambda pair: refresh_alone(pair, "losing", 1),
    "fill-lost": lambda pair: refresh_alone(pair, "missing", 2),
    "fill-unheard": lambda pair: refresh_alone(pair, "losing", 2),
    "too-big": refresh_too_big,
}


@pytest.mark.parametrize("clocks", CLOCKS.values(), ids=list(CLOCKS))
@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("alone", ALONE)
def test_a_value_that_the_server_was_not_told_serves_here_until_that_is_paid_and_then_nobody(
    standalone: Connection, alone: str, forgets: bool, clocks: tuple[float, float]
) -> None:
    pair = Pair(standalone, clocks)
    ALONE[alone](pair)
    assert pair.fetch(pair.holder, "none") == "mine"
    if forgets:
        # Then it drops the row under the very version that this has.
        pair.forget()
    pair.holder.reach.ask(lambda store: None)
    # All others load anew, and so does who has paid, before it hears of that and after.
    assert pair.fetch(pair.holder, "loaded") == "loaded"
    pair.hear()
    assert pair.fetch(pair.holder, "loaded") == "loaded"
    assert pair.fetch(pair.writer, "loaded") == "loaded"
    pair.close()


def test_a_value_serves_nobody_once_it_is_paid_though_something_else_is_not(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_alone(pair, "missing")
    pair.holder.reach.missing = True
    pair.holder.coherence.drop_tag("another")

    def refuse(*_: Any) -> str:
        raise ServerUnavailable("it has gone away")

    monkeypatch.setattr(pair.holder.reach.store, "drop_mark", refuse)
    with pytest.raises(ServerUnavailable):
        pair.holder.reach.owed.pay(pair.holder.reach.store)
    assert pair.holder.reach.owed
    # And the lane is told what was paid.
    eventually(lambda: len(pair.lane) == 3)
    monkeypatch.undo()
    assert pair.fetch(pair.holder, "loaded") == "loaded"


def test_who_hears_again_pays_what_is_owed_and_sends_what_the_lane_did_not_take(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, paid = [True], threading.Event()

    def lane(message: bytes) -> None:
        if full[0]:
            raise ServerUnavailable("it has no room")
        sent.append(message)

    sent: list[bytes] = []
    monkeypatch.setattr(pair.holder.coherence, "_lane", lane)
    monkeypatch.setattr(pair.holder.reach, "pay", paid.set)
    pair.holder.cut()
    pair.holder.coherence.drop(KEY)
    pair.holder.coherence.drop(KEY)
    full[0] = False
    # Nobody asks, and nothing else is sent.
    pair.holder.heal()
    assert paid.wait(PATIENCE)
    eventually(lambda: len(sent) == 2, PATIENCE)


def test_a_put_for_which_the_server_has_no_memory_is_told_and_serves_here(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = pair.holder.reach.store

    def drop_in_its_place(row_id: str, *_: Any) -> str:
        store.drop(row_id)
        # The news of that is heard at once.
        pair.hear(pair.holder)
        raise Full

    monkeypatch.setattr(store, "put", drop_in_its_place)
    assert put(pair.holder, "mine")
    assert not pair.holder.reach.owed
    pair.hear()
    assert pair.fetch(pair.holder, "none") == "mine"


# By the lane.


def test_a_table_without_a_server_takes_the_word_of_its_rows() -> None:
    table = Table("alone", "ROW", l2=False)
    assert table.fetch(KEY, lambda: "value") == "value"
    assert table.apply(coherence_message(KEY, V3))
    # There is nobody who could be asked whether that is older.
    assert table.holds(KEY)
    assert table.apply(coherence_message(KEY, brand("ROW", 2**62)))
    assert not table.holds(KEY)


@pytest.mark.parametrize("write", ["drop", "put", "refresh"])
def test_the_lane_tells_others_to_let_go_of_the_row_that_was_here(pair: Pair, write: str) -> None:
    # Its version is of a clock that is two hours ahead of that of who writes.
    pair.fetch(pair.holder, "old")
    assert pair.fetch(pair.writer, "none") == "old"
    pair.writer.cut()
    {**WRITES, "refresh": lambda cache: refresh(cache, "new")}[write](pair.writer)
    assert pair.holder.coherence.apply(pair.lane[-1])
    assert pair.fetch(pair.holder, "new") == "new"


@pytest.mark.parametrize("write", ["drop", "put", "tag"])
@pytest.mark.parametrize("paid", [False, True])
def test_the_lane_drops_what_another_server_brings_back_that_has_not_heard_of_it(
    pair: Pair, write: str, paid: bool
) -> None:
    pair.fetch(pair.holder, "old")
    row = pair.client.get(pair.base + KEY.encode())
    pair.writer.reach.missing = paid
    WRITES[write](pair.writer)
    pair.writer.reach.ask(lambda store: None)
    eventually(lambda: len(pair.lane) == 1 + paid)
    pair.forget()
    pair.client.set(pair.base + KEY.encode(), row, px=60_000)
    assert pair.holder.coherence.apply(pair.lane[-1])
    assert pair.fetch(pair.holder, "new") == "new"
    pair.writer.coherence.back()
    assert pair.fetch(pair.writer, "new") == "new"


@pytest.mark.parametrize("write", WRITES)
def test_a_child_of_a_fork_gets_nothing_of_what_its_parent_could_not_drop(pair: Pair, write: str) -> None:
    pair.fetch(pair.holder, "old")
    pair.writer.reach.missing = True
    WRITES[write](pair.writer)
    assert in_child(lambda: pair.fetch(pair.writer, "new")) == "new"
    assert pair.writer.reach.owed  # the parent does not know of it


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


@pytest.mark.parametrize(
    ("verb", "script"),
    [
        (lambda table: table.invalidate(KEY), "cache_drop"),
        (lambda table: table.invalidate_tags(TAG), "cache_tag"),
        (lambda table: table.clear(), "cache_drop"),
    ],
    ids=["drop", "tag", "clear"],
)
def test_what_is_owed_is_paid_though_nobody_asks(
    standalone: Connection, monkeypatch: pytest.MonkeyPatch, verb: Callable[[Table], bool], script: str
) -> None:
    monkeypatch.setattr("echomq_tasks.cache.beat.EVERY", 0.05)
    proxy = DroppingProxy(standalone.config.port)
    with tables(standalone) as (one, _), connect(proxy.url) as own:
        writer = Table(one.name, "ROW", own)
        fetch: Callable[[Table, str], Any] = lambda table, value: table.fetch(KEY, lambda: value, tags=(TAG,))  # noqa: E731
        assert fetch(one, "old") == fetch(writer, "none") == "old"
        # Sent again once; the ear goes on hearing.
        proxy.drop_request(load_scripts()[script].sha.encode(), times=2)
        assert not verb(writer)
        eventually(lambda: fetch(one, "new") == "new", PATIENCE)
        writer.close()
    proxy.close()
