"""A node of a cluster that hangs, or is away, holds up no queue of the other nodes; and its own lose nothing."""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
from chaos.crew import PATIENCE
from support.children import in_child
from support.clusters import ClusterProcess, whole
from support.eventually import eventually
from support.servers import ServerProcess

from echomq_tasks.connection import connect
from echomq_tasks.errors import ServerUnavailable
from echomq_tasks.keyspace import VERSION_KEY, queue_key, slot
from echomq_tasks.queue import Complete, Queue, extend_all
from echomq_tasks.queue.scattered import Scattered
from echomq_tasks.queue.spot import Spot
from echomq_tasks.queue.turns import Asked, RoundTrip, turn_all
from echomq_tasks.scripts.callers import Caller
from echomq_tasks.scripts.courier import Couriers, Errand
from echomq_tasks.worker import Worker
from echomq_tasks.worker.line import Line

pytestmark = pytest.mark.cluster

Shops = Callable[..., Any]
#: Longer than the tests wait: whoever waits for the node that hangs fails.
NEVER = f"timeout={PATIENCE * 2:g}"


class Nodes:
    """The cluster, a queue on a node that falls ill, and a queue on another."""

    def __init__(self, cluster: ClusterProcess) -> None:
        self.cluster = cluster
        self._owners = [
            (low, high, node)
            for node in cluster.nodes
            for low, high, (_, port, *_), *_ in cluster.nodes[0].client().execute_command("CLUSTER SLOTS")
            if port == node.port
        ]
        # Every new connection asks that one, and new ids begin there.
        common = self._owner(VERSION_KEY)
        names = [f"q-{secrets.token_hex(4)}" for _ in range(200)]
        self.sick = next(name for name in names if self._owner(queue_key(name)) is not common)
        self.node = self._owner(queue_key(self.sick))
        self.well = next(name for name in names if self._owner(queue_key(name)) is not self.node)

    def _owner(self, key: bytes) -> ServerProcess:
        return next(node for low, high, node in self._owners if low <= slot(key) <= high)

    def hung(self) -> AbstractContextManager[None]:
        """The sick node takes what it is sent, and does not answer."""
        return self.node.hung()


@pytest.fixture
def nodes(cluster: ClusterProcess) -> Iterator[Nodes]:
    cluster.flush()
    for node in cluster.nodes:
        # Else all of them refuse their work when one is away.
        node.client().config_set("cluster-require-full-coverage", "no")
    yield Nodes(cluster)
    for node in cluster.nodes:
        node.client().config_set("cluster-require-full-coverage", "yes")
        eventually(partial(whole, node), PATIENCE)


class Jobs:
    """Two actors, one on each queue, whose jobs wait for the gate of their queue."""

    def __init__(self, shop: Any, nodes: Nodes) -> None:
        self.shop = shop
        self.runs: Counter[tuple[str, int]] = Counter()
        self.started = threading.Semaphore(0)
        self.gates: dict[str, threading.Event] = {}
        self._send: dict[str, Any] = {}
        for name in (nodes.sick, nodes.well):
            gate = self.gates[name] = threading.Event()
            gate.set()
            self._send[name] = shop.actor(partial(self._run, name), name, name).send

    def _run(self, name: str, number: int) -> None:
        self.started.release()
        self.gates[name].wait(PATIENCE)
        self.runs[name, number] += 1

    def send(self, name: str, *numbers: int) -> None:
        for number in numbers:
            self._send[name](number)

    def start(self, name: str, *numbers: int) -> None:
        """Send jobs that stay, and wait until they run."""
        self.gates[name].clear()
        self.send(name, *numbers)
        for _ in numbers:
            assert self.started.acquire(timeout=PATIENCE)

    def work(self, threads: int) -> Worker:
        worker: Worker = self.shop.work(threads=threads)
        eventually(lambda: len(worker._pump.lines) == 2)  # noqa: SLF001
        return worker


@pytest.fixture
def open_jobs(open_shop: Shops, nodes: Nodes) -> Iterator[Callable[..., Jobs]]:
    made: list[Jobs] = []

    def make(options: str = NEVER, **more: Any) -> Jobs:
        made.append(Jobs(open_shop(url=f"{nodes.cluster.url}?{options}", **more), nodes))
        return made[-1]

    yield make
    for jobs in made:
        for gate in jobs.gates.values():
            gate.set()


def line(worker: Worker, name: str) -> Line:
    return worker._pump.lines[name]  # noqa: SLF001


def stands_at(worker: Worker, *names: str) -> bool:
    return {*worker._pump._lookout.at} == {*names}  # noqa: SLF001


def has_left(worker: Worker) -> bool:
    """Whether no BLPOP stands, nor is being taken back."""
    places = worker._pump._lookout._standing._places  # type: ignore[union-attr]  # noqa: SLF001
    return stands_at(worker) and all(place.errand is None or place.errand.done for place in places.values())


@contextmanager
def asked_in_vain(nodes: Nodes, jobs: Jobs, worker: Worker) -> Iterator[None]:
    """A job waits on the sick node, which hangs; and the worker has a place, with which it asks there next."""
    jobs.start(nodes.well, 1)
    jobs.send(nodes.sick, 1)
    with nodes.hung():
        # Long enough for the next free place to be used for a look there.
        eventually(lambda: line(worker, nodes.sick).seen_at < time.monotonic() - 0.1)
        jobs.gates[nodes.well].set()
        yield


def test_ends_that_a_hung_node_is_not_told_of_take_no_places_from_other_queues(
    nodes: Nodes, open_jobs: Callable[..., Jobs]
) -> None:
    jobs = open_jobs()
    worker = jobs.work(threads=2)
    jobs.start(nodes.sick, 1, 2)
    jobs.send(nodes.sick, 3)
    with nodes.hung():
        jobs.gates[nodes.sick].set()
        jobs.send(nodes.well, *range(20))
        jobs.shop.finished(nodes.well)
        assert worker.untold == 2
    jobs.shop.finished(nodes.sick)
    assert set(jobs.runs.values()) == {1}
    assert len(jobs.runs) == 23


def test_who_stands_at_a_hung_node_leaves_it_without_waiting(nodes: Nodes, open_jobs: Callable[..., Jobs]) -> None:
    jobs = open_jobs()
    worker = jobs.work(threads=1)
    eventually(lambda: stands_at(worker, nodes.sick, nodes.well))
    with nodes.hung():
        # There is no room while it runs, and so no standing anywhere.
        jobs.start(nodes.well, 1)
        eventually(lambda: stands_at(worker))
        jobs.gates[nodes.well].set()
        for number in range(2, 5):
            jobs.send(nodes.well, number)
            jobs.shop.finished(nodes.well)
            eventually(lambda: stands_at(worker, nodes.well))
    jobs.send(nodes.sick, 1)
    jobs.shop.finished(nodes.sick)
    eventually(lambda: stands_at(worker, nodes.sick, nodes.well))
    assert set(jobs.runs.values()) == {1}


def test_standing_at_a_node_that_hangs_is_tried_again_and_others_are_stood_at_meanwhile(nodes: Nodes) -> None:
    with connect(nodes.cluster.url, timeout=0.3) as connection:
        through = threading.Semaphore(0)
        standing = Scattered(connection, through.release)
        with nodes.hung():
            standing.at([nodes.sick, nodes.well])
            for _ in range(2):
                assert through.acquire(timeout=PATIENCE)
            assert len(standing.at([nodes.sick, nodes.well])) == 1
            assert standing.queues == [nodes.well]
            assert standing.stand_at > time.monotonic()
        eventually(lambda: len(standing.at([nodes.sick, nodes.well])) == 2)
        Queue(nodes.sick, connection).enqueue("x")
        assert eventually(standing.tokens) == [nodes.sick]
        standing.close()
        assert not standing.stands


def test_a_node_that_hangs_once_it_is_connected_to_is_not_waited_for_without_end(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(nodes.cluster.url, timeout=0.3) as connection, ExitStack() as stack:
        fresh = connection.fresh

        def hang(*args: Any, **options: Any) -> Any:
            wire = fresh(*args, **options)
            stack.enter_context(nodes.hung())
            return wire

        monkeypatch.setattr(connection, "fresh", hang)
        errand = Couriers.of(connection).send(Spot((queue_key(nodes.sick, "wake"),), connection).connect)
        assert errand.wait(PATIENCE)
        with pytest.raises(ServerUnavailable):
            errand.result()


def test_a_worker_that_stands_at_a_hung_node_ends_when_it_is_told_to(
    nodes: Nodes, open_jobs: Callable[..., Jobs]
) -> None:
    worker = open_jobs().work(threads=1)
    eventually(lambda: stands_at(worker, nodes.sick, nodes.well))
    with nodes.hung():
        worker.abandon(timeout=10)
        eventually(lambda: not worker._pump.is_alive())  # noqa: SLF001


def test_what_a_hung_node_does_not_answer_in_time_is_told_again(
    nodes: Nodes, open_jobs: Callable[..., Jobs], caplog: pytest.LogCaptureFixture
) -> None:
    jobs = open_jobs("timeout=0.5")
    worker = jobs.work(threads=2)
    eventually(lambda: stands_at(worker, nodes.sick, nodes.well))
    jobs.start(nodes.sick, 1, 2)
    jobs.send(nodes.sick, 3, 4)
    eventually(lambda: has_left(worker))
    with nodes.hung():
        jobs.gates[nodes.sick].set()
        eventually(lambda: line(worker, nodes.sick).outage.failed_at > 0)
        eventually(lambda: not line(worker, nodes.sick).under_way)
        assert worker.untold == 2
        assert worker._pump._asking.held(worker._pump.lines.values()) == 0, "they keep no places"  # noqa: SLF001
        jobs.send(nodes.well, *range(5))
        jobs.shop.finished(nodes.well)
        eventually(lambda: stands_at(worker, nodes.well))
    eventually(lambda: jobs.shop.queue(nodes.sick).counts().completed == 4, PATIENCE)
    assert set(jobs.runs.values()) == {1}
    assert f"Serving queue {nodes.sick!r} failed" in caplog.text
    assert f"Serving queue {nodes.well!r} failed" not in caplog.text
    eventually(lambda: worker.untold == 0)


def test_a_node_that_was_killed_leaves_the_other_queues_running(nodes: Nodes, open_jobs: Callable[..., Jobs]) -> None:
    jobs = open_jobs("timeout=2")
    worker = jobs.work(threads=2)
    eventually(lambda: stands_at(worker, nodes.sick, nodes.well))
    nodes.node.kill()
    try:
        eventually(lambda: not stands_at(worker, nodes.sick, nodes.well))
        jobs.send(nodes.well, *range(20))
        jobs.shop.finished(nodes.well)
    finally:
        nodes.node.start()
    eventually(partial(whole, nodes.node), PATIENCE)
    jobs.send(nodes.sick, 1)
    jobs.shop.finished(nodes.sick)
    assert set(jobs.runs.values()) == {1}
    assert len(jobs.runs) == 21


def test_a_stop_ends_when_its_time_is_up_though_a_node_hangs_and_what_is_untold_is_told_later(
    nodes: Nodes, open_jobs: Callable[..., Jobs]
) -> None:
    jobs = open_jobs()
    worker = jobs.work(threads=2)
    jobs.start(nodes.sick, 1)
    jobs.start(nodes.well, 1)
    with nodes.hung():
        for gate in jobs.gates.values():
            gate.set()
        stopping = threading.Thread(target=worker.stop, args=(1_000,), daemon=True)
        stopping.start()
        stopping.join(PATIENCE)
        assert not stopping.is_alive()
        assert worker.untold == 1
        assert jobs.shop.queue(nodes.well).counts().completed == 1
    eventually(lambda: not worker._pump.is_alive())  # noqa: SLF001
    assert worker.untold == 0
    assert jobs.shop.queue(nodes.sick).counts().completed == 1


def test_what_a_claim_brings_after_the_worker_was_abandoned_goes_to_the_next_claim(
    nodes: Nodes, open_jobs: Callable[..., Jobs]
) -> None:
    jobs = open_jobs(lease=PATIENCE * 2)
    worker = jobs.work(threads=1)
    with asked_in_vain(nodes, jobs, worker):
        eventually(lambda: line(worker, nodes.sick).claims == 1)
        worker.abandon(timeout=500)
        eventually(lambda: not worker._pump.is_alive())  # noqa: SLF001
        claimers = line(worker, nodes.sick).queue.claimers
        assert not claimers._idle and not claimers._unanswered, "its courier is at it"  # noqa: SLF001, PT018
    # Before anybody was told of it.
    eventually(lambda: claimers._unanswered)  # noqa: SLF001
    assert jobs.shop.queue(nodes.sick).counts().active == 1
    claimers.give(Caller())
    jobs.work(threads=1)
    jobs.shop.finished(nodes.sick)
    assert jobs.runs[nodes.sick, 1] == 1


def test_a_claim_that_is_answered_late_runs_or_is_given_back_when_the_worker_is_paused(
    nodes: Nodes, open_jobs: Callable[..., Jobs]
) -> None:
    jobs = open_jobs()
    worker = jobs.work(threads=1)
    with asked_in_vain(nodes, jobs, worker):
        eventually(lambda: line(worker, nodes.sick).late)
        pausing = threading.Thread(target=worker.pause, daemon=True)
        pausing.start()
        eventually(lambda: not worker._pump.claiming)  # noqa: SLF001
    pausing.join(PATIENCE)
    assert not jobs.runs[nodes.sick, 1]
    counts = jobs.shop.queue(nodes.sick).counts()
    assert (counts.active, counts.pending) == (0, 1)
    worker.resume()
    jobs.shop.finished(nodes.sick)
    assert jobs.runs[nodes.sick, 1] == 1


def test_the_upkeep_of_other_queues_goes_on_while_a_node_hangs(nodes: Nodes, open_jobs: Callable[..., Jobs]) -> None:
    jobs = open_jobs(lease=1.0)
    jobs.send(nodes.well, 1)
    # Somebody dies with it.
    assert len(jobs.shop.queue(nodes.well).claim(lease=1.5)) == 1
    jobs.work(threads=1)
    with nodes.hung():
        jobs.shop.finished(nodes.well)
    assert jobs.runs[nodes.well, 1] == 1


def test_leases_on_other_nodes_are_renewed_while_one_hangs(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    send, errands = Couriers.send, []

    def note(self: Couriers, do: Callable[[], Any]) -> Errand:
        errands.append(send(self, do))
        return errands[-1]

    monkeypatch.setattr(Couriers, "send", note)
    with connect(nodes.cluster.url, timeout=PATIENCE * 2) as connection:
        queues = [Queue(name, connection) for name in (nodes.sick, nodes.well)]
        held = {}
        for queue in queues:
            queue.enqueue("x")
            held[queue] = queue.claim(lease=60.0).jobs
        sick, well = held.values()
        expires = partial(connection.client.zscore, queue_key(nodes.well, "active"), well[0].id)
        before = expires()
        with nodes.hung():
            for _ in range(2):
                renewal = extend_all(held, lease=0.6)
                assert renewal.unknown == sick
                assert nodes.sick in str(renewal.error)
                assert expires() < before
            assert [each.done for each in errands] == [False, True, True], "none is sent after one that is still away"
        extended = eventually(lambda: not (found := extend_all(held)).unknown and found)
        assert not extended.lost


def test_a_child_of_a_fork_has_couriers_of_its_own(nodes: Nodes) -> None:
    with connect(nodes.cluster.url) as connection:
        queue = Queue(nodes.well, connection)
        queue.enqueue_many(["a", "b"])
        (first,) = turn_all([Asked(queue, (), 1)])
        assert not isinstance(first.claimed, Exception)
        eventually(lambda: Couriers.of(connection)._idle)  # noqa: SLF001

        def settle() -> Any:
            (answer,) = turn_all([Asked(queue, [Complete(first.claimed.jobs[0])], 1)])  # type: ignore[union-attr]
            return answer.verdicts, answer.claimed.jobs[0].payload  # type: ignore[union-attr]

        verdicts, payload = in_child(settle)
        assert [verdict.name for verdict in verdicts] == ["OK"]
        assert payload == b"b"
        assert RoundTrip([Asked(queue, (), 1)]).answers()[0].claimed == type(first.claimed)(())
