"""Trouble with one job, one queue or one call stays there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

import dramatiq
import pytest
from dramatiq import Worker
from dramatiq.errors import ConnectionFailed
from failing_actors import Failing
from support.eventually import eventually

from echomq_tasks.brokers.dramatiq import EchoMQBroker, job_id
from echomq_tasks.connection import Connection
from echomq_tasks.errors import ConfigError, EmbeddedUnavailable, ScriptError, ServerUnavailable, WrongState
from echomq_tasks.identity import group_id
from echomq_tasks.keyspace import job_key
from echomq_tasks.queue import JobInfo, Parking, Queue


def test_a_reprocessed_message_has_all_of_its_retries_again(
    broker: EchoMQBroker,
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    dead_jobs: Callable[..., list[JobInfo]],
) -> None:
    failing = Failing(times=4)
    dramatiq.actor(max_retries=2, min_backoff=1, max_backoff=2)(failing).send()
    make_worker(broker)
    finish(broker)
    (dead,) = dead_jobs(broker, "default")
    assert len(failing.runs) == 3
    assert broker.reprocess("default", dead.id)
    finish(broker)
    assert len(failing.runs) == 5
    assert not dead_jobs(broker, "default")
    assert not broker.reprocess("default", dead.id)


def test_only_a_dead_message_is_reprocessed(broker: EchoMQBroker) -> None:
    message = dramatiq.actor(Failing()).send()
    with pytest.raises(WrongState):
        broker.reprocess("default", message.job_id)  # type: ignore[attr-defined]


def test_a_sweep_that_fails_does_not_keep_the_queue_from_being_served(
    broker: EchoMQBroker,
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(self: Queue, **_: Any) -> Any:
        raise ScriptError("lua/job_sweep.lua:1: broken")

    monkeypatch.setattr(Queue, "sweep_stalled", broken)
    ran = Failing(times=0)
    dramatiq.actor(ran).send()
    make_worker(broker)
    finish(broker)
    assert len(ran.runs) == 1
    assert "sweep" in caplog.text


def test_a_job_whose_row_was_spoilt_does_not_stop_a_worker(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    ran = Failing(times=0)
    actor = dramatiq.actor(ran)
    messages = [actor.send() for _ in range(3)]
    key = job_key("default", messages[1].job_id)  # type: ignore[attr-defined]
    broker.client.delete(key)
    broker.client.lpush(key, "not a row")
    make_worker(broker)
    finish(broker)
    assert len(ran.runs) == 2


@pytest.mark.parametrize("error", [ConfigError("no"), ServerUnavailable("no"), RuntimeError("no")])
def test_a_consumer_whose_parking_fails_still_gives_back_what_it_claimed(
    broker: EchoMQBroker, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    broker.declare_queue("default")
    queue = broker.queue("default")
    queue.enqueue_many([dramatiq.Message("default", "nobody", (), {}, {}).encode() for _ in range(3)])
    consumer = broker.consume("default", prefetch=3, timeout=100)
    assert next(consumer) is not None
    assert queue.counts().active == 3

    def broken(self: Parking) -> None:
        raise error

    monkeypatch.setattr(Parking, "leave", broken)
    with pytest.raises(type(error)):
        consumer.close()
    assert (queue.counts().active, queue.counts().pending) == (1, 2)


def test_a_release_that_the_scripts_refuse_does_not_end_the_consumers_thread(
    broker: EchoMQBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker.declare_queue("default")
    broker.queue("default").enqueue_many([dramatiq.Message("default", "nobody", (), {}, {}).encode()] * 2)
    consumer = broker.consume("default", prefetch=2, timeout=100)
    assert next(consumer) is not None

    def broken(self: Queue, settlements: Any) -> Any:
        raise ScriptError("lua/job_release.lua:1: broken")

    monkeypatch.setattr(Queue, "settle", broken)
    with caplog.at_level(logging.ERROR):
        consumer.close()
    assert "come back when their leases end" in caplog.text


def test_one_queue_that_cannot_be_renewed_costs_no_other_its_leases(
    make_broker: Callable[..., EchoMQBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_broker(lease=0.6)
    for name in ("good", "bad"):
        broker.declare_queue(name)
        broker.queue(name).enqueue(dramatiq.Message(name, "nobody", (), {}, {}).encode())
    bad = broker.queue("bad")
    extend_call = Queue.extend_call

    def spoilt(self: Queue, jobs: Any, lease: float) -> Any:
        call = extend_call(self, jobs, lease)
        return call._replace(args=["x", *call.args[1:]]) if self is bad else call

    monkeypatch.setattr(Queue, "extend_call", spoilt)
    held = [next(broker.consume(name, prefetch=1, timeout=100)) for name in ("good", "bad")]
    assert all(held)
    (job_id,) = broker.queue("good").browse(state="active")  # type: ignore[arg-type]
    first = broker.queue("good").get(job_id)
    assert first is not None
    eventually(lambda: broker.queue("good").get(job_id).due > first.due)  # type: ignore[union-attr,operator]


@pytest.mark.parametrize("group", [5, "", "\ud800"])
def test_a_group_that_cannot_be_one_is_refused_at_decoration(broker: EchoMQBroker, group: Any) -> None:
    from echomq_tasks import actor

    with pytest.raises(ValueError, match="group"):
        actor(group=group)(Failing())
    assert broker.actors == {}


@pytest.mark.parametrize("tenant", [7, UUID("12345678-1234-5678-1234-567812345678")])
def test_a_tenant_that_is_a_number_or_a_uuid_names_a_lane(broker: EchoMQBroker, tenant: Any) -> None:
    dramatiq.actor(group=lambda *_: tenant)(Failing()).send("x")
    info = broker.queue("default").get(*broker.queue("default").browse(group=str(tenant)))
    assert info is not None
    assert info.group == group_id(str(tenant))


def test_the_job_id_of_a_message_is_typed_and_missing_where_there_is_none(broker: EchoMQBroker) -> None:
    actor = dramatiq.actor(Failing())
    sent = actor.send()
    assert broker.queue("default").get(job_id(sent)) is not None
    with pytest.raises(ValueError, match="not enqueued"):
        job_id(actor.message())


@pytest.mark.parametrize("error", [EmbeddedUnavailable("no binary"), ConfigError("wrong password")])
def test_a_worker_does_not_boot_in_vain(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refused(self: Connection, config: Any) -> None:
        raise error

    monkeypatch.setattr(Connection, "__init__", refused)
    dramatiq.actor(Failing())
    with pytest.raises(ConnectionFailed, match=str(error)):
        make_worker(broker)


def test_a_worker_boots_while_the_server_is_away_and_serves_once_it_is_there(
    make_broker: Callable[..., EchoMQBroker],
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 0.05)
    broker, ran = make_broker(), Failing(times=0)
    actor = dramatiq.actor(ran)
    connect = Connection.__init__
    away = [True]

    def sometimes(self: Connection, config: Any) -> None:
        if away[0]:
            raise ServerUnavailable("not yet")
        connect(self, config)

    monkeypatch.setattr(Connection, "__init__", sometimes)
    make_worker(broker)
    away[0] = False
    actor.send()
    finish(broker)
    assert len(ran.runs) == 1
