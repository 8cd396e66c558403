"""Live events for asyncio: the same stream, cancelled and closed as an event loop does it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from support.eventually import eventually
from support.live import LONG, Teller, bare, hub_threads, kill_listeners, listeners
from support.servers import ServerProcess

from echomq_tasks.bus import Bus, Event, Gap
from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import EchoMQError, InvalidArgument, ServerUnavailable


@pytest.fixture
def bus(connection: Connection) -> Iterator[Bus]:
    with Bus(connection) as opened:
        yield opened
    eventually(lambda: not hub_threads())


@pytest.fixture
def one(standalone: Connection) -> Iterator[Bus]:
    """A bus where the engine does not matter."""
    with Bus(standalone) as opened:
        yield opened
    eventually(lambda: not hub_threads())


def test_events_are_iterated_over_in_an_event_loop(bus: Bus, queue_name: str) -> None:
    async def main() -> list[str]:
        heard = []
        async with bus.asubscribe(queue_name, patterns=(f"{queue_name}?",), events={"a", "b"}) as events:
            for name in ("a", "x", "b"):
                await asyncio.to_thread(bus.publish, queue_name, name)
            async for item in events:
                assert isinstance(item, Event)
                heard.append(item.event)
                if len(heard) == 2:
                    break
        assert events.closed
        return heard

    assert asyncio.run(main()) == ["a", "b"]
    eventually(lambda: not listeners(bus.connect()))


def test_a_subscription_can_be_awaited_and_read_one_by_one(one: Bus, queue_name: str) -> None:
    async def main() -> None:
        lazy = one.asubscribe(queue_name)
        with pytest.raises(EchoMQError, match="async with"):
            await lazy.get(0)
        assert not hub_threads()
        events = await lazy
        assert await events.get(0) is None
        assert await events.get(0.01) is None
        with pytest.raises(InvalidArgument, match="timeout"):
            await events.get(-1)
        one.publish(queue_name, "x")
        assert bare(await events.get(1e11)) == Event("x", queue_name)
        await events.close()
        await events.close()
        with pytest.raises(EchoMQError, match="closed"):
            await events.get()
        assert [item async for item in events] == []

    asyncio.run(main())


def test_five_hundred_subscriptions_of_loops_and_threads_share_one_connection_and_one_thread(
    one: Bus, queue_name: str
) -> None:
    async def main() -> None:
        feeds = [one.asubscribe(f"{queue_name}-{number % 50}") for number in range(500)]
        await asyncio.gather(*feeds)
        with one.subscribe(f"{queue_name}-7") as events:
            assert len(hub_threads()) == 1
            assert len(listeners(one.connect())) == 1
            one.publish(f"{queue_name}-7", "x")
            assert bare(events.get(LONG)) == Event("x", f"{queue_name}-7")
        got = await asyncio.gather(*(feed.get(LONG) for feed in feeds[7::50]))
        assert [bare(item) for item in got] == [Event("x", f"{queue_name}-7")] * 10
        await asyncio.gather(*(feed.close() for feed in feeds))

    asyncio.run(main())
    eventually(lambda: not listeners(one.connect()))


def test_cancelling_a_wait_loses_nothing(one: Bus, queue_name: str) -> None:
    async def main() -> None:
        async with one.asubscribe(queue_name) as events:
            heard: list[str] = []

            async def read() -> None:
                while True:
                    item = await events.get()
                    assert isinstance(item, Event)
                    heard.append(item.event)

            for number in range(100):
                task = asyncio.create_task(read())
                await asyncio.sleep(0)
                one.publish(queue_name, str(number))
                # Sometimes before it came, sometimes with it.
                await asyncio.sleep(0.0005 if number % 2 else 0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            while len(heard) < 100:
                item = await events.get(LONG)
                assert isinstance(item, Event)
                heard.append(item.event)
            assert heard == [str(number) for number in range(100)]

    asyncio.run(main())


def test_cancelling_while_it_subscribes_leaves_nothing_behind(own_server: ServerProcess) -> None:
    async def main(bus: Bus) -> None:
        own_server.pause(300)
        task = asyncio.create_task(bus.asubscribe("q").__aenter__())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with connect(own_server.url) as connection:
        asyncio.run(main(Bus(connection)))
        eventually(lambda: not hub_threads())
        eventually(lambda: not listeners(connection))


def test_several_tasks_share_a_subscription_and_closing_ends_them_all(one: Bus, queue_name: str) -> None:
    async def main() -> None:
        heard: list[Event | Gap] = []
        events = await one.asubscribe(queue_name)

        async def read() -> None:
            async for item in events:
                heard.append(item)
                if len(heard) == 20:
                    all_heard.set()

        all_heard = asyncio.Event()
        tasks = [asyncio.create_task(read()) for _ in range(5)]
        for number in range(20):
            one.publish(queue_name, str(number))
        await asyncio.wait_for(all_heard.wait(), LONG)
        await events.close()
        await asyncio.wait_for(asyncio.gather(*tasks), LONG)
        assert [item.event for item in heard if isinstance(item, Event)] == [str(number) for number in range(20)]

    asyncio.run(main())


def test_a_loop_that_is_gone_does_not_stop_the_others(one: Bus, queue_name: str) -> None:
    async def forget() -> None:
        await one.asubscribe(queue_name)

    with one.subscribe(queue_name) as events:
        asyncio.run(forget())
        for number in range(3):
            one.publish(queue_name, str(number))
        assert [getattr(events.get(LONG), "event", None) for _ in range(3)] == ["0", "1", "2"]
    eventually(lambda: not hub_threads())


def test_a_server_that_is_away_is_an_error_at_once(own_server: ServerProcess) -> None:
    async def main(bus: Bus) -> None:
        with pytest.raises(ServerUnavailable):
            async with bus.asubscribe("q"):
                raise AssertionError("subscribed to nobody")

    with connect(own_server.url) as connection:
        own_server.kill()
        asyncio.run(main(Bus(connection)))
    eventually(lambda: not hub_threads())


def test_a_gap_is_yielded_or_filled_from_the_log(one: Bus, queue_name: str) -> None:
    teller = Teller(one.connect(), queue_name)

    async def main() -> None:
        async with one.asubscribe(queue_name) as told, one.asubscribe(queue_name, catch_up="lifecycle") as filled:
            teller.tell()
            for events in (told, filled):
                assert getattr(await events.get(LONG), "more", None) == {"n": "0"}
            # Missed, as if it had been published just when the connection was away.
            teller.tell(3, live=False)
            await asyncio.to_thread(kill_listeners, one.connect())
            gap = await told.get(LONG)
            assert isinstance(gap, Gap)
            assert gap.reason == "reconnected"
            teller.tell()
            assert getattr(await told.get(LONG), "more", None) == {"n": "4"}
            heard = [await filled.get(LONG) for _ in range(4)]
            assert [getattr(item, "more", None) for item in heard] == [{"n": str(number)} for number in range(1, 5)]

    asyncio.run(main())


def test_events_keep_coming_while_the_loop_of_another_thread_is_busy(one: Bus, queue_name: str) -> None:
    release = threading.Event()

    async def busy() -> list[str]:
        async with one.asubscribe(queue_name, buffer=1000) as events:
            ready.set()
            release.wait(LONG)  # noqa: ASYNC251, RUF100 - it blocks its loop on purpose
            return [getattr(await events.get(LONG), "event", "") for _ in range(50)]

    ready = threading.Event()
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.extend(asyncio.run(busy())))
    thread.start()
    assert ready.wait(LONG)
    with one.subscribe(queue_name) as events:
        for number in range(50):
            one.publish(queue_name, str(number))
        assert [getattr(events.get(LONG), "event", "") for _ in range(50)] == [str(number) for number in range(50)]
    release.set()
    thread.join()
    assert found == [str(number) for number in range(50)]
