"""A table of one process, without a server: loads are shared, values isolated, and freshness is what was asked for."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import cachetools
import pytest
from support.children import in_child
from support.clocks import Clock
from support.eventually import eventually

from echomq_tasks.cache.keys import Key
from echomq_tasks.cache.table import Table, tables
from echomq_tasks.errors import InvalidArgument, InvalidId, InvalidName, JobCancelled, LoadTimeout, Unencodable
from echomq_tasks.identity import brand

PATIENCE = 20.0
KEY, OTHER = brand("ROW", 1), brand("ROW", 2)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def alone(**options: Any) -> Table:
    return Table("alone", "ROW", l2=False, **{"jitter": 0.0, **options})


class Source:
    """A loader whose n-th value is n, and which can be held up and made to fail."""

    def __init__(self) -> None:
        self.count = 0
        self.running = threading.Semaphore(0)
        self.go = threading.Event()
        self.go.set()
        self.error: BaseException | None = None

    def __call__(self) -> Any:
        self.count += 1
        mine = self.count
        self.running.release()
        assert self.go.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return mine

    async def aload(self) -> Any:
        return await asyncio.to_thread(self)

    def hold(self) -> None:
        self.go.clear()

    def started(self) -> None:
        assert self.running.acquire(timeout=PATIENCE)


@pytest.fixture
def source() -> Source:
    return Source()


def waiting(table: Table, count: int) -> None:
    """Wait until so many callers wait for the flight of KEY."""
    flights = table._parts.flights._flights  # noqa: SLF001 - nothing tells how many wait
    eventually(lambda: KEY in flights and flights[KEY].waiters >= count)


# One load.


def test_threads_and_the_tasks_of_several_loops_share_one_load(source: Source) -> None:
    table = alone()
    source.hold()

    async def tasks() -> list[Any]:
        return await asyncio.gather(*(table.afetch(KEY, source.aload) for _ in range(5)))

    with ThreadPoolExecutor(12) as pool:
        threads = [pool.submit(table.fetch, KEY, source) for _ in range(10)]
        loops = [pool.submit(asyncio.run, tasks()) for _ in range(2)]
        waiting(table, 20)
        source.go.set()
        values = [each.result() for each in threads] + [value for each in loops for value in each.result()]
    assert values == [1] * 20
    stats = table.stats()
    assert (stats.loads, stats.coalesced) == (1, 19)


@pytest.mark.parametrize("leader", ["thread", "task"])
def test_an_error_reaches_all_who_wait_after_one_load_and_is_not_kept(source: Source, leader: str) -> None:
    table = alone()
    source.hold()
    source.error = KeyError("boom")

    async def tasks() -> list[Any]:
        calls = [table.afetch(KEY, source.aload) for _ in range(5)]
        return await asyncio.gather(*calls, return_exceptions=True)

    def fetch() -> Any:
        try:
            return table.fetch(KEY, source)
        except KeyError as error:
            return error

    with ThreadPoolExecutor(12) as pool:
        threads = [pool.submit(fetch) for _ in range(5 if leader == "thread" else 0)]
        if threads:
            source.started()
        loop = pool.submit(asyncio.run, tasks())
        if not threads:
            source.started()
            threads = [pool.submit(fetch) for _ in range(5)]
        waiting(table, 10)
        source.go.set()
        errors = [each.result() for each in threads] + loop.result()
    assert [type(each) for each in errors] == [KeyError] * 10
    assert source.count == 1
    source.error = None
    assert table.fetch(KEY, source) == 2


def test_none_is_a_value_like_any_other(source: Source) -> None:
    table = alone()
    assert table.fetch(KEY, lambda: None) is None
    assert table.fetch(KEY, source) is None
    assert table.peek(KEY, "nothing") is None
    assert table.peek(OTHER, "nothing") == "nothing"


def test_calls_that_share_an_id_are_told_apart() -> None:
    table = alone()
    assert table.fetch(Key(KEY, b"a" * 16), lambda: "a") == "a"
    assert table.fetch(Key(KEY, b"b" * 16), lambda: "b") == "b"
    assert table.fetch(KEY, lambda: "c") == "c"
    assert table.peek(Key(KEY, b"b" * 16)) is None


# Recursion.


def test_a_loader_that_asks_for_its_own_key_loads_it_directly() -> None:
    table, depth = alone(), []

    def loader() -> int:
        depth.append(1)
        return 1 + table.fetch(KEY, loader) if len(depth) < 3 else 0

    assert table.fetch(KEY, loader) == 2
    assert table.peek(KEY) == 2


def test_an_async_loader_that_asks_for_its_own_key_loads_it_directly() -> None:
    table, depth = alone(), []

    async def loader() -> int:
        depth.append(1)
        return 1 + await asyncio.create_task(table.afetch(KEY, loader)) if len(depth) < 3 else 0

    assert asyncio.run(table.afetch(KEY, loader)) == 2


def test_loaders_of_two_threads_that_ask_for_each_others_keys_both_end() -> None:
    table, meet = alone(wait=None), threading.Barrier(2)

    def loader(mine: str, other: str) -> str:
        if meet.n_waiting < 2 and not meet.broken:
            meet.wait(PATIENCE)
        return mine + table.fetch(other, lambda: "direct")

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(table.fetch, KEY, lambda: loader(KEY, OTHER))
        two = pool.submit(table.fetch, OTHER, lambda: loader(OTHER, KEY))
        values = {one.result(PATIENCE), two.result(PATIENCE)}
    # One of them finds that to wait would take for ever, and the other one waits for it.
    assert values in ({KEY + "direct", OTHER + KEY + "direct"}, {OTHER + "direct", KEY + OTHER + "direct"})


def test_a_loop_that_asks_from_a_plain_function_for_what_its_own_task_loads_gets_it() -> None:
    table = alone(wait=None)

    async def main() -> tuple[str, str]:
        begun, go = asyncio.Event(), asyncio.Event()

        async def loader() -> str:
            begun.set()
            await go.wait()
            return "task"

        task = asyncio.create_task(table.afetch(KEY, loader))
        await begun.wait()
        value = table.fetch(KEY, lambda: "direct")
        go.set()
        return value, await task

    assert asyncio.run(main()) == ("direct", "task")


# Who gives up.


def test_a_cancelled_leader_does_not_fail_its_followers_and_its_load_goes_on(source: Source) -> None:
    table = alone()
    source.hold()

    async def main() -> Any:
        leader = asyncio.create_task(table.afetch(KEY, source.aload))
        await asyncio.to_thread(source.started)
        followers = [asyncio.create_task(table.afetch(KEY, source.aload)) for _ in range(3)]
        await asyncio.to_thread(waiting, table, 4)
        leader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leader
        source.go.set()
        return await asyncio.gather(*followers)

    assert asyncio.run(main()) == [1, 1, 1]
    assert source.count == 1


def test_a_load_that_nobody_waits_for_any_more_is_cancelled() -> None:
    table = alone()

    async def main() -> bool:
        cancelled, begun = asyncio.Event(), asyncio.Event()

        async def loader() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        callers = [asyncio.create_task(table.afetch(KEY, loader)) for _ in range(3)]
        await begun.wait()
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        await cancelled.wait()
        return await table.afetch(KEY, _true)

    assert asyncio.run(main())


async def _true() -> bool:
    return True


def test_followers_in_other_threads_take_over_when_the_leaders_loop_ends(source: Source) -> None:
    table = alone()
    begun = threading.Event()

    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def main() -> None:
        # The loop ends with its task still on its way, and cancels it.
        task = asyncio.create_task(table.afetch(KEY, forever))
        await asyncio.to_thread(waiting, table, 2)
        assert not task.done()

    with ThreadPoolExecutor(2) as pool:
        leading = pool.submit(asyncio.run, main())
        assert begun.wait(PATIENCE)
        assert pool.submit(table.fetch, KEY, source).result(PATIENCE) == 1
        leading.result(PATIENCE)


class Interrupt(BaseException):
    """As what a time limit throws into a thread."""


@pytest.mark.parametrize(
    "error", [Interrupt(), KeyboardInterrupt(), SystemExit(), JobCancelled("asked to stop")], ids=repr
)
def test_a_leader_that_is_interrupted_hands_over_to_a_follower(source: Source, error: BaseException) -> None:
    table, leading = alone(), threading.Event()

    def lead() -> None:
        leading.set()
        waiting(table, 3)
        raise error

    with ThreadPoolExecutor(3) as pool:
        leader = pool.submit(table.fetch, KEY, lead)
        assert leading.wait(PATIENCE)
        followers = [pool.submit(table.fetch, KEY, source) for _ in range(2)]
        with pytest.raises(type(error)):
            leader.result(PATIENCE)
        assert [each.result(PATIENCE) for each in followers] == [1, 1]


def test_a_cancelled_job_ends_its_own_async_call_alone(source: Source) -> None:
    table = alone()

    async def main() -> Any:
        begun = asyncio.Event()

        async def lead() -> None:
            begun.set()
            await asyncio.to_thread(waiting, table, 2)
            raise JobCancelled("asked to stop")

        leader = asyncio.create_task(table.afetch(KEY, lead))
        await begun.wait()
        follower = asyncio.create_task(table.afetch(KEY, source.aload))
        with pytest.raises(JobCancelled):
            await leader
        return await follower

    assert asyncio.run(main()) == 1


def test_followers_wait_only_so_long_and_the_leader_goes_on(source: Source) -> None:
    table = alone(wait=0.01)
    source.hold()
    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(table.fetch, KEY, source)
        source.started()
        with pytest.raises(LoadTimeout, match=r"wait="):
            table.fetch(KEY, source)
        with pytest.raises(TimeoutError):
            asyncio.run(table.afetch(KEY, source.aload))
        source.go.set()
        assert leader.result(PATIENCE) == 1
    assert source.count == 1


def test_a_fork_in_a_loader_returns_in_the_child_and_changes_nothing_for_the_parent(source: Source) -> None:
    table = alone()

    def forks() -> str:
        return f"parent of {in_child(lambda: table.fetch(KEY, lambda: 'child'))}"

    assert table.fetch(KEY, forks) == "parent of child"
    assert table.peek(KEY) == "parent of child"


def test_a_fork_beside_a_load_loads_by_itself(source: Source) -> None:
    table = alone()
    source.hold()
    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(table.fetch, KEY, source)
        source.started()
        assert in_child(lambda: table.fetch(KEY, lambda: "child")) == "child"
        source.go.set()
        assert leader.result(PATIENCE) == 1


# Isolation.


@pytest.mark.parametrize("fetch", ["fetch", "afetch"])
def test_no_caller_can_change_what_another_gets(fetch: str) -> None:
    table = alone()

    def value() -> Any:
        if fetch == "fetch":
            return table.fetch(KEY, lambda: {"list": [1]})
        return asyncio.run(table.afetch(KEY, _document))

    for _ in range(4):
        found = value()
        assert found == {"list": [1]}
        found["list"].append(2)
    mine = {"list": [1]}
    table.put(KEY, mine)
    mine["list"].append(2)
    assert value() == {"list": [1]}
    table.peek(KEY)["list"].append(2)
    assert value() == {"list": [1]}


async def _document() -> dict[str, list[int]]:
    return {"list": [1]}


def test_followers_of_one_load_have_values_of_their_own() -> None:
    table, go = alone(), threading.Event()

    def loader() -> list[int]:
        assert go.wait(PATIENCE)
        return [1]

    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(table.fetch, KEY, loader) for _ in range(8)]
        waiting(table, 8)
        go.set()
        values = [each.result() for each in calls]
    assert values == [[1]] * 8
    assert len({id(value) for value in values}) == 8


def test_a_value_that_cannot_be_written_goes_to_its_callers_and_is_kept_nowhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = alone()
    values = [table.fetch(KEY, object) for _ in range(3)]
    assert len(set(map(id, values))) == 3
    assert table.stats().entries == 0
    assert len(caplog.records) == 1
    with pytest.raises(Unencodable):
        table.put(KEY, object())


# Newer wins.


@pytest.mark.parametrize("drop", ["invalidate", "put", "tag", "clear", "refresh"])
def test_a_load_from_before_a_drop_serves_its_own_callers_and_is_not_kept(source: Source, drop: str) -> None:
    table = alone()
    source.hold()
    with ThreadPoolExecutor(2) as pool:
        old = pool.submit(table.fetch, KEY, source, tags=("t",))
        source.started()
        match drop:
            case "invalidate":
                table.invalidate(KEY)
            case "put":
                table.put(KEY, "put")
            case "tag":
                table.invalidate_tags("t")
            case "clear":
                table.clear()
            case _:
                assert table.refresh(KEY, lambda: "anew") == "anew"
        source.go.set()
        assert old.result(PATIENCE) == 1
    assert table.fetch(KEY, source) == {"put": "put", "refresh": "anew"}.get(drop, 2)


def test_a_value_with_tags_goes_with_any_of_them(source: Source) -> None:
    table = alone()
    for tag in ("one", "two"):
        table.fetch(KEY, source, tags=("one", "two"))
        table.fetch(OTHER, lambda: "stays", tags=("three",))
        table.invalidate_tags(tag)
        assert table.peek(KEY) is None
        assert table.peek(OTHER) == "stays"
    assert source.count == 2


def test_a_refresh_that_fails_leaves_what_is_there(source: Source) -> None:
    table = alone()
    table.fetch(KEY, source)
    source.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        table.refresh(KEY, source)
    assert table.fetch(KEY, source) == 1


def test_a_refresh_whose_value_is_not_to_be_kept_drops_the_old_one(source: Source) -> None:
    table = alone()
    table.fetch(KEY, source)
    assert table.refresh(KEY, source, ttl=0) == 2
    assert table.peek(KEY) is None
    assert asyncio.run(table.arefresh(KEY, source.aload)) == 3
    assert table.peek(KEY) == 3


# Time.


def test_a_value_is_fresh_for_its_ttl(source: Source, clock: Clock) -> None:
    table = alone(ttl=60)
    for seconds, expected in ((0, 1), (59, 1), (2, 2), (59, 2), (2, 3)):
        clock.advance(seconds)
        assert table.fetch(KEY, source) == expected


def test_a_ttl_may_depend_on_the_value_and_zero_is_not_kept(clock: Clock) -> None:
    table = alone(ttl=lambda value: value)
    assert [table.fetch(KEY, lambda each=each: each) for each in (0, 0.0, 5, 7)] == [0, 0.0, 5, 5]
    clock.advance(6)
    assert table.fetch(KEY, lambda: 9, ttl=1) == 9
    clock.advance(2)
    assert table.fetch(KEY, lambda: 8) == 8
    with pytest.raises(InvalidArgument):
        table.fetch(OTHER, lambda: -1)


def test_a_value_is_refreshed_early_in_the_background_and_only_once(source: Source, clock: Clock) -> None:
    table = alone(ttl=100, refresh_ahead=0.8)
    assert table.fetch(KEY, source) == 1
    clock.advance(79)
    assert table.fetch(KEY, source) == 1
    assert source.count == 1
    source.hold()
    clock.advance(2)
    assert [table.fetch(KEY, source) for _ in range(5)] == [1] * 5
    source.started()
    source.started()
    source.go.set()
    eventually(lambda: table.peek(KEY) == 2)
    assert source.count == 2


def test_an_early_refresh_that_fails_is_not_tried_again_before_the_value_is_old(
    source: Source, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    table = alone(ttl=100, refresh_ahead=0.8)
    table.fetch(KEY, source)
    source.error = ZeroDivisionError()
    clock.advance(85)
    table.fetch(KEY, source)
    eventually(lambda: table.stats().errors == 1)
    for _ in range(5):
        assert table.fetch(KEY, source) == 1
    assert source.count == 2
    clock.advance(20)
    with pytest.raises(ZeroDivisionError):
        table.fetch(KEY, source)


@pytest.mark.parametrize("fetch", ["fetch", "afetch"])
def test_a_stale_value_serves_while_one_refresh_runs(source: Source, clock: Clock, fetch: str) -> None:
    table = alone(ttl=60, stale=300)
    assert table.fetch(KEY, source) == 1
    clock.advance(100)
    source.hold()

    async def tasks() -> list[Any]:
        values = [await table.afetch(KEY, source.aload) for _ in range(5)]
        source.go.set()
        while table.peek(KEY) != 2:  # noqa: ASYNC110 - what it waits for is no event
            await asyncio.sleep(0)
        return values

    if fetch == "fetch":
        assert [table.fetch(KEY, source) for _ in range(5)] == [1] * 5
        source.go.set()
        eventually(lambda: table.peek(KEY) == 2)
    else:
        assert asyncio.run(tasks()) == [1] * 5
    assert source.count == 2
    assert table.stats().stale == 5


def test_a_stale_value_serves_when_loading_fails_and_the_loader_is_left_alone_for_a_while(
    source: Source, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    table = alone(ttl=60, stale=300)
    table.fetch(KEY, source)
    source.error = ZeroDivisionError()
    clock.advance(61)
    for tries in (1, 2, 3):
        assert [table.fetch(KEY, source) for _ in range(3)] == [1] * 3
        eventually(lambda tries=tries: table.stats().errors == tries)
        assert [table.fetch(KEY, source) for _ in range(3)] == [1] * 3
        assert source.count == 1 + tries
        clock.advance(2.0 ** (tries - 1) + 0.1)
    assert len(caplog.records) == 1
    clock.advance(400)
    with pytest.raises(ZeroDivisionError):
        table.fetch(KEY, source)


def test_a_soft_timeout_waits_a_little_for_the_fresh_value(source: Source, clock: Clock) -> None:
    table = alone(ttl=60, stale=300, loader_timeout=(PATIENCE, None))
    table.fetch(KEY, source)
    clock.advance(61)
    assert table.fetch(KEY, source) == 2
    clock.advance(61)
    assert asyncio.run(table.afetch(KEY, source.aload)) == 3
    quick = alone(ttl=60, stale=300, loader_timeout=(0.01, None))
    quick.fetch(KEY, lambda: "old")
    clock.advance(61)
    source.hold()
    assert quick.fetch(KEY, source) == "old"
    source.go.set()
    eventually(lambda: quick.peek(KEY) == 4)


def test_a_hard_timeout_ends_the_load_for_all_who_wait_and_what_comes_late_is_dropped(source: Source) -> None:
    table = alone(loader_timeout=0.02)
    source.hold()
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(table.fetch, KEY, source) for _ in range(3)]
        for each in calls:
            with pytest.raises(LoadTimeout, match="hard loader_timeout"):
                each.result(PATIENCE)
    source.go.set()
    eventually(lambda: not hanging(table), PATIENCE)
    assert table.peek(KEY) is None
    assert table.fetch(KEY, lambda: "next") == "next"


def hanging(table: Table) -> Any:
    return table._parts.hanging._all  # noqa: SLF001 - nothing tells of a thread that is left to itself


def test_a_loader_that_hangs_takes_one_thread_a_key_whoever_calls_until_it_has_returned(source: Source) -> None:
    table = alone(loader_timeout=0.02)
    source.hold()
    with pytest.raises(LoadTimeout):
        table.fetch(KEY, source)
    for ask in (table.fetch, table.refresh):
        with pytest.raises(LoadTimeout, match="still runs"):
            ask(KEY, source)
    assert source.count == 1
    # Of another key, nothing is known.
    with pytest.raises(LoadTimeout, match="not returned within 0"):
        table.fetch(OTHER, source)
    assert (source.count, len(hanging(table))) == (2, 2)
    # The child of a fork has none of the threads.
    assert in_child(lambda: table.fetch(KEY, lambda: "child")) == "child"
    source.go.set()
    eventually(lambda: not hanging(table), PATIENCE)
    assert table.fetch(KEY, source) == 3


@pytest.mark.parametrize("hard", [None, 20.0])
def test_the_stop_iteration_of_a_loader_reaches_its_callers_as_that(hard: float | None) -> None:
    table, iterator = alone(loader_timeout=hard), iter(())
    for ask in (table.fetch, table.refresh):
        with pytest.raises(StopIteration):
            ask(KEY, lambda: next(iterator))

    def beside(key: str) -> Any:
        # Asks for itself, and so is called without a flight.
        return table.fetch(key, lambda: next(iterator))

    with pytest.raises(StopIteration):
        table.fetch(KEY, lambda: beside(KEY))
    assert table.stats().errors == 4
    assert table.fetch(KEY, lambda: "later") == "later"


def test_the_stop_iteration_of_a_loader_reaches_who_waits_for_it_in_a_thread_and_in_a_task() -> None:
    table, go, iterator = alone(), threading.Event(), iter(())

    def load() -> Any:
        go.wait(PATIENCE)
        return next(iterator)

    async def task() -> Any:
        with pytest.raises(RuntimeError, match="StopIteration"):
            await table.afetch(KEY, never)

    async def never() -> Any:
        raise AssertionError

    with ThreadPoolExecutor(3) as pool:
        leads = pool.submit(table.fetch, KEY, load)
        waiting(table, 1)
        waits = pool.submit(table.fetch, KEY, load), pool.submit(lambda: asyncio.run(task()))
        waiting(table, 3)
        go.set()
        assert isinstance(leads.exception(PATIENCE), StopIteration)
        assert isinstance(waits[0].exception(PATIENCE), StopIteration)
        waits[1].result(PATIENCE)


def test_a_hard_timeout_cancels_an_async_loader_and_its_own_timeouts_are_its_own() -> None:
    table = alone(loader_timeout=(None, 0.02))

    async def main() -> None:
        ended = asyncio.Event()

        async def hangs() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        async def raises() -> None:
            raise TimeoutError("own")

        with pytest.raises(LoadTimeout):
            await table.afetch(KEY, hangs)
        await ended.wait()
        with pytest.raises(TimeoutError, match="own"):
            await table.afetch(KEY, raises)

    asyncio.run(main())


def test_a_loader_sees_the_context_of_who_first_asked_wherever_it_runs(clock: Clock) -> None:
    tenant: ContextVar[str] = ContextVar("tenant")
    tenant.set("acme")

    async def aload() -> str:
        return tenant.get()

    limited = alone(loader_timeout=PATIENCE)
    assert limited.fetch(KEY, tenant.get) == "acme"
    assert asyncio.run(limited.afetch(OTHER, aload)) == "acme"
    stale = alone(stale=300)
    stale.fetch(KEY, lambda: "old")
    clock.advance(61)
    stale.fetch(KEY, tenant.get)
    eventually(lambda: stale.peek(KEY) == "acme")


# What is refused, and what is seen.


@pytest.mark.parametrize(
    "key", ["", "ROW", "USR00000000001", KEY + "x", "ROWzzzzzzzzzzz", 7, None, b"ROW00000000001", ["ROW"]]
)
def test_a_key_of_another_kind_is_refused_before_anything_is_touched(key: Any, source: Source) -> None:
    table = alone()
    verbs: list[Callable[[], Any]] = [
        lambda: table.fetch(key, source),
        lambda: asyncio.run(table.afetch(key, source.aload)),
        lambda: table.refresh(key, source),
        lambda: table.put(key, 1),
        lambda: table.peek(key),
        lambda: table.invalidate(key),
    ]
    for verb in verbs:
        with pytest.raises(InvalidId):
            verb()
    assert source.count == 0
    assert table.stats().entries == 0


@pytest.mark.parametrize(
    "message", [b"", b"x" * 29, f"{KEY}:{KEY}"[:-1].encode(), b"USR00000000001:USR00000000001", "text", None]
)
def test_a_message_of_another_table_is_refused(message: Any) -> None:
    with pytest.raises(InvalidArgument, match="coherence message"):
        alone().apply(message)


def test_a_message_drops_what_is_older_than_it_says(source: Source) -> None:
    table = alone()
    table.fetch(KEY, source)
    assert table.apply(f"{KEY}:{brand('ROW', 5)}".encode())
    assert table.fetch(KEY, source) == 1
    assert table.apply(f"{KEY}:ROWAzL8n0Y58m6".encode())
    assert table.fetch(KEY, source) == 2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"name": "a b"}, InvalidName),
        ({"name": ""}, InvalidName),
        ({"kind": "row"}, InvalidId),
        ({"kind": "TAG"}, InvalidId),
        ({"ttl": -1}, InvalidArgument),
        ({"max_entries": -1}, InvalidArgument),
        ({"max_entries": 1.5}, InvalidArgument),
        ({"max_bytes": -1}, InvalidArgument),
        ({"lease": 0}, InvalidArgument),
        ({"wait": -1}, InvalidArgument),
        ({"loader_timeout": (1, 2, 3)}, InvalidArgument),
        ({"loader_timeout": "soon"}, InvalidArgument),
        ({"coherence": "gossip"}, InvalidArgument),
        ({"coherence": "lane"}, InvalidArgument),
        ({"lane": print}, InvalidArgument),
        ({"coherence": "lane", "lane": print, "name": "x" * 125}, InvalidName),
        ({"l1": 7}, InvalidArgument),
    ],
    ids=repr,
)
def test_what_a_table_cannot_be_is_refused_when_it_is_made(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Table(**{"name": "t", "kind": "ROW", "l2": False, **options})


def test_tags_are_several_texts() -> None:
    table = alone()
    with pytest.raises(InvalidName):
        table.fetch(KEY, int, tags="user:7")
    with pytest.raises(InvalidName):
        table.fetch(KEY, int, tags=("",))
    with pytest.raises(InvalidName):
        table.invalidate_tags("fine", "")


def test_the_counters_add_up(source: Source, clock: Clock) -> None:
    table, seen = alone(ttl=60, stale=60, max_entries=2), []
    table.observe(lambda what, id: seen.append((what, id)))
    table.fetch(KEY, source)
    table.fetch(KEY, source)
    table.fetch(OTHER, source)
    table.fetch(brand("ROW", 3), source)
    source.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        table.fetch(brand("ROW", 4), source)
    clock.advance(61)
    table.fetch(KEY, source)
    eventually(lambda: table.stats().errors == 2)
    stats = table.stats()
    assert (stats.hits, stats.loads, stats.errors, stats.stale) == (1, 5, 2, 1)
    assert (stats.entries, stats.evictions, stats.skipped, stats.l2_hits, stats.away) == (2, 1, 0, 0, False)
    assert stats.bytes > 1000
    assert stats.hit_rate == pytest.approx(2 / 7)
    assert [what for what, _ in seen].count("loads") == 5
    assert ("stale", KEY) in seen


def test_a_users_own_cache_holds_the_rows(source: Source) -> None:
    rows: Any = cachetools.LRUCache(2)
    table = alone(l1=rows)
    for number in (1, 2, 1, 3):
        table.fetch(brand("ROW", number), source)
    assert list(rows) == [brand("ROW", 1), brand("ROW", 3)]
    assert table.fetch(KEY, source) == 1
    assert table.stats().hits == 2
    table.invalidate(KEY)
    assert list(rows) == [brand("ROW", 3)]


def test_an_alias_of_a_row_is_all_that_a_hit_needs(source: Source) -> None:
    table, aliases = alone(), {}
    table.fetch(KEY, source)
    table.alias(aliases, ("call", 1), KEY)
    row = aliases["call", 1]
    assert (row.value, row.fresh_until > 0) == (1, True)
    table.invalidate(KEY)
    assert aliases == {}
    assert row.fresh_until == 0
    table.alias(aliases, ("call", 1), KEY)
    assert aliases == {}


def test_a_table_is_known_as_long_as_somebody_has_it() -> None:
    table = alone()
    assert table in tables()
    gone = weakref.ref(table)
    del table
    gc.collect()
    assert gone() is None
