"""Tables of several processes on a real server: one load for all, the same errors, and each other's news."""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cachetools
import pytest
from support.caches import PATIENCE, Source, following, joined, tables
from support.eventually import eventually
from support.servers import ServerProcess, free_port, give_back

from echomq_tasks.cache import reach as reaching
from echomq_tasks.cache.frames import read_coherence
from echomq_tasks.cache.keys import Key
from echomq_tasks.cache.table import Table
from echomq_tasks.connection import Connection
from echomq_tasks.errors import ConfigError, LoadFailed, ServerUnavailable
from echomq_tasks.identity import brand, is_branded
from echomq_tasks.keyspace import cache_key

KEY, OTHER = brand("ROW", 1), brand("ROW", 2)


@pytest.fixture
def source() -> Source:
    return Source()


def never() -> Any:
    raise AssertionError("nothing is to be loaded")


def raw(connection: Connection, table: Table, id: str = KEY) -> Any:
    client: Any = connection.client
    return client.get(cache_key(table.name, id))


# Sharing.


def test_a_value_is_loaded_once_for_all_processes(connection: Connection, source: Source) -> None:
    with tables(connection) as (one, two):
        assert one.fetch(KEY, source) == 1
        assert two.fetch(KEY, never) == 1
        assert two.fetch(KEY, never) == 1
        assert (one.stats().loads, two.stats().l2_hits, two.stats().hits) == (1, 1, 1)
        frame = raw(connection, one)
        assert is_branded(frame[:14].decode(), "ROW")
        assert one.peek(KEY) == two.peek(KEY) == 1
        with tables(connection, 1, name=one.name) as (third,):
            assert third.peek(KEY) == 1
            assert third.peek(OTHER, "none") == "none"
            assert third.stats().entries == 0


def test_who_asks_while_another_process_loads_is_woken_with_its_value(connection: Connection, source: Source) -> None:
    with tables(connection, 3) as (one, *others), ThreadPoolExecutor(10) as pool:
        source.hold()
        leader = pool.submit(one.fetch, KEY, source)
        source.started()
        followers = [pool.submit(other.fetch, KEY, never) for other in others for _ in range(4)]
        for other in others:
            joined(other, KEY, 4)
            following(other, KEY)
        source.go()
        assert {each.result(PATIENCE) for each in (leader, *followers)} == {1}
        assert [other.stats().coalesced for other in others] == [4, 4]


class Broken(Exception):
    """Something that another process knows too."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Odd(Exception):
    """Something that only this process can have."""

    def __init__(self, one: object, two: object) -> None:
        super().__init__(one)
        self.two = two


@pytest.mark.parametrize(("error", "expected"), [(Broken(7), Broken), (Odd(7, []), LoadFailed)], ids=["known", "odd"])
def test_an_error_reaches_the_waiters_of_every_process_after_one_load(
    connection: Connection, source: Source, error: Exception, expected: type[Exception]
) -> None:
    with tables(connection) as (one, two), ThreadPoolExecutor(8) as pool:
        source.hold()
        source.error = error
        leader = pool.submit(one.fetch, KEY, source)
        source.started()
        followers = [pool.submit(two.fetch, KEY, never) for _ in range(5)]
        joined(two, KEY, 5)
        following(two, KEY)
        source.go()
        assert leader.exception(PATIENCE) is error
        for each in followers:
            found = each.exception(PATIENCE)
            assert type(found) is expected
            if isinstance(found, Broken):
                assert found.code == 7
        assert source.count == 1
        source.error = None
        assert two.fetch(KEY, source) == 2


def test_a_value_that_is_not_kept_is_loaded_by_each_process_at_once_and_not_one_after_the_other(
    connection: Connection, source: Source
) -> None:
    with tables(connection, 3, ttl=0) as (one, *others), ThreadPoolExecutor(3) as pool:
        source.hold()
        leader = pool.submit(one.fetch, KEY, source)
        source.started()
        rest = Source()
        rest.hold()
        followers = [pool.submit(other.fetch, KEY, rest) for other in others]
        for other in others:
            following(other, KEY)
        source.go()
        assert leader.result(PATIENCE) == 1
        rest.started()
        rest.started()  # both at one time
        rest.go()
        assert {each.result(PATIENCE) for each in followers} == {1, 2}
        assert raw(connection, one) is None


def test_a_lease_is_renewed_for_as_long_as_the_load_takes(connection: Connection, source: Source) -> None:
    with tables(connection, lease=0.15) as (one, two), ThreadPoolExecutor(2) as pool:
        source.hold()
        leader = pool.submit(one.fetch, KEY, source)
        source.started()
        follower = pool.submit(two.fetch, KEY, never)
        following(two, KEY)
        client: Any = connection.client
        flight = cache_key(one.name, KEY, "flight")
        # When it ends stands in it.
        first = int(client.getrange(flight, 15, 27))
        eventually(lambda: int(client.getrange(flight, 15, 27)) > first + 300)
        source.go()
        assert leader.result(PATIENCE) == follower.result(PATIENCE) == 1


# News.


def test_each_process_hears_what_another_one_writes(connection: Connection, source: Source) -> None:
    writes: list[tuple[Callable[[Table], Any], Any]] = [
        (lambda table: table.invalidate(KEY), 9),
        (lambda table: table.put(KEY, "put", tags=("t",)), "put"),
        (lambda table: table.refresh(KEY, lambda: "anew", tags=("t",)), "anew"),
        (lambda table: table.invalidate_tags("t"), 9),
        (lambda table: table.clear(), 9),
    ]
    with tables(connection) as (one, two):
        for write, value in writes:
            one.invalidate(KEY)
            assert one.fetch(KEY, lambda: "old", tags=("t",)) == "old"
            eventually(lambda: two.fetch(KEY, lambda: "old", tags=("t",)) == "old")
            assert write(two)
            # Once the news is there, it is loaded or read anew.
            assert eventually(lambda value=value: one.fetch(KEY, lambda: 9, tags=("t",)) == value)
            assert two.fetch(KEY, lambda: 9, tags=("t",)) == value


def test_the_lane_tells_what_the_broadcast_did_not(connection: Connection, source: Source) -> None:
    lane: list[bytes] = []
    with tables(connection, coherence="lane", lane=lane.append) as (one, two):
        assert two.fetch(KEY, source) == 1
        one.invalidate(KEY)
        one.put(OTHER, "value")
        one.refresh(KEY, source)
        one.invalidate_tags("t")
        one.clear()
        messages = [read_coherence(message) for message in lane]
        assert all(messages)
        assert [len(message) for message in lane] == [29] * 5
        kinds = [message[0] for message in messages if message]
        assert kinds[:3] == [KEY, OTHER, KEY]
        assert [kind[:3] for kind in kinds[3:]] == ["TAG", "TAG"]
        for message in lane:
            assert two.apply(message)
        assert two.peek(KEY) is None


def test_a_lane_that_fails_is_tried_again_with_the_next_message(connection: Connection) -> None:
    lane: list[bytes] = []
    broken = [True]

    def send(message: bytes) -> None:
        if broken[0]:
            raise ConnectionError("the queue is away")
        lane.append(message)

    with tables(connection, 1, coherence="lane", lane=send) as (table,):
        table.invalidate(KEY)
        broken[0] = False
        table.invalidate(OTHER)
        assert [read_coherence(message)[0] for message in lane] == [KEY, OTHER]  # type: ignore[index]


# What stands on the server.


@pytest.mark.parametrize(
    "frame", [b"", b"short", b"ROW0KHTOWnGLu", b"\x00" * 20, b"ROW0KHTOWnGLuC", b"ROW0KHTOWnGLuCnot ours"]
)
def test_a_row_that_is_none_of_ours_is_a_miss(
    connection: Connection, source: Source, frame: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    client: Any = connection.client
    with tables(connection) as (one, two):
        client.set(cache_key(one.name, KEY), frame)
        assert one.peek(KEY) is None
        assert one.fetch(KEY, source) == 1
        assert two.fetch(KEY, never) == 1
        assert len(caplog.records) <= 1


def test_a_key_that_holds_something_else_is_in_nobodys_way(connection: Connection, source: Source) -> None:
    client: Any = connection.client
    with tables(connection, 1) as (table,):
        client.lpush(cache_key(table.name, KEY), "x")
        assert table.fetch(KEY, source) == 1
        assert table.fetch(KEY, source) == 1


def test_two_calls_that_share_an_id_never_get_each_others_value(connection: Connection) -> None:
    with tables(connection) as (one, two):
        for _ in range(2):
            assert one.fetch(Key(KEY, b"a" * 16), lambda: "a") == "a"
            assert two.fetch(Key(KEY, b"b" * 16), lambda: "b") == "b"
            assert two.peek(Key(KEY, b"a" * 16)) is None


def test_a_row_of_the_server_is_stale_here_when_it_is_stale_there(connection: Connection, source: Source) -> None:
    with tables(connection, ttl=0.05, stale=600, jitter=0) as (one, two):
        assert one.fetch(KEY, source) == 1
        client: Any = connection.client
        eventually(lambda: client.pttl(cache_key(one.name, KEY)) <= 600_000)
        source.hold()
        assert two.fetch(KEY, source, ttl=600) == 1
        assert two.stats().stale == 1
        source.started()
        source.started()
        source.go()
        assert eventually(lambda: two.fetch(KEY, source, ttl=600) == 2)


def test_an_early_refresh_is_made_by_one_process_for_all(connection: Connection, source: Source) -> None:
    with tables(connection, 4, ttl=600, jitter=0, refresh_ahead=0.0002) as made:
        assert [table.fetch(KEY, source) for table in made] == [1] * 4
        source.started()
        rows = [table._parts.l1.get(KEY) for table in made]  # noqa: SLF001 - to know that all are due
        eventually(lambda: all(row and time.monotonic() > row.early for row in rows))
        source.hold()
        assert made[0].fetch(KEY, source) == 1
        source.started()
        assert [table.fetch(KEY, source) for table in made[1:]] == [1] * 3
        # They have seen that it is taken care of, and do not wait for it.
        eventually(lambda: not any(len(table._parts.flights) for table in made[1:]))  # noqa: SLF001
        source.go()
        eventually(lambda: made[0].peek(KEY) == 2)
        assert source.count == 2
        assert [table.fetch(KEY, source) for table in made[1:]] == [1] * 3  # they have theirs as long as it is fresh


def test_a_users_own_cache_is_told_of_news_too(connection: Connection, source: Source) -> None:
    rows: Any = cachetools.LRUCache(10)
    with tables(connection, 1, l1=rows) as (one,), tables(connection, 1, name=one.name) as (two,):
        assert one.fetch(KEY, source) == 1
        two.invalidate(KEY)
        eventually(lambda: not len(rows))
        assert one.fetch(KEY, source) == 2


# The default server, and none.


@pytest.fixture
def fresh_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching, "_DEFAULT", reaching.Shared())


@pytest.mark.usefixtures("fresh_default")
def test_tables_without_a_connection_share_the_default_one(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, source: Source
) -> None:
    monkeypatch.setenv("EMQ_URL", server.url)
    name = f"default-{secrets.token_hex(4)}"
    one, two = Table(name, "ROW"), Table(name, "ROW")
    assert one.fetch(KEY, source) == two.fetch(KEY, never) == 1
    shared = one._parts.reach.shared  # type: ignore[union-attr]  # noqa: SLF001 - they are to be one
    assert shared is two._parts.reach.shared  # type: ignore[union-attr]  # noqa: SLF001
    one.close()
    two.close()
    shared.connection(None).close()


@pytest.mark.usefixtures("fresh_default")
def test_a_server_that_was_never_there_is_missed_by_nobody(
    monkeypatch: pytest.MonkeyPatch, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    monkeypatch.setenv("EMQ_URL", f"valkey://127.0.0.1:{port}")
    table = Table("away", "ROW")
    assert [table.fetch(KEY, source) for _ in range(3)] == [1] * 3
    assert not table.invalidate(KEY)
    assert not table.put(OTHER, [1])
    assert table.fetch(OTHER, never) == [1]
    assert table.refresh(KEY, source) == 2
    assert table.peek(brand("ROW", 9), "none") == "none"
    assert table.stats().away
    assert len(caplog.records) == 1
    give_back(port)


@pytest.mark.usefixtures("fresh_default")
def test_who_waits_while_another_one_tries_to_connect_does_not_try_too(
    monkeypatch: pytest.MonkeyPatch, source: Source
) -> None:
    tries, trying, go = [], threading.Event(), threading.Event()

    def connecting(config: object) -> Connection:
        tries.append(1)
        trying.set()
        assert go.wait(PATIENCE)
        raise ServerUnavailable("nobody answers")

    monkeypatch.setattr(reaching, "Connection", connecting)
    monkeypatch.setenv("EMQ_URL", "valkey://127.0.0.1:1")
    table = Table("slow", "ROW")
    with ThreadPoolExecutor(5) as pool:
        calls = [pool.submit(table.fetch, brand("ROW", number), source) for number in range(5)]
        assert trying.wait(PATIENCE)
        eventually(lambda: len(table._parts.flights) == 5)  # noqa: SLF001 - all are on their way
        go.set()
        assert {each.result(PATIENCE) for each in calls} == {1, 2, 3, 4, 5}
    assert len(tries) <= 2  # one who came just then may be the first to try again


def test_a_table_that_was_closed_begins_anew_and_checks_what_it_has(standalone: Connection, source: Source) -> None:
    with tables(standalone) as (one, two):
        assert one.fetch(KEY, source) == 1
        assert one.fetch(OTHER, lambda: "same") == "same"
        one.close()
        two.invalidate(KEY)
        assert one.fetch(KEY, source) == 2
        assert one.fetch(OTHER, never) == "same"
        two.invalidate(OTHER)
        assert eventually(lambda: one.fetch(OTHER, lambda: "new") == "new")


@pytest.mark.usefixtures("fresh_default")
def test_a_wrong_url_is_a_mistake_and_is_told_as_one(monkeypatch: pytest.MonkeyPatch, source: Source) -> None:
    monkeypatch.setenv("EMQ_URL", "gopher://nowhere")
    with pytest.raises(ConfigError):
        Table("wrong", "ROW").fetch(KEY, source)


# Many at once.


def test_eight_threads_and_ten_thousand_keys_show_nobody_what_he_knows_to_be_old(standalone: Connection) -> None:
    """Each thread writes and reads; what a write has told, or a read has shown, is known to all of its process."""
    ids = [brand("ROW", number) for number in range(10_000)]
    truth = [0] * len(ids)
    writing = threading.Lock()
    failures: list[str] = []

    def work(table: Table, known: dict[int, int], seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(1500):
            # Most of the traffic is on a few of the keys.
            number = int(len(ids) * chance.random() ** 6)
            if chance.random() < 0.2:
                how = chance.choice(["put", "refresh", "invalidate", "invalidate"])
                with writing:
                    truth[number] += 1
                    written = truth[number]
                    if how == "put":
                        # Of two at once, the last one wins, whichever was meant first.
                        table.put(ids[number], written)
                if how == "refresh":
                    table.refresh(ids[number], lambda number=number: truth[number])
                elif how == "invalidate":
                    table.invalidate(ids[number])
                known[number] = max(known[number], written)
            else:
                before = known[number]
                value = table.fetch(ids[number], lambda number=number: truth[number])
                if value < before:
                    failures.append(f"{number}: got {value}, knew of {before}")

    with tables(standalone, max_entries=2000) as made, ThreadPoolExecutor(8) as pool:
        known: list[dict[int, int]] = [defaultdict(int) for _ in made]
        calls = [pool.submit(work, made[seed % 2], known[seed % 2], seed) for seed in range(8)]
        for each in calls:
            each.result(PATIENCE)
        assert not failures
        # And in the end, all that is kept anywhere is the newest.
        hot = [number for number in range(300) if truth[number]]
        assert hot
        for table in made:
            eventually(
                lambda table=table: all(table.peek(ids[number], truth[number]) == truth[number] for number in hot)
            )
        stats = [table.stats() for table in made]
        assert all(each.hits > 0 and each.loads > 0 and each.entries <= 2000 for each in stats)
