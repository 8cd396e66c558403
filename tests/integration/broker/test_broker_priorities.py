"""Priorities order the jobs on the server, lanes share it out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
from dramatiq import Worker
from support.eventually import eventually

from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.errors import InvalidArgument
from echomq_tasks.identity import group_id


def test_an_actors_priority_orders_what_waits(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    seen: list[str] = []
    low = dramatiq.actor(actor_name="low", priority=100)(lambda: seen.append("low"))
    high = dramatiq.actor(actor_name="high", priority=-5)(lambda: seen.append("high"))
    normal = dramatiq.actor(actor_name="normal")(lambda: seen.append("normal"))
    for actor in (low, normal, high) * 3:
        actor.send()
    make_worker(broker, threads=1)
    finish(broker)
    assert seen == ["high"] * 3 + ["normal"] * 3 + ["low"] * 3


def test_a_messages_priority_wins_over_its_actors(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    seen: list[str] = []
    record = dramatiq.actor(actor_name="record", priority=10)(seen.append)
    record.send("ten")
    record.send_with_options(args=("twenty",), priority=20)
    record.send_with_options(args=("zero",), priority=0)
    record.send_with_options(args=("minus",), priority=-1)
    make_worker(broker, threads=1)
    finish(broker)
    assert seen == ["minus", "zero", "ten", "twenty"]


def test_the_rabbitmq_brokers_option_means_higher_first(broker: EchoMQBroker) -> None:
    f = dramatiq.actor(actor_name="f")(lambda: None)
    message: Any = f.send_with_options(broker_priority=9)
    job = broker.queue("default").get(message.job_id)
    assert job is not None
    assert job.priority == -9


@pytest.mark.parametrize("priority", [True, 1.5, "high", 2**60])
def test_a_priority_that_is_no_whole_number_is_refused(broker: EchoMQBroker, priority: Any) -> None:
    f = dramatiq.actor(actor_name="f")(lambda: None)
    with pytest.raises(InvalidArgument, match="priority"):
        f.send_with_options(priority=priority)


def test_priorities_hold_over_two_workers(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    seen: list[int] = []
    lock, gate = threading.Lock(), threading.Barrier(2, timeout=10)

    @dramatiq.actor(max_retries=0)
    def record(priority: int) -> None:
        with lock:
            seen.append(priority)
        # Both workers take one each before either takes another.
        gate.wait()

    for priority in (3, 1, 2, 3, 2, 1):
        record.send_with_options(args=(priority,), priority=priority)
    make_worker(broker, threads=1)
    make_worker(broker, threads=1)
    finish(broker)
    assert seen == [1, 1, 2, 2, 3, 3]


def test_a_priority_survives_delay_and_retry(broker: EchoMQBroker, worker: Worker) -> None:
    tries: list[int] = []

    @dramatiq.actor(min_backoff=60_000)
    def flaky() -> None:
        tries.append(1)
        raise RuntimeError("later")

    message: Any = flaky.send_with_options(priority=7, delay=1)
    eventually(lambda: tries and broker.queue("default").counts().scheduled, message="the retry is scheduled")
    job = broker.queue("default").get(message.job_id)
    assert job is not None
    assert (job.priority, job.failures) == (7, 1)


def test_a_message_in_a_group_waits_in_its_lane(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    seen: list[str] = []
    record = dramatiq.actor(actor_name="record")(seen.append)
    # Whoever sends much waits behind those who send little: lanes are served in turn.
    for number in range(4):
        record.send_with_options(args=(f"big {number}",), group="big")
    record.send_with_options(args=("small 0",), group="small")
    counts = broker.queue("default").counts()
    assert (counts.pending, counts.in_lanes) == (0, 5)
    assert len(broker.queue("default").browse(group="big")) == 4
    make_worker(broker, threads=1)
    finish(broker)
    assert seen.index("small 0") <= 1
    assert [name for name in seen if name.startswith("big")] == [f"big {number}" for number in range(4)]


def test_an_actors_group_may_be_a_function_of_its_arguments(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    seen: list[Any] = []

    @dramatiq.actor(group=lambda tenant, **_: f"tenant-{tenant}")
    def bill(tenant: str, amount: int = 0) -> None:
        seen.append((tenant, amount))

    message: Any = bill.send("acme", amount=3)
    job = broker.queue("default").get(message.job_id)
    assert job is not None
    assert job.group == group_id("tenant-acme")
    make_worker(broker)
    finish(broker)
    assert seen == [("acme", 3)]


def test_an_actors_group_may_be_a_name_and_a_messages_wins(broker: EchoMQBroker) -> None:
    f = dramatiq.actor(actor_name="f", group="standard")(lambda: None)
    f.send()
    f.send_with_options(group="special")
    queue = broker.queue("default")
    assert len(queue.browse(group="standard")) == 1
    assert len(queue.browse(group="special")) == 1


def test_a_retry_stays_in_its_lane(broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]) -> None:
    groups: list[str | None] = []
    broker.add_middleware(dramatiq.middleware.CurrentMessage())

    @dramatiq.actor(min_backoff=1, max_backoff=1, group="lane")
    def flaky() -> None:
        message: Any = dramatiq.middleware.CurrentMessage.get_current_message()
        groups.append(message.job.group)
        if len(groups) == 1:
            raise RuntimeError("again")

    flaky.send()
    finish(broker)
    assert groups == [group_id("lane")] * 2
