"""Cancelling in batches: a member that has not started, and what the function says of those that it was given."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
from dramatiq import Broker, Message, Middleware, Worker
from failing_actors import QUICK
from support.eventually import eventually

from echomq_tasks import actor
from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.brokers.dramatiq.delivery import Delivery
from echomq_tasks.current import CurrentJob
from echomq_tasks.errors import BatchError, JobCancelled, ServerUnavailable
from echomq_tasks.queue import Cancellation, JobInfo, State

MakeWorker = Callable[..., Worker]
#: Seconds for which a batch waits for its last member.
FOREVER = 60.0


class Told(Middleware):
    """Notes what the hooks are told of each member, by its item."""

    def __init__(self) -> None:
        self.raised: dict[Any, str | None] = {}

    def after_process_message(
        self, broker: Broker, message: Message[Any], *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        self.raised[message.args[0]] = None if exception is None else type(exception).__name__


@pytest.fixture
def ask_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the second that a batch must have gathered for."""
    monkeypatch.setattr("echomq_tasks.brokers.dramatiq.broker._GATHERED_LONG", -1.0)


@pytest.fixture
def never_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echomq_tasks.brokers.dramatiq.broker._GATHERED_LONG", math.inf)


def gathered(broker: EchoMQBroker, number: int) -> Callable[[], bool]:
    return lambda: broker.queue("default").counts().active == number


@pytest.mark.usefixtures("ask_at_once")
def test_a_member_that_is_cancelled_while_its_batch_gathers_does_not_run(
    broker: EchoMQBroker, make_worker: MakeWorker, finish: Callable[..., None]
) -> None:
    calls: list[list[int]] = []
    told = Told()
    broker.add_middleware(told)
    index = actor(actor_name="index", batch=3, batch_wait=FOREVER)(calls.append)
    first = index.send(0)
    index.send(1)
    make_worker(broker)
    eventually(gathered(broker, 2))
    assert first.cancel() is Cancellation.REQUESTED
    index.send(2)
    finish(broker)
    assert calls == [[1, 2]]
    queue = broker.queue("default")
    assert queue.state(first.job_id) is State.ABSENT
    assert (queue.counts().completed, queue.counts().dead) == (2, 0)
    assert told.raised == {0: "JobCancelled", 1: None, 2: None}


@pytest.mark.usefixtures("ask_at_once")
def test_a_batch_whose_members_are_all_cancelled_does_not_run(
    broker: EchoMQBroker, make_worker: MakeWorker, finish: Callable[..., None]
) -> None:
    calls: list[list[int]] = []
    index = actor(actor_name="index", batch=100, batch_wait=1.0)(calls.append)
    sent = [index.send(number) for number in range(3)]
    make_worker(broker)
    eventually(gathered(broker, 3))
    for message in sent:
        message.cancel()
    finish(broker)
    assert calls == []
    assert broker.queue("default").counts().dead == 0
    # The server knows of an end a moment earlier than the process that told it.
    eventually(lambda: broker.leases.holding == 0)


@pytest.mark.usefixtures("never_ask")
def test_what_the_lease_keeper_has_learned_is_enough(
    make_broker: Callable[..., EchoMQBroker],
    make_worker: MakeWorker,
    finish: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Renewed soon, and not lost when the machine is busy with something else for a moment.
    broker = make_broker(lease=1.5)
    calls: list[list[int]] = []
    learned = threading.Event()
    real = CurrentJob.tell_cancelled

    def tell(job: CurrentJob) -> None:
        real(job)
        learned.set()

    monkeypatch.setattr(CurrentJob, "tell_cancelled", tell)
    index = actor(actor_name="index", batch=2, batch_wait=FOREVER)(calls.append)
    first = index.send(0)
    make_worker(broker)
    eventually(gathered(broker, 1))
    first.cancel()
    assert learned.wait(10)
    index.send(1)
    finish(broker)
    assert calls == [[1]]


@pytest.mark.usefixtures("ask_at_once")
def test_a_server_that_does_not_say_who_is_cancelled_keeps_no_batch_from_running(
    broker: EchoMQBroker, make_worker: MakeWorker, finish: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def away(jobs: dict[Any, list[Any]], **options: Any) -> Any:
        asked.append(sum(len(each) for each in jobs.values()))
        raise ServerUnavailable("away")

    monkeypatch.setattr("echomq_tasks.brokers.dramatiq.leases.extend_all", away)
    calls: list[list[int]] = []
    index = actor(actor_name="index", batch=2, batch_wait=FOREVER)(calls.append)
    for number in range(2):
        index.send(number)
    make_worker(broker)
    finish(broker)
    assert calls == [[0, 1]]
    # Once for both.
    assert asked == [2]


def test_a_batch_that_has_gathered_for_a_moment_asks_nothing(
    broker: EchoMQBroker, make_worker: MakeWorker, finish: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[Delivery]] = []
    monkeypatch.setattr(broker.leases, "ask", asked.append)
    # A clock of its own would be needed to make a moment of it.
    monkeypatch.setattr("echomq_tasks.brokers.dramatiq.broker._GATHERED_LONG", FOREVER)
    index = actor(actor_name="index", batch=2, batch_wait=FOREVER)(lambda items: None)
    for number in range(2):
        index.send(number)
    make_worker(broker)
    finish(broker)
    assert asked == []


def test_a_job_cancelled_that_names_no_member_ends_none_of_them(
    broker: EchoMQBroker, make_worker: MakeWorker, finish: Callable[..., None]
) -> None:
    calls: list[list[int]] = []

    @actor(actor_name="index", batch=3, batch_wait=FOREVER, **QUICK)
    def index(items: list[int]) -> None:
        calls.append(items)
        if len(items) > 1:
            raise JobCancelled("which one?")

    for number in range(3):
        index.send(number)
    make_worker(broker)
    finish(broker)
    assert calls[0] == [0, 1, 2]
    # Each runs again, alone.
    assert sorted(calls[1:]) == [[0], [1], [2]]
    counts = broker.queue("default").counts()
    assert (counts.completed, counts.dead) == (3, 0)


def test_the_error_of_one_that_names_no_member_says_how_to_name_it(
    broker: EchoMQBroker,
    make_worker: MakeWorker,
    finish: Callable[..., None],
    dead_jobs: Callable[..., list[JobInfo]],
) -> None:
    @actor(actor_name="index", batch=1, max_retries=0)
    def index(items: list[int]) -> None:
        raise JobCancelled("this one")

    index.send(0)
    make_worker(broker)
    finish(broker)
    (dead,) = dead_jobs(broker)
    assert "BatchError({index: JobCancelled()})" in str(dead.last_error)


def test_a_job_cancelled_that_names_a_member_ends_that_one(
    broker: EchoMQBroker, make_worker: MakeWorker, finish: Callable[..., None]
) -> None:
    calls: list[list[int]] = []

    @actor(actor_name="index", batch=3, batch_wait=FOREVER, **QUICK)
    def index(items: list[int]) -> None:
        calls.append(items)
        if len(items) > 1:
            raise BatchError({1: JobCancelled(), 2: ValueError("again")})

    for number in range(3):
        index.send(number)
    make_worker(broker)
    finish(broker)
    assert calls == [[0, 1, 2], [2]]
    counts = broker.queue("default").counts()
    assert (counts.completed, counts.dead) == (2, 0)
