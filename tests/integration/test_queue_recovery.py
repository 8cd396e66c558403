"""A server that restarts, forgets its scripts, runs full, changes its role, or hands back ten thousand jobs at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.clusters import PORTS
from support.eventually import eventually
from support.servers import ServerProcess

from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import EchoMQError, ServerOutOfMemory, ServerUnavailable
from echomq_tasks.identity import brand
from echomq_tasks.keyspace import queue_key
from echomq_tasks.queue import Complete, NewJob, Queue, Release, Retry, State, Verdict


def row_ids(queue: Queue) -> set[str]:
    """The ids of every row of a queue."""
    prefix = queue_key(queue.name) + b"job:"
    keys = queue.connection.client.scan_iter(prefix + b"*", count=1000)
    return {key.removeprefix(prefix).decode() for key in keys}


def flush_scripts(connection: Connection) -> None:
    """Make every server forget its scripts."""
    connection.client.script_flush()


# -- a restart ----------------------------------------------------------------------------------------------------


@pytest.mark.chaos
def test_a_server_killed_in_mid_run_loses_no_job(own_server: ServerProcess, queue_name: str) -> None:
    wanted = [brand("JOB", number) for number in range(1, 401)]
    processed: set[str] = set()
    stop = threading.Event()

    def persist(verb: Callable[[], Any]) -> Any:
        """Repeat a call until the server is there."""
        while not stop.is_set():
            try:
                return verb()
            except ServerUnavailable:
                stop.wait(0.01)
        return None

    with connect(own_server.url) as connection:
        queue = Queue(queue_name, connection)

        def produce() -> None:
            for job_id in wanted:
                persist(partial(queue.enqueue, job_id, id=job_id))

        def consume() -> None:
            while not stop.is_set():
                for job in persist(partial(queue.claim, 5, lease=0.5)) or ():
                    assert job.payload.decode() == job.id
                    processed.add(job.id)
                    persist(partial(settle, job))
                persist(queue.reap)

        def settle(job: Any) -> None:
            verdict = queue.settle([Complete(job)])[0]
            # STALE: the server was away for longer than the lease and the job went to another consumer.
            assert verdict in (Verdict.OK, Verdict.GONE, Verdict.STALE)

        with ThreadPoolExecutor(3) as pool:
            producer, *consumers = pool.submit(produce), pool.submit(consume), pool.submit(consume)
            try:
                for seen in (50, 200):
                    eventually(lambda seen=seen: len(processed) >= seen, 20)
                    own_server.kill()
                    own_server.start()
                producer.result(30)
                eventually(lambda: persist(queue.counts).unfinished == 0, 20, "every job settled")
            finally:
                stop.set()
            for consumer in consumers:
                consumer.result(10)
        assert processed == set(wanted)
        # At least once: an answer that died with the server makes its call run again.
        assert queue.counts().completed >= len(wanted)
        assert row_ids(queue) == set()
        queue.scripts.close()


# -- scripts that are gone ----------------------------------------------------------------------------------------


def test_every_verb_works_right_after_the_scripts_were_flushed(connection: Connection, queue_name: str) -> None:
    queue = Queue(queue_name, connection)
    flush_scripts(connection)
    queue.enqueue("0")
    flush_scripts(connection)
    ids = [answer.id for answer in queue.enqueue_many(["x"] * 600)]
    flush_scripts(connection)
    one, two, three, four, five, *_ = queue.claim(10)
    flush_scripts(connection)
    turn = queue.turn([Complete(one), Retry(two), Release(three)], 1)
    assert turn.verdicts == (Verdict.OK, Verdict.SCHEDULED, Verdict.OK)
    assert len(turn.claimed) == 1
    flush_scripts(connection)
    assert queue.extend_many([four, five]) == []
    verbs: list[Callable[[], Any]] = [queue.promote, queue.reap, queue.sweep_stalled, queue.counts, queue.browse]
    for verb in verbs:
        flush_scripts(connection)
        verb()
    flush_scripts(connection)
    assert queue.state(ids[-1]) is State.PENDING
    flush_scripts(connection)
    assert queue.drain("pending", "schedule", "active") == 600


def test_scripts_flushed_all_the_time_cost_no_job(standalone: Connection, queue_name: str) -> None:
    queue = Queue(queue_name, standalone)
    stop = threading.Event()

    def flush() -> int:
        flushes = 0
        while not stop.is_set():
            flush_scripts(standalone)
            flushes += 1
        return flushes

    with ThreadPoolExecutor(1) as pool:
        flushing = pool.submit(flush)
        try:
            ids = [queue.enqueue("x").id for _ in range(300)]
            done = []
            while len(done) < 300:
                jobs = list(queue.claim(7))
                assert set(queue.complete_many(jobs)) == {Verdict.OK}
                done += [job.id for job in jobs]
        finally:
            stop.set()
        assert flushing.result(10) > 100
    assert sorted(done) == sorted(ids)
    assert row_ids(queue) == set()


# -- a full server ------------------------------------------------------------------------------------------------


def test_bulk_admission_into_a_full_server_lists_exactly_what_is_in(own_server: ServerProcess, queue_name: str) -> None:
    client = own_server.client()
    with connect(own_server.url) as connection:
        queue = Queue(queue_name, connection)
        queue.drain()
        before = queue.enqueue("before").id
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", client.info("memory")["used_memory"] + (24 << 20))
        with pytest.raises(ServerOutOfMemory, match="maxmemory") as caught:
            queue.enqueue_many([b"x" * 10_000] * 5000)
        admitted = caught.value.admitted
        assert 0 < len(admitted) < 5000
        assert len(set(admitted)) == len(admitted)
        assert row_ids(queue) == {before, *admitted}
        assert queue.counts().pending == 1 + len(admitted)
        # What frees memory goes on, and then there is room again.
        client.config_set("maxmemory", 1)
        while jobs := list(queue.claim(1000)):
            assert set(queue.complete_many(jobs)) == {Verdict.OK}
        with pytest.raises(ServerOutOfMemory) as caught:
            queue.enqueue("x")
        assert caught.value.admitted == ()
        client.config_set("maxmemory", 0)
        assert queue.state(queue.enqueue("x").id) is State.PENDING
        queue.scripts.close()


# -- a server that is not in a state to serve ---------------------------------------------------------------------


def test_a_replica_and_a_busy_server_are_unavailable_and_then_serve_again(
    own_server: ServerProcess, queue_name: str
) -> None:
    client = own_server.client()
    with connect(own_server.url) as connection:
        queue = Queue(queue_name, connection)
        job_id = queue.enqueue("x").id
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(ServerUnavailable, match="cannot take writes"):
            queue.enqueue("y")
        client.execute_command("REPLICAOF", "NO", "ONE")
        assert queue.claim().jobs[0].id == job_id
        client.config_set("busy-reply-threshold", 1)
        with ThreadPoolExecutor(1) as pool, own_server_client(own_server) as other:
            endless = pool.submit(other.eval, "while true do end", 0)
            try:
                error = eventually(lambda: failure(queue.counts), message="the server is busy")
            finally:
                client.script_kill()
            assert isinstance(error, ServerUnavailable)
            assert "BUSY" in str(error)
            assert endless.exception(10) is not None
        assert queue.counts().active == 1
        queue.scripts.close()


def own_server_client(server: ServerProcess) -> Any:
    """One more plain client."""
    return type(server.client())(host="127.0.0.1", port=server.port)


def failure(verb: Callable[[], Any]) -> EchoMQError | None:
    """What a call raised."""
    try:
        verb()
    except EchoMQError as error:
        return error
    return None


def test_a_cluster_that_does_not_serve_the_slot_is_unavailable(tmp_path: Path, queue_name: str) -> None:
    with ServerProcess(tmp_path, options=["--cluster-enabled", "yes"], ports=PORTS) as node:
        client = node.client()
        client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16_383)
        eventually(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        with connect(node.url) as connection:
            queue = Queue(queue_name, connection)
            queue.enqueue("x")
            client.execute_command("CLUSTER DELSLOTSRANGE", 0, 16_383)
            with pytest.raises(ServerUnavailable, match="cannot take writes"):
                queue.enqueue("y")
            queue.scripts.close()


@pytest.mark.cluster
def test_one_node_of_a_cluster_taken_for_the_whole_says_what_to_do(cluster: Any) -> None:
    cluster.flush()
    errors = []
    for node in cluster.nodes:
        with connect(node.url) as connection:
            queue = Queue("anywhere", connection)
            errors.append(failure(queue.counts))
            queue.scripts.close()
    # The queue's slot is one node's; the two others say where the client should have gone.
    assert sorted(type(error).__name__ for error in errors) == ["NoneType", "ServerUnavailable", "ServerUnavailable"]
    assert all("valkey+cluster://" in str(error) for error in errors if error)


# -- many at once -------------------------------------------------------------------------------------------------


def test_ten_thousand_due_jobs_come_back_in_bounded_steps(connection: Connection, queue_name: str) -> None:
    queue = Queue(queue_name, connection)
    jobs = [NewJob(payload="x", at=number, group=None if number % 2 else "g") for number in range(10_000)]
    ids = {answer.id for answer in queue.enqueue_many(jobs)}
    assert queue.counts().scheduled == 10_000
    assert queue.promote() == 100
    assert queue.promote(5000) == 5000
    assert queue.counts().waiting == 5100
    claimed: list[str] = []
    # Each claim promotes at most its own size, and a hundred for a small one.
    assert len(queue.claim(1)) == 1
    assert queue.counts().scheduled == 4800
    while more := queue.claim(1000):
        claimed += [job.id for job in more]
    assert queue.counts().scheduled == 0
    assert len(claimed) == len(set(claimed)) == 9999
    assert set(claimed) < ids


def test_ten_thousand_expired_claims_come_back_in_bounded_steps(connection: Connection, queue_name: str) -> None:
    queue = Queue(queue_name, connection)
    queue.enqueue_many(
        [NewJob(payload="x", group=None if number % 2 else f"g{number % 10}") for number in range(10_000)]
    )
    first: dict[str, int] = {}
    while jobs := queue.claim(1000, lease=0.001):
        first |= {job.id: job.token for job in jobs}
    assert set(first.values()) == {1}
    assert len(first) == 10_000
    assert eventually(lambda: queue.reap(limit=1)) == 1
    assert queue.reap() == 100
    swept = queue.sweep_stalled(limit=1000)
    assert (len(swept.recovered), len(swept.dead)) == (1000, 0)
    reaped = 1101
    while reaped < 10_000:
        reaped += eventually(lambda: queue.reap(limit=1000))
    assert queue.counts().active == 0
    second: dict[str, int] = {}
    while jobs := queue.claim(1000):
        second |= {job.id: job.token for job in jobs}
    assert set(second) == set(first)
    assert set(second.values()) == {2}
