"""The cache where processes, servers and connections end: no caller is told, and nobody waits for the dead."""

from __future__ import annotations

import asyncio
import os
import secrets
import select
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.caches import PATIENCE, Source, following, follows, joined, suspects, tables
from support.children import Child, in_child
from support.counting import commands
from support.eventually import eventually
from support.live import kill_listeners
from support.servers import ServerProcess

from echomq_tasks.cache.table import Table
from echomq_tasks.connection import Connection, connect
from echomq_tasks.identity import brand
from echomq_tasks.keyspace import cache_key

pytestmark = pytest.mark.chaos

KEY, OTHER = brand("ROW", 1), brand("ROW", 2)
PROCESSES, CALLERS = 4, 50


def never() -> Any:
    raise AssertionError("nothing is to be loaded")


@pytest.fixture
def source() -> Source:
    return Source()


# The herd.


class Broken(Exception):
    """What the loader of the herd raises."""


class Herd:
    """Four processes with fifty callers each; all of them ask before the load that one of them leads may end."""

    def __init__(self, url: str, fails: bool, mixed: bool) -> None:
        self.url, self.fails, self.mixed = url, fails, mixed
        self.table = f"herd-{secrets.token_hex(4)}"
        self.told, self.orders = [os.pipe() for _ in range(PROCESSES)], [os.pipe() for _ in range(PROCESSES)]

    def run(self, connection: Connection) -> tuple[list[Any], int, int]:
        """What each caller got, how many loads there were, and how many commands the server ran for it."""
        children = [Child(lambda number=number: self.process(number)) for number in range(PROCESSES)]
        try:
            self.hear_all()
            before = sum(commands(connection).values())
            self.order_all()
            self.hear_all()
            self.order_all()
            self.hear_all()
            asked = sum(commands(connection).values()) - before
            self.order_all()
        finally:
            results = [child.result() for child in children]
        return [value for values, _ in results for value in values], sum(loads for _, loads in results), asked

    def hear_all(self) -> None:
        for reading, _ in self.told:
            assert select.select([reading], [], [], PATIENCE)[0], "a process of the herd does not come"
            assert os.read(reading, 1)

    def order_all(self) -> None:
        for _, writing in self.orders:
            os.write(writing, b"!")

    def process(self, number: int) -> tuple[list[Any], int]:
        loads, go = [], threading.Event()

        def loader() -> list[int]:
            loads.append(number)
            assert go.wait(PATIENCE)
            if self.fails:
                raise Broken("no")
            return [7]

        async def aload() -> list[int]:
            return await asyncio.to_thread(loader)

        def call(table: Table) -> Any:
            try:
                return table.fetch(KEY, loader)
            except Exception as error:
                return type(error).__name__, str(error)

        async def tasks(table: Table, count: int) -> list[Any]:
            found = await asyncio.gather(*(table.afetch(KEY, aload) for _ in range(count)), return_exceptions=True)
            return [(type(each).__name__, str(each)) if isinstance(each, Exception) else each for each in found]

        with connect(self.url) as connection, ThreadPoolExecutor(CALLERS) as pool:
            table = Table(self.table, "ROW", connection)
            table.fetch(brand("ROW", 100 + number), int)  # it is connected, hears, and has a node id to mint with
            os.write(self.told[number][1], b".")
            assert os.read(self.orders[number][0], 1)
            count = CALLERS // 2 if self.mixed else CALLERS
            calls = [pool.submit(call, table) for _ in range(count)]
            loop = pool.submit(asyncio.run, tasks(table, CALLERS - count)) if self.mixed else None
            joined(table, KEY, CALLERS)
            eventually(lambda: loads or follows(table, KEY), PATIENCE)
            os.write(self.told[number][1], b".")
            assert os.read(self.orders[number][0], 1)
            go.set()
            values = [each.result(PATIENCE) for each in calls] + (loop.result(PATIENCE) if loop else [])
            # What they report when they end is not for the herd.
            os.write(self.told[number][1], b".")
            assert os.read(self.orders[number][0], 1)
            table.close()
        return values, len(loads)


@pytest.mark.parametrize("fails", [False, True], ids=["value", "error"])
@pytest.mark.parametrize("mixed", [False, True], ids=["threads", "threads-and-tasks"])
def test_a_herd_of_four_processes_makes_one_load_and_few_commands(
    standalone: Connection, server: ServerProcess, fails: bool, mixed: bool
) -> None:
    values, loads, asked = Herd(server.url, fails, mixed).run(standalone)
    assert values == [("Broken", "no") if fails else [7]] * (PROCESSES * CALLERS)
    assert loads == 1
    assert asked <= 50


# The server.


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_server_that_is_killed_is_missed_by_no_caller(
    own_server: ServerProcess, source: Source, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(own_server.url) as connection, tables(connection) as (one, two), ThreadPoolExecutor(4) as pool:
        assert one.fetch(OTHER, lambda: "there") == two.fetch(OTHER, never) == "there"
        if when == "before":
            own_server.kill()
        source.hold()
        leader = pool.submit(one.fetch, KEY, source)
        source.started()
        if when == "during":
            follower = pool.submit(two.fetch, KEY, source)
            following(two, KEY)
            own_server.kill()
            source.started()  # it is not waited for any more
            source.go()
            assert follower.result(PATIENCE) in (1, 2)
        source.go()
        assert leader.result(PATIENCE) in (1, 2)
        if when == "after":
            own_server.kill()
        # What is there serves on, loads are shared, and what is written is kept here.
        assert one.fetch(KEY, never) in (1, 2)
        assert one.fetch(OTHER, never) == two.fetch(OTHER, never) == "there"
        assert one.invalidate(OTHER) is False
        assert one.fetch(OTHER, lambda: "anew") == "anew"
        assert one.stats().away
        own_server.start()
        # Its news reach the others once it is back, whatever it has lost.
        eventually(lambda: one.invalidate(KEY), PATIENCE)
        eventually(lambda: two.fetch(OTHER, lambda: "anew") == "anew", PATIENCE)
        assert not one.stats().away
        lines = [record.getMessage() for record in caplog.records if "goes on without" in record.getMessage()]
        assert 1 <= len(lines) <= 4  # each of the two processes, and its first command or its ear


def test_what_was_dropped_while_the_server_was_away_is_told_without_anybody_asking(own_server: ServerProcess) -> None:
    with connect(own_server.url) as connection, tables(connection) as (one, two):
        assert one.fetch(KEY, lambda: "old") == two.fetch(KEY, never) == "old"
        own_server.kill()
        assert not one.invalidate(KEY)
        own_server.start()  # it has kept the old value
        eventually(lambda: two.fetch(KEY, lambda: "new") == "new", PATIENCE)


def test_rows_are_checked_after_the_connection_was_lost_and_neither_trusted_nor_thrown_away(
    own_server: ServerProcess, source: Source
) -> None:
    with connect(own_server.url) as connection, tables(connection) as (one, two):
        assert two.fetch(KEY, lambda: "old") == one.fetch(KEY, never) == "old"
        assert two.fetch(OTHER, lambda: "same") == one.fetch(OTHER, never) == "same"
        for _ in range(3):
            kill_listeners(connection)
            eventually(lambda: suspects(one, KEY) and suspects(one, OTHER), PATIENCE)
            before = one.stats()
            assert one.fetch(OTHER, never) == "same"
            assert not suspects(one, OTHER)
            assert one.stats().l2_hits == before.l2_hits
        two.invalidate(KEY)
        eventually(lambda: one.fetch(KEY, lambda: "new") == "new", PATIENCE)


def test_a_wake_that_was_missed_is_made_up_for(own_server: ServerProcess, source: Source) -> None:
    """The follower's connection drops while it waits; the leader's lease would end in an hour."""
    with (
        connect(own_server.url) as connection,
        tables(connection, lease=3600.0) as (one, two),
        ThreadPoolExecutor(2) as pool,
    ):
        source.hold()
        leader = pool.submit(one.fetch, KEY, source)
        source.started()
        follower = pool.submit(two.fetch, KEY, never)
        for _ in range(5):
            following(two, KEY)
            kill_listeners(connection)
        source.go()
        assert leader.result(PATIENCE) == follower.result(PATIENCE) == 1


def test_a_server_without_memory_still_serves_and_shares_nothing_new(
    own_server: ServerProcess, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(own_server.url) as connection, tables(connection) as (one, two), ThreadPoolExecutor(4) as pool:
        assert one.fetch(OTHER, lambda: "there") == "there"
        own_server.client().config_set("maxmemory", 1)
        assert two.fetch(OTHER, never) == "there"
        source.hold()
        leader = pool.submit(one.fetch, KEY, source)
        source.started()
        follower = pool.submit(two.fetch, KEY, source)
        following(two, KEY)
        source.go()
        assert {leader.result(PATIENCE), follower.result(PATIENCE)} == {1, 2}  # it could not be handed over
        assert one.fetch(KEY, never) in (1, 2)
        assert one.put(OTHER, "put")
        assert one.peek(OTHER) == "put"
        eventually(lambda: two.fetch(OTHER, lambda: "loaded") == "loaded")
        assert not one.stats().away
        assert own_server.client().exists(cache_key(one.name, KEY)) == 0
        own_server.client().config_set("maxmemory", 0)
        one.put(KEY, "kept")
        eventually(lambda: two.fetch(KEY, never) == "kept")
        told = [record.getMessage() for record in caplog.records if "cache table" in record.getMessage()]
        assert len(told) == 3  # each once that it is full, and one that it is not any more


# Processes.


def child_that_leads(url: str, name: str) -> Child:
    """A process that leads a load for ever; its result does not come."""

    def lead() -> None:
        with connect(url) as connection:
            table = Table(name, "ROW", connection, lease=0.5)
            table.fetch(KEY, lambda: threading.Event().wait())

    return Child(lead)


def test_a_leader_that_is_killed_is_replaced_when_its_lease_ends(
    standalone: Connection, server: ServerProcess, source: Source
) -> None:
    with tables(standalone, lease=0.5) as (one, two), ThreadPoolExecutor(4) as pool:
        child = child_that_leads(server.url, one.name)
        client: Any = standalone.client
        flight = cache_key(one.name, KEY, "flight")
        eventually(lambda: client.exists(flight), PATIENCE)
        calls = [pool.submit(table.fetch, KEY, source) for table in (one, two) for _ in range(2)]
        following(one, KEY)
        following(two, KEY)
        os.kill(child.pid, signal.SIGKILL)
        assert [each.result(PATIENCE) for each in calls] == [1] * 4
        assert source.count == 1
        with pytest.raises(AssertionError, match="died without an answer"):
            child.result()


def forks_of(table: Table) -> dict[str, Callable[[], Any]]:
    return {
        "fetch": lambda: table.fetch(KEY, lambda: "child"),
        "afetch": lambda: asyncio.run(table.afetch(KEY, _child)),
        "other": lambda: table.fetch(OTHER, lambda: "child"),
    }


async def _child() -> str:
    return "child"


def test_a_fork_inside_of_a_load_leaves_the_load_to_the_parent(standalone: Connection, source: Source) -> None:
    with tables(standalone) as (one, two):
        in_loader: list[Any] = []

        def forks() -> str:
            # The loader goes on in the child too; its lease is not the child's to end, and its value not to store.
            pid = os.fork()
            if pid == 0:
                return "of the child"
            in_loader.append(pid)
            os.waitpid(pid, 0)
            assert two.stats().loads == 0
            return "of the parent"

        parent = os.getpid()
        value = one.fetch(KEY, forks)
        if os.getpid() != parent:
            os._exit(0 if value == "of the child" else 1)
        assert value == "of the parent"
        assert two.fetch(KEY, never) == "of the parent"
        assert len(in_loader) == 1


@pytest.mark.parametrize("what", ["fetch", "afetch", "other"])
def test_a_fork_beside_a_load_asks_as_any_other_process(standalone: Connection, source: Source, what: str) -> None:
    with tables(standalone, 1) as (table,), ThreadPoolExecutor(2) as pool:
        table.fetch(brand("ROW", 3), lambda: 3)
        source.hold()
        leader = pool.submit(table.fetch, KEY, source)
        source.started()
        child = Child(forks_of(table)[what])
        if what == "other":
            assert child.result() == "child"
            source.go()
        else:
            # It follows its parent's load, as it is on the server.
            client: Any = standalone.client
            flight = cache_key(table.name, KEY, "flight")
            eventually(lambda: client.getrange(flight, 14, 14) == b"1", PATIENCE)
            source.go()
            assert child.result() == 1
        assert leader.result(PATIENCE) == 1


def test_a_fork_checks_the_rows_that_it_inherits(standalone: Connection) -> None:
    with tables(standalone) as (one, two):
        assert one.fetch(KEY, lambda: "old") == one.fetch(OTHER, lambda: "old") == "old"

        def child() -> tuple[bool, Any, Any, int]:
            was_suspect = suspects(one, KEY)
            two.invalidate(OTHER)
            return was_suspect, one.fetch(KEY, never), one.fetch(OTHER, lambda: "new"), one.stats().hits

        assert in_child(child) == (True, "old", "new", 1)
        eventually(lambda: one.fetch(OTHER, never) == "new", PATIENCE)


def test_news_reach_a_fork_and_its_parent_alike(standalone: Connection) -> None:
    with tables(standalone) as (one, two):
        assert one.fetch(KEY, lambda: "old") == "old"
        reading, writing = os.pipe()

        def child() -> str:
            assert one.fetch(KEY, never) == "old"
            os.write(writing, b".")
            eventually(lambda: one.fetch(KEY, lambda: "new") == "new", PATIENCE)
            return "heard"

        forked = Child(child)
        assert os.read(reading, 1)
        two.invalidate(KEY)
        assert forked.result() == "heard"
        eventually(lambda: one.fetch(KEY, never) == "new", PATIENCE)
