"""Events that nobody would hear are not made; whoever may hear one gets it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from support.eventually import eventually
from support.servers import ServerProcess

from echomq_tasks.connection import Connection, connect
from echomq_tasks.events import EVENTS, Announcing
from echomq_tasks.keyspace import queue_key, stream_key
from echomq_tasks.queue import Queue

THREE = ["enqueued", "started", "completed"]


def published(client: redis.Redis) -> int:
    """How often anything was published."""
    return int(client.info("commandstats").get("cmdstat_publish", {}).get("calls", 0))


def announcing_queue(name: str, connection: Connection, **options: str) -> Queue:
    announcing = Announcing()
    announcing.choose(EVENTS, **options)  # type: ignore[arg-type]
    return Queue(name, connection, announcing=announcing)


def run_one(queue: Queue) -> None:
    queue.enqueue('{"actor_name":"count"}')
    (job,) = queue.claim()
    queue.complete(job)


def heard(subscription: redis.client.PubSub) -> list[str]:
    """The events that came, in order; three are waited for."""
    found: list[str] = []
    while len(found) < 3:
        message = subscription.get_message(timeout=10)
        assert message is not None, f"only {found} came"
        if message["type"] in ("message", "pmessage"):
            found.append(str(message["data"]).split('"event":"')[1].split('"')[0])
    return found


@pytest.fixture
def subscription(standalone: Connection) -> Iterator[redis.client.PubSub]:
    with standalone.client.pubsub() as opened:
        yield opened


def test_nothing_is_published_while_nobody_is_subscribed(standalone: Connection, queue_name: str) -> None:
    before = published(standalone.client)
    run_one(announcing_queue(queue_name, standalone))
    assert published(standalone.client) == before


@pytest.mark.parametrize("how", ["channel", "pattern"])
def test_whoever_is_subscribed_is_told(
    standalone: Connection, subscription: redis.client.PubSub, queue_name: str, how: str
) -> None:
    if how == "channel":
        subscription.subscribe(queue_key(queue_name, "events"))
    else:
        subscription.psubscribe("emq:{*")
    assert subscription.get_message(timeout=10), "it stands"
    run_one(announcing_queue(queue_name, standalone))
    assert heard(subscription) == THREE


@pytest.mark.parametrize("whose", ["its own", "another one's"])
def test_a_log_keeps_them_though_nobody_is_subscribed(standalone: Connection, queue_name: str, whose: str) -> None:
    queue = announcing_queue(queue_name, standalone, **({"log": "kept"} if whose == "its own" else {}))
    if whose != "its own":
        queue.keep_events("kept")
    run_one(queue)
    records = standalone.client.xrange(stream_key(queue_name, "kept"))
    assert [fields[b"event"].decode() for _, fields in records] == THREE


def test_who_is_subscribed_to_a_replica_is_told(own_server: ServerProcess, queue_name: str, tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as replica, connect(own_server.url) as connection:
        own_server.client().config_set("repl-diskless-sync-delay", 0)
        replica.client().replicaof("127.0.0.1", str(own_server.port))
        own_server.client().wait(1, 10_000)
        with replica.client().pubsub() as subscription:
            subscription.subscribe(queue_key(queue_name, "events"))
            assert subscription.get_message(timeout=10)
            run_one(announcing_queue(queue_name, connection))
            assert heard(subscription) == THREE


def test_a_replica_that_is_cut_off_may_ask_for_what_it_missed(
    own_server: ServerProcess, queue_name: str, tmp_path: Path
) -> None:
    with connect(own_server.url) as connection:
        own_server.client().config_set("repl-diskless-sync-delay", 0)
        with ServerProcess(tmp_path) as replica:
            replica.client().replicaof("127.0.0.1", str(own_server.port))
            own_server.client().set("key", "1")
            assert own_server.client().wait(1, 10_000) == 1
        eventually(lambda: own_server.client().info("replication")["connected_slaves"] == 0)
        before = published(own_server.client())
        run_one(announcing_queue(queue_name, connection))
        assert published(own_server.client()) == before + 3


def test_a_user_who_may_not_look_who_listens_publishes(own_server: ServerProcess, queue_name: str) -> None:
    own_server.client().execute_command(*"ACL SETUSER blind on >secret ~* &* +@all -info -pubsub".split())
    with connect(f"valkey://blind:secret@127.0.0.1:{own_server.port}/0") as connection:
        before = published(own_server.client())
        run_one(announcing_queue(queue_name, connection))
        assert published(own_server.client()) == before + 3
