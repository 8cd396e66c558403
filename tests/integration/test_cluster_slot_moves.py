"""While a slot moves from node to node, a queue in it is away for a while; nothing is split and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from support.clusters import ClusterProcess
from support.eventually import eventually
from support.tables import A, B, C

from echomq_tasks.cache.claims import Follow, Lead
from echomq_tasks.cache.ear import Ear
from echomq_tasks.cache.store import Store
from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import ServerUnavailable
from echomq_tasks.keyspace import cache_base, queue_key, slot
from echomq_tasks.queue import Complete, Queue, Verdict
from echomq_tasks.queue.turns import Asked, turn_all

pytestmark = pytest.mark.cluster


@pytest.fixture
def moving(cluster: ClusterProcess) -> Iterator[ClusterProcess]:
    """The cluster; whatever slot a test has left on the move is settled again."""
    cluster.flush()
    yield cluster
    for node in cluster.nodes:
        node.flush()


def owner(cluster: ClusterProcess, number: int) -> tuple[redis.Redis, redis.Redis, str, str]:
    """The node that has a slot, another one, and their ids."""
    ids = [node.client().execute_command("CLUSTER MYID").decode() for node in cluster.nodes]
    for place, node in enumerate(cluster.nodes):
        for low, high, master, *_ in node.client().execute_command("CLUSTER SLOTS", NEVER_DECODE=True):
            if low <= number <= high and master[2].decode() == ids[place]:
                other = (place + 1) % len(ids)
                return node.client(), cluster.nodes[other].client(), ids[place], ids[other]
    raise AssertionError(f"nobody has slot {number}")


def migrate(source: redis.Redis, target: redis.Redis, key: bytes) -> Any:
    port = target.connection_pool.connection_kwargs["port"]
    return source.execute_command("MIGRATE", "127.0.0.1", port, key, 0, 5000)


def test_a_queue_whose_slot_moves_is_away_until_it_has_moved_and_then_whole(
    moving: ClusterProcess, queue_name: str
) -> None:
    number = slot(queue_key(queue_name))
    source, target, source_id, target_id = owner(moving, number)
    with connect(moving.url, timeout=2) as connection:
        queue = Queue(queue_name, connection)
        queue.enqueue_many([str(each) for each in range(20)])
        held = queue.claim(5).jobs
        target.execute_command("CLUSTER SETSLOT", number, "IMPORTING", source_id)
        source.execute_command("CLUSTER SETSLOT", number, "MIGRATING", target_id)
        keys = list(source.execute_command("CLUSTER GETKEYSINSLOT", number, 1000))
        assert len(keys) > 20
        for place, key in enumerate(sorted(keys)):
            migrate(source, target, key)
            if place in (0, len(keys) // 2, len(keys) - 1):
                assert_away(queue, held)
        for node in (target, source, *(each.client() for each in moving.nodes)):
            node.execute_command("CLUSTER SETSLOT", number, "NODE", target_id)
        assert eventually(lambda: whole(queue), 20)
        assert [queue.complete(job) for job in held] == [Verdict.OK] * 5
        assert len(queue.claim(20)) == 15


def assert_away(queue: Queue, held: Any) -> None:
    for verb in (lambda: queue.enqueue("x"), lambda: queue.claim(1), lambda: queue.complete(held[0])):
        with pytest.raises(ServerUnavailable):
            verb()
    # A worker of many queues is told of the one that is away, be it the only one that was asked, and not of all.
    (answer,) = turn_all([Asked(queue, [Complete(held[0])], 1)])
    assert [type(each) for each in (*answer.verdicts, answer.claimed)] == [ServerUnavailable] * 2


def whole(queue: Queue) -> bool:
    try:
        counts = queue.counts()
    except ServerUnavailable:
        return False
    return (counts.pending, counts.active) == (15, 5)


def test_a_cache_table_whose_slot_moves_is_away_until_it_has_moved_and_its_flight_goes_on(
    moving: ClusterProcess, queue_name: str
) -> None:
    number = slot(cache_base(queue_name))
    source, target, source_id, target_id = owner(moving, number)
    with connect(moving.url, timeout=2) as connection:
        store = Store(queue_name, "USR", connection)
        heard: list[bytes] = []
        ear = Ear(connection, store.channels, lambda channel, data: heard.append(data))
        ear.ready()
        put = store.put(A, None, b"v", 60_000)
        lead = store.claim(B, "me", 60_000)
        assert isinstance(lead, Lead)
        target.execute_command("CLUSTER SETSLOT", number, "IMPORTING", source_id)
        source.execute_command("CLUSTER SETSLOT", number, "MIGRATING", target_id)
        for key in list(source.execute_command("CLUSTER GETKEYSINSLOT", number, 1000)):
            migrate(source, target, key)
            for verb in (
                lambda: store.version(A),
                lambda: store.claim(C, "you", 60_000),
                lambda: store.fill(B, "me", lead.version, b"v", 60_000),
                lambda: store.drop(A),
            ):
                with pytest.raises(ServerUnavailable):
                    verb()
        for node in (target, source, *(each.client() for each in moving.nodes)):
            node.execute_command("CLUSTER SETSLOT", number, "NODE", target_id)
        assert eventually(lambda: version_of(store, A) == put, 20)
        assert isinstance(store.claim(B, "you", 60_000), Follow)
        assert store.fill(B, "me", lead.version, b"v", 60_000)
        eventually(lambda: f"{B} filled me ".encode() in heard, message="who follows is woken from the new node")
        dropped = store.drop(A)
        eventually(lambda: f"{A}:{dropped}".encode() in heard)
        ear.close()


def version_of(store: Store, row_id: str) -> str | None:
    try:
        return store.version(row_id)
    except ServerUnavailable:
        return None


def test_the_connection_of_a_fork_opens_its_own_cluster_client(cluster: ClusterProcess, queue_name: str) -> None:
    cluster.flush()
    with connect(cluster.url) as connection:
        before = connection.client
        connection._after_fork()  # noqa: SLF001 - what a child does
        assert connection.client is not before
        assert isinstance(connection, Connection)
        assert not Queue(queue_name, connection).enqueue("x").duplicate
