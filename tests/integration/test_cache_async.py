"""Tables in event loops: nothing blocks, threads and other processes share the loads, and all can be cancelled."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.caches import PATIENCE, Source, following, joined, tables
from support.eventually import eventually

from echomq_tasks.cache.table import Table
from echomq_tasks.connection import Connection
from echomq_tasks.identity import brand
from echomq_tasks.keyspace import cache_key

KEY, OTHER = brand("ROW", 1), brand("ROW", 2)


class Broken(Exception):
    pass


async def never() -> Any:
    raise AssertionError("nothing is to be loaded")


def test_tasks_of_several_processes_share_one_load(connection: Connection) -> None:
    async def main(made: list[Table]) -> list[Any]:
        count = 0

        async def loader() -> list[int]:
            nonlocal count
            count += 1
            await asyncio.gather(*(asyncio.to_thread(joined, table, KEY, 10) for table in made))
            return [count]

        return await asyncio.gather(*(table.afetch(KEY, loader) for table in made for _ in range(10)))

    with tables(connection, 3) as made:
        values = asyncio.run(main(made))
        assert values == [[1]] * 30
        assert len({id(value) for value in values}) == 30
        assert sum(table.stats().loads for table in made) == 1
        assert asyncio.run(made[1].afetch(KEY, never)) == [1]


@pytest.mark.parametrize("leader", ["thread", "task"])
@pytest.mark.parametrize("fails", [False, True])
def test_threads_and_tasks_of_two_processes_share_one_load_and_its_error(
    standalone: Connection, leader: str, fails: bool
) -> None:
    source = Source()
    source.hold()
    source.error = Broken("no") if fails else None

    async def aload() -> int:
        return await asyncio.to_thread(source)

    def outcome(call: Any) -> Any:
        try:
            return call()
        except Broken as error:
            return str(error)

    async def tasks(table: Table, count: int) -> list[Any]:
        found = await asyncio.gather(*(table.afetch(KEY, aload) for _ in range(count)), return_exceptions=True)
        return [str(each) if isinstance(each, Broken) else each for each in found]

    with tables(standalone) as (one, two), ThreadPoolExecutor(12) as pool:
        first = pool.submit(
            outcome, lambda: one.fetch(KEY, source) if leader == "thread" else asyncio.run(one.afetch(KEY, aload))
        )
        source.started()
        calls = [
            pool.submit(outcome, lambda table=table: table.fetch(KEY, source)) for table in (one, two) for _ in range(3)
        ]
        loops = [pool.submit(asyncio.run, tasks(table, 4)) for table in (one, two)]
        joined(one, KEY, 8)
        joined(two, KEY, 7)
        following(two, KEY)
        source.go()
        values = [first.result(PATIENCE)] + [each.result(PATIENCE) for each in calls]
        values += [value for each in loops for value in each.result(PATIENCE)]
        assert values == ["no" if fails else 1] * 15
        assert source.count == 1


def test_the_loop_goes_on_while_its_tasks_wait_for_the_server(connection: Connection) -> None:
    """The server takes no writes until the loop has turned, which it would not do while a task blocks it."""

    async def main(table: Table) -> int:
        await table.afetch(OTHER, value)
        client: Any = connection.client
        if connection.is_cluster:
            client = client.get_redis_connection(client.get_node_from_key(cache_key(table.name, KEY).decode()))
        client.client_pause(60_000, all=False)
        try:
            asking = asyncio.create_task(table.afetch(KEY, value))
            await asyncio.to_thread(eventually, lambda: client.info("clients")["blocked_clients"])
            for _ in range(10):
                await asyncio.sleep(0)
            assert not asking.done()
        finally:
            client.client_unpause()
        return await asking

    async def value() -> int:
        return 7

    with tables(connection, 1) as (table,):
        assert asyncio.run(main(table)) == 7
        assert table.stats().skipped == 0


def test_a_cancelled_leader_does_not_fail_followers_here_or_in_another_process(standalone: Connection) -> None:
    async def main(one: Table, two: Table) -> list[Any]:
        begun, go = asyncio.Event(), asyncio.Event()
        count = 0

        async def loader() -> int:
            nonlocal count
            count += 1
            begun.set()
            await go.wait()
            return count

        leader = asyncio.create_task(one.afetch(KEY, loader))
        await begun.wait()
        followers = [asyncio.create_task(table.afetch(KEY, loader)) for table in (one, two)]
        await asyncio.to_thread(joined, one, KEY, 2)
        await asyncio.to_thread(following, two, KEY)
        leader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leader
        go.set()
        return await asyncio.gather(*followers)

    with tables(standalone) as (one, two):
        assert asyncio.run(main(one, two)) == [1, 1]


@pytest.mark.parametrize("when", ["claiming", "loading"])
def test_a_load_that_all_have_cancelled_leaves_no_lease_behind(standalone: Connection, when: str) -> None:
    """Who waits in another process takes over at once, and not when the lease ends."""

    async def main(table: Table) -> None:
        begun = asyncio.Event()

        async def forever() -> None:
            begun.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(table.afetch(KEY, forever))
        if when == "loading":
            await begun.wait()
            await asyncio.to_thread(taken.set)
            await asyncio.to_thread(following, other, KEY)
        else:
            await asyncio.sleep(0)
            taken.set()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    taken = threading.Event()
    source = Source()
    with tables(standalone, lease=3600.0) as (one, other), ThreadPoolExecutor(2) as pool:
        other.peek(KEY)
        one.peek(KEY)
        leading = pool.submit(asyncio.run, main(one))
        assert taken.wait(PATIENCE)
        assert pool.submit(other.fetch, KEY, source).result(PATIENCE) == 1
        leading.result(PATIENCE)


def test_a_loop_that_ends_with_a_load_on_its_way_hands_over(standalone: Connection) -> None:
    source = Source()
    begun = threading.Event()

    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def main(one: Table, two: Table) -> None:
        task = asyncio.create_task(one.afetch(KEY, forever))
        await asyncio.to_thread(following, two, KEY)
        assert not task.done()

    with tables(standalone, lease=3600.0) as (one, two), ThreadPoolExecutor(2) as pool:
        leading = pool.submit(asyncio.run, main(one, two))
        assert begun.wait(PATIENCE)
        assert pool.submit(two.fetch, KEY, source).result(PATIENCE) == 1
        leading.result(PATIENCE)


def test_an_async_refresh_is_told_to_the_others(connection: Connection) -> None:
    async def new() -> str:
        return "new"

    with tables(connection) as (one, two):
        assert two.fetch(KEY, lambda: "old") == "old"
        assert asyncio.run(one.arefresh(KEY, new)) == "new"
        eventually(lambda: two.fetch(KEY, lambda: "none") == "new")


def test_many_tasks_load_many_keys_at_once(standalone: Connection) -> None:
    async def main(table: Table) -> list[int]:
        async def load(number: int) -> int:
            await asyncio.sleep(0)
            return number

        ids = [brand("ROW", number) for number in range(40)]
        return await asyncio.gather(
            *(table.afetch(ids[number % 40], lambda number=number: load(number % 40)) for number in range(400))
        )

    with tables(standalone, 1) as (table,):
        assert asyncio.run(main(table)) == [number % 40 for number in range(400)]
        assert table.stats().loads == 40
