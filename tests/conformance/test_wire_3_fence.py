"""Wire §3, the fence: every connect and reconnect asks for the version, and an unequal one is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from conformance.scenarios import scenario
from wire.handwriting import Wire

from echomq_tasks.connection import Connection, fence
from echomq_tasks.errors import VersionMismatch
from echomq_tasks.queue import Queue

KEY, OURS = b"{emq}:version", b"echomq:2.4.2"
FOREIGN = [b"echomq:2.4.1", b"echomq:2.4.3", b"echomq:3.0.0", b"echomq:2.4.2 ", b"2.4.2", b"", b"\xff\x00"]


def everything(connection: Connection) -> dict[bytes, bytes]:
    """Every key of the whole server, serialized: the fence's own too."""
    client: Any = connection.client
    return {key: client.dump(key) for key in client.scan_iter(count=1000)}


@scenario("3.01.1", "absent: `SET NX echomq:2.4.2`, read back")
def test_the_first_to_connect_sets_the_fence_and_nothing_else(connection: Connection) -> None:
    connection.client.delete(KEY)
    with Connection(connection.config):
        assert connection.client.get(KEY) == OURS
        assert list(everything(connection)) == [KEY]
    # For ever: a fence that expires would let another version in beside our keys.
    assert connection.client.pttl(KEY) == -1


@scenario("3.01.2", "absent: `SET NX`, so of many at once one sets it and all go on")
def test_many_that_connect_at_once_all_go_on_behind_one_fence(connection: Connection) -> None:
    connection.client.delete(KEY)
    with ThreadPoolExecutor(8) as threads:
        opened = list(threads.map(lambda _: Connection(connection.config), range(8)))
    for other in opened:
        assert other.client.get(KEY) == OURS
        other.close()


@scenario("3.01.3", "absent: read back, so one that lost the race to another version is refused")
def test_one_that_loses_the_race_to_another_version_is_refused(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    trip = fence._trip  # noqa: SLF001 - there is no other way between its two round trips

    def trip_late(wire: Any, *commands: tuple[bytes | str, ...]) -> list[Any]:
        if commands[0][0] == "SET":
            connection.client.set(KEY, b"echomq:9.9.9")
        return trip(wire, *commands)

    monkeypatch.setattr(fence, "_trip", trip_late)
    connection.client.delete(KEY)
    with pytest.raises(VersionMismatch):
        Connection(connection.config)
    monkeypatch.undo()
    assert connection.client.get(KEY) == b"echomq:9.9.9"


@scenario("3.02.1", "equal: go on")
@pytest.mark.parametrize("by_hand", [True, False], ids=["raw", "api"])
def test_an_equal_fence_is_left_alone_and_the_queue_serves(connection: Connection, queue: Queue, by_hand: bool) -> None:
    if by_hand:
        connection.client.set(KEY, OURS)
    before = everything(connection)
    with Connection(connection.config) as other:
        assert everything(connection) == before
        assert not Queue(queue.name, other).enqueue("p").duplicate
        assert len(queue.claim()) == 1


@scenario("3.03.1", "anything else: refuse with a typed error that names both versions")
@pytest.mark.parametrize("version", FOREIGN)
def test_another_version_is_refused_by_both_names(connection: Connection, version: bytes) -> None:
    connection.client.set(KEY, version)
    with pytest.raises(VersionMismatch) as refused:
        Connection(connection.config)
    assert repr(version.decode(errors="replace")) in str(refused.value)
    assert repr(OURS.decode()) in str(refused.value)


@scenario("3.03.2", "anything else: refuse before any other write")
@pytest.mark.parametrize("by_hand", [True, False], ids=["raw", "api"])
def test_a_refused_connection_has_written_nothing(
    connection: Connection, queue: Queue, wire: Wire, by_hand: bool
) -> None:
    if by_hand:
        wire.do("HSET", "meta", "paused", 1)
    else:
        queue.enqueue("p")
    everything(connection)  # this one is connected to every node before the fence changes
    connection.client.set(KEY, b"echomq:9.9.9")
    before = everything(connection)
    with pytest.raises(VersionMismatch):
        Connection(connection.config)
    assert everything(connection) == before


@scenario("3.04.1", "and on every reconnect: a fence that changed meanwhile refuses the next connection")
@pytest.mark.parametrize("node", ["the fence's", "the queue's"])
def test_a_reconnect_meets_the_fence_again_before_its_command_is_sent(connection: Connection, node: str) -> None:
    key = b"{emq}:lost" if node == "the fence's" else away_from_the_fence(connection)
    with Connection(connection.config) as other:
        client: Any = other.client
        client.set(key, "before")
        assert connection.client.get(key) == b"before"  # connected there before the fence changes
        connection.client.set(KEY, b"echomq:9.9.9")
        pools = [node.redis_connection for node in client.get_nodes()] if other.is_cluster else [client]
        for pool in pools:
            if pool is not None:
                pool.connection_pool.disconnect()
        for _ in range(2):  # a connection that was refused must not pass at its second use
            with pytest.raises(VersionMismatch):
                client.set(key, "after")
        assert connection.client.get(key) == b"before"


@scenario("3.04.2", "and on every reconnect: an equal fence lets it go on")
def test_a_reconnect_behind_an_equal_fence_goes_on(connection: Connection, queue: Queue) -> None:
    client: Any = connection.client
    queue.enqueue("p")
    pools = [node.redis_connection for node in client.get_nodes()] if connection.is_cluster else [client]
    for pool in pools:
        if pool is not None:
            pool.connection_pool.disconnect()
    assert len(queue.claim()) == 1


def away_from_the_fence(connection: Connection) -> bytes:
    """A key on a node that does not own the fence, where there is more than one."""
    client: Any = connection.client
    if not connection.is_cluster:
        return b"lost"
    fenced = client.get_node_from_key(KEY)
    return next(key for key in (b"{lost-%d}" % n for n in range(99)) if client.get_node_from_key(key) != fenced)
