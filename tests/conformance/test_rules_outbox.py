"""The outbox: facts for parents in other queues take effect once, and nothing in it keeps the rest from its parents."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conformance.flow_steps import take, work_off
from conformance.scenarios import A, B, C, D, E
from support.clusters import ClusterProcess
from support.eventually import eventually
from support.proxy import DroppingProxy
from support.servers import ServerProcess
from wire.handwriting import Wire

from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import EchoMQError, InvalidArgument, ServerUnavailable
from echomq_tasks.identity import brand
from echomq_tasks.keyspace import queue_key
from echomq_tasks.queue import Children, Flow, NewJob, Queue, State
from echomq_tasks.scripts import load_scripts


@pytest.fixture
def home(connection: Connection, queue_name: str) -> Queue:
    """The queue of the children, whose outbox this is."""
    return Queue(queue_name, connection)


@pytest.fixture
def far(connection: Connection, queue_name: str) -> Queue:
    """The parents' queue; in the cluster of another slot."""
    return Queue(f"{queue_name}.far", connection)


@pytest.fixture
def third(connection: Connection, queue_name: str) -> Queue:
    """Another queue of parents."""
    return Queue(f"{queue_name}.third", connection)


@pytest.fixture
def far_wire(connection: Connection, queue_name: str) -> Wire:
    return Wire(connection, f"{queue_name}.far")


def outbox(wire: Wire) -> list[bytes]:
    entries: list[bytes] = wire.client.lrange(f"{wire.base}flow:outbox", 0, -1)
    return entries


def family(parents: Queue, home: Queue, parent: str, *children: str, ignore: bool = False) -> None:
    policy = "ignore" if ignore else "fail_parent"
    below = [Flow(NewJob("c", id=child), queue=home.name, on_failure=policy) for child in children]  # type: ignore[arg-type]
    parents.add_flow(Flow(NewJob("p", id=parent), below))


def known(queue: Queue, parent: str = A) -> Children:
    found = queue.children(parent)
    assert found is not None
    return found


# -- once ---------------------------------------------------------------------------------------------------------


def test_deliverers_that_race_have_one_effect(home: Queue, far: Queue, wire: Wire, connection: Connection) -> None:
    flows = [Flow(NewJob("p"), [Flow(NewJob("c"), queue=home.name) for _ in range(3)]) for _ in range(100)]
    added = far.add_flows(flows)
    home.complete_many(home.claim(300))
    assert len(outbox(wire)) == 300
    racing = [Queue(home.name, connection) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        told = sum(pool.map(lambda queue: sum(iter(lambda: queue.deliver(17), 0)), racing))
    assert told >= 300, "a fact may be told twice"
    assert outbox(wire) == []
    assert far.counts().pending == 100
    assert all(known(far, each.id).outstanding == 0 for each in added)
    jobs = far.claim(200).jobs
    assert sorted(job.id for job in jobs) == sorted(each.id for each in added)


@pytest.mark.parametrize("fate", ["done", "fp", "id"])
def test_a_delivery_that_was_killed_before_its_trim_is_repeated_without_effect(
    home: Queue, far: Queue, wire: Wire, far_wire: Wire, fate: str
) -> None:
    family(far, home, A, B, C, ignore=fate == "id")
    (job,) = [job for job in home.claim(9) if job.id == B]
    home.complete(job, "r") if fate == "done" else home.retry(job, "boom", max_retries=0)
    assert far.run("flow_deliver", A, fate, B, "r" if fate == "done" else "boom") == 1
    before = far_wire.everything()
    assert len(outbox(wire)) == 1
    assert home.deliver() == 1
    assert far_wire.everything() == before
    assert outbox(wire) == []


def test_a_delivery_that_is_repeated_after_the_parent_ran_has_no_effect(
    home: Queue, far: Queue, wire: Wire, far_wire: Wire
) -> None:
    family(far, home, A, B)
    home.complete(take(home, B), "r")
    (entry,) = outbox(wire)
    home.deliver()
    wire.do("RPUSH", "flow:outbox", entry)
    parent = take(far, A)
    assert home.deliver() == 1
    assert far.state(A) is State.ACTIVE
    far.complete(parent)
    wire.do("RPUSH", "flow:outbox", entry)
    before = far_wire.everything()
    assert home.deliver() == 1
    assert far_wire.everything() == before


def test_two_identical_entries_are_trimmed_one_by_one(home: Queue, wire: Wire) -> None:
    wire.do("RPUSH", "flow:outbox", "x", "y", "x")
    assert home.run("outbox_trim", "x", "z") == 1
    assert outbox(wire) == [b"y", b"x"]


# -- what is in it ------------------------------------------------------------------------------------------------

MALFORMED: dict[str, bytes] = {
    "nothing": b"",
    "no separator": b"gibberish",
    "too short": f"q\0{A}\0{B}".encode(),
    "no queue": f"\0{A}\0{B}\0r".encode(),
    "a bad queue": f"a b\0{A}\0{B}\0r".encode(),
    "braces": f"{{q}}\0{A}\0{B}\0r".encode(),
    "a binary queue": b"\xff\0" + f"{A}\0{B}\0r".encode(),
    "a bad parent": f"q\0JOB1\0{B}\0r".encode(),
    "a bad child": f"q\0{A}\0EVT0NgWEfAEJfs\0r".encode(),
    "a short failure": f"\0fail\0q\0{A}\0{B}\0fp".encode(),
    "an unknown policy": f"\0fail\0q\0{A}\0{B}\0maybe\0boom".encode(),
    "an empty policy": f"\0fail\0q\0{A}\0{B}\0\0boom".encode(),
    "done as a policy": f"\0fail\0q\0{A}\0{B}\0done\0boom".encode(),
    "another word": f"\0died\0q\0{A}\0{B}\0fp\0boom".encode(),
}


def test_what_cannot_be_read_is_dropped_with_an_error_and_the_rest_gets_through(
    home: Queue, far: Queue, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    family(far, home, A, B)
    wire.do("RPUSH", "flow:outbox", *MALFORMED.values())
    home.complete(take(home, B), "r")
    wire.do("RPUSH", "flow:outbox", *MALFORMED.values())
    with caplog.at_level(logging.ERROR, "echomq_tasks.queue.outbox"):
        assert home.deliver() == 1
    assert outbox(wire) == []
    assert far.state(A) is State.PENDING
    assert len(caplog.records) == 2 * len(MALFORMED)
    assert all(home.name in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("name", MALFORMED)
def test_each_entry_that_cannot_be_read_is_one(
    home: Queue, wire: Wire, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    wire.do("RPUSH", "flow:outbox", MALFORMED[name])
    assert home.deliver() == 0
    assert outbox(wire) == []
    assert repr(MALFORMED[name]) in caplog.text


def test_more_malformed_entries_than_one_delivery_takes_block_nothing(home: Queue, far: Queue, wire: Wire) -> None:
    family(far, home, A, B)
    wire.do("RPUSH", "flow:outbox", *[f"junk {n}" for n in range(250)])
    home.complete(take(home, B), "r")
    for _ in range(4):
        home.deliver()
    assert outbox(wire) == []
    assert far.state(A) is State.PENDING


def test_a_parent_that_is_gone_takes_its_facts_with_it(home: Queue, far: Queue, wire: Wire, far_wire: Wire) -> None:
    family(far, home, A, B, C, D, ignore=True)
    jobs = {job.id: job for job in home.claim(9)}
    home.complete(jobs[B], "r")
    home.retry(jobs[C], "boom", max_retries=0)
    far.remove(A)
    home.retry(jobs[D], "boom", max_retries=0)
    assert home.deliver() == 3
    assert outbox(wire) == []
    assert set(far_wire.everything()) <= {"wake"}


@pytest.mark.parametrize("result", [b"", b"\0", b"\0fail\0", b"a\0b\0\0", bytes(range(256)), b"\xff\xfe" * 100_000])
def test_results_of_any_bytes_arrive_as_they_were(home: Queue, far: Queue, result: bytes) -> None:
    family(far, home, A, B)
    home.complete(take(home, B), result)
    assert home.deliver() == 1
    assert known(far).results == {B: result}


@pytest.mark.parametrize("error", ["", "a\0b", "\0fail\0", "Ελλάδα 🎉", "x" * 50_000])
def test_errors_of_any_text_arrive_as_they_were(home: Queue, far: Queue, error: str) -> None:
    family(far, home, A, B, ignore=True)
    home.retry(take(home, B), error, max_retries=0)
    assert home.deliver() == 1
    assert known(far).ignored == {B: error}


@pytest.mark.parametrize("limit", [0, 10_001, -1, 1.5, "1", True])
def test_a_limit_is_a_whole_number_up_to_ten_thousand(home: Queue, limit: object) -> None:
    with pytest.raises(InvalidArgument, match="limit"):
        home.deliver(limit)  # type: ignore[arg-type]


def test_ten_thousand_entries_are_delivered_a_hundred_at_a_time_or_at_once(
    home: Queue, far: Queue, wire: Wire, far_wire: Wire
) -> None:
    children = [brand("JOB", number) for number in range(1 << 30, (1 << 30) + 10_000)]
    far_wire.do("HSET", f"job:{A}", "state", "awaiting_children", "attempts", 0, "payload", "p")
    far_wire.do("SET", f"job:{A}:dependencies", 10_000)
    for first in range(0, 10_000, 1000):
        entries = [f"{far.name}\0{A}\0{child}\0{child}" for child in children[first : first + 1000]]
        wire.do("RPUSH", "flow:outbox", *entries)
    assert home.deliver() == 100
    assert known(far).outstanding == 9_900
    assert list(known(far).results) == children[:100]
    assert home.deliver(10_000) == 9_900
    assert outbox(wire) == []
    assert far.state(A) is State.PENDING
    assert known(far).results == {child: child.encode() for child in children}


def test_large_results_are_delivered_in_several_trips(home: Queue, far: Queue, wire: Wire) -> None:
    family(far, home, A, B, C, D, E)
    for job in home.claim(9):
        home.complete(job, job.id.encode() * 400_000)
    assert home.deliver() == 4
    assert outbox(wire) == []
    assert {len(result) for result in known(far).results.values()} == {14 * 400_000}
    assert far.state(A) is State.PENDING


# -- parents that cannot be reached -------------------------------------------------------------------------------


def test_facts_for_many_queues_are_delivered_in_one_go(home: Queue, connection: Connection, wire: Wire) -> None:
    parents = [Queue(f"{home.name}.{number}", connection) for number in range(12)]
    added = [queue.add_flow(Flow(NewJob("p"), [Flow(NewJob("c"), queue=home.name)])) for queue in parents]
    home.complete_many(home.claim(50))
    assert home.deliver() == 12
    assert [queue.state(each.id) for queue, each in zip(parents, added, strict=True)] == [State.PENDING] * 12
    assert outbox(wire) == []


def test_a_queue_that_refuses_keeps_its_facts_and_the_others_get_theirs(
    home: Queue, far: Queue, third: Queue, wire: Wire, far_wire: Wire
) -> None:
    # More of them than one delivery takes, and all in front.
    refused = [f"{far.name}\0{A}\0{brand('JOB', number)}\0r" for number in range(1 << 30, (1 << 30) + 150)]
    family(far, home, A, B)
    family(third, home, C, D)
    wire.do("RPUSH", "flow:outbox", *refused)
    home.complete_many(home.claim(9))
    far_wire.do("SET", f"job:{A}:dependencies", 1)
    far_wire.do("SET", "pending", "what no queue has there")
    with pytest.raises(EchoMQError, match=r"lua/"):
        home.deliver()
    assert third.state(C) is State.PENDING
    left = outbox(wire)
    assert [entry.split(b"\0")[0] for entry in left] == [far.name.encode()] * 151
    far_wire.do("DEL", "pending")
    while home.deliver():
        pass
    assert outbox(wire) == []


@pytest.mark.parametrize("what", ["request", "reply"])
@pytest.mark.parametrize("script", ["outbox_read", "flow_deliver", "outbox_trim"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_connection_that_breaks_within_a_delivery_loses_and_doubles_nothing(
    proxy: DroppingProxy, server: ServerProcess, queue_name: str, script: str, what: str, times: int
) -> None:
    with connect(proxy.url, timeout=10) as connection, connect(server.url) as direct:
        home, far = Queue(queue_name, connection), Queue(f"{queue_name}.far", connection)
        sound = Queue(home.name, direct), Queue(far.name, direct)
        family(sound[1], sound[0], A, B, C)
        sound[0].complete(take(sound[0], B), "b")
        home.deliver()
        sound[0].complete(take(sound[0], C), "c")
        (proxy.drop_reply if what == "reply" else proxy.drop_request)(load_scripts()[script].sha.encode(), times)
        if times == 1:
            assert home.deliver() == 1
        else:
            with pytest.raises(ServerUnavailable):
                home.deliver()
            home.deliver()
        assert proxy.counts.dropped_replies + proxy.counts.dropped_requests == times
        assert outbox(Wire(direct, queue_name)) == []
        assert known(sound[1]).results == {B: b"b", C: b"c"}
        assert work_off(sound[1]) == [A]
        home.scripts.close()


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    """A cluster of whose masters one may go away, while the others go on."""
    with ClusterProcess(tmp_path / "cluster") as process:
        for node in process.nodes:
            node.client().config_set("cluster-require-full-coverage", "no")
        yield process


@pytest.mark.cluster
def test_a_node_that_is_away_keeps_only_its_own_parents_waiting(own_cluster: ClusterProcess) -> None:
    with connect(own_cluster.url, timeout=2) as connection:
        by_node: dict[int, Queue] = {}
        for number in range(100):
            queue = Queue(f"q{number}", connection)
            by_node.setdefault(connection.client.get_node_from_key(queue_key(queue.name)).port, queue)
        ports = [node.port for node in own_cluster.nodes]
        home, gone, there = (by_node[port] for port in ports)
        for _ in range(2):
            # Twice: a script that is new to a cluster is loaded on every master, so it is not while one is away.
            home.deliver()
            added = [queue.add_flow(Flow(NewJob("p"), [Flow(NewJob("c"), queue=home.name)])) for queue in (gone, there)]
            home.complete_many(home.claim(9))
        assert there.state(added[1].id) is State.AWAITING_CHILDREN
        own_cluster.nodes[1].stop()
        with pytest.raises(ServerUnavailable):
            home.deliver()
        assert there.state(added[1].id) is State.PENDING
        (left,) = outbox(Wire(connection, home.name))
        assert left.split(b"\0")[:2] == [gone.name.encode(), added[0].id.encode()]


def test_whoever_claims_is_told_of_the_outbox(home: Queue, far: Queue, wire: Wire) -> None:
    family(far, home, A, B)
    assert not home.claim(1).outbox
    wire.expire(B)
    home.reap()
    (job,) = home.claim(1)
    wire.do("DEL", "wake")
    home.complete(job)
    assert wire.wakes() == 1, "a parked worker comes and looks"
    assert home.claim(1).outbox
    home.pause()
    assert home.claim(1).outbox, "also of a paused queue"
    home.deliver()
    assert not home.claim(1).outbox


def test_a_parked_worker_is_woken_for_a_parent_that_a_delivery_set_free(home: Queue, far: Queue) -> None:
    family(far, home, A, B)
    assert not far.claim(1)
    parking = far.parking()
    with ThreadPoolExecutor(1) as pool:
        parked = pool.submit(parking.wait, 30.0)
        home.complete(take(home, B))
        home.deliver()
        assert parked.result(30)
    parking.close()
    assert take(far, A).id == A


def test_a_delivery_lets_go_of_nothing_while_another_one_reads(home: Queue, far: Queue, wire: Wire) -> None:
    added = far.add_flow(Flow(NewJob("p"), [Flow(NewJob("c"), queue=home.name) for _ in range(200)]))

    def produce() -> None:
        while jobs := home.claim(5).jobs:
            for job in jobs:
                home.complete(job, "r")

    def tend() -> None:
        done: Callable[[], bool] = lambda: (home.deliver(3), home.counts().unfinished == 0 and not outbox(wire))[1]  # noqa: E731
        eventually(done, 30)

    with ThreadPoolExecutor(3) as pool:
        for task in [pool.submit(work) for work in (produce, tend, tend)]:
            task.result(60)
    assert (known(far, added.id).outstanding, far.state(added.id)) == (0, State.PENDING)
    assert len(known(far, added.id).results) == 200
