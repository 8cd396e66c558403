"""Every script runs as a user who may touch one queue's keys; the documented user can do all, and needs all it has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from script_cases import (
    ABSENT,
    CACHED,
    CASES,
    DEAD,
    DUE,
    FLAT,
    FUTURE,
    IN_LANE,
    WAITING,
    WAITING_IN_LANE,
    fill,
    key_of,
    raw_args,
    table_base,
)
from support.clusters import ClusterProcess
from support.eventually import eventually
from support.servers import ServerProcess
from wire.handwriting import Wire, text

from echomq_tasks.bus import Log, Retention, keep_retention
from echomq_tasks.cache.claims import Follow, Lead
from echomq_tasks.cache.ear import Ear
from echomq_tasks.cache.store import Store
from echomq_tasks.cache.survey import survey
from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import EchoMQError
from echomq_tasks.queue import Enqueued, Queue, State, Verdict
from echomq_tasks.scripts.loader import load_scripts

PASSWORD = "only-this-queue"
RIGHTS = ["-@all", "+@read", "+@write", "+@scripting", "+time", "+publish", "-@dangerous"]


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose users these tests may set up."""
    with ServerProcess(tmp_path_factory.mktemp("private")) as process:
        yield process


@pytest.fixture
def admin(private: ServerProcess) -> Iterator[Connection]:
    private.flush()
    with connect(private.url) as opened:
        yield opened


def limited(server: ServerProcess, key: str) -> redis.Redis:
    """A client that may touch what begins with ``key`` and run scripts."""
    server.client().acl_setuser(
        "limited",
        enabled=True,
        reset=True,
        passwords=["+" + PASSWORD],
        keys=[key + "*"],
        channels=[key + "*"],
        commands=RIGHTS,
    )
    return redis.Redis(port=server.port, username="limited", password=PASSWORD)


def test_every_script_has_its_case() -> None:
    assert set(CASES) == set(load_scripts())


@pytest.mark.parametrize("name", CASES)
def test_a_script_needs_no_key_beyond_its_prefix(
    name: str, admin: Connection, private: ServerProcess, queue_name: str
) -> None:
    wire = Wire(admin, queue_name)
    fill(wire, CASES[name])
    key = key_of(name, wire)
    with limited(private, key) as client:
        reply = text(client.eval(load_scripts()[name].text, 1, key, *raw_args(name)))
    if CASES[name].reply is not None:
        assert reply == CASES[name].reply
    elif name == "job_claim":
        # The lane is at its limit, so its job stays; the due one is promoted and claimed.
        assert [entry[0] for entry in reply[2:]] == [WAITING, DUE]
        assert wire.ids(f"g:{wire.row(WAITING_IN_LANE)['group']}:pending") == [WAITING_IN_LANE]
    elif name == "queue_metrics":
        assert reply[:11] == [1, 1, 3, 1, 1, 0, 0, 0, 0, 1, 1]
        assert abs(reply[11] - wire.now_ms()) < 60_000
        assert reply[12] == DEAD
    elif name == "group_bury":
        assert reply.startswith("EVT")
    elif name == "queue_clock":
        assert abs(reply - wire.now_ms()) < 60_000
    elif name == "repeat_due":
        assert abs(reply[0] - wire.now_ms()) < 60_000
        assert [entry[:4] for entry in reply[1:]] == [["nightly", "1", 2, "60000"], ["orphan", "1", 0, None]]
    elif name == "repeat_list":
        assert [entry[:2] for entry in reply] == [["nightly", "1"], ["yearly", str(FUTURE)]]
    else:
        assert name == "job_get"
        assert reply[0][0] == "active"
        assert reply[0][reply[0].index("payload") + 1] == "p"
        assert reply[1] == []


def test_the_same_user_cannot_reach_another_queue(admin: Connection, private: ServerProcess, queue_name: str) -> None:
    wire = Wire(admin, queue_name)
    fill(wire)
    before = wire.dumps()
    with limited(private, "emq:{another}:") as client:
        for name in CASES:
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.eval(load_scripts()[name].text, 1, key_of(name, wire), *raw_args(name))
    assert wire.dumps() == before


def test_a_flow_job_settled_by_that_user_stays_on_its_own_slot(
    admin: Connection, private: ServerProcess, queue_name: str
) -> None:
    wire = Wire(admin, queue_name)
    fill(wire)
    with limited(private, wire.base) as client:
        client.eval(load_scripts()["job_complete"].text, 1, wire.base, *raw_args("job_complete"))
    assert len(wire.read("flow:outbox")) == 1
    others = [key for key in admin.client.scan_iter() if not key.startswith(wire.base.encode())]
    # The cache table was filled in by hand.
    assert [key for key in others if not key.startswith((b"{emq}:", table_base(wire).encode()))] == []
    assert (wire.row(FLAT), wire.row(IN_LANE), wire.row(ABSENT)) == ({}, {}, {})


# --- the user that the documentation gives

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
(DOCUMENTED,) = re.findall(r"^ACL SETUSER .*$", OPERATIONS.read_text(), re.MULTILINE)
USER = {"username": "echomq", "password": "password"}
#: What it may, without how it is made and what is taken away.
GRANTS = [word for word in DOCUMENTED.split()[5:] if word != "-@dangerous"]


def whole_cycle(connection: Connection, name: str) -> None:
    """Everything a producer and a worker do."""
    queue = Queue(name, connection)
    first = queue.enqueue("now")
    assert isinstance(first, Enqueued)
    delayed, _ = queue.enqueue("later", delay=3600), queue.enqueue("in a lane", group="acme")
    assert queue.state(delayed.id) is State.SCHEDULED
    one, other = queue.claim(2).jobs
    assert queue.update_progress(one.id, 0.5) is Verdict.OK
    assert queue.add_log(one.id, "a line") == 1
    assert queue.extend(one) is Verdict.OK
    assert queue.complete(one) is Verdict.OK
    assert queue.retry(other, "boom", max_retries=0) is Verdict.DEAD
    assert queue.browse(State.DEAD) == [other.id]
    assert queue.reprocess(other.id) is Verdict.OK
    (again,) = queue.claim(lease=0.001).jobs
    eventually(lambda: queue.sweep_stalled().recovered == (again.id,), message="swept")
    assert queue.counts().scheduled == 1
    assert queue.remove(delayed.id) is Verdict.OK
    connection.client.delete(queue.base + b"wake")  # the tokens of the above
    parking = queue.parking()
    try:
        assert not parking.wait(0.01)
        parking.leave()
        queue.enqueue("wakes")
        assert parking.wait(10)
    finally:
        parking.close()
    events = connection.client.pubsub()
    events.subscribe(queue.base + b"events")  # as a dashboard does
    events.close()
    log = Log(name, "log", connection)
    log.append_many([{"n": "1"}, {"n": "2"}])
    log.retain(maxlen=100)
    assert (log.length(), log.trim(maxlen=1, exact=True), log.info().length) == (2, 1, 1)
    with log.tail(timeout=10) as tail:
        log.append({"n": "3"})
        assert [next(tail), *log.read(reverse=True, count=1)] == list(log.read(count=2))[1:] * 2
    assert (keep_retention(log.scripts, log.base), log.retention()) == (0, Retention(maxlen=100))
    assert queue.drain("pending", "lanes") > 0
    queue.limit_rate(100)
    queue.lane("acme").limit(5)
    queue.enqueue("last", group="acme")
    assert queue.metrics().waiting == 1
    assert queue.pause()
    assert queue.obliterate() == 1
    cached(connection, name)


def cached(connection: Connection, name: str) -> None:
    """Everything a cache does."""
    store = Store(name, "USR", connection)
    heard: list[bytes] = []
    ear = Ear(connection, store.channels, lambda channel, data: heard.append(data))
    ear.ready()
    lead = store.claim(CACHED, "me", 5000, ["a tag"])
    assert isinstance(lead, Lead)
    assert isinstance(store.claim(CACHED, "you", 5000), Follow)
    assert store.renew(CACHED, "me", 5000)
    assert store.fill(CACHED, "me", lead.version, b"v", 60_000, ["a tag"], announce=True)
    assert store.version(CACHED) == lead.version
    assert not store.release(CACHED, "me")
    assert store.put(CACHED, None, b"w", 60_000, ["a tag"]) > lead.version
    (seen,) = survey(connection, [name])
    assert (seen.rows.total(), seen.bytes is not None) == (1, True)
    store.drop_tag("a tag")
    assert store.peek(CACHED, ["a tag"]) is None
    assert store.apply(CACHED, store.mint())
    store.drop(CACHED)
    assert store.clear() == 0
    eventually(lambda: any(data.startswith(b"TAG00000000000:") for data in heard), message="heard to the end")
    ear.close()


def denied(client: redis.Redis) -> list[str]:
    """What the server's log of refusals holds, emptied by reading."""
    entries = [f"{entry['reason']} {entry['object']}" for entry in client.acl_log()]
    client.acl_log_reset()
    return entries


def test_the_documented_user_can_do_everything_and_is_denied_nothing(private: ServerProcess, queue_name: str) -> None:
    private.flush()
    denied(private.client())
    private.client().execute_command(*DOCUMENTED.split())
    with connect(private.url, **USER) as connection:
        assert connection.server.name == "valkey"
        whole_cycle(connection, queue_name)
        assert connection.client.client_info()["lib-name"] == "echomq_tasks"
        # A lease of a node id that was refused is not an error, so look for the key.
        assert list(connection.client.scan_iter(match="{emq}:node:*"))
    assert denied(private.client()) == []


def test_a_process_that_only_caches_does_without_the_rights_on_queues(private: ServerProcess, queue_name: str) -> None:
    private.flush()
    denied(private.client())
    private.client().execute_command(*[word for word in DOCUMENTED.split() if word not in ("~emq:*", "&emq:*")])
    with connect(private.url, **USER) as connection:
        cached(connection, queue_name)
    assert denied(private.client()) == []


@pytest.mark.cluster
def test_the_documented_user_can_do_everything_in_a_cluster(cluster: ClusterProcess, queue_name: str) -> None:
    cluster.flush()
    for node in cluster.nodes:
        denied(node.client())
        node.client().execute_command(*DOCUMENTED.split())
    try:
        with connect(cluster.url, **USER) as connection:
            whole_cycle(connection, queue_name)
        assert [denied(node.client()) for node in cluster.nodes] == [[], [], []]
    finally:
        for node in cluster.nodes:
            node.client().acl_deluser("echomq")


@pytest.mark.parametrize(
    "command", ["FLUSHALL", "KEYS *", "CONFIG GET *", "ACL LIST", "SHUTDOWN", "GET other", "MONITOR"]
)
def test_the_documented_user_may_do_nothing_dangerous(private: ServerProcess, command: str) -> None:
    private.client().execute_command(*DOCUMENTED.split())
    with redis.Redis(port=private.port, **USER) as client, pytest.raises(redis.exceptions.NoPermissionError):
        client.execute_command(*command.split())


@pytest.mark.parametrize("grant", [grant for grant in GRANTS if grant != "+cluster|slots"])
def test_the_documented_user_has_no_right_it_does_not_need(private: ServerProcess, queue_name: str, grant: str) -> None:
    private.flush()
    denied(private.client())
    private.client().execute_command(*[word for word in DOCUMENTED.split() if word != grant])
    try:
        with connect(private.url, **USER) as connection:
            whole_cycle(connection, queue_name)
    except (EchoMQError, redis.exceptions.NoPermissionError):
        pass  # told in the log as well
    assert denied(private.client()) != []
