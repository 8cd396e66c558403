"""Entries that end the process that handles them: they alone are given up, and what was in hand beside them is not."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.children import Child
from support.consuming import append, pending, running
from support.eventually import eventually
from support.proxy import DroppingProxy
from support.servers import ServerProcess

from echomq_tasks.bus import Bus, Consumer, Delivery, Log
from echomq_tasks.connection import Connection, connect
from echomq_tasks.scripts.loader import load_scripts

Make = Callable[..., Consumer]

ENTRIES = 200


@pytest.fixture
def log(standalone: Connection, queue_name: str) -> Log:
    return Log(queue_name, "audit", standalone)


def member(log: Log, handler: Any, **options: Any) -> Consumer:
    """A consumer that looks for the dead often."""
    return Consumer(log, "billing", handler=handler, **{"start": "head", "beat": 0.02, **options})


def abandoned(log: Log, count: int, deliveries: int = 1) -> list[str]:
    """Entries that a dead member held."""
    entries = append(log, count)
    client: Any = log.connection.client
    client.xgroup_create(log.key, "billing", 0)
    client.xreadgroup("billing", "dead", {log.key: ">"}, count=count)
    client.xclaim(log.key, "billing", "dead", 0, entries, idle=10**8, retrycount=deliveries, justid=True)
    return entries


def dead(log: Log) -> list[str]:
    """The numbers of the entries in the dead log."""
    return [record.fields["n"] for record in Log(log.queue, f"{log.name}.dead", log.connection).read()]


# -- processes ------------------------------------------------------------------------------------------------------


def work(url: str, queue: str, notes: Path, poison: set[str], options: dict[str, Any]) -> bool:
    """What a process does: handle entries until none is left, or until one ends it."""
    file = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def plain(delivery: Delivery) -> None:
        if delivery.fields["n"] in poison:
            os._exit(9)
        os.write(file, f"{delivery.fields['n']} {delivery.deliveries}\n".encode())

    async def coroutine(delivery: Delivery) -> None:
        await asyncio.sleep(0)
        plain(delivery)

    with connect(url) as connection:
        bus, log = Bus(connection), Log(queue, "audit", connection)
        handler = coroutine if "concurrency" in options else plain
        with running(member(log, handler, **options)):
            eventually(lambda: (found := bus.groups(queue, "audit")) and found[0].pending == found[0].lag == 0)
    return True


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("poison", "options"),
    [
        ({"60"}, {"name": "me"}),
        ({"60", "130"}, {"min_idle": 0.1}),
        ({"60", "61"}, {"name": "me", "concurrency": 4}),
    ],
    ids=["one, under a name that stays", "two, each time by another member", "two, beside others at work"],
)
def test_what_ends_every_process_is_buried_and_everything_else_is_handled(
    server: ServerProcess, log: Log, tmp_path: Path, poison: set[str], options: dict[str, Any]
) -> None:
    append(log, ENTRIES)
    for _ in range(20):
        with suppress(AssertionError):
            if Child(lambda: work(server.url, log.queue, tmp_path / "notes", poison, options)).result():
                break
    given = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    assert {number for number, _ in given} == {str(number) for number in range(ENTRIES)} - poison
    assert set(dead(log)) == poison
    (first, *_) = Log(log.queue, "audit.dead", log.connection).read()
    assert first.fields["dead.deliveries"] == "5"
    assert first.fields["dead.error"].startswith("delivered 5 times and never finished")
    # Read ahead beside it, and then tried alone.
    assert max(int(deliveries) for _, deliveries in given) <= 2 + len(poison)
    assert max(Counter(number for number, _ in given).values()) <= 1 + len(poison)


# -- one at a time --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_what_was_delivered_before_is_taken_alone_and_the_one_before_it_is_told_first(
    connection: Connection, queue_name: str, kind: str
) -> None:
    log = Log(queue_name, "audit", connection)
    held: list[list[int]] = []

    def plain(delivery: Delivery) -> None:
        if delivery.deliveries > 1:
            held.append([row["times_delivered"] for row in pending(log) if row["message_id"].decode() in entries])

    async def coroutine(delivery: Delivery) -> None:
        plain(delivery)
        await asyncio.sleep(0)

    entries = abandoned(log, 8)
    append(log, 8, first=8)
    options = {} if kind == "plain" else {"concurrency": 4}
    consumer = member(log, plain if kind == "plain" else coroutine, **options)
    with running(consumer):
        eventually(lambda: consumer.tally.handled == 16)
    # It is the only one that is counted, and those before it are acknowledged.
    assert held == [[2, *[1] * behind] for behind in reversed(range(8))]


def test_new_entries_are_handled_beside_one_that_is_tried_alone(log: Log) -> None:
    entered, leave = threading.Event(), threading.Event()
    given: list[str] = []

    async def handler(delivery: Delivery) -> None:
        given.append(delivery.fields["n"])
        if delivery.deliveries > 1:
            entered.set()
            await asyncio.to_thread(leave.wait, 20)

    abandoned(log, 2)
    consumer = member(log, handler, concurrency=3)
    with running(consumer):
        assert entered.wait(20)
        append(log, 5, first=2)
        eventually(lambda: consumer.tally.handled == 5)
        assert given == ["0", "2", "3", "4", "5", "6"]
        leave.set()
        eventually(lambda: consumer.tally.handled == 7)
    assert given[-1] == "1"


def test_what_failed_here_is_tried_again_side_by_side(log: Log) -> None:
    at_once, together = 0, asyncio.Event()

    async def handler(delivery: Delivery) -> None:
        nonlocal at_once
        if delivery.deliveries == 1:
            raise ValueError("not today")
        at_once += 1
        if at_once == 4:
            together.set()
        await asyncio.wait_for(together.wait(), 20)

    append(log, 4)
    consumer = member(log, handler, concurrency=4, min_idle=0.05)
    with running(consumer):
        eventually(lambda: consumer.tally.handled == 4)
    assert consumer.tally.failed == 4


def test_what_was_given_back_is_handled_side_by_side(log: Log) -> None:
    together = threading.Barrier(4)

    async def handler(delivery: Delivery) -> None:
        await asyncio.to_thread(together.wait, 20)

    # Counted as never delivered, as a stop leaves what it had read and not started.
    abandoned(log, 4, deliveries=0)
    consumer = member(log, handler, concurrency=4)
    with running(consumer):
        eventually(lambda: consumer.tally.handled == 4)
    assert consumer.tally.failed == 0


def test_what_was_only_read_ahead_is_not_given_up_after_one_delivery(log: Log) -> None:
    """Whoever died with it may never have started it."""
    given: list[tuple[str, int]] = []

    def handler(delivery: Delivery) -> None:
        given.append((delivery.fields["n"], delivery.deliveries))
        if delivery.fields["n"] == "1":
            raise ValueError("no")

    abandoned(log, 3)
    consumer = member(log, handler, max_deliveries=1)
    with running(consumer):
        eventually(lambda: (consumer.tally.handled, consumer.tally.buried) == (2, 1))
    assert given == [("0", 2), ("1", 2), ("2", 2)]
    assert dead(log) == ["1"]


def test_what_two_have_died_with_is_given_up_after_one_delivery(log: Log) -> None:
    given: list[str] = []
    abandoned(log, 1, deliveries=2)
    consumer = member(log, lambda each: given.append(each.fields["n"]), max_deliveries=1)
    with running(consumer):
        eventually(lambda: consumer.tally.buried == 1)
    assert given == []


def test_what_was_lost_on_its_way_beside_one_that_is_tried_alone_comes_again(
    proxy: DroppingProxy, log: Log, queue_name: str
) -> None:
    entered, leave = threading.Event(), threading.Event()
    given: list[tuple[str, int]] = []

    async def handler(delivery: Delivery) -> None:
        given.append((delivery.fields["n"], delivery.deliveries))
        if delivery.fields["n"] == "0":
            entered.set()
            await asyncio.to_thread(leave.wait, 20)

    abandoned(log, 1)
    log.connection.client.xclaim(log.key, "billing", "me", 0, [next(iter(log.read())).stream_id], justid=True)
    with connect(proxy.url) as connection:
        proxied = Log(queue_name, "audit", connection)
        # Nothing becomes idle, so that nobody but the one who lost it can find it.
        consumer = member(proxied, handler, name="me", concurrency=2, min_idle=600)
        with running(consumer):
            assert entered.wait(20)
            proxy.drop_reply(load_scripts()["group_read"].sha.encode())
            append(log, 3, first=1)
            eventually(lambda: proxy.counts.dropped_replies == 1)
            leave.set()
            eventually(lambda: consumer.tally.handled == 4)
    assert sorted(given) == [("0", 2), ("1", 1), ("2", 1), ("3", 1)]
