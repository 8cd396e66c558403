"""Node ids: leased from the server, renewed, never shared, and random with a warning while there is no server."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

import pytest
from support.children import Child, in_child
from support.servers import ServerProcess

from echomq_tasks.connection import Connection, connect
from echomq_tasks.identity import NodeLease, snowflake
from echomq_tasks.keyspace import NODE_PREFIX, node_key
from echomq_tasks.queue import Queue
from echomq_tasks.scripts import Scripts

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

LEASE = 60.0


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Move the lease's clock, and no other, forward by so many seconds."""
    shift = [0.0]

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return time.monotonic() + shift[0]

    monkeypatch.setattr("echomq_tasks.identity.node.time", Clock)

    def move(seconds: float) -> None:
        shift[0] += seconds

    return move


def nodes_leased(connection: Connection) -> dict[int, bytes]:
    """Node id -> owner, as the server has them."""
    keys = list(connection.client.scan_iter(NODE_PREFIX + b"*"))
    return {int(key.removeprefix(NODE_PREFIX)): connection.client.get(key) for key in keys}


def test_a_node_id_is_leased_from_the_server(connection: Connection) -> None:
    lease = NodeLease(Scripts.of(connection), lease=LEASE)
    node = lease.current()
    assert set(nodes_leased(connection)) == {node}
    assert 0 < connection.client.pttl(node_key(node)) <= LEASE * 1000


def test_the_server_is_asked_once_until_a_third_of_the_lease_is_over(
    standalone: Connection, later: Callable[[float], None]
) -> None:
    lease = NodeLease(Scripts.of(standalone), lease=LEASE)
    node = lease.current()
    standalone.client.pexpire(node_key(node), 5000)
    later(LEASE / 3 - 1)
    assert lease.current() == node
    assert standalone.client.pttl(node_key(node)) <= 5000
    later(2)
    assert lease.current() == node
    assert standalone.client.pttl(node_key(node)) > 50_000


def test_a_lease_that_another_process_took_over_is_left_to_it(
    standalone: Connection, later: Callable[[float], None]
) -> None:
    lease = NodeLease(Scripts.of(standalone), lease=LEASE)
    node = lease.current()
    standalone.client.set(node_key(node), "somebody")
    later(LEASE + 1)
    other = lease.current()
    assert other != node
    assert nodes_leased(standalone)[node] == b"somebody"
    assert other in nodes_leased(standalone)


def test_a_lease_that_ran_out_unclaimed_is_taken_again(standalone: Connection, later: Callable[[float], None]) -> None:
    lease = NodeLease(Scripts.of(standalone), lease=LEASE)
    node = lease.current()
    standalone.client.delete(node_key(node))
    later(LEASE + 1)
    assert lease.current() == node
    assert set(nodes_leased(standalone)) == {node}


def test_two_leases_never_share_a_node_id(standalone: Connection) -> None:
    leases = [NodeLease(Scripts.of(standalone)) for _ in range(300)]
    nodes = [lease.current() for lease in leases]
    assert len(set(nodes)) == 300
    assert set(nodes_leased(standalone)) == set(nodes)


def test_when_every_node_id_is_taken_a_random_one_serves(
    standalone: Connection, later: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    standalone.client.mset({node_key(node): "somebody" for node in range(1024)})
    lease = NodeLease(Scripts.of(standalone), lease=LEASE)
    with caplog.at_level(logging.WARNING):
        assert 0 <= lease.current() < 1024
    assert "all 1024 node ids are taken" in caplog.text
    assert set(nodes_leased(standalone).values()) == {b"somebody"}
    standalone.client.delete(node_key(77))
    later(LEASE / 12 + 1)
    assert lease.current() == 77


def test_forked_processes_have_node_ids_of_their_own(standalone: Connection, queue_name: str) -> None:
    queue = Queue(queue_name, standalone)

    def node_of_an_id() -> int:
        return snowflake(queue.enqueue("x").id) >> 12 & 0x3FF

    mine = node_of_an_id()
    children = [Child(node_of_an_id) for _ in range(20)]
    theirs = [child.result() for child in children]
    assert len({mine, *theirs}) == 21
    assert node_of_an_id() == mine


def test_a_child_forked_in_the_middle_of_a_lease_call_leases_for_itself(standalone: Connection) -> None:
    parent = os.getpid()

    class Store:
        """Forks while the lease's lock is held, as another thread's fork would."""

        def __init__(self) -> None:
            self.seen: tuple[str, int | None] | None = None
            self.child: tuple[str, int] | None = None

        def lease(self, owner: str, lease_ms: int, held: int | None) -> int | None:
            if os.getpid() != parent:
                self.seen = (owner, held)
                return 8
            self.child = in_child(lambda: (lease.current(), self.seen), timeout=10)
            self.seen = (owner, held)
            return 7

    store = Store()
    lease = NodeLease(store)
    assert lease.current() == 7
    assert store.child is not None
    assert store.child[0] == 8
    assert store.child[1] != store.seen


def test_without_a_server_the_id_is_random_and_leased_again_when_it_is_back(
    own_server: ServerProcess, later: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    with connect(own_server.url) as connection:
        lease = NodeLease(Scripts.of(connection), lease=LEASE)
        node = lease.current()
        own_server.kill()
        later(LEASE / 3 + 1)
        with caplog.at_level(logging.WARNING, "echomq_tasks"):
            assert 0 <= lease.current() < 1024
        assert "no node id leased" in caplog.text
        # The warning comes once per try, and a try only every twelfth of a lease.
        caplog.clear()
        assert 0 <= lease.current() < 1024
        assert caplog.text == ""
        own_server.start()
        later(LEASE / 12 + 1)
        again = lease.current()
        assert set(nodes_leased(connection)) == {node, again}
        Scripts.of(connection).close()


def test_a_user_who_may_not_lease_still_enqueues(
    own_server: ServerProcess, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(own_server.url):
        pass  # writes the fence, which the user below may only read
    own_server.client().execute_command(
        "ACL", "SETUSER", "joe", "on", ">pw", f"~emq:{{{queue_name}}}:*", "%R~{emq}:version", "+@all"
    )
    with connect(own_server.url, username="joe", password="pw") as connection:
        queue = Queue(queue_name, connection)
        with caplog.at_level(logging.WARNING, "echomq_tasks"):
            enqueued = queue.enqueue("x")
        assert "no node id leased" in caplog.text
        assert queue.claim().jobs[0].id == enqueued.id
        queue.scripts.close()
