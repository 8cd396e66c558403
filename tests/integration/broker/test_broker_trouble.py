"""Trouble at the worst moment: between the end of a run and what is told of it."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dramatiq
import pytest
from dramatiq import Worker
from dramatiq.middleware import CurrentMessage
from failing_actors import Failing
from support.eventually import eventually
from support.servers import ServerProcess

from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.errors import ConfigError, ServerOutOfMemory, ServerUnavailable
from echomq_tasks.keyspace import queue_key
from echomq_tasks.middleware import Retries
from echomq_tasks.queue import JobInfo, Parking, Queue


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dramatiq.worker.POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.05)
    monkeypatch.setattr("echomq_tasks.worker.outage._MOST", 0.05)
    monkeypatch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 30)


class Refusals:
    """Makes a queue's calls fail while it is on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, error: Exception) -> None:
        self.on = False
        self.seen = 0
        real = getattr(Queue, name)

        def refused(queue: Queue, *args: Any, **options: Any) -> Any:
            # A claim alone settles nothing.
            if self.on and args[:1] != ((),):
                self.seen += 1
                raise error
            return real(queue, *args, **options)

        monkeypatch.setattr(Queue, name, refused)


@pytest.mark.parametrize("error", [ServerUnavailable("away"), ServerOutOfMemory("full"), ConfigError("no rights")])
@pytest.mark.parametrize("what", ["pipeline", "on_success"])
def test_what_follows_from_a_job_is_sent_before_it_is_acknowledged(
    broker: EchoMQBroker,
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    what: str,
) -> None:
    refusals = Refusals(monkeypatch, "enqueue_many", error)
    seen: list[Any] = []

    @dramatiq.actor
    def second(*args: Any) -> None:
        seen.append(args)

    @dramatiq.actor(on_success=second.actor_name if what == "on_success" else None)
    def first() -> int:
        refusals.on = True
        return 7

    if what == "pipeline":
        (first.message() | second.message()).run()
    else:
        first.send()
    make_worker(broker)
    eventually(lambda: refusals.seen >= 3)
    assert broker.queue("default").counts().active == 1, "not acknowledged before what follows is sent"
    refusals.on = False
    finish(broker)
    assert len(seen) == 1
    assert seen[0][-1] == 7


@pytest.mark.parametrize("error", [ConfigError("wrong password"), ServerOutOfMemory("full"), ServerUnavailable("away")])
def test_a_job_that_is_done_is_told_once_the_server_takes_it_and_never_run_again(
    make_broker: Callable[..., EchoMQBroker],
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    lease = timedelta(seconds=1.5)
    broker = make_broker(lease=lease.total_seconds())
    refusals = Refusals(monkeypatch, "settle_calls", error)
    runs: list[int] = []

    @dramatiq.actor
    def work() -> None:
        runs.append(1)
        refusals.on = True

    message: Any = work.send()
    make_worker(broker)
    eventually(lambda: refusals.seen, 20)
    queue = broker.queue("default")
    done = queue.get(message.job_id)
    assert done is not None

    def outlasted() -> bool:
        info = queue.get(message.job_id)
        assert info is not None
        return refusals.seen >= 20 and info.due >= done.due + lease  # type: ignore[operator]

    eventually(outlasted, 20, "refused for longer than a lease, which was renewed")
    refusals.on = False
    finish(broker)
    assert len(runs) == 1
    assert broker.queue("default").counts().completed == 1


class Unspeakable(RuntimeError):
    def __str__(self) -> str:
        raise KeyboardInterrupt


def test_an_exception_whose_text_raises_takes_no_thread_of_the_worker_along(
    broker: EchoMQBroker,
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    dead_jobs: Callable[..., list[JobInfo]],
) -> None:
    actor = dramatiq.actor(max_retries=0)(Failing(error=Unspeakable()))
    worker = make_worker(broker, threads=1)
    for _ in range(2):
        actor.send()
    finish(broker)
    assert all(thread.is_alive() for thread in worker.workers)
    assert ["Unspeakable" in str(job.last_error) for job in dead_jobs(broker, "default")] == [True, True]


def test_a_predicate_that_always_raises_retries_no_more_than_allowed(
    make_broker: Callable[..., EchoMQBroker],
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    dead_jobs: Callable[..., list[JobInfo]],
) -> None:
    def broken(retries: int, exception: BaseException) -> bool:
        raise LookupError("no answer")

    broker = make_broker(
        middleware=[Retries(max_retries=3, min_backoff=1, max_backoff=2, retry_when=broken), CurrentMessage()]
    )
    failing = Failing()
    dramatiq.actor(failing).send()
    make_worker(broker)
    finish(broker)
    assert len(failing.runs) == 4
    assert len(dead_jobs(broker, "default")) == 1


def test_a_message_with_a_spoilt_retry_count_retries_no_more_than_allowed(
    make_broker: Callable[..., EchoMQBroker],
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    dead_jobs: Callable[..., list[JobInfo]],
) -> None:
    broker = make_broker(middleware=[Retries(max_retries=2, min_backoff=1, max_backoff=2), CurrentMessage()])
    failing = Failing()
    actor = dramatiq.actor(failing)
    broker.enqueue(actor.message_with_options(retries="x"))
    make_worker(broker)
    finish(broker)
    assert len(failing.runs) == 3
    assert len(dead_jobs(broker, "default")) == 1


def test_a_huge_error_text_is_cut_in_the_row_and_in_the_payload(
    broker: EchoMQBroker,
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    dead_jobs: Callable[..., list[JobInfo]],
) -> None:
    dramatiq.actor(max_retries=1, min_backoff=1)(Failing(error=RuntimeError("x" * 2_000_000))).send()
    make_worker(broker)
    finish(broker)
    (dead,) = dead_jobs(broker, "default")
    assert len(dead.payload) < 20_000
    assert len(str(dead.last_error)) < 20_000


def test_a_parked_connection_that_is_cut_does_not_make_a_worker_deaf(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], server: ServerProcess
) -> None:
    ran = Failing(times=0)
    actor = dramatiq.actor(ran)
    make_worker(broker)

    def parked() -> list[dict[str, str]]:
        return [client for client in server.client().client_list() if client["cmd"] == "blpop"]

    for number in range(1, 4):
        (blocked,) = eventually(parked)
        server.client().client_kill_filter(_id=blocked["id"])
        actor.send()
        # The consumer's restart would take 30 seconds here.
        eventually(lambda number=number: len(ran.runs) == number, 10)
        # Twice within a second is no accident, and is told to the worker.
        threading.Event().wait(1.1)


def test_closing_the_broker_under_a_running_job_keeps_its_lease(
    make_broker: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], server: ServerProcess
) -> None:
    broker = make_broker(lease=0.5)
    started, gate, runs = threading.Event(), threading.Event(), []

    @dramatiq.actor
    def slow() -> None:
        runs.append(1)
        started.set()
        gate.wait(20)

    slow.send()
    make_worker(broker)
    assert started.wait(20)
    queue = broker.queue("default")
    (job_id,) = queue.browse("active")  # type: ignore[arg-type]
    broker.close()
    first = queue.get(job_id)
    assert first is not None
    eventually(lambda: queue.get(job_id).due > first.due)  # type: ignore[union-attr,operator]
    gate.set()
    eventually(lambda: queue.counts().unfinished == 0)
    assert len(runs) == 1


class Level(enum.IntEnum):
    URGENT = -5


def test_a_member_of_an_enum_is_a_priority(broker: EchoMQBroker) -> None:
    actor = dramatiq.actor(priority=Level.URGENT)(Failing())
    actor.send()
    actor.send_with_options(priority=Level.URGENT)
    scores = broker.client.zrange(queue_key("default", "pending"), 0, -1, withscores=True)
    assert [score for _, score in scores] == [-5, -5]
    assert len(broker.queue("default").claim(enum.IntEnum("Two", {"N": 2}).N)) == 2  # type: ignore[attr-defined]


@pytest.fixture
def parked_consumer(broker: EchoMQBroker, server: ServerProcess) -> tuple[Any, threading.Thread, list[Any]]:
    broker.declare_queue("default")
    consumer = broker.consume("default", prefetch=1, timeout=20_000)
    ended: list[Any] = []

    def run() -> None:
        try:
            ended.append(next(consumer))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    eventually(lambda: any(client["cmd"] == "blpop" for client in server.client().client_list()))
    return consumer, thread, ended


def test_a_consumer_closed_by_another_thread_answers_none(
    parked_consumer: tuple[Any, threading.Thread, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer, thread, ended = parked_consumer
    # Without the polite way, which waits for the answer of the server that the other thread is reading.
    monkeypatch.setattr(Parking, "leave", Parking.close)
    consumer.close()
    thread.join(20)
    assert ended == [None]
    assert next(consumer) is None
