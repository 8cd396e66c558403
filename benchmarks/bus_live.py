"""Live events: `python bus_live.py MEASURE VARIANTS URL EVENTS` prints the figures of each variant as JSON."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe

from bare import Bare, bulk, ceiling, chunks
from rounds import TURNS, Figures, Meter, answer_for, in_turn, percentiles

from echomq_tasks import connect
from echomq_tasks.bus import AsyncSubscription, Bus, Gap, Log
from echomq_tasks.connection import Connection
from echomq_tasks.events import EVENTS, Announcing, Event
from echomq_tasks.queue import Complete, Queue

Fields = Mapping[str, str]
Order = Callable[[str, int], float]

CHANNEL = "emq:{bench}:events"
FIELDS = {"order": "1234567", "carrier": "dhl", "state": "left the depot"}
TEXT = json.dumps({"event": "shipped", **FIELDS}, separators=(",", ":"))
#: How many events' ways are timed, and seconds between two of them.
PACED, PACE = 100, 0.010


def publish(names: list[str], url: str, events: int) -> dict[str, Figures]:
    """Tell nobody: PUBLISH, ours, or what a script of ours announces."""
    meters = {name: Meter(url, "event") for name in names}
    bares = {name: ceiling(name, url) for name in names}
    with connect(url) as connection, Bus(connection) as bus:
        queue = Queue("bench", connection, announcing=Announcing(EVENTS))
        ours = {
            "bus.publish": lambda: bus.publish("bench", "shipped", **FIELDS),
            "announce": lambda: queue.publish_event("worker_started", about=FIELDS),
        }
        # What only the first call does.
        for call in ours.values():
            call()

        def step(name: str) -> None:
            number = events // TURNS * bulk(name)
            with meters[name].measuring(number):
                if bare := bares[name]:
                    sender, size = bare
                    for chunk in chunks(range(number), size):
                        sender.run(*[("PUBLISH", CHANNEL, TEXT) for _ in chunk])
                else:
                    call = ours[name]
                    for _ in range(number):
                        call()

        in_turn(names, step)
    return {name: meter.figures() for name, meter in meters.items()}


def jobs(names: list[str], url: str, number: int) -> dict[str, Figures]:
    """Enqueue, claim and complete by hundreds, without a worker: three events a job, announced or not."""
    meters = {name: Meter(url, "job") for name in names}
    with connect(url) as connection:
        queues = {name: Queue(name, connection, announcing=Announcing(())) for name in names}
        for name, queue in queues.items():
            if name != "quiet":
                queue.announcing.choose(EVENTS, log="lifecycle" if name == "logged" else None)

        def step(name: str) -> None:
            queue = queues[name]
            payload = f'{{"queue_name":"{name}","actor_name":"nothing","args":[1,2],"kwargs":{{}},"options":{{}}}}'
            about = {"actor": "nothing", "duration_ms": "0.123"} if queue.announcing.announces else None
            with meters[name].measuring(number // TURNS):
                for chunk in chunks(range(number // TURNS), 100):
                    queue.enqueue_many([payload for _ in chunk])
                    claimed = queue.claim(len(chunk)).jobs
                    assert len(claimed) == len(chunk)
                    queue.settle([Complete(job, about=about) for job in claimed])

        in_turn(names, step)
        if "logged" in names:
            assert Log("logged", "lifecycle", connection).length() == 3 * (number // TURNS * TURNS)
    return {name: meter.figures() for name, meter in meters.items()}


def fanout(names: list[str], url: str, events: int) -> dict[str, Figures]:
    """One publisher in a process of its own and so many readers here: how much arrives when it publishes as fast as
    the server takes it, and how late arrives what it publishes every 10 ms."""
    (name,) = names
    kind, _, number = name.rpartition("-")
    with connect(url) as connection, ExitStack() as stack:
        order = stack.enter_context(publisher(url))
        if kind == "async":
            figures, waits = asyncio.run(hear_async(connection, int(number), order, events))
        else:
            readers = [stack.enter_context(READERS[kind](connection)) for _ in range(int(number))]
            figures, waits = hear(readers, order, events)
    return {name: figures | percentiles("late", waits)}


def hear(readers: list[Iterator[Fields]], order: Order, events: int) -> tuple[Figures, list[float]]:
    """Let each reader have a thread."""
    flood = share(events, len(readers))
    with ThreadPoolExecutor(len(readers)) as pool:
        ends = [pool.submit(take, reader, flood) for reader in readers]
        began = order("flood", flood)
        rate = flood * len(readers) / (max(end.result() for end in ends) - began)
        waits = [pool.submit(clock, reader) for reader in readers]
        order("pace", PACED)
        return {"arrived events/s": rate}, [wait for each in waits for wait in each.result()]


def take(reader: Iterator[Fields], number: int) -> float:
    """When so many had arrived."""
    for _ in range(number):
        next(reader)
    return time.perf_counter()


def clock(reader: Iterator[Fields]) -> list[float]:
    """How late each event comes."""
    return [late(next(reader)) for _ in range(PACED)]


def late(fields: Fields) -> float:
    """Seconds since an event was published."""
    return time.perf_counter() - float(fields["sent"])


async def hear_async(connection: Connection, number: int, order: Order, events: int) -> tuple[Figures, list[float]]:
    """Let each reader be a task of one event loop."""
    flood = share(events, number)

    async def taken(reader: AsyncSubscription) -> float:
        for _ in range(flood):
            fields_of(await reader.get())
        return time.perf_counter()

    async def clocked(reader: AsyncSubscription) -> list[float]:
        return [late(fields_of(await reader.get())) for _ in range(PACED)]

    with Bus(connection) as bus:
        readers = [await bus.asubscribe("bench") for _ in range(number)]
        ends = [asyncio.create_task(taken(reader)) for reader in readers]
        await asyncio.sleep(0.1)
        began = order("flood", flood)
        rate = flood * number / (max(await asyncio.gather(*ends)) - began)
        waits = [asyncio.create_task(clocked(reader)) for reader in readers]
        order("pace", PACED)
        return {"arrived events/s": rate}, [wait for each in await asyncio.gather(*waits) for wait in each]


def share(events: int, readers: int) -> int:
    """How many events are published at once: fewer to many readers, and never more than a reader's buffer takes."""
    return min(9000, 10 * events // readers)


def fields_of(item: Event | Gap | None) -> Fields:
    """What an event says; nothing may be missing."""
    assert isinstance(item, Event), item
    return item.more


@contextmanager
def own_bus(connection: Connection) -> Iterator[Iterator[Fields]]:
    """A bus, so a connection and a thread, for this reader alone."""
    with Bus(connection) as bus, bus.subscribe("bench") as events:
        yield (fields_of(item) for item in events)


@contextmanager
def shared_bus(connection: Connection) -> Iterator[Iterator[Fields]]:
    """A subscription of the bus that all readers share."""
    with connection.companion(Bus).subscribe("bench") as events:
        yield (fields_of(item) for item in events)


@contextmanager
def redis_py(connection: Connection) -> Iterator[Iterator[Fields]]:
    """What redis-py has for it, a connection for each reader."""
    with connection.client.pubsub() as pubsub:
        pubsub.subscribe(CHANNEL)
        assert pubsub.get_message(timeout=5)["type"] == "subscribe"
        yield (json.loads(message["data"]) for message in pubsub.listen())


READERS = {"bus": shared_bus, "buses": own_bus, "redis-py": redis_py}


@contextmanager
def publisher(url: str) -> Iterator[Order]:
    """A process that publishes what it is ordered to; an order answers when it was given."""
    # Not forked: this process may have threads.
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=tell, args=(url, theirs))
    process.start()
    assert ours.recv() == "ready"

    def order(what: str, number: int) -> float:
        now = time.perf_counter()
        ours.send((what, number))
        return now

    yield order
    order("end", 0)
    process.join()


def tell(url: str, pipe: Pipe) -> None:
    """Publish as ordered: a flood on a bare socket by hundreds, what is timed by the bus."""
    with connect(url) as connection, Bus(connection) as bus:
        bare = Bare(url)
        pipe.send("ready")
        while (order := pipe.recv())[0] != "end":
            if order[0] == "flood":
                for chunk in chunks(range(order[1]), 100):
                    bare.run(*[("PUBLISH", CHANNEL, TEXT) for _ in chunk])
            else:
                for _ in range(order[1]):
                    bus.publish("bench", "shipped", sent=repr(time.perf_counter()))
                    time.sleep(PACE)


if __name__ == "__main__":
    answer_for({"publish": publish, "jobs": jobs, "fanout": fanout})
