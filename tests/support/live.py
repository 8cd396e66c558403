"""Subscribers and publishers for the tests of live events."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from echomq_tasks.bus import Bus, Event, Gap, Subscription
from echomq_tasks.bus.places import Place, place_of
from echomq_tasks.connection import Connection
from echomq_tasks.keyspace import queue_key, stream_key
from support.counting import nodes
from support.eventually import eventually

#: Seconds; far more than any event takes when all is well.
LONG = 20.0

#: Appends a record and, if asked to, publishes it in the same step, as the transitions of a job do.
APPEND = """#!lua
local alphabet = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'
local ms, low = tonumber(ARGV[1]), tonumber(ARGV[2])
redis.call('XADD', KEYS[1] .. 'stream:lifecycle', ms .. '-' .. low, 'id', ARGV[3], 'event', ARGV[4], 'n', ARGV[5])
if ARGV[6] ~= '' then
  redis.call(ARGV[6], KEYS[1] .. 'events', cjson.encode({id = ARGV[3], event = ARGV[4], n = ARGV[5]}))
end
return 1
"""


def take(subscription: Subscription, count: int) -> list[Event | Gap]:
    """The next items; fails when one does not come."""
    found = []
    for _ in range(count):
        item = subscription.get(LONG)
        assert item is not None, f"after {found}"
        found.append(item)
    return found


def event(subscription: Subscription) -> Event:
    """The next item, which has to be an event."""
    (item,) = take(subscription, 1)
    assert isinstance(item, Event)
    return item


def bare(item: Event | Gap | None) -> Event:
    """An event without its time, which it has to have."""
    assert isinstance(item, Event)
    assert item.at is not None
    return replace(item, at=None)


def gap(subscription: Subscription) -> Gap:
    """The next item, which has to be a gap."""
    (item,) = take(subscription, 1)
    assert isinstance(item, Gap)
    return item


def numbers(items: list[Event | Gap]) -> list[str]:
    """The field ``n`` of events, and the reasons of gaps."""
    return [item.more["n"] if isinstance(item, Event) else item.reason for item in items]


def listeners(connection: Connection) -> list[tuple[Any, dict[str, str]]]:
    """Every client that is subscribed to something, with its node."""
    return [
        (node, entry)
        for node in nodes(connection)
        for entry in node.client_list()
        if int(entry["sub"]) + int(entry["psub"]) + int(entry.get("ssub", 0)) > 0
    ]


def kill_listeners(connection: Connection) -> int:
    """End the connection of every subscriber; answers how many there were."""
    found = listeners(connection)
    for node, entry in found:
        node.client_kill_filter(_id=entry["id"])
    return len(found)


@contextmanager
def kept_away(connection: Connection) -> Iterator[None]:
    """Nobody hears anything: the listeners of this connection are cut off, and come back only afterwards."""
    open_again = threading.Event()
    fresh = connection.fresh

    def wait(*args: Any, **options: Any) -> Any:
        assert open_again.wait(LONG)
        return fresh(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "fresh", wait)
        kill_listeners(connection)
        eventually(lambda: not listeners(connection))
        try:
            yield
        finally:
            open_again.set()


def publish(connection: Connection, queue: str, data: bytes | str, *, sharded: bool = False) -> None:
    """Publish anything, as any runtime might."""
    client: Any = connection.client
    channel = queue_key(queue, "events")
    command = "SPUBLISH" if sharded else "PUBLISH"
    if connection.is_cluster:
        client.execute_command(command, channel, data, target_nodes=client.get_node_from_key(channel))
    else:
        client.execute_command(command, channel, data)


def hub_threads() -> list[threading.Thread]:
    """The threads of all buses of this process."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("echomq-bus")]


class Teller:
    """Writes the lifecycle log of a queue and publishes the same, in one step each; numbers count up from 0."""

    def __init__(self, connection: Connection, queue: str) -> None:
        self.bus = Bus(connection)
        self.queue = queue
        self.key = stream_key(queue, "lifecycle")
        self._connection = connection
        self._script = connection.client.register_script(APPEND)
        self._mint = self.bus.log(queue, "lifecycle").scripts.mint
        self.told = 0

    def tell(self, count: int = 1, event: str = "note", *, live: bool = True, sharded: bool = False) -> None:
        """Tell the next ``count``; without ``live`` only the log hears them."""
        how = ("SPUBLISH" if sharded else "PUBLISH") if live else ""
        for _ in range(count):
            evt, place = self.place()
            args = [place.ms, place.low, evt, event, self.told, how]
            self._script(keys=[queue_key(self.queue)], args=args)
            self.told += 1

    def place(self) -> tuple[str, Place]:
        """The id of a new record, and where it stands."""
        evt = self._mint.mint("EVT")
        place = place_of(evt)
        assert place is not None
        return evt, place
