"""Where the rows are there, they are looked for before they are claimed; that must answer as a claim does."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Callable

import pytest
from support.proxy import DroppingProxy
from support.servers import ServerProcess
from support.tables import AFTER_FAR, FAR, MINUTE, NEXT, OLD, OLDER_BY_CASE, A, B, Rows

from echomq_tasks.cache.claims import Hit, Lead
from echomq_tasks.cache.flight import Flight
from echomq_tasks.cache.frames import newer, tag_id
from echomq_tasks.cache.hands import Hands
from echomq_tasks.cache.looking import FOREVER_MS
from echomq_tasks.cache.store import Store
from echomq_tasks.cache.table import Table
from echomq_tasks.connection import Connection, connect

#: So many calls of a loop, that it has a connection of its own in the end.
OFTEN = 20


@pytest.fixture
def rows(connection: Connection, queue_name: str) -> Rows:
    return Rows(connection, queue_name)


@pytest.fixture
def store(connection: Connection, queue_name: str, rows: Rows) -> Store:
    """One that has found the last rows that it claimed."""
    store = Store(queue_name, "USR", connection)
    rows.write(B, OLD + "there")
    for owner in ("one", "another"):
        assert isinstance(store.claim(B, owner, MINUTE), Hit)
    return store


def test_nothing_is_looked_for_where_one_of_the_last_rows_was_not_there(
    connection: Connection, queue_name: str, rows: Rows
) -> None:
    store = Store(queue_name, "USR", connection)
    rows.write(B, OLD + "there")
    assert store.look(B) is None
    assert isinstance(store.claim(A, "one", MINUTE), Lead)
    assert store.look(B) is None
    assert isinstance(store.claim(B, "two", MINUTE), Hit)
    assert store.look(B) is None
    assert isinstance(store.claim(B, "three", MINUTE), Hit)
    assert isinstance(store.look(B), Hit)


def test_a_row_that_is_gone_is_claimed_at_once(store: Store) -> None:
    dropped = store.drop(B)
    lead = store.claim(B, "two", MINUTE)
    assert isinstance(lead, Lead)
    assert newer(lead.version, dropped)


@pytest.mark.parametrize("version", [NEXT, AFTER_FAR], ids=["now", "far in the future"])
@pytest.mark.parametrize("find", [Store.look, Store.peek, lambda store, id: store.claim(id, "two", MINUTE)])
def test_each_way_finds_a_row_of_any_version(
    store: Store, rows: Rows, version: str, find: Callable[[Store, str], object]
) -> None:
    rows.write(A, version + "value")
    found = find(store, A)
    assert isinstance(found, Hit)
    assert (found.version, found.value) == (version, b"value")
    assert 0 < found.pttl_ms <= MINUTE


@pytest.mark.parametrize(
    "frame", [OLD[:-1], "", "usr" + OLD[3:] + "value", "USRAzL8n0Y58m7value", "USRzzzzzzzzzzzvalue"]
)
@pytest.mark.parametrize("find", [Store.look, Store.peek])
def test_no_way_finds_a_damaged_row(store: Store, rows: Rows, frame: str, find: Callable[[Store, str], object]) -> None:
    rows.write(A, frame)
    assert find(store, A) is None
    assert isinstance(store.claim(A, "two", MINUTE), Lead)


def test_no_way_finds_a_key_of_another_type(store: Store, rows: Rows) -> None:
    rows.do("RPUSH", A, "item")
    assert store.look(A) is None
    assert store.peek(A) is None
    assert isinstance(store.claim(A, "two", MINUTE), Lead)


def test_a_row_that_is_older_than_what_was_dropped_is_not_found(store: Store, rows: Rows) -> None:
    dropped = store.drop(B)
    # By a runtime that knows of no such thing.
    rows.write(B, OLD + "back again")
    assert store.look(B) is None
    rows.write(A, OLD + "there")
    assert isinstance(store.claim(A, "two", MINUTE), Hit)
    assert isinstance(store.claim(B, "three", MINUTE), Lead)
    assert newer(dropped, OLD)


def test_a_row_that_is_newer_than_what_was_dropped_is_found(store: Store, rows: Rows) -> None:
    store.drop(B)
    rows.write(B, AFTER_FAR + "new")
    found = store.look(B)
    assert isinstance(found, Hit)
    assert found.value == b"new"


def test_a_row_of_which_a_tag_was_dropped_is_not_found(store: Store) -> None:
    lead = store.claim(A, "two", MINUTE, ["user:7"])
    assert isinstance(lead, Lead)
    assert store.fill(A, "two", lead.version, b"value", MINUTE, ["user:7"])
    for owner in ("three", "four"):
        assert isinstance(store.claim(A, owner, MINUTE, ["user:7"]), Hit)
    assert isinstance(store.look(A, [tag_id("user:7")]), Hit)
    store.drop_tag("user:7")
    assert store.look(A, [tag_id("user:7")]) is None


def test_whoever_is_interrupted_while_looking_leaves_nobody_waiting(
    standalone: Connection, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(queue_name, "USR", standalone, max_entries=0)
    assert [table.fetch(A, lambda: 1), table.fetch(A, lambda: 2)] == [1, 1]

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, "look", interrupted)
        with pytest.raises(KeyboardInterrupt):
            table.fetch(A, lambda: 3)
    assert table.fetch(A, lambda: 4) == 1
    assert table.stats().coalesced == 0


def test_a_row_that_cannot_be_read_is_loaded_anew(standalone: Connection, queue_name: str) -> None:
    table = Table(queue_name, "USR", standalone, max_entries=0)
    rows = Rows(standalone, queue_name)
    assert [table.fetch(A, lambda: 1), table.fetch(A, lambda: 2)] == [1, 1]
    rows.write(A, OLD + "not of this codec")
    assert [table.fetch(A, lambda: 3), table.fetch(A, lambda: 4)] == [3, 3]
    assert table.stats().loads == 2


def test_the_short_way_counts_what_it_finds_and_keeps_it(standalone: Connection, queue_name: str) -> None:
    loads = []

    def load() -> int:
        loads.append(1)
        return 7

    writer = Table(queue_name, "USR", standalone, max_entries=0)
    assert [writer.fetch(id, load) for id in (A, B)] == [7, 7]
    reader = Table(queue_name, "USR", standalone)
    # The first is claimed, the second looked for, and both are kept.
    assert [reader.fetch(id, load) for id in (A, B, A, B)] == [7, 7, 7, 7]
    assert len(loads) == 2
    stats = reader.stats()
    assert (stats.l2_hits, stats.hits, stats.loads, stats.entries) == (2, 2, 0, 2)


def test_a_look_finds_what_the_script_finds_and_nothing_else(standalone: Connection, queue_name: str) -> None:
    store, rows = Store(queue_name, "USR", standalone), Rows(standalone, queue_name)
    marks = ["TAG0NgWEfAEJ0A", "TAG0NgWEfAEJ0B"]
    versions = [OLD, OLDER_BY_CASE, NEXT, FAR]
    frames = [None, *(version + "value" for version in versions), NEXT, NEXT[:-1], "usr" + NEXT[3:] + "value"]
    floors = [None, *versions, "TAG" + NEXT[3:], "", "z", "~" * 20]
    places = [":dropped", "tag:A", "tag:B"]

    async def main() -> int:
        hits = 0
        for frame, place, floor in itertools.product(frames, places, floors):
            standalone.client.flushdb()
            if frame is not None:
                rows.write(A, frame)
            if floor is not None:
                rows.do("SET", A + place if place[0] == ":" else f"tag:{marks['AB'.index(place[-1])]}", floor)
            reply = store.scripts.call("cache_get", store.base, (A, "row", *marks))
            wanted = None if reply is None else (reply[0][:14].decode(), reply[0][14:])
            found = []
            store._looking._found = 2  # noqa: SLF001 - it learns that from what it has found
            found.append(store.look(A, marks))
            store._looking._found = 2  # noqa: SLF001
            found.append(await store.alook(A, marks, asyncio.to_thread))
            for hit in found:
                # Where a mark is none of ours it may find nothing, and leaves that to the claim.
                if hit is not None or floor in (None, *versions, "TAG" + NEXT[3:]):
                    assert (None if hit is None else hit[:2]) == wanted, (frame, place, floor)
                hits += hit is not None
        return hits

    assert asyncio.run(main()) > 100


def test_a_look_tells_how_long_a_row_lives(connection: Connection, queue_name: str, rows: Rows) -> None:
    store = Store(queue_name, "USR", connection)

    async def main() -> None:
        for left in (None, MINUTE, 1):
            rows.write(A, OLD + "value", left)
            store._looking._found = 2  # noqa: SLF001
            for hit in (store.look(A), await store.alook(A, (), asyncio.to_thread)):
                if left is None:
                    assert hit == Hit(OLD, b"value", FOREVER_MS)
                else:
                    assert hit is None or 0 <= hit.pttl_ms <= left

    asyncio.run(main())


async def value(number: int) -> int:
    return number


def test_tasks_find_their_rows_without_a_thread(
    standalone: Connection, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(queue_name, "USR", standalone, max_entries=0)

    def refused(*_: object) -> None:
        raise AssertionError("a thread was asked")

    async def main() -> None:
        for _ in range(OFTEN):
            assert await table.afetch(A, lambda: value(1)) == 1
        with monkeypatch.context() as patch:
            patch.setattr(Hands, "submit", refused)
            found = await asyncio.gather(*(table.afetch(A, lambda: value(2)) for _ in range(50)))
        assert found == [1] * 50
        # The first of them has asked for all.
        assert (table.stats().l2_hits, table.stats().coalesced) == (OFTEN, 49)

    asyncio.run(main())


@pytest.mark.parametrize("lost", ["request", "reply"])
@pytest.mark.parametrize("waits", [False, True])
def test_a_look_whose_connection_breaks_loads_nothing(
    proxy: DroppingProxy, queue_name: str, lost: str, waits: bool
) -> None:
    with connect(f"valkey://127.0.0.1:{proxy.port}") as connection:
        table = Table(queue_name, "USR", connection, max_entries=0)

        async def main() -> None:
            for _ in range(OFTEN):
                assert await table.afetch(A, lambda: value(1)) == 1
                assert table.fetch(A, lambda: 2) == 1
            (proxy.drop_request if lost == "request" else proxy.drop_reply)(b"MGET")
            for _ in range(6):
                assert (await table.afetch(A, lambda: value(3)) if waits else table.fetch(A, lambda: 3)) == 1
            counts = proxy.counts
            assert counts.dropped_requests + counts.dropped_replies == 1

        asyncio.run(main())
        assert (table.stats().loads, table.stats().away) == (1, False)
        table.close()


@pytest.mark.parametrize("waits", [False, True])
def test_a_look_that_is_not_answered_in_time_is_given_up(own_server: ServerProcess, waits: bool) -> None:
    with connect(own_server.url, timeout=0.3) as connection:
        table = Table("paused", "USR", connection, max_entries=0)

        async def main() -> None:
            for _ in range(OFTEN):
                assert await table.afetch(A, lambda: value(1)) == 1
            own_server.pause(30_000)
            assert (await table.afetch(A, lambda: value(2)) if waits else table.fetch(A, lambda: 2)) == 2
            assert table.stats().away
            own_server.kill()

        asyncio.run(main())
        table.close()


@pytest.mark.parametrize("waits", [False, True])
def test_a_user_who_may_not_look_claims(own_server: ServerProcess, waits: bool) -> None:
    own_server.client().acl_setuser(
        "low",
        enabled=True,
        passwords=["+secret"],
        keys=["*"],
        commands=["+@all", "-mget"],
        channels=["*"],
    )
    with connect(own_server.url, username="low", password="secret") as connection:
        table = Table("barred", "USR", connection, max_entries=0)

        async def main() -> list[int]:
            return [
                await table.afetch(A, lambda: value(1)) if waits else table.fetch(A, lambda: 1) for _ in range(OFTEN)
            ]

        assert asyncio.run(main()) == [1] * OFTEN
        assert table.stats().loads == 1
        table.close()


def test_a_task_that_is_cancelled_while_it_looks_leaves_the_others_their_row(
    own_server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(own_server.url) as connection:
        table = Table("held", "USR", connection, max_entries=0)

        async def main() -> None:
            for _ in range(OFTEN):
                assert await table.afetch(A, lambda: value(1)) == 1
            own_server.pause(200)
            first = asyncio.create_task(table.afetch(A, lambda: value(2)))
            await asyncio.sleep(0)
            others = [asyncio.create_task(table.afetch(A, lambda: value(3))) for _ in range(3)]
            await asyncio.sleep(0)
            first.cancel()
            assert await asyncio.gather(*others) == [1, 1, 1]
            with pytest.raises(asyncio.CancelledError):
                await first

        asyncio.run(main())
        assert table.stats().loads == 1
        table.close()


def test_no_call_leaves_its_flight_to_the_collector(standalone: Connection, queue_name: str) -> None:
    table = Table(queue_name, "USR", standalone, max_entries=0)

    async def main() -> None:
        for _ in range(OFTEN):
            assert table.fetch(A, lambda: 1) == 1
            assert await table.afetch(A, lambda: value(2)) == 1
        table.invalidate(B)
        assert table.fetch(B, lambda: 3) == 3
        table.invalidate(B)
        assert await table.afetch(B, lambda: value(4)) == 4

    def flights() -> list[Flight]:
        return [each for each in gc.get_objects() if type(each) is Flight]

    gc.collect()
    gc.disable()
    try:
        before = flights()
        asyncio.run(main())
        assert set(flights()) <= set(before)
    finally:
        gc.enable()
