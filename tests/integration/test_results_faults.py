"""Results when things break: a wait goes on over drops, restarts, failovers and moving slots; what is lost is said."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from dramatiq import Message
from dramatiq.results import ResultFailure, ResultMissing, Results, ResultTimeout
from support.clusters import ClusterProcess
from support.counting import blocked, nodes
from support.eventually import eventually
from support.proxy import DroppingProxy
from support.servers import ServerProcess
from support.workers import WORKERS

from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.connection import connect
from echomq_tasks.errors import ConfigError, InvalidArgument, ServerOutOfMemory, ServerUnavailable
from echomq_tasks.keyspace import queue_key, slot
from echomq_tasks.queue import Queue
from echomq_tasks.results import EchoMQBackend

A, B = "JOB0NgWEfAEJ0A", "JOB0NgWEfAEJ0B"
OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
#: Seconds; far more than any wait here takes when all is well.
LONG = 20.0


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


@pytest.fixture
def queue(own_server: ServerProcess, queue_name: str) -> Iterator[Queue]:
    """A queue on a server of the test's own."""
    with connect(own_server.url, timeout=3) as connection:
        yield Queue(queue_name, connection)


@pytest.fixture
def proxied(proxy: DroppingProxy, queue_name: str) -> Iterator[Queue]:
    """A queue behind a proxy."""
    with connect(proxy.url) as connection:
        yield Queue(queue_name, connection)


def test_a_wait_whose_connection_is_killed_goes_on(queue: Queue, pool: ThreadPoolExecutor) -> None:
    waiting = [pool.submit(queue.result, A, timeout=timeout) for timeout in (LONG, None)]
    for _ in range(3):
        standing = eventually(lambda: len(found := blocked(queue.connection)) == 2 and found)
        for client_id in standing:
            queue.connection.client.execute_command("CLIENT KILL", "ID", client_id)
        eventually(lambda: len(found := blocked(queue.connection)) == 2 and not set(found) & set(standing))  # noqa: B023
    queue.store_result(A, "at last")
    assert [wait.result(LONG) for wait in waiting] == [b"at last"] * 2


@pytest.mark.parametrize("how", ["TIMEOUT", "ERROR"])
def test_a_wait_that_an_operator_unblocks_goes_on(queue: Queue, pool: ThreadPoolExecutor, how: str) -> None:
    waiting = pool.submit(queue.result, A, timeout=LONG)
    (standing,) = eventually(lambda: blocked(queue.connection))
    queue.connection.client.execute_command("CLIENT UNBLOCK", standing, how)
    eventually(lambda: blocked(queue.connection))
    queue.store_result(A, "x")
    assert waiting.result(LONG) == b"x"


def test_a_wait_outlives_a_restart_of_the_server(
    own_server: ServerProcess, queue: Queue, pool: ThreadPoolExecutor
) -> None:
    waiting = pool.submit(queue.result, A, timeout=LONG)
    eventually(lambda: blocked(queue.connection))
    own_server.kill()
    own_server.start()
    queue.scripts.close()
    eventually(lambda: "blmove" in str(own_server.client().client_list()))
    assert not waiting.done()
    queue.store_result(A, "after the restart")
    assert waiting.result(LONG) == b"after the restart"


def test_a_result_from_before_a_restart_is_found_by_who_waited_through_it(
    own_server: ServerProcess, queue: Queue, pool: ThreadPoolExecutor
) -> None:
    queue.store_result(B, "kept")
    own_server.kill()
    waiting = pool.submit(queue.result, B, timeout=LONG)
    own_server.start()
    assert waiting.result(LONG) == b"kept"


def test_a_wait_that_ends_without_a_server_says_so(own_server: ServerProcess, queue: Queue) -> None:
    own_server.kill()
    for timeout in (0, 0.3):
        with pytest.raises(ServerUnavailable):
            queue.result(A, timeout=timeout)
    with pytest.raises(ServerUnavailable):
        queue.store_result(A, "x")
    own_server.start()
    assert queue.result(A, timeout=0.01) is None


def test_a_wait_outlives_a_failover_and_back(own_server: ServerProcess, queue: Queue, pool: ThreadPoolExecutor) -> None:
    waiting = pool.submit(queue.result, A, timeout=LONG)
    eventually(lambda: blocked(queue.connection))
    own_server.client().execute_command("REPLICAOF", "127.0.0.1", "1")
    eventually(lambda: not blocked(queue.connection))
    own_server.client().execute_command("REPLICAOF", "NO", "ONE")
    eventually(lambda: blocked(queue.connection))
    queue.store_result(A, "x")
    assert waiting.result(LONG) == b"x"


@pytest.mark.parametrize("loses", ["request", "reply"])
def test_a_lost_request_or_answer_is_asked_again(proxied: Queue, proxy: DroppingProxy, loses: str) -> None:
    proxied.store_result(A, "x")
    for warm in (False, True):
        (proxy.drop_request if loses == "request" else proxy.drop_reply)(b"BLMOVE", times=1)
        assert proxied.result(A, timeout=LONG) == b"x", f"warm: {warm}"
    assert (proxy.counts.dropped_requests, proxy.counts.dropped_replies) == ((2, 0) if loses == "request" else (0, 2))


def test_an_idle_line_that_was_cut_is_not_used_again(proxied: Queue, proxy: DroppingProxy) -> None:
    assert proxied.result(A, timeout=0.001) is None
    proxy.cut_all()
    proxied.store_result(A, "x")
    assert proxied.result(A, timeout=LONG) == b"x"


def test_a_store_whose_answer_is_lost_has_stored(proxied: Queue, proxy: DroppingProxy) -> None:
    proxied.store_result(B, "so that the script is loaded")
    proxy.drop_reply(A.encode())
    proxied.store_result(A, "x")
    assert proxy.counts.dropped_replies == 1
    assert proxied.result(A) == b"x"
    assert proxied.connection.client.llen(proxied.base + f"job:{A}:result".encode()) == 1


def test_a_server_that_hangs_ends_a_wait_with_an_error(
    own_server: ServerProcess, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echomq_tasks.queue.waiting._GRACE", 0.1)
    assert queue.result(A, timeout=0.01) is None
    queue.scripts.close()
    own_server.pause(8_000)
    with pytest.raises(ServerUnavailable):
        queue.result(A, timeout=0.1)


# -- what a server may refuse --------------------------------------------------------------------------------------


def test_a_full_server_refuses_to_store_and_to_wait_but_shows_and_forgets(queue: Queue) -> None:
    queue.store_result(A, "x")
    queue.connection.client.config_set("maxmemory", 1)
    for value in ("y", "z"):
        with pytest.raises(ServerOutOfMemory, match="maxmemory"):
            queue.store_result(A, value)
    with pytest.raises(ServerOutOfMemory, match="lets nobody wait"):
        queue.result(B, timeout=LONG)
    assert queue.result(B) is None
    for timeout in (0, LONG, None):
        assert queue.result(A, timeout=timeout) == b"x"
    assert queue.forget_result(A)


def test_a_server_that_fills_up_during_a_wait_says_so_or_wakes(queue: Queue, pool: ThreadPoolExecutor) -> None:
    waiting = pool.submit(queue.result, A, timeout=LONG)
    eventually(lambda: blocked(queue.connection))
    # In one go: there is room when the result comes and none when its waiter is served.
    with queue.connection.client.pipeline(transaction=True) as pipe:
        pipe.rpush(queue.base + f"job:{A}:result".encode(), "x")
        pipe.config_set("maxmemory", 1)
        pipe.execute()
    assert waiting.result(LONG) == b"x"


@pytest.mark.parametrize("more", [1, 20 << 20])
def test_a_result_that_the_server_hangs_up_on_is_told_with_its_size(queue: Queue, more: int) -> None:
    most = 1 << 20
    queue.connection.client.config_set("proto-max-bulk-len", most)
    queue.store_result(A, bytes(most))
    with pytest.raises(InvalidArgument, match=rf"{most + more} bytes, .*proto-max-bulk-len"):
        queue.store_result(A, bytes(most + more))
    assert queue.result(A) == bytes(most)
    backend = EchoMQBackend(connection=queue.connection)
    message: Message[Any] = Message(queue.name, "f", (), {}, {})
    with pytest.raises(InvalidArgument, match="proto-max-bulk-len"):
        backend.store_result(message, "x" * (most + more), 60_000)
    with pytest.raises(ResultFailure, match="proto-max-bulk-len"):
        backend.get_result(message)


def test_a_large_result_for_a_server_that_is_away_is_not_taken_for_too_large(
    own_server: ServerProcess, queue: Queue
) -> None:
    own_server.kill()
    with pytest.raises(ServerUnavailable):
        queue.store_result(A, bytes(2 << 20))
    own_server.start()
    queue.store_result(A, bytes(2 << 20))
    assert queue.result(A, timeout=LONG) == bytes(2 << 20)


def test_a_user_who_may_not_wait_is_told_which_right_is_missing(own_server: ServerProcess, queue_name: str) -> None:
    rights = ["on", ">p", "~emq:*", "~{emq}:*", "+@all", "-blmove"]
    own_server.client().execute_command("ACL", "SETUSER", "some", "reset", *rights)
    with connect(own_server.url, username="some", password="p") as connection:
        queue = Queue(queue_name, connection)
        with pytest.raises(ConfigError, match="BLMOVE"):
            queue.result(A, timeout=LONG)
        queue.store_result(A, "x")
        assert queue.result(A, timeout=LONG) == b"x", "what is there is shown all the same"


def test_the_documented_user_may_store_wait_and_forget(own_server: ServerProcess, queue_name: str) -> None:
    (documented,) = re.findall(r"^ACL SETUSER .*$", OPERATIONS.read_text(), re.MULTILINE)
    own_server.client().execute_command(*documented.split())
    with connect(own_server.url, username="echomq", password="password") as connection:
        queue = Queue(queue_name, connection)
        assert queue.result(A, timeout=0.01) is None
        queue.store_result(A, "x")
        assert queue.result(A, timeout=LONG) == queue.result(A) == b"x"
        assert queue.forget_result(A)
    assert own_server.client().acl_log() == []


# -- under a worker ------------------------------------------------------------------------------------------------


@pytest.fixture
def broker(own_server: ServerProcess) -> Iterator[EchoMQBroker]:
    before = dramatiq.broker.global_broker
    made = EchoMQBroker(own_server.url, lease=5)
    made.add_middleware(Results(backend=EchoMQBackend(broker=made)))
    dramatiq.set_broker(made)
    yield made
    dramatiq.broker.global_broker = before
    made.close()


@pytest.mark.parametrize("fails", [False, True])
def test_a_job_that_ends_while_the_server_is_away_has_its_result_when_it_is_back(
    own_server: ServerProcess,
    broker: EchoMQBroker,
    queue_name: str,
    gate: threading.Event,
    pool: ThreadPoolExecutor,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    worker_kind: str,
    fails: bool,
) -> None:
    monkeypatch.setattr("dramatiq.worker.POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.1)
    runs: list[int] = []

    @dramatiq.actor(queue_name=queue_name, store_results=True, max_retries=0)
    def work() -> str:
        runs.append(1)
        gate.wait(LONG)
        if fails:
            raise ValueError("boom")
        return "done"

    worker = WORKERS[worker_kind](broker, worker_threads=1, worker_timeout=50)
    worker.start()
    try:
        message = work.send()
        eventually(lambda: runs)
        waiting = pool.submit(message.get_result, block=True, timeout=30_000)
        own_server.kill()
        gate.set()
        if not fails:
            eventually(lambda: "is offered again" in caplog.text)
        own_server.start()
        if fails:
            with pytest.raises(ResultFailure, match="ValueError: boom"):
                waiting.result(30)
        else:
            assert waiting.result(30) == "done"
        # The lease may have run out meanwhile; but whatever ran, ended.
        eventually(lambda: broker.queue(queue_name).counts().unfinished == 0)
    finally:
        worker.stop()


def test_a_backend_without_its_server_raises_and_gives_up_in_the_end(
    own_server: ServerProcess, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echomq_tasks.results.backend._STORE_SECONDS", 0.2)
    backend = EchoMQBackend(own_server.url)
    message: Message[Any] = Message(queue_name, "f", (), {}, {})
    with pytest.raises(ResultMissing):
        backend.get_result(message)
    own_server.kill()
    for call in (
        lambda: backend.get_result(message),
        lambda: backend.get_result(message, block=True, timeout=100),
        lambda: backend.store_result(message, 1, 1000),
        lambda: backend.store_exception(message, ValueError("x"), 1000),
        lambda: backend.forget_result(message),
    ):
        with pytest.raises(ServerUnavailable, match=r"127\.0\.0\.1"):
            call()
    own_server.start()
    with pytest.raises(ResultTimeout):
        backend.get_result(message, block=True, timeout=10)
    backend.close()


# -- in a cluster --------------------------------------------------------------------------------------------------


@pytest.mark.cluster
def test_a_wait_follows_its_slot_to_another_node(
    cluster: ClusterProcess, queue_name: str, pool: ThreadPoolExecutor
) -> None:
    cluster.flush()
    number = slot(queue_key(queue_name))
    with connect(cluster.url) as connection:
        queue = Queue(queue_name, connection)
        waiting = pool.submit(queue.result, A, timeout=LONG)
        eventually(lambda: blocked(connection))
        clients = [node.client() for node in cluster.nodes]
        (old,) = [node for node in clients if any("b" in entry["flags"] for entry in node.client_list())]
        new = next(node for node in clients if node is not old)
        new_id = new.execute_command("CLUSTER MYID").decode()
        for node in (new, *clients):
            node.execute_command("CLUSTER SETSLOT", number, "NODE", new_id)
        eventually(lambda: any("b" in entry["flags"] for entry in new.client_list()))
        assert not waiting.done()
        queue.store_result(A, "moved")
        assert waiting.result(LONG) == b"moved"


@pytest.mark.cluster
def test_waits_for_queues_of_different_nodes_keep_to_their_lines(
    cluster: ClusterProcess, pool: ThreadPoolExecutor
) -> None:
    cluster.flush()
    with connect(cluster.url) as connection:
        queues = [Queue(f"results-{number}", connection) for number in range(12)]
        assert len({connection.client.get_node_from_key(queue.base).name for queue in queues}) == 3  # type: ignore[union-attr]
        for round_ in range(3):
            waiting = [pool.submit(queue.result, A, timeout=LONG) for queue in queues[:8]]
            eventually(lambda: len(blocked(connection)) == 8)
            for queue in queues:
                queue.store_result(A, f"{queue.name} {round_}")
            assert [wait.result(LONG) for wait in waiting] == [f"{q.name} {round_}".encode() for q in queues[:8]]
            for queue in queues:
                assert queue.forget_result(A)
        assert len(nodes(connection)) == 3
