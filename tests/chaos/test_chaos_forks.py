"""A broker that was used before a fork serves the parent and the child, and threads at once; closed, it opens again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from chaos.crew import PATIENCE, App, Record, watching
from support.children import Child, in_child
from support.eventually import eventually
from support.servers import ServerProcess

from echomq_tasks.queue import Queue

pytestmark = [pytest.mark.chaos, pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")]


@pytest.fixture
def watched(server: ServerProcess, queue_name: str) -> Iterator[Queue]:
    server.flush()
    with watching(server.url, queue_name) as queue:
        yield queue


def test_a_child_sends_through_its_parents_broker(
    server: ServerProcess, watched: Queue, make_app: Callable[..., App], record: Record
) -> None:
    app = make_app(server.url, record.end)
    app.run.send("before")
    with InParallel(app, "beside"):
        sent = in_child(lambda: [app.run.send(f"child {number}").job_id for number in range(50)])
    app.run.send("after")
    assert len(set(sent)) == 50
    app.work()
    eventually(lambda: watched.counts().unfinished == 0, PATIENCE)
    names = {"before", "after", *(f"child {number}" for number in range(50)), *(f"beside {n}" for n in range(50))}
    assert record.ends == dict.fromkeys(names, 1)


class InParallel:
    """Send fifty jobs from another thread meanwhile."""

    def __init__(self, app: App, name: str) -> None:
        self._thread = threading.Thread(target=lambda: [app.run.send(f"{name} {number}") for number in range(50)])

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join()


def test_a_child_works_while_its_parent_works(
    server: ServerProcess, watched: Queue, make_app: Callable[..., App], record: Record
) -> None:
    def body(number: int) -> None:
        record.start(number)
        record.end(number)

    app = make_app(server.url, body)
    app.work(threads=2)
    app.run.send(-1)
    eventually(lambda: watched.counts().completed == 1, PATIENCE, "parked, with leases and sockets in use")

    def child() -> dict[int, int]:
        app.workers.clear()  # those threads are the parent's
        app.work(threads=2)
        for number in range(100):
            app.run.send(number)
        app.broker.join(app.queue_name, timeout=20_000)
        app.close()
        return dict(record.ends)

    theirs = in_child(child)
    theirs.pop(-1, None)
    ours = {number: count for number, count in record.ends.items() if number >= 0}
    assert theirs.keys() | ours.keys() == set(range(100))
    assert not theirs.keys() & ours.keys()
    assert set(theirs.values()) | set(ours.values()) == {1}
    app.run.send(100)
    eventually(lambda: record.ends[100] == 1, PATIENCE, "the parent's worker goes on")


def test_a_child_does_not_renew_what_its_parent_held(
    server: ServerProcess, watched: Queue, make_app: Callable[..., App], record: Record
) -> None:
    def no_work(number: int) -> None: ...

    app, other = make_app(server.url, no_work, lease=0.6), make_app(server.url, record.end, lease=0.6)
    childs = watched.name + ".child"
    app.actor(no_work, childs, "childs").send(1)
    app.run.send(2)
    consumer = app.broker.consume(watched.name, timeout=100)
    held = eventually(lambda: next(consumer), PATIENCE)

    def hold_one_of_its_own() -> int:
        mine = app.broker.consume(childs, timeout=100)
        eventually(lambda: next(mine), PATIENCE)
        eventually(lambda: app.queue.counts().completed == 1, PATIENCE, "the parent's job came back")
        return int(app.broker.queue(childs).counts().active)

    child = Child(hold_one_of_its_own)
    eventually(lambda: app.broker.queue(childs).counts().active == 1, PATIENCE)
    app.broker.leases.stop()  # as if this process had died
    other.work()
    eventually(lambda: record.ends == {2: 1}, PATIENCE)
    assert child.result() == 1, "the child kept its own"
    assert not held.settled
    consumer.close()


def test_eight_threads_send_at_once(
    server: ServerProcess, watched: Queue, make_app: Callable[..., App], record: Record
) -> None:
    app = make_app(server.url, record.end)
    ids: list[str] = []
    together = threading.Barrier(8)

    def send(thread: int) -> None:
        together.wait()
        ids.extend(app.run.send(thread * 100 + number).job_id for number in range(50))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 400
    assert watched.counts().pending == 400
    app.work(threads=4)
    eventually(lambda: watched.counts().unfinished == 0, PATIENCE)
    assert len(record.ends) == 400
    assert set(record.ends.values()) == {1}


def test_a_closed_broker_opens_again_on_use(
    server: ServerProcess, watched: Queue, make_app: Callable[..., App], record: Record
) -> None:
    app = make_app(server.url, record.end)
    for number in range(3):
        app.run.send(number)
        app.work()
        eventually(lambda number=number: watched.counts().completed == number + 1, PATIENCE)
        app.close()
    assert record.ends == {0: 1, 1: 1, 2: 1}
