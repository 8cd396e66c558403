"""A cache whose server is away or hangs: nobody waits for it for long, and all agree once it is back."""

from __future__ import annotations

import asyncio
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from support.caches import PATIENCE, Source, tables
from support.clocks import Clock
from support.eventually import eventually
from support.servers import ServerProcess

from echomq_tasks import cached
from echomq_tasks.cache import reach as reaching
from echomq_tasks.cache.beat import Beat
from echomq_tasks.cache.reach import Shared
from echomq_tasks.cache.table import Table
from echomq_tasks.cache.versions import VERSIONS
from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import InvalidArgument
from echomq_tasks.identity import brand
from echomq_tasks.scripts import Scripts

KEY, OTHER = brand("ROW", 1), brand("ROW", 2)


def reach_of(table: Table) -> Any:
    return table._parts.reach  # noqa: SLF001 - nothing else tells


def lost(table: Table, error: str = "gone") -> None:
    """Let the table's server be away for it."""
    reach_of(table).shared.breaker.failed(OSError(error))


def back(table: Table) -> None:
    """Let the next one try at once, as soon as it is known that the server is back."""
    reach_of(table).shared.breaker.hurry()


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A server that was lost stays so until a test says otherwise."""
    return Clock(monkeypatch)


# What is owed.


def test_a_put_that_the_server_was_not_told_serves_until_it_is_and_then_all_load_anew(standalone: Connection) -> None:
    with tables(standalone) as (here, there):
        for table in (here, there):
            assert table.fetch(KEY, lambda: "old") == "old"
        lost(here)
        assert not here.put(KEY, "put")
        assert not here.put(OTHER, "other")
        assert here.fetch(KEY, lambda: "not loaded") == "put"
        back(here)
        assert eventually(reach_of(here).pay, PATIENCE)
        # The writer at once, and also of the very last one that was put.
        assert [here.peek(KEY), here.peek(OTHER)] == [None, None]
        eventually(lambda: not there.holds(KEY), PATIENCE)
        assert there.fetch(KEY, lambda: "new") == "new"
        assert here.fetch(KEY, lambda: "not loaded") == "new"


def test_a_value_that_was_refreshed_while_the_server_was_away_goes_when_it_is_told(standalone: Connection) -> None:
    with tables(standalone) as (here, there):
        for table in (here, there):
            assert table.fetch(KEY, lambda: "old") == "old"
        lost(here)
        assert here.refresh(KEY, lambda: "fresh") == "fresh"
        assert here.fetch(KEY, lambda: "not loaded") == "fresh"
        back(here)
        assert eventually(reach_of(here).pay, PATIENCE)
        assert here.peek(KEY) is None
        eventually(lambda: not there.holds(KEY), PATIENCE)


def test_what_is_put_after_a_clear_that_was_not_told_goes_with_it(standalone: Connection) -> None:
    with tables(standalone, 1) as (table,):
        assert table.fetch(KEY, lambda: "old") == "old"
        lost(table)
        assert not table.clear()
        table.put(KEY, "put")
        assert table.peek(KEY) == "put"
        back(table)
        assert eventually(reach_of(table).pay, PATIENCE)
        assert table.peek(KEY) is None


def test_all_tables_pay_what_they_owe_once_one_of_them_has_found_the_server(
    standalone: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Which would pay every now and then.
    monkeypatch.setattr(Beat, "add", lambda beat, one: None)
    made = [Table(f"t{number}-{secrets.token_hex(4)}", "ROW", standalone) for number in range(3)]
    for table in made:
        assert table.fetch(KEY, lambda: "old") == "old"
    lost(made[0])
    for table in made[:2]:
        assert not table.invalidate(KEY)
    back(made[2])
    # The table that owes nothing looks.
    assert made[2].peek(KEY) is not None
    assert made[2].fetch(OTHER, lambda: "loaded") == "loaded"
    for table in made[:2]:
        eventually(lambda table=table: not reach_of(table).owed, PATIENCE)
        assert table.peek(KEY) is None


def test_a_task_does_not_read_on_the_server_what_is_still_owed(
    standalone: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Which would pay every now and then.
    monkeypatch.setattr(Beat, "add", lambda beat, one: None)
    ids = [brand("ROW", number) for number in range(10, 16)]
    with tables(standalone) as (here, there):
        for each in (KEY, *ids):
            assert there.fetch(each, lambda: "old") == "old"

        async def ask() -> str:
            # So many that the next one is looked for, by a way that asks nobody else.
            for each in ids:
                assert await here.afetch(each, lambda: "none") == "old"
            reach_of(here).owed.row(KEY, VERSIONS.mint("ROW"))
            return await here.afetch(KEY, lambda: "new")

        assert asyncio.run(ask()) == "new"


def test_what_was_loaded_before_anything_was_heard_is_looked_up(standalone: Connection) -> None:
    with tables(standalone) as (here, there):
        lost(here)
        assert here.fetch(KEY, lambda: "old") == "old"
        assert there.put(KEY, "new")
        back(here)
        eventually(lambda: here.fetch(OTHER, lambda: "other") and not here.stats().away, PATIENCE)
        here.peek(brand("ROW", 99))
        assert here.fetch(KEY, lambda: "none") == "new"


def test_a_payment_in_vain_is_not_tried_again_by_those_who_waited_for_it(standalone: Connection) -> None:
    with tables(standalone, 1) as (table,):
        assert table.fetch(KEY, lambda: "old") == "old"
        owed = reach_of(table).owed
        owed.row(KEY, VERSIONS.mint("ROW"))
        tries, entered, go = [], threading.Event(), threading.Event()

        class Hung:
            def drop_many(self, *args: Any) -> None:
                tries.append(args)
                entered.set()
                go.wait(PATIENCE)
                raise OSError("hung")

        begun: list[None] = []

        class Counted:
            def __init__(self) -> None:
                self.lock = threading.Lock()

            def __enter__(self) -> None:
                begun.append(None)
                self.lock.acquire()

            def __exit__(self, *_: object) -> None:
                self.lock.release()

        owed._paying = Counted()  # noqa: SLF001 - nothing else tells who waits

        def pay() -> Exception | None:
            try:
                owed.pay(Hung())
            except Exception as error:
                return error
            return None

        with ThreadPoolExecutor(4) as pool:
            first = pool.submit(pay)
            assert entered.wait(PATIENCE)
            others = [pool.submit(pay) for _ in range(3)]
            eventually(lambda: len(begun) == 4, PATIENCE)
            go.set()
            assert all(isinstance(each.result(PATIENCE), Exception) for each in [first, *others])
        assert len(tries) == 1


# A server that hangs.


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for long, and neither do the tests."""
    monkeypatch.setattr(reaching, "PATIENCE", 0.2)


def patient(server: ServerProcess) -> Connection:
    """A connection that would wait for longer than any test."""
    return connect(server.url, timeout=600, connect_timeout=600)


@pytest.mark.usefixtures("hasty")
def test_who_calls_goes_on_without_a_server_that_hangs(own_server: ServerProcess) -> None:
    with patient(own_server) as connection:
        table = Table("hung", "ROW", connection, loader_timeout=20)
        assert table.fetch(KEY, lambda: "old") == "old"
        with own_server.hung():
            # Threads that have a connection, those that need one, and the versions, whose node id is due.
            lease = Scripts.of(reach_of(table).shared.connection(None)).mint._node.__self__  # type: ignore[attr-defined]  # noqa: SLF001
            lease._fresh_until = 0.0  # noqa: SLF001
            with ThreadPoolExecutor(8) as pool:
                ids = [brand("ROW", number) for number in range(10, 18)]
                assert list(pool.map(lambda id: table.fetch(id, lambda: id), ids)) == ids
            assert reach_of(table).away
            assert not table.put(KEY, "put")
            assert table.fetch(KEY, lambda: "not loaded") == "put"
        connection.client.ping()
        back(table)
        assert eventually(reach_of(table).pay, PATIENCE)
        assert table.fetch(KEY, lambda: "new") == "new"


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("warm", [False, True])
def test_a_task_goes_on_without_a_server_that_hangs(own_server: ServerProcess, warm: bool) -> None:
    with patient(own_server) as connection:
        table = Table("hung", "ROW", connection)

        async def load() -> str:
            return "loaded"

        async def main() -> None:
            if warm:
                # Enough for the loop to have a connection of its own.
                for number in range(100, 120):
                    id = brand("ROW", number)
                    await table.arefresh(id, load)
                    table._parts.l1.clear()  # noqa: SLF001 - as another process has it
                    assert await table.afetch(id, load) == "loaded"
            with own_server.hung():
                assert await table.afetch(KEY, load) == "loaded"
                assert reach_of(table).away

        asyncio.run(main())


@pytest.mark.usefixtures("hasty")
def test_the_first_call_of_all_goes_on_without_a_server_that_hangs(
    own_server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaching, "_DEFAULT", Shared())
    monkeypatch.setenv("EMQ_URL", f"{own_server.url}?timeout=600&connect_timeout=600")
    table = Table("hung", "ROW")
    with own_server.hung():
        assert table.fetch(KEY, lambda: "loaded") == "loaded"
        assert not table.invalidate(KEY)


def test_the_cache_is_not_more_patient_than_the_connection_it_was_given(standalone: Connection) -> None:
    with Connection(replace(standalone.config, timeout=0.5, connect_timeout=7.0)) as given:
        own = Shared.of(given).connection(Shared.of(given).config())
        assert (own.config.timeout, own.config.connect_timeout) == (0.5, reaching.PATIENCE)
        assert Shared.of(given).config() is None
        assert replace(own.config, timeout=1, connect_timeout=1) == replace(given.config, timeout=1, connect_timeout=1)


# A function that calls itself by another name.


def test_two_functions_of_one_name_of_which_one_calls_the_other_do_not_wait_for_each_other(
    connection: Connection,
) -> None:
    name, loads = f"twins-{secrets.token_hex(4)}", []

    def bare(x: int) -> int:
        loads.append(x)
        return 2 * x

    inner = cached(ttl=60, wait=PATIENCE, connection=connection, name=name)(bare)

    def outer(x: int) -> int:
        return inner(x)

    outer.__qualname__, outer.__module__ = bare.__qualname__, bare.__module__
    twin = cached(ttl=60, wait=PATIENCE, connection=connection, name=name)(outer)
    assert twin(3) == 6
    assert loads == [3]
    # It is on the server, for both.
    assert (twin(3), inner(3), loads) == (6, 6, [3])

    async def abare(x: int) -> int:
        loads.append(x)
        return 3 * x

    ainner = cached(ttl=60, wait=PATIENCE, connection=connection, name=name)(abare)

    async def aouter(x: int) -> int:
        return await ainner(x)

    aouter.__qualname__, aouter.__module__ = abare.__qualname__, abare.__module__
    assert asyncio.run(cached(ttl=60, wait=PATIENCE, connection=connection, name=name)(aouter)(4)) == 12
    assert loads == [3, 4]


def test_what_is_cached_already_is_not_cached_again() -> None:
    @cached(l2=False)
    def one(x: int) -> int:
        return x

    shapes: list[Any] = [one, classmethod(one), staticmethod(one)]
    for again in shapes:
        with pytest.raises(InvalidArgument, match=r"one\(\) is cached already"):
            cached(ttl=5)(again)


def test_a_loader_that_hangs_here_does_not_fail_those_who_ask_elsewhere(standalone: Connection) -> None:
    with tables(standalone, loader_timeout=0.02) as (here, there):
        source = Source()
        source.hold()
        with pytest.raises(Exception, match="hard loader_timeout"):
            here.fetch(KEY, source)
        with pytest.raises(Exception, match="still runs"):
            here.fetch(KEY, source)
        eventually(lambda: there.peek(KEY) is None, PATIENCE)
        assert there.fetch(KEY, lambda: "loaded") == "loaded"
        # What the server has is given here, too.
        assert here.fetch(KEY, source) == "loaded"
        source.go()
