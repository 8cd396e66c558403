"""Delays and etas: they wait on the server, and bad ones are refused at the sender."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dramatiq
import pytest
from dramatiq import Message, Worker

from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.errors import InvalidArgument
from echomq_tasks.queue import JobInfo, State

YEAR_MS = 365 * 24 * 3600 * 1000


def sent(broker: EchoMQBroker, delay: Any = None, **options: Any) -> JobInfo:
    message = broker.enqueue(Message("default", "f", (), {}, options), delay=delay)
    job = broker.queue("default").get(message.job_id)  # type: ignore[attr-defined]
    assert job is not None
    return job


def test_a_delayed_job_runs_after_its_delay_and_not_before(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    ran: list[float] = []
    later = dramatiq.actor(actor_name="later")(lambda: ran.append(time.monotonic()))
    start = time.monotonic()
    later.send_with_options(delay=400)
    finish(broker)
    assert len(ran) == 1
    assert ran[0] - start >= 0.4


def test_delayed_jobs_run_in_the_order_they_are_due(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    seen: list[int] = []
    record = dramatiq.actor(actor_name="record")(seen.append)
    make_worker(broker, threads=1)
    for delay in (600, 150, 375):
        record.send_with_options(args=(delay,), delay=delay)
    finish(broker)
    assert seen == [150, 375, 600]


def test_a_job_without_delay_overtakes_a_delayed_one(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    seen: list[str] = []
    record = dramatiq.actor(actor_name="record")(seen.append)
    record.send_with_options(args=("late",), delay=400)
    record.send("now")
    finish(broker)
    assert seen == ["now", "late"]


def test_no_worker_holds_a_delayed_message(broker: EchoMQBroker, worker: Worker, worker_kind: str) -> None:
    later = dramatiq.actor(actor_name="later")(lambda: None)
    message = later.send_with_options(delay=60_000)
    later.send()
    worker.join()
    assert "eta" not in message.options
    assert message.queue_name == "default"
    assert broker.get_queue_message_counts("default")[1] == 1
    if worker_kind == "dramatiq":
        assert all(consumer.delay_queue.empty() for consumer in worker.consumers.values())


def test_the_delay_is_priced_by_the_servers_clock(broker: EchoMQBroker) -> None:
    job = sent(broker, 5000)
    assert job.state is State.SCHEDULED
    assert job.due is not None
    seconds, micros = broker.client.time()
    assert 0 < job.due.timestamp() - (seconds + micros / 1e6) <= 5


def test_a_delay_of_a_year_is_kept(broker: EchoMQBroker) -> None:
    job = sent(broker, YEAR_MS)
    assert job.due is not None
    assert timedelta(days=364) < job.due - job.minted < timedelta(days=366)


@pytest.mark.parametrize("delay", [0, -1, -60_000, -0.5])
def test_a_delay_of_nothing_or_less_means_now(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None], delay: float
) -> None:
    ran = threading.Event()
    dramatiq.actor(actor_name="f")(ran.set).send_with_options(delay=delay)
    finish(broker)
    assert ran.is_set()


@pytest.mark.parametrize("delay", [True, "5", float("nan"), float("inf"), 10**30, [], timedelta(seconds=1)])
def test_a_delay_that_is_no_number_of_milliseconds_is_refused(broker: EchoMQBroker, delay: Any) -> None:
    with pytest.raises(InvalidArgument, match="delay"):
        broker.enqueue(Message("default", "f", (), {}, {}), delay=delay)
    assert broker.get_queue_message_counts("default") == (0, 0, 0)


def test_an_eta_of_the_callers_is_kept_by_the_server(broker: EchoMQBroker) -> None:
    eta = int(time.time() * 1000) + 60_000
    job = sent(broker, eta=eta)
    assert job.state is State.SCHEDULED
    assert job.due is not None
    assert abs(job.due.timestamp() * 1000 - eta) < 2
    assert b"eta" not in job.payload


def test_a_message_with_an_eta_runs_and_never_waits_in_a_worker(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    ran: list[float] = []
    f = dramatiq.actor(actor_name="f")(lambda: ran.append(time.time()))
    eta = int(time.time() * 1000) + 300
    f.send_with_options(eta=eta)
    finish(broker)
    assert len(ran) == 1
    assert ran[0] * 1000 >= eta


@pytest.mark.parametrize("eta", [None, "soon", -5, True, float("nan"), 1])
def test_an_eta_that_is_past_or_no_time_means_now(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None], eta: Any
) -> None:
    ran = threading.Event()
    dramatiq.actor(actor_name="f")(ran.set).send_with_options(eta=eta)
    finish(broker)
    assert ran.is_set()


def test_a_delay_wins_over_an_eta(broker: EchoMQBroker) -> None:
    job = sent(broker, 1000, eta=int(time.time() * 1000) + YEAR_MS)
    assert job.due is not None
    assert job.due - job.minted < timedelta(seconds=60)


def test_an_eta_inside_a_foreign_payload_does_not_hold_a_worker(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    ran = threading.Event()
    dramatiq.actor(actor_name="f")(ran.set)
    broker.queue("default").enqueue('{"actor_name": "f", "args": [], "options": {"eta": 99999999999999}}')
    finish(broker)
    assert ran.is_set()


@pytest.mark.parametrize("eta", ["soon", 4_000_000_000_000])
def test_an_eta_in_another_producers_payload_is_not_heeded_and_said_so(
    broker: EchoMQBroker,
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    eta: Any,
) -> None:
    ran: list[int] = []

    @dramatiq.actor
    def note() -> None:
        ran.append(1)

    broker.queue("default").enqueue(json.dumps({"actor_name": "note", "args": [], "options": {"eta": eta}}))
    make_worker(broker)
    finish(broker)
    assert ran == [1]
    assert "is not heeded" in caplog.text
