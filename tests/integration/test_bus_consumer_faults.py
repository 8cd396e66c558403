"""Consumers over whatever happens to the server and the line to it: nothing is lost, and doubles are explained."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from support.consuming import running
from support.eventually import eventually
from support.proxy import DroppingProxy
from support.servers import ServerProcess

import echomq_tasks.bus.consumer
from echomq_tasks.bus import Bus, Consumer, Delivery, Log
from echomq_tasks.bus.member import Member
from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import ConfigError
from echomq_tasks.scripts.loader import load_scripts

Make = Callable[..., Consumer]


class Seen:
    """A handler that notes what it is given."""

    def __init__(self) -> None:
        self.numbers: list[str] = []
        self.deliveries: list[int] = []

    def __call__(self, delivery: Delivery) -> None:
        self.numbers.append(delivery.fields["n"])
        self.deliveries.append(delivery.deliveries)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def make(seen: Seen) -> Make:
    """A consumer that never takes anything from another one: what it handles twice, nobody else explains."""

    def make(log: Log, **options: Any) -> Consumer:
        settings = {"start": "head", "handler": seen, "beat": 0.1, "min_idle": 600}
        return Consumer(log, "billing", **{**settings, **options})

    return make


@pytest.fixture
def proxied(proxy: DroppingProxy, queue_name: str) -> Iterator[Log]:
    """A log behind a proxy."""
    with connect(proxy.url) as connection:
        yield Log(queue_name, "audit", connection)


@pytest.fixture
def own(own_server: ServerProcess, queue_name: str) -> Iterator[Log]:
    """A log on a server that the test may stop."""
    with connect(own_server.url) as connection:
        yield Log(queue_name, "audit", connection)


def numbered(count: int, first: int = 0) -> list[dict[str, str]]:
    return [{"n": str(number)} for number in range(first, first + count)]


def blocked(client: redis.Redis) -> bool:
    """Whether anybody waits in an XREAD."""
    return any(each["cmd"] == "xread" and "b" in each["flags"] for each in client.client_list())


def pending(log: Log) -> int:
    client: Any = log.connection.client
    return int(client.xpending(log.key, "billing")["pending"])


# -- the line -------------------------------------------------------------------------------------------------------


def test_a_connection_that_drops_in_the_middle_of_a_blocking_read_is_opened_again(
    proxied: Log, proxy: DroppingProxy, server: ServerProcess, make: Make, seen: Seen
) -> None:
    consumer = make(proxied, beat=60)
    with running(consumer):
        for turn in range(3):
            eventually(lambda: blocked(server.client()))
            proxy.cut_all()
            proxied.append_many(numbered(2, 2 * turn))
            eventually(lambda turn=turn: len(seen.numbers) == 2 * turn + 2)
    assert seen.numbers == ["0", "1", "2", "3", "4", "5"]
    assert set(seen.deliveries) == {1}


@pytest.mark.parametrize(
    ("script", "deliveries"),
    # A drain after the start counts, for the consumer may have died with what it finds; what was lost counts once.
    [("group_read", [1, 1, 1, 1, 1]), ("group_claim", [2, 2, 1, 1, 1]), ("group_own", [2, 2, 1, 1, 1])],
)
def test_what_was_delivered_into_a_lost_reply_comes_again_at_once(
    proxied: Log, proxy: DroppingProxy, make: Make, seen: Seen, script: str, deliveries: list[int]
) -> None:
    proxied.append_many(numbered(5))
    client: Any = proxied.connection.client
    client.xgroup_create(proxied.key, "billing", 0)
    if script != "group_read":
        client.xreadgroup("billing", "me" if script == "group_own" else "dead", {proxied.key: ">"}, count=2)
    if script == "group_claim":
        ids = [record.stream_id for record in proxied.read(count=2)]
        client.execute_command("XCLAIM", proxied.key, "billing", "dead", 0, *ids, "IDLE", 700_000, "RETRYCOUNT", 1)
    proxy.drop_reply(load_scripts()[script].sha.encode())
    # Nothing becomes idle for ten minutes, so that nobody but the one who lost it can find it.
    with running(make(proxied, name="me", min_idle=600)):
        eventually(lambda: len(seen.numbers) == 5)
    assert proxy.counts.dropped_replies == 1
    assert sorted(seen.numbers) == ["0", "1", "2", "3", "4"]
    assert [count for _, count in sorted(zip(seen.numbers, seen.deliveries, strict=True))] == deliveries
    assert pending(proxied) == 0


def test_an_acknowledgement_whose_reply_was_lost_is_sent_again_and_nothing_is_handled_twice(
    proxied: Log, proxy: DroppingProxy, make: Make, seen: Seen
) -> None:
    sha = load_scripts()["group_ack"].sha.encode()
    consumer = make(proxied)
    with running(consumer):
        for turn, fault in enumerate((proxy.drop_reply, proxy.drop_request)):
            fault(sha)
            proxied.append_many(numbered(3, 3 * turn))
            eventually(lambda turn=turn: consumer.tally.handled == 3 * turn + 3)
    assert seen.numbers == ["0", "1", "2", "3", "4", "5"]
    assert pending(proxied) == 0


def test_a_burial_whose_reply_was_lost_buries_once(proxied: Log, proxy: DroppingProxy, make: Make) -> None:
    def failing(delivery: Delivery) -> None:
        raise ValueError("boom")

    proxied.append_many(numbered(2))
    proxy.drop_reply(load_scripts()["group_bury"].sha.encode())
    consumer = make(proxied, handler=failing, max_deliveries=1)
    with running(consumer):
        eventually(lambda: proxy.counts.dropped_replies == 1 and consumer.tally.failed == 2)
    assert pending(proxied) == 0
    dead = list(Log(proxied.queue, "audit.dead", proxied.connection).read())
    assert sorted(record.fields["n"] for record in dead) == ["0", "1"]


# -- the server -----------------------------------------------------------------------------------------------------


def test_a_restarted_server_is_found_again_in_the_middle_of_a_blocking_read(
    own: Log, own_server: ServerProcess, make: Make, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    consumer = make(own, beat=60)
    with running(consumer):
        own.append_many(numbered(3))
        eventually(lambda: consumer.tally.handled == 3)
        for turn in (1, 2):
            eventually(lambda: blocked(own_server.client()))
            own_server.kill()
            eventually(lambda turn=turn: caplog.text.count("tries to get back") == turn)
            own_server.start()
            own.append_many(numbered(3, 3 * turn))
            eventually(lambda turn=turn: consumer.tally.handled == 3 * turn + 3)
    assert seen.numbers == [str(number) for number in range(9)]
    assert caplog.text.count("is back") >= 1


def test_what_was_finished_while_the_server_was_away_is_told_when_it_is_back(
    own: Log, own_server: ServerProcess, make: Make
) -> None:
    entered, leave = threading.Event(), threading.Event()
    numbers: list[str] = []

    def handler(delivery: Delivery) -> None:
        numbers.append(delivery.fields["n"])
        # The first one is quick, so that the second read takes all.
        if delivery.fields["n"] == "1":
            entered.set()
            assert leave.wait(20)

    own.append_many(numbered(4))
    consumer = make(own, handler=handler)
    with running(consumer):
        assert entered.wait(20)
        own_server.kill()
        leave.set()
        eventually(lambda: len(numbers) == 4)
        own_server.start()
        eventually(lambda: consumer.tally.handled == 4)
    assert numbers == ["0", "1", "2", "3"]
    assert pending(own) == 0


def test_a_consumer_that_starts_before_its_server_does_waits_for_it(
    own: Log, own_server: ServerProcess, make: Make, seen: Seen
) -> None:
    own.append_many(numbered(2))
    own_server.kill()
    with running(make(own)):
        own_server.start()
        eventually(lambda: len(seen.numbers) == 2)


def test_a_stop_while_the_server_is_away_ends_the_run(
    own: Log, own_server: ServerProcess, make: Make, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = make(own)
    with running(consumer) as (run,):
        own.append_many(numbered(1))
        eventually(lambda: consumer.tally.handled == 1)
        own_server.kill()
        eventually(lambda: "tries to get back" in caplog.text)
        run.end()
    own_server.start()


def test_a_server_that_hangs_is_told_of_the_end_once(
    own_server: ServerProcess, queue_name: str, make: Make, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try takes as long as the server may take to answer."""
    monkeypatch.setattr(echomq_tasks.bus.consumer, "_LAST_SECONDS", 0.1)
    told: list[str] = []
    with connect(own_server.url, timeout=0.3) as connection:
        log = Log(queue_name, "audit", connection)
        consumer = make(log, beat=60)
        with running(consumer) as (run,):
            log.append_many(numbered(1))
            eventually(lambda: consumer.tally.handled == 1 and blocked(own_server.client()))
            tidy = Member.tidy
            monkeypatch.setattr(Member, "tidy", lambda self, *args: (told.append(args[1]), tidy(self, *args)))
            with own_server.hung():
                run.end()
    assert told == [consumer.name]


def test_an_emptied_server_gets_its_group_again_from_the_declared_start(
    own: Log, own_server: ServerProcess, make: Make, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    with running(make(own)):
        own.append_many(numbered(2))
        eventually(lambda: len(seen.numbers) == 2)
        own_server.flush()
        own.append_many(numbered(2, 2))
        eventually(lambda: len(seen.numbers) == 4)
    assert seen.numbers == ["0", "1", "2", "3"]
    assert "is gone, as after the server was emptied: it was made again" in caplog.text


def test_a_server_that_is_a_replica_for_a_while_is_waited_for(
    own: Log, own_server: ServerProcess, make: Make, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    with running(make(own)):
        own.append_many(numbered(2))
        eventually(lambda: len(seen.numbers) == 2 and blocked(own_server.client()))
        own_server.client().execute_command("REPLICAOF", "127.0.0.1", "1")
        eventually(lambda: "tries to get back" in caplog.text)
        own_server.client().execute_command("REPLICAOF", "NO", "ONE")
        own.append_many(numbered(2, 2))
        eventually(lambda: len(seen.numbers) == 4)
    assert seen.numbers == ["0", "1", "2", "3"]


def test_a_full_server_lets_consumers_finish_and_bury_only_when_there_is_room_again(
    own: Log, own_server: ServerProcess, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    entered, leave = threading.Event(), threading.Event()

    def handler(delivery: Delivery) -> None:
        entered.set()
        assert leave.wait(20)
        if delivery.fields["n"] == "0":
            raise ValueError("boom")

    own.append_many(numbered(20))
    consumer = make(own, handler=handler, max_deliveries=1, min_idle=0.2, beat=0.05)
    with running(consumer):
        assert entered.wait(20)
        own_server.client().config_set("maxmemory", 1)
        leave.set()
        eventually(lambda: consumer.tally.handled == 19)
        eventually(lambda: "cannot go to its dead log" in caplog.text)
        assert not own.connection.client.exists(own.key + b".dead")
        own_server.client().config_set("maxmemory", 0)
        eventually(lambda: consumer.tally.buried == 1)
    (dead,) = Log(own.queue, "audit.dead", own.connection).read()
    # Not what became of it while there was no room.
    assert (dead.fields["n"], dead.fields["dead.error"]) == ("0", "ValueError: boom")
    assert pending(own) == 0


def test_an_acl_that_forbids_reading_ends_the_run_with_advice(own: Log, own_server: ServerProcess, make: Make) -> None:
    own.append_many(numbered(1))
    admin = own_server.client()
    admin.acl_setuser(
        "limited", enabled=True, passwords=["+p"], keys=["emq:*", "{emq}:*"], commands=["+@all", "-xautoclaim"]
    )
    with connect(own_server.url, username="limited", password="p") as connection:
        with pytest.raises(ConfigError, match=r"may not run group_claim.*docs/operations\.md"):
            make(Log(own.queue, "audit", connection)).run()


def test_the_documented_user_can_consume_bury_and_look(
    own: Log, own_server: ServerProcess, make: Make, seen: Seen
) -> None:
    def handler(delivery: Delivery) -> None:
        seen(delivery)
        if delivery.fields["n"] == "0":
            raise ValueError("boom")

    guide = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    (line,) = re.findall(r"^ACL SETUSER .*$", guide, re.MULTILINE)
    admin = own_server.client()
    admin.execute_command(*line.split())
    admin.acl_log_reset()
    with connect(own_server.url, username="echomq", password="password") as connection:
        log = Log(own.queue, "audit", connection)
        log.append_many(numbered(5))
        consumer = make(log, handler=handler, max_deliveries=2, min_idle=0.1, forget=0.2)
        with running(consumer):
            eventually(lambda: consumer.tally.buried == 1)
        bus = Bus(connection)
        assert [info.name for info in bus.groups(log.queue, "audit")] == ["billing"]
        assert bus.replay_dead(log.queue, "audit") == 1
        assert bus.delete_group(log.queue, "audit", "billing")
    assert admin.acl_log() == []


# -- other topologies -----------------------------------------------------------------------------------------------


def test_the_same_over_every_engine_when_the_connections_are_killed(connection: Connection, make: Make) -> None:
    log = Log("over-engines", "audit", connection)
    counts: list[str] = []
    client: Any = connection.client
    nodes = [client]
    if connection.is_cluster:
        nodes = [client.get_redis_connection(node) for node in client.get_primaries()]
    consumer = make(log, handler=lambda each: counts.append(each.fields["n"]))
    with running(consumer):
        for turn in range(4):
            log.append_many(numbered(50, 50 * turn))
            for node in nodes:
                for each in node.client_list():
                    if each["cmd"] == "xread":
                        node.client_kill_filter(_id=each["id"])
        eventually(lambda: consumer.tally.handled == 200)
    assert counts == [str(number) for number in range(200)]
