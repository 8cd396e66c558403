"""Many processes on one node id: every admission that is reported has a row, and no job is lost to a shared id."""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from support.children import Child, in_child
from support.servers import ServerProcess

from echomq_tasks.connection import Connection, connect
from echomq_tasks.identity import Mint
from echomq_tasks.keyspace import job_key
from echomq_tasks.queue import Admission, NewJob, Queue

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

NODE = 7
PAYLOAD = b"the same bytes everywhere, so that only the id tells two jobs apart"


class CountingMint(Mint):
    """A mint on a node id that everybody shares; it counts the job ids that it mints."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        super().__init__(lambda: NODE, clock=clock)
        self._numbers = itertools.count()

    def mint(self, kind: str) -> str:
        """Mint and count."""
        next(self._numbers)
        return super().mint(kind)

    @property
    def minted(self) -> int:
        """How many ids there were. Asking counts too, so ask once."""
        return next(self._numbers)


@dataclass(frozen=True)
class Report:
    """What one process saw."""

    ids: list[str]
    duplicates: int
    minted: int


class Gate:
    """Holds children back until all of them are there."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()

    def wait(self) -> None:
        """In a child: until the parent opens."""
        os.close(self._writing)
        os.read(self._reading, 1)

    def open(self) -> None:
        """In the parent: let everybody go."""
        os.close(self._writing)
        os.close(self._reading)


def row_ids(connection: Connection, name: str) -> list[str]:
    """The ids of every row of a queue."""
    prefix = f"emq:{{{name}}}:job:"
    return [key.decode().removeprefix(prefix) for key in connection.client.scan_iter(f"{prefix}*", count=1000)]


def check(connection: Connection, name: str, reports: list[Report], expected: int) -> None:
    """Every job is there once, none is there that nobody reported, and ids did collide."""
    reported = Counter(job_id for report in reports for job_id in report.ids)
    assert sum(reported.values()) == expected
    assert [job_id for job_id, times in reported.items() if times > 1] == []
    assert sum(report.duplicates for report in reports) == 0
    assert Counter(row_ids(connection, name)) == reported
    queue = Queue(name, connection)
    assert queue.counts().pending == expected
    assert len(queue.browse(count=10_000)) == min(expected, 10_000)
    # Without collisions the test would say nothing.
    assert sum(report.minted for report in reports) > expected


@pytest.mark.slow
def test_64_processes_of_8_threads_on_one_node_id_lose_nothing(
    server: ServerProcess, standalone: Connection, queue_name: str
) -> None:
    processes, threads, jobs = 64, 8, 20
    gate = Gate()

    def produce() -> Report:
        # There are hundreds of threads of these, and one of a test that runs beside.
        os.nice(10)
        with connect(server.url) as connection:
            queue = Queue(queue_name, connection)
            mint = queue.scripts.mint = CountingMint()
            gate.wait()

            def admit(_: int) -> list[tuple[str, bool]]:
                answers = [queue.enqueue(PAYLOAD) for _ in range(jobs)]
                return [(answer.id, answer.duplicate) for answer in answers]

            with ThreadPoolExecutor(threads) as pool:
                answers = [answer for answers in pool.map(admit, range(threads)) for answer in answers]
            queue.scripts.close()
        return Report([id for id, _ in answers], sum(duplicate for _, duplicate in answers), mint.minted)

    children = [Child(produce) for _ in range(processes)]
    gate.open()
    reports = [child.result(timeout=90) for child in children]
    check(standalone, queue_name, reports, processes * threads * jobs)


def test_processes_that_enqueue_in_bulk_on_one_node_id_lose_nothing(connection: Connection, queue_name: str) -> None:
    processes, jobs = 4, 1000
    gate = Gate()
    # One instant for all of them: each mints the very ids of the others.
    instant = time.time()

    def produce() -> Report:
        queue = Queue(queue_name, connection)
        mint = queue.scripts.mint = CountingMint(lambda: instant)
        gate.wait()
        answers = queue.enqueue_many([PAYLOAD] * jobs)
        return Report([answer.id for answer in answers], sum(answer.duplicate for answer in answers), mint.minted)

    children = [Child(produce) for _ in range(processes)]
    gate.open()
    reports = [child.result() for child in children]
    check(connection, queue_name, reports, processes * jobs)


def test_a_minted_id_that_is_taken_is_minted_again_and_the_row_there_stays(
    connection: Connection, queue_name: str
) -> None:
    queue = Queue(queue_name, connection)
    wanted = iter([1, 2, 2, 2, 3])
    numbers = itertools.chain(wanted, itertools.count(100))

    class Scripted(Mint):
        def snowflake(self) -> int:
            return next(numbers)

    queue.scripts.mint = Scripted(lambda: NODE)
    first = queue.enqueue("one")
    second = queue.enqueue("two")
    same_payload = queue.enqueue("two")
    assert [first.id, second.id, same_payload.id] == ["JOB00000000001", "JOB00000000002", "JOB00000000003"]
    assert {answer.admission for answer in (first, second, same_payload)} == {Admission.ENQUEUED}
    assert [info.payload for info in queue.get_many([first.id, second.id, same_payload.id]) if info] == [
        b"one",
        b"two",
        b"two",
    ]


def test_an_id_of_the_caller_s_is_never_minted_again(connection: Connection, queue_name: str) -> None:
    queue = Queue(queue_name, connection)
    mint = queue.scripts.mint = CountingMint()
    job_id = "JOB0KHTOWnGLuC"
    first = queue.enqueue("one", id=job_id)
    key = job_key(queue_name, job_id)
    row = connection.client.hgetall(key)
    again = [queue.enqueue("one", id=job_id), queue.enqueue("other", id=job_id, delay=5, group="g", priority=3)]
    many = queue.enqueue_many([NewJob(payload="x", id=job_id), NewJob(payload="one", id=job_id)])
    assert first.admission is Admission.ENQUEUED
    assert [answer.id for answer in again + many] == [job_id] * 4
    assert all(answer.duplicate for answer in again + many)
    assert connection.client.hgetall(key) == row
    assert queue.counts().unfinished == 1
    assert mint.minted == 0


def test_a_forked_child_goes_on_minting_above_its_parent(standalone: Connection, queue_name: str) -> None:
    queue = Queue(queue_name, standalone)
    before = queue.enqueue("x").id
    assert in_child(lambda: queue.enqueue("x").id) > before
