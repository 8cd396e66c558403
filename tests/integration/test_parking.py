"""Parking: a BLPOP that stays on the server between waits, gives its token up cleanly, and survives a broken line."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from support.children import in_child
from support.eventually import eventually
from support.proxy import DroppingProxy
from support.servers import ServerProcess

from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import ServerUnavailable
from echomq_tasks.keyspace import queue_key
from echomq_tasks.queue import Parking, Queue

#: Seconds; far more than any wait here takes when all is well.
LONG = 20.0


@pytest.fixture
def queue(connection: Connection, queue_name: str) -> Queue:
    return Queue(queue_name, connection)


@pytest.fixture
def parking(queue: Queue) -> Iterator[Parking]:
    place = queue.parking()
    yield place
    place.close()


@pytest.fixture
def neighbour(queue: Queue) -> Iterator[Parking]:
    """Another worker's place at the same queue."""
    place = queue.parking()
    yield place
    place.close()


def commands_of(connection: Connection) -> list[dict[str, str]]:
    """Every client of every server, as CLIENT LIST shows them."""
    client: Any = connection.client
    nodes = [client]
    if connection.is_cluster:
        nodes = [client.get_redis_connection(node) for node in client.get_primaries()]
    return [entry for node in nodes for entry in node.client_list()]


def blocked(connection: Connection) -> int:
    """How many clients stand in a BLPOP."""
    return sum(entry["cmd"] == "blpop" and "b" in entry["flags"] for entry in commands_of(connection))


def tokens(queue: Queue) -> int:
    """How many wake tokens are left."""
    return int(queue.connection.client.llen(queue_key(queue.name, "wake")))


def test_a_token_ends_the_wait_and_is_spent(queue: Queue, parking: Parking) -> None:
    queue.enqueue("x")
    assert parking.wait(LONG)
    assert tokens(queue) == 0
    assert len(queue.claim()) == 1


def test_a_token_pushed_during_the_wait_ends_it(queue: Queue, parking: Parking) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(parking.wait, LONG)
        eventually(lambda: blocked(queue.connection) == 1)
        queue.enqueue("x")
        assert waiting.result(LONG)


def test_without_a_token_the_wait_ends_and_the_blpop_stays(queue: Queue, parking: Parking) -> None:
    assert not parking.wait(0.01)
    eventually(lambda: blocked(queue.connection) == 1)
    client_id = [entry["id"] for entry in commands_of(queue.connection) if entry["cmd"] == "blpop"]
    for _ in range(3):
        assert not parking.wait(0.0)
        assert not parking.wait(-1.0)
    assert [entry["id"] for entry in commands_of(queue.connection) if entry["cmd"] == "blpop"] == client_id
    assert blocked(queue.connection) == 1


def test_a_token_that_comes_between_two_waits_is_seen_by_the_next(queue: Queue, parking: Parking) -> None:
    assert not parking.wait(0.01)
    eventually(lambda: blocked(queue.connection) == 1)
    queue.enqueue("x")
    assert parking.wait(LONG)


def test_one_token_wakes_one_of_two_and_two_wake_both(queue: Queue, parking: Parking, neighbour: Parking) -> None:
    assert not parking.wait(0.01)
    eventually(lambda: blocked(queue.connection) == 1)
    assert not neighbour.wait(0.01)
    eventually(lambda: blocked(queue.connection) == 2)
    queue.enqueue("x")
    # The one that stood there first.
    assert parking.wait(LONG)
    assert not neighbour.wait(0.05)
    queue.enqueue("x")
    assert neighbour.wait(LONG)


def test_who_left_takes_no_token(queue: Queue, parking: Parking, neighbour: Parking) -> None:
    assert not parking.wait(0.01)
    parking.leave()
    assert blocked(queue.connection) == 0
    queue.enqueue("x")
    assert tokens(queue) == 1
    assert neighbour.wait(LONG)
    # And it can come back.
    queue.enqueue("x")
    assert parking.wait(LONG)


def test_leaving_costs_nothing_when_nothing_stands_there(queue: Queue, parking: Parking) -> None:
    before = len(commands_of(queue.connection))
    parking.leave()
    queue.enqueue("x")
    assert parking.wait(LONG)
    parking.leave()
    assert len(commands_of(queue.connection)) <= before + 2


def test_a_token_that_came_before_leaving_goes_to_the_neighbour(
    queue: Queue, parking: Parking, neighbour: Parking
) -> None:
    assert not parking.wait(0.01)
    eventually(lambda: blocked(queue.connection) == 1)
    queue.enqueue("x")
    eventually(lambda: blocked(queue.connection) == 0)
    parking.leave()
    assert tokens(queue) == 1
    assert neighbour.wait(LONG)


def test_leaving_works_when_the_blpop_is_overtaken_by_its_own_end(
    queue: Queue, parking: Parking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two connections keep no order: CLIENT UNBLOCK may reach the server before the BLPOP that it is for."""
    queue.enqueue("x")
    assert parking.wait(LONG)  # so that the connection is there
    wire = parking._wire  # noqa: SLF001
    send, delayed = wire.send_command, threading.Event()

    def send_late(*command: Any) -> None:
        threading.Timer(0.1, lambda: (send(*command), delayed.set())).start()

    with monkeypatch.context() as patch:
        patch.setattr(wire, "send_command", send_late)
        assert not parking.wait(0.0)
        assert not delayed.is_set()
        with ThreadPoolExecutor(1) as pool:
            # Waiting for the BLPOP's own end instead would take until the connection's timeout, ten seconds.
            pool.submit(parking.leave).result(5)
    assert delayed.wait(LONG)
    assert blocked(queue.connection) == 0
    queue.enqueue("x")
    assert parking.wait(LONG)


def test_a_token_passed_on_reaches_another(queue: Queue, parking: Parking, neighbour: Parking) -> None:
    queue.enqueue("x")
    assert parking.wait(LONG)
    assert not neighbour.wait(0.01)
    parking.pass_on()
    assert neighbour.wait(LONG)


def test_closing_frees_the_client_and_the_next_wait_opens_another(queue: Queue, parking: Parking) -> None:
    assert not parking.wait(0.01)
    parking.leave()  # which opens the second connection
    assert not parking.wait(0.01)
    eventually(lambda: blocked(queue.connection) == 1)
    before = len(commands_of(queue.connection))
    parking.close()
    eventually(lambda: blocked(queue.connection) == 0)
    eventually(lambda: len(commands_of(queue.connection)) == before - 2)
    parking.close()
    queue.enqueue("x")
    assert parking.wait(LONG)


@pytest.mark.parametrize("before", ["can_read", "send_command", "read_response"])
def test_a_wait_that_is_closed_by_another_thread_ends_at_any_moment_and_connects_no_more(
    standalone: Connection, queue_name: str, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """Redis-py would connect a closed connection again, and the wait would stand there to its end."""
    parking = Queue(queue_name, standalone).parking()
    wires: list[Any] = []
    fresh = standalone.fresh

    def dialled(key: bytes, *, blocking: bool) -> Any:
        wire = fresh(key, blocking=blocking)
        wires.append(wire)
        original = getattr(wire, before)

        def closed_first(*args: Any, **options: Any) -> Any:
            if not closing:
                closing.append(threading.Thread(target=parking.close))
                closing[0].start()
                closing[0].join()
            return original(*args, **options)

        setattr(wire, before, closed_first)
        return wire

    closing: list[threading.Thread] = []
    monkeypatch.setattr(standalone, "fresh", dialled)
    assert not parking.wait(LONG)
    assert closing
    assert [wire._sock for wire in wires] == [None]  # noqa: SLF001 - nothing else tells whether it is open
    # The next one opens another, as ever.
    assert not parking.wait(0.01)
    Queue(queue_name, standalone).enqueue("x")
    assert parking.wait(LONG)
    parking.close()


def test_an_idle_worker_that_looks_up_often_sends_one_command(
    server: ServerProcess, proxy: DroppingProxy, queue_name: str
) -> None:
    with connect(proxy.url) as connection:
        parking = Queue(queue_name, connection).parking()
        assert not parking.wait(0.0)
        eventually(lambda: blocked(connection) == 1)
        before = proxy.counts.commands
        for _ in range(200):
            assert not parking.wait(0.001)
        assert proxy.counts.commands == before
        parking.close()


def test_the_blpop_is_renewed_when_the_server_ends_it(
    queue: Queue, parking: Parking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echomq_tasks.queue.spot._BLOCK", 0.05)
    assert not parking.wait(0.3)
    eventually(lambda: not parking.wait(0.01) and blocked(queue.connection) == 1)
    queue.enqueue("x")
    assert parking.wait(LONG)


# -- faults -------------------------------------------------------------------------------------------------------


@pytest.fixture
def proxied(proxy: DroppingProxy, queue_name: str) -> Iterator[Queue]:
    """A queue behind a proxy."""
    with connect(proxy.url) as connection:
        queue = Queue(queue_name, connection)
        yield queue
        queue.scripts.close()


def test_a_cut_connection_is_reported_and_the_next_wait_works(proxied: Queue, proxy: DroppingProxy) -> None:
    parking = proxied.parking()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(parking.wait, LONG)
        eventually(lambda: blocked(proxied.connection) == 1)
        proxy.cut_all()
        with pytest.raises(ServerUnavailable, match="next wait connects again") as caught:
            waiting.result(LONG)
    assert isinstance(caught.value.__cause__, (redis.RedisError, OSError))
    proxied.enqueue("x")
    assert parking.wait(LONG)
    parking.close()


def test_leaving_over_a_cut_connection_is_quiet(proxied: Queue, proxy: DroppingProxy) -> None:
    parking = proxied.parking()
    assert not parking.wait(0.01)
    parking.leave()
    assert not parking.wait(0.01)
    proxy.cut_all()
    parking.leave()
    proxied.enqueue("x")
    assert parking.wait(LONG)
    parking.close()


@pytest.mark.parametrize("lost", [b"BLPOP", b"CLIENT ID", b"CLIENT UNBLOCK"])
def test_a_lost_request_never_hangs_a_worker(proxied: Queue, proxy: DroppingProxy, lost: bytes) -> None:
    parking = proxied.parking()
    proxy.drop_request(lost)

    def use() -> None:
        parking.wait(0.5)
        parking.leave()

    if lost == b"CLIENT UNBLOCK":
        use()
    else:
        with pytest.raises(ServerUnavailable):
            use()
    assert proxy.counts.dropped_requests == 1
    eventually(lambda: blocked(proxied.connection) == 0)
    proxied.enqueue("x")
    assert parking.wait(LONG)
    parking.close()


def test_a_restarted_server_is_found_again(own_server: ServerProcess, queue_name: str) -> None:
    with connect(own_server.url) as connection:
        queue = Queue(queue_name, connection)
        parking = queue.parking()
        assert not parking.wait(0.01)
        own_server.kill()
        with pytest.raises(ServerUnavailable):
            parking.wait(LONG)
        with pytest.raises(ServerUnavailable):
            parking.wait(LONG)
        parking.leave()
        parking.pass_on()
        own_server.start()
        queue.enqueue("x")
        assert parking.wait(LONG)
        parking.close()
        queue.scripts.close()


def test_a_server_that_became_a_replica_ends_the_wait(own_server: ServerProcess, queue_name: str) -> None:
    with connect(own_server.url) as connection:
        queue = Queue(queue_name, connection)
        parking = queue.parking()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(parking.wait, LONG)
            eventually(lambda: blocked(connection) == 1)
            own_server.client().execute_command("REPLICAOF", "127.0.0.1", "1")
            with pytest.raises(ServerUnavailable):
                waiting.result(LONG)
        own_server.client().execute_command("REPLICAOF", "NO", "ONE")
        queue.enqueue("x")
        assert parking.wait(LONG)
        parking.close()
        queue.scripts.close()


@pytest.mark.parametrize("moment", ["parking", "waiting", "leaving"])
def test_an_exception_in_the_middle_of_an_answer_does_not_shift_the_next(
    queue: Queue, parking: Parking, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    verbs: dict[str, Callable[[], Any]] = {
        "parking": lambda: parking.wait(0.01),
        "waiting": lambda: parking.wait(LONG),
        "leaving": parking.leave,
    }
    if moment != "parking":
        assert not parking.wait(0.01)
    if moment == "waiting":
        queue.enqueue("x")
    if moment == "leaving":
        parking.leave()
        assert not parking.wait(0.01)
    kind = type(queue.connection.fresh(queue_key(queue.name), blocking=False))

    def interrupted(self: Any, *_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(kind, "read_response", interrupted)
        with pytest.raises(KeyboardInterrupt):
            verbs[moment]()
    eventually(lambda: blocked(queue.connection) == 0)
    queue.drain()
    queue.claim()
    assert not parking.wait(0.01)
    eventually(lambda: blocked(queue.connection) == 1)
    parking.leave()
    assert blocked(queue.connection) == 0
    queue.enqueue("x")
    assert parking.wait(LONG)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_waits_on_a_line_of_its_own(queue: Queue, parking: Parking) -> None:
    assert not parking.wait(0.01)
    eventually(lambda: blocked(queue.connection) == 1)

    def child() -> tuple[bool, int]:
        parked = parking.wait(0.05)
        eventually(lambda: blocked(queue.connection) == 2)
        standing = blocked(queue.connection)
        parking.close()
        return parked, standing

    assert in_child(child) == (False, 2)
    eventually(lambda: blocked(queue.connection) == 1)
    queue.enqueue("x")
    assert parking.wait(LONG)
