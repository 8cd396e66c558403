"""Live events through storms: fifty subscribers and a server that goes away, and a publisher that never stops."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from support.eventually import eventually
from support.live import LONG, Teller, hub_threads, kill_listeners, listeners, numbers, take
from support.servers import ServerProcess

from echomq_tasks.bus import Bus, Event, Gap
from echomq_tasks.connection import connect

pytestmark = pytest.mark.chaos

SUBSCRIBERS = 50


@pytest.mark.parametrize("how", ["restarted", "killed"])
def test_fifty_subscribers_come_back_from_a_server_that_was_away_and_each_saw_one_gap(
    own_server: ServerProcess, how: str
) -> None:
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(own_server.url)) for _ in range(SUBSCRIBERS)]
        feeds = [stack.enter_context(Bus(each).subscribe("orders", patterns=("mail.*",))) for each in connections]
        assert len(listeners(connections[0])) == SUBSCRIBERS
        if how == "restarted":
            own_server.restart()
        else:
            own_server.kill()
            own_server.start()
        gaps = [take(each, 1)[0] for each in feeds]
        assert gaps == [Gap("reconnected", told.since, ("orders",), ("mail.*",)) for told in gaps]
        bus = Bus(connections[0])
        assert len(listeners(connections[0])) == SUBSCRIBERS
        assert bus.publish("orders", "x") == bus.publish("mail.a", "x") == SUBSCRIBERS
        for each in feeds:
            assert [getattr(item, "queue", item) for item in take(each, 2)] == ["orders", "mail.a"]
            assert each.get(0) is None
    eventually(lambda: not hub_threads())


def test_catching_up_loses_and_doubles_nothing_through_kills_and_restarts(own_server: ServerProcess) -> None:
    with connect(own_server.url) as publishing, connect(own_server.url) as subscribing:
        teller = Teller(publishing, "orders")
        bus = Bus(subscribing)
        quiet = threading.Event()
        heard: dict[str, list[Event | Gap]] = {"wide": [], "narrow": [], "loop": []}
        ready = threading.Barrier(len(heard) + 1)
        told: list[str] = []
        late: list[float] = []

        def tell() -> None:
            while not quiet.is_set():
                # What was appended and not answered is not told again: the number is that of the next.
                with contextlib.suppress(redis.RedisError, OSError):
                    teller.tell()

        def complete(name: str) -> bool:
            # Too few in the end is told below, by what they are.
            return bool(told) and (len(heard[name]) >= len(told) or time.monotonic() > late[0])

        def read(name: str, buffer: int) -> None:
            with bus.subscribe("orders", catch_up="lifecycle", buffer=buffer) as events:
                ready.wait(LONG)
                while not complete(name):
                    heard[name] += filter(None, [events.get(0.05)])
                heard[name] += filter(None, [events.get(0.1)])

        async def aread(name: str) -> None:
            async with bus.asubscribe(patterns=("ord*",), catch_up="lifecycle") as events:
                await asyncio.to_thread(ready.wait, LONG)
                while not complete(name):
                    heard[name] += filter(None, [await events.get(0.05)])
                heard[name] += filter(None, [await events.get(0.1)])

        with ThreadPoolExecutor(4) as pool:
            readers = [
                pool.submit(read, "wide", 10_000),
                pool.submit(read, "narrow", 16),
                pool.submit(lambda: asyncio.run(aread("loop"))),
            ]
            ready.wait(LONG)
            publisher = pool.submit(tell)
            chance = random.Random(7)
            log = bus.log("orders", "lifecycle")
            for number in range(12):
                # Any moment is as good as another; only that something was told since the last blow is waited for.
                grown = log.length() + chance.randint(1, 150)
                eventually(lambda least=grown: log.length() >= least)  # type: ignore[misc]
                if number in (4, 9):
                    own_server.kill()
                    own_server.start()
                else:
                    kill_listeners(subscribing)
            quiet.set()
            publisher.result(LONG)
            late.append(time.monotonic() + LONG)
            told += [record.fields["n"] for record in log.read()]
            for each in readers:
                each.result()
        for name, items in heard.items():
            assert numbers(items) == told, name
    eventually(lambda: not hub_threads())
