"""Workers with nothing or too much to do: no polling, no hoarding, no token swallowed, nothing leaked."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator

import dramatiq.worker
import pytest
from chaos.crew import PATIENCE, App, Record, watching
from support.eventually import eventually
from support.servers import ServerProcess
from support.workers import places

from echomq_tasks.queue import Queue

#: Seconds. With this lease an idle worker looks every five seconds, so whatever happens sooner, a token did.
LONG_LEASE = 30.0
AT_ONCE = 2.5


@pytest.fixture
def watched(own_server: ServerProcess, queue_name: str) -> Iterator[Queue]:
    with watching(own_server.url, queue_name) as queue:
        yield queue


@pytest.fixture
def gated(record: Record, gate: threading.Event) -> Callable[[int], None]:
    def body(number: int) -> None:
        record.start(number)
        gate.wait(PATIENCE)

    return body


def parked(server: ServerProcess) -> int:
    """How many consumers stand waiting on the server."""
    return sum("b" in client["flags"] for client in server.client().client_list())


def test_a_busy_worker_holds_its_one_job_and_another_gets_the_rest(
    own_server: ServerProcess, watched: Queue, make_app: Callable[..., App], gated: Callable[..., None]
) -> None:
    busy = make_app(own_server.url, gated, lease=LONG_LEASE)
    busy.run.send(0)
    busy.work(threads=1)
    eventually(lambda: watched.counts().active == 1, PATIENCE)
    for number in range(1, 6):
        busy.run.send(number)
    eventually(lambda: parked(own_server) == 0, PATIENCE, "it does not wait for more")
    assert (watched.counts().active, watched.counts().pending) == (1, 5)
    ran = Record()
    make_app(own_server.url, ran.end, lease=LONG_LEASE).work(threads=1)
    eventually(lambda: watched.counts().completed == 5, PATIENCE)
    assert ran.ends == dict.fromkeys(range(1, 6), 1)
    assert watched.counts().active == 1


def test_the_threads_of_a_worker_bound_all_its_queues_together(
    own_server: ServerProcess, watched: Queue, queue_name: str, make_app: Callable[..., App], gated: Callable[..., None]
) -> None:
    busy = make_app(own_server.url, gated, lease=LONG_LEASE)
    others = [busy.actor(gated, f"{queue_name}.{number}", f"run{number}") for number in range(3)]
    for actor in (busy.run, *others):
        for number in range(4):
            actor.send(number)
    busy.work(threads=2)
    queues = [busy.broker.queue(name) for name in busy.broker.get_declared_queues()]
    eventually(lambda: sum(queue.counts().active for queue in queues) == 2, PATIENCE)
    eventually(lambda: parked(own_server) == 0, PATIENCE, "nobody waits for more")
    assert sum(queue.counts().active for queue in queues) == 2
    assert sum(queue.counts().pending for queue in queues) == 14


def test_dramatiqs_prefetch_setting_is_honoured(
    own_server: ServerProcess,
    watched: Queue,
    make_app: Callable[..., App],
    gated: Callable[..., None],
    record: Record,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dramatiq.worker, "QUEUE_PREFETCH", 1)
    app = make_app(own_server.url, gated, lease=LONG_LEASE)
    for number in range(5):
        app.run.send(number)
    app.work(threads=4)
    eventually(lambda: record.starts, PATIENCE)
    eventually(lambda: parked(own_server) == 0, PATIENCE)
    assert (watched.counts().active, watched.counts().pending) == (1, 4)


def test_a_full_worker_swallows_no_token_of_another_queue(
    own_server: ServerProcess,
    queue_name: str,
    make_app: Callable[..., App],
    gated: Callable[..., None],
    record: Record,
    worker_kind: str,
) -> None:
    other = f"{queue_name}.other"
    ran = Record()
    full, idle = (make_app(own_server.url, gated, lease=LONG_LEASE) for _ in range(2))
    full.actor(ran.start, other, "other")
    full.work(threads=1)
    eventually(lambda: parked(own_server) == places(worker_kind, 2), PATIENCE)
    # First come, first served: the token of the other queue goes to the worker that parked first.
    idle_actor = idle.actor(ran.end, other, "other")
    idle.work(threads=1, queues={other})
    eventually(lambda: parked(own_server) == places(worker_kind, 2) + 1, PATIENCE)
    full.run.send(0)
    eventually(lambda: record.starts[0] == 1, PATIENCE, "full")
    for number in range(3):
        idle_actor.send(number)
        eventually(lambda number=number: ran.ends[number] == 1, AT_ONCE, "the idle worker is told at once")
    assert not ran.starts


def test_a_worker_that_found_its_job_without_a_token_waits_for_no_other(
    own_server: ServerProcess, watched: Queue, make_app: Callable[..., App], gated: Callable[..., None], record: Record
) -> None:
    busy = make_app(own_server.url, gated, lease=LONG_LEASE)
    busy.work(threads=1)
    eventually(lambda: parked(own_server) == 1, PATIENCE)
    busy.run.send_with_options(args=(0,), delay=300)
    eventually(lambda: record.starts[0] == 1, PATIENCE, "it knew the time")
    eventually(lambda: parked(own_server) == 0, AT_ONCE, "full, it takes its wait back")
    ran = Record()
    make_app(own_server.url, ran.end, lease=LONG_LEASE).work(threads=1)
    eventually(lambda: parked(own_server) == 1, PATIENCE)
    for number in range(1, 4):
        busy.run.send(number)
        eventually(lambda number=number: ran.ends[number] == 1, AT_ONCE)


def test_a_consumer_that_closes_gives_its_token_back(
    own_server: ServerProcess, watched: Queue, make_app: Callable[..., App], record: Record
) -> None:
    app = make_app(own_server.url, record.end, lease=LONG_LEASE)
    consumer = app.broker.consume(app.queue_name, prefetch=1, timeout=50)
    # The look that comes first may use up the time of a call.
    eventually(lambda: next(consumer) is None and parked(own_server) == 1, PATIENCE)
    app.run.send(1)
    wake = f"emq:{{{app.queue_name}}}:wake"
    assert own_server.client().llen(wake) == 0, "it has the token"
    consumer.close()
    assert own_server.client().llen(wake) == 1
    assert parked(own_server) == 0


def test_an_idle_worker_parks_instead_of_polling_and_wakes_for_a_job(
    own_server: ServerProcess, watched: Queue, make_app: Callable[..., App], record: Record
) -> None:
    app = make_app(own_server.url, record.end, lease=LONG_LEASE)
    app.work(threads=8)
    eventually(lambda: parked(own_server) == 1, PATIENCE)

    def commands() -> int:
        return int(own_server.client().info("stats")["total_commands_processed"])

    before, seconds = commands(), 2
    threading.Event().wait(seconds)
    # One of them is the second look at the statistics themselves.
    assert commands() - before - 1 <= 3 * seconds
    assert parked(own_server) == 1
    for number in range(3):
        app.run.send(number)
        eventually(lambda number=number: record.ends[number] == 1, AT_ONCE, "woken, not found at the next look")


def test_an_idle_worker_pauses_promptly_and_goes_on(
    own_server: ServerProcess,
    watched: Queue,
    make_app: Callable[..., App],
    record: Record,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dramatiq.worker, "CONSUMER_RESTART_DELAY_SECS", 0.05)
    app = make_app(own_server.url, record.end, lease=LONG_LEASE)
    worker = app.work()
    eventually(lambda: parked(own_server) == 1, PATIENCE)
    pausing = threading.Thread(target=worker.pause)
    pausing.start()
    pausing.join(5.0)
    assert not pausing.is_alive()
    assert parked(own_server) == 0, "paused, it takes no tokens"
    app.run.send(1)
    other = make_app(own_server.url, lambda number: None, lease=LONG_LEASE)
    other.work(threads=1)
    eventually(lambda: watched.counts().completed == 1, AT_ONCE, "another worker has the job at once")
    assert not record.ends
    other.close()
    app.run.send(2)
    worker.resume()
    eventually(lambda: record.ends == {2: 1}, PATIENCE)


def test_workers_that_come_and_go_leave_no_thread_and_no_connection(
    own_server: ServerProcess, watched: Queue, make_app: Callable[..., App], record: Record
) -> None:
    watched.counts()  # opens the test's own connection
    clients = len(own_server.client().client_list())
    threads = set(threading.enumerate())
    for number in range(5):
        app = make_app(own_server.url, record.end)
        app.run.send(number)
        app.work(threads=2)
        eventually(lambda number=number: watched.counts().completed == number + 1, PATIENCE)
        app.close()
        del app
        gc.collect()
        eventually(lambda: len(own_server.client().client_list()) == clients, PATIENCE, "connections closed")
        eventually(lambda: set(threading.enumerate()) <= threads | timers(), PATIENCE, "threads ended")


def test_a_broker_whose_workers_come_and_go_keeps_the_connections_it_has(
    own_server: ServerProcess, watched: Queue, make_app: Callable[..., App], record: Record
) -> None:
    app = make_app(own_server.url, record.end)
    counts = []
    for number in range(5):
        app.run.send(number)
        app.work(threads=2)
        eventually(lambda number=number: watched.counts().completed == number + 1, PATIENCE)
        app.rest()
        eventually(lambda: parked(own_server) == 0, PATIENCE)
        counts.append(len(own_server.client().client_list()))
    assert max(counts[1:]) <= counts[0] + 1, counts


def timers() -> set[threading.Thread]:
    """The timer threads of Dramatiq's own middleware, which it never ends."""
    return {thread for thread in threading.enumerate() if type(thread).__module__.startswith("dramatiq.middleware")}
