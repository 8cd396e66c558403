"""Live events while slots move from node to node: heard from the new owner, told where something may be missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from support.clusters import ClusterProcess
from support.eventually import eventually
from support.live import Teller, event, gap, hub_threads, numbers, publish, take

from echomq_tasks.bus import Bus, Gap, hub
from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import ConfigError
from echomq_tasks.keyspace import queue_key, slot

pytestmark = pytest.mark.cluster


@pytest.fixture
def connection(cluster: ClusterProcess) -> Iterator[Connection]:
    cluster.flush()
    with connect(cluster.url) as opened:
        yield opened
    eventually(lambda: not hub_threads())


def move(cluster: ClusterProcess, queue: str) -> redis.Redis:
    """Give the slot of a queue to another node, at once; answers that one."""
    number = slot(queue_key(queue))
    ids = [node.client().execute_command("CLUSTER MYID").decode() for node in cluster.nodes]
    source = owner(cluster, queue)
    target = cluster.nodes[(source + 1) % len(ids)].client()
    for key in list(cluster.nodes[source].client().execute_command("CLUSTER GETKEYSINSLOT", number, 100)):
        port = target.connection_pool.connection_kwargs["port"]
        target.execute_command("CLUSTER SETSLOT", number, "IMPORTING", ids[source])
        cluster.nodes[source].client().execute_command(
            "CLUSTER SETSLOT", number, "MIGRATING", ids[(source + 1) % len(ids)]
        )
        cluster.nodes[source].client().execute_command("MIGRATE", "127.0.0.1", port, key, 0, 5000)
    for node in (target, cluster.nodes[source].client(), *(each.client() for each in cluster.nodes)):
        node.execute_command("CLUSTER SETSLOT", number, "NODE", ids[(source + 1) % len(ids)])
    return target


def owner(cluster: ClusterProcess, queue: str) -> int:
    """The place of the node that has the slot of a queue."""
    number = slot(queue_key(queue))
    ids = [node.client().execute_command("CLUSTER MYID") for node in cluster.nodes]
    for low, high, master, *_ in cluster.nodes[0].client().execute_command("CLUSTER SLOTS", NEVER_DECODE=True):
        if low <= number <= high:
            return ids.index(master[2])
    raise AssertionError(f"nobody has slot {number}")


def subscribed(node: redis.Redis, queue: str) -> tuple[int, int]:
    """How many listen to a queue on a node: to what is published plain, and sharded."""
    channel = queue_key(queue, "events")
    client: Any = node
    plain = client.execute_command("PUBSUB", "NUMSUB", channel)
    sharded = client.execute_command("PUBSUB", "SHARDNUMSUB", channel)
    return plain[0][1] if plain and isinstance(plain[0], (list, tuple)) else plain[1], sharded[1]


def test_a_slot_that_moves_is_a_gap_and_is_heard_from_its_new_owner(
    cluster: ClusterProcess, connection: Connection, queue_name: str
) -> None:
    bus = Bus(connection)
    with bus.subscribe(queue_name) as events:
        for round_ in range(3):
            publish(connection, queue_name, json.dumps({"event": "before"}), sharded=True)
            assert event(events).event == "before"
            target = move(cluster, queue_name)
            told = gap(events)
            assert told == Gap("moved", told.since, (queue_name,))
            target.execute_command("SPUBLISH", queue_key(queue_name, "events"), '{"event":"sharded"}')
            assert event(events).event == "sharded"
            for number, node in enumerate(cluster.nodes):
                node.client().execute_command(
                    "PUBLISH", queue_key(queue_name, "events"), json.dumps({"event": f"{round_}.{number}"})
                )
            assert sorted(item.event for item in take(events, 3) if not isinstance(item, Gap)) == [
                f"{round_}.{number}" for number in range(3)
            ]
        assert events.get(0.1) is None


def test_a_slot_that_moves_away_from_a_busy_node_takes_only_its_own_queue_along(
    cluster: ClusterProcess, connection: Connection, queue_name: str
) -> None:
    bus = Bus(connection)
    home = owner(cluster, queue_name)
    stays = next(name for number in range(1000) if owner(cluster, name := f"{queue_name}-{number}") == home)
    with bus.subscribe(queue_name, stays) as events:
        move(cluster, queue_name)
        assert gap(events).queues == (queue_name,)
        publish(connection, stays, '{"event":"x"}', sharded=True)
        assert event(events).queue == stays
        assert events.get(0.05) is None


def test_a_move_is_filled_from_the_log(cluster: ClusterProcess, connection: Connection, queue_name: str) -> None:
    teller = Teller(connection, queue_name)
    with teller.bus.subscribe(queue_name, catch_up="lifecycle") as events:
        teller.tell(3, sharded=True)
        assert numbers(take(events, 3)) == ["0", "1", "2"]
        teller.tell(2, live=False)
        move(cluster, queue_name)
        teller.tell(1, sharded=True)
        assert numbers(take(events, 3)) == ["3", "4", "5"]
        assert events.get(0.1) is None


def test_in_a_silent_moment_what_is_published_plain_is_heard_from_the_owner_too(
    cluster: ClusterProcess, connection: Connection, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old owner may be about to leave the cluster, and would not say so."""
    bus = Bus(connection)
    source = cluster.nodes[owner(cluster, queue_name)].client()
    with bus.subscribe(queue_name) as events:
        assert subscribed(source, queue_name) == (1, 1)
        target = move(cluster, queue_name)
        assert gap(events).reason == "moved"
        assert subscribed(source, queue_name)[0] == 1
        monkeypatch.setattr(hub, "_SILENCE", 0.05)
        # The hub looks at the clock again once it has heard something.
        publish(connection, queue_name, '{"event":"x"}')
        assert event(events).event == "x"
        assert gap(events).reason == "moved"
        eventually(lambda: subscribed(target, queue_name) == (1, 1))
        eventually(lambda: subscribed(source, queue_name) == (0, 0))
        source.execute_command("PUBLISH", queue_key(queue_name, "events"), '{"event":"y"}')
        assert event(events).event == "y"
        assert events.get(0.1) is None


def test_one_node_of_a_cluster_taken_for_a_server_is_told_so(cluster: ClusterProcess, queue_name: str) -> None:
    home = owner(cluster, queue_name)
    other = cluster.nodes[(home + 1) % 3]
    cluster.flush()
    with connect(other.url) as connection, pytest.raises(ConfigError, match=r"valkey\+cluster://"):
        Bus(connection).subscribe(queue_name)
