"""Workers die in the middle of a batch: every member runs again, alone, and a killer takes nobody along."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import dramatiq
import pytest
from chaos.crew import PATIENCE, Processes, watching
from support.eventually import eventually
from support.servers import ServerProcess

from echomq_tasks.queue import Queue, State

pytestmark = pytest.mark.chaos


@pytest.fixture
def processes(server: ServerProcess, queue_name: str) -> Iterator[Processes]:
    server.flush()
    crew = Processes(server.url, queue_name, lease=1.0, threads=2)
    yield crew
    crew.close()


@pytest.fixture
def watched(server: ServerProcess, queue_name: str) -> Iterator[Queue]:
    with watching(server.url, queue_name) as queue:
        yield queue


def send(queue: Queue, *orders: dict[str, Any]) -> list[str]:
    """Enqueue messages for the batch actor of the worker processes; answers their JOB ids."""
    messages = [
        dramatiq.Message(queue_name=queue.name, actor_name="collect", args=(order,), kwargs={}, options={})
        for order in orders
    ]
    return [enqueued.id for enqueued in queue.enqueue_many([message.encode() for message in messages])]


def calls(queue: Queue) -> list[list[int]]:
    """The numbers of each call, in order."""
    lines = queue.connection.client.lrange(f"chaos:{queue.name}:calls", 0, -1)
    return [[int(number) for number in line.split()] for line in lines]


def ended(queue: Queue) -> Counter[int]:
    """How often each number ended."""
    lines = queue.connection.client.lrange(f"chaos:{queue.name}:ends", 0, -1)
    return Counter(int(line.split()[0]) for line in lines)


def test_all_members_of_a_killed_worker_run_again_each_alone(processes: Processes, watched: Queue) -> None:
    send(watched, *({"number": number, "seconds": 30.0} for number in range(20)))
    first = processes.start()
    eventually(lambda: len(calls(watched)) == 1, PATIENCE)
    assert calls(watched) == [list(range(20))]
    processes.kill(first.pid)
    assert ended(watched) == Counter()
    processes.start()
    eventually(lambda: watched.counts().completed == 20, PATIENCE)
    assert sorted(calls(watched)[1:]) == [[number] for number in range(20)]
    assert ended(watched) == dict.fromkeys(range(20), 1)


def test_a_worker_killed_while_a_batch_gathers_loses_nothing(processes: Processes, watched: Queue) -> None:
    first = processes.start()
    send(watched, *({"number": number} for number in range(5)))
    eventually(lambda: watched.counts().active > 0 or watched.counts().completed > 0, PATIENCE)
    processes.kill(first.pid)
    processes.start()
    eventually(lambda: watched.counts().completed == 5, PATIENCE)
    assert watched.counts().unfinished == 0
    assert set(ended(watched)) == set(range(5))


def test_a_member_that_kills_its_worker_ends_in_dead_and_its_companions_run(
    processes: Processes, watched: Queue
) -> None:
    ids = send(watched, *({"number": number, "kill": number == 3} for number in range(10)))
    deaths = 0

    def settled() -> bool:
        nonlocal deaths
        for pid, process in list(processes.running.items()):
            if process.poll() is not None:
                assert processes.wait(process) == -signal.SIGKILL, pid
                deaths += 1
        if not processes.running:
            processes.start()
        return watched.counts().unfinished == 0

    eventually(settled, 2 * PATIENCE)
    counts = watched.counts()
    assert (counts.completed, counts.dead) == (9, 1)
    info = watched.get(ids[3])
    assert info is not None
    assert (info.state, info.last_error, info.failures) == (State.DEAD, "stalled", 0)
    assert calls(watched)[0] == list(range(10))
    assert all(len(call) == 1 for call in calls(watched)[1:])
    # One that had ended and was not acknowledged when the killer struck runs again: once a death at most.
    assert set(ended(watched)) == set(range(10)) - {3}
    assert max(ended(watched).values()) <= 1 + deaths
    assert deaths >= info.stalled - 1 > 0
