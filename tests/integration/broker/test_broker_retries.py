"""Retries: ours and Dramatiq's own middleware, on one atomic transition of one job."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
from dramatiq import Worker
from dramatiq.middleware import CurrentMessage
from failing_actors import Failing
from support.eventually import eventually

from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.queue import JobInfo


def test_a_failing_job_is_retried_until_it_works(
    retrying: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    broker = retrying()
    failing = Failing(times=3)
    dramatiq.actor(failing).send()
    make_worker(broker)
    finish(broker)
    assert len(failing.runs) == 4
    counts = broker.queue("default").counts()
    assert (counts.completed, counts.dead, counts.failed) == (1, 0, 0)


def test_every_run_is_of_the_same_job_and_message(
    retrying: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    broker = retrying()
    failing = Failing(times=2)
    message = dramatiq.actor(failing).send()
    make_worker(broker)
    finish(broker)
    assert [run.job_id for run in failing.runs] == [message.job_id] * 3  # type: ignore[attr-defined]
    assert [run.message_id for run in failing.runs] == [message.message_id] * 3
    assert [run.message_timestamp for run in failing.runs] == [message.message_timestamp] * 3
    assert [run.job.failures for run in failing.runs] == [0, 1, 2]
    assert [run.job.token for run in failing.runs] == [1, 2, 3]


def test_the_options_tell_of_retries_traceback_and_time(
    retrying: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    broker = retrying()
    seen: list[dict[str, Any]] = []

    @dramatiq.actor
    def flaky() -> None:
        message: Any = CurrentMessage.get_current_message()
        seen.append(dict(message.options))
        if len(seen) < 3:
            raise RuntimeError(f"failure {len(seen)}")

    message = flaky.send_with_options(tenant="acme")
    make_worker(broker)
    finish(broker)
    assert [options.get("retries") for options in seen] == [None, 1, 2]
    assert all(options["tenant"] == "acme" for options in seen)
    assert "RuntimeError: failure 1" in seen[1]["traceback"]
    assert "RuntimeError: failure 2" in seen[2]["traceback"]
    assert message.message_timestamp <= seen[1]["requeue_timestamp"] <= seen[2]["requeue_timestamp"]


@pytest.mark.parametrize("max_retries", [0, 2])
@pytest.mark.parametrize("where", ["broker", "actor", "message"])
def test_retries_end_after_max_retries(
    retrying: Callable[..., EchoMQBroker],
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    where: str,
    max_retries: int,
) -> None:
    limit = {"max_retries": max_retries}
    broker = retrying(**(limit if where == "broker" else {}))
    failing = Failing()
    dramatiq.actor(**(limit if where == "actor" else {}))(failing).send_with_options(
        **(limit if where == "message" else {})
    )
    make_worker(broker)
    finish(broker)
    assert len(failing.runs) == max_retries + 1
    counts = broker.queue("default").counts()
    assert (counts.dead, counts.failed, counts.completed) == (1, 1, 0)


def test_a_dead_job_tells_its_failures_and_its_last_error(
    retrying: Callable[..., EchoMQBroker],
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    dead_jobs: Callable[..., list[JobInfo]],
) -> None:
    broker = retrying(max_retries=2)
    message = dramatiq.actor(Failing(error=ValueError("the disk is on fire"))).send()
    make_worker(broker)
    finish(broker)
    (dead,) = dead_jobs(broker)
    assert dead.id == message.job_id  # type: ignore[attr-defined]
    assert (dead.failures, dead.attempts, dead.stalled) == (3, 3, 0)
    assert dead.last_error is not None
    assert dead.last_error.startswith("ValueError: the disk is on fire\n")
    assert "in __call__" in dead.last_error
    assert "raise self.error" in dead.last_error
    assert json.loads(dead.payload)["options"]["retries"] == 2


def test_a_message_without_limit_goes_on(
    retrying: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    broker = retrying(max_retries=1)
    failing = Failing(times=5)
    dramatiq.actor(max_retries=None)(failing).send()
    make_worker(broker)
    finish(broker)
    assert len(failing.runs) == 6


def test_a_waiting_retry_shows_when_it_runs_and_why_it_failed(
    retrying: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker]
) -> None:
    broker = retrying()
    message: Any = dramatiq.actor(min_backoff=60_000, max_backoff=600_000)(Failing()).send()
    make_worker(broker)
    eventually(lambda: broker.get_queue_message_counts("default") == (0, 1, 0), message="the retry is scheduled")
    job = broker.queue("default").get(message.job_id)
    assert job is not None
    assert job.due is not None
    assert job.last_error is not None
    assert job.last_error.startswith("RuntimeError: no luck")
    assert 59 < (job.due - job.minted).total_seconds() < 180
    assert json.loads(job.payload)["options"]["retries"] == 1


def test_a_retry_tells_the_enqueue_hooks(
    retrying: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    told: list[tuple[str, str, Any]] = []

    class Recorder(dramatiq.Middleware):
        def before_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
            told.append(("before", message.message_id, delay))

        def after_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
            told.append(("after", message.message_id, delay))

    broker = retrying()
    broker.add_middleware(Recorder())
    message = dramatiq.actor(Failing(times=1, error=dramatiq.errors.Retry(delay=7))).send()
    make_worker(broker)
    finish(broker)
    sent = [("before", message.message_id, None), ("after", message.message_id, None)]
    assert told == [*sent, ("before", message.message_id, 7), ("after", message.message_id, 7)]


def test_before_enqueue_may_change_the_options_of_a_retry(
    retrying: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    class Stamp(dramatiq.Middleware):
        def before_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
            message.options["stamps"] = message.options.get("stamps", 0) + 1

    broker = retrying()
    broker.add_middleware(Stamp())
    failing = Failing(times=2)
    dramatiq.actor(failing).send()
    make_worker(broker)
    finish(broker)
    assert [run.options["stamps"] for run in failing.runs] == [1, 2, 3]


def test_a_hook_that_fails_while_a_retry_is_enqueued_loses_nothing(
    retrying: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    failures: list[int] = []

    class Broken(dramatiq.Middleware):
        def before_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
            if message.options.get("retries"):
                failures.append(1)
                raise dramatiq.middleware.MiddlewareError("no retry, please")

    broker = retrying()
    broker.add_middleware(Broken())
    failing = Failing(times=1)
    dramatiq.actor(failing).send()
    make_worker(broker)
    finish(broker)
    assert failures
    assert len(failing.runs) == 2
    assert failing.runs[1].options["retries"] == 1


def test_without_retries_a_failed_message_is_done(
    make_broker: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    broker = make_broker(middleware=[CurrentMessage()])
    failing = Failing()
    dramatiq.actor(failing).send()
    make_worker(broker)
    finish(broker)
    assert len(failing.runs) == 1
    counts = broker.queue("default").counts()
    assert (counts.completed, counts.dead) == (1, 0)


def test_on_failure_is_sent_for_every_failure_and_on_success_once(
    retrying: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    broker = retrying()
    told: list[Any] = []
    dramatiq.actor(actor_name="bad")(lambda data, error: told.append((data["args"], error)))
    dramatiq.actor(actor_name="good")(lambda data, result: told.append((data["args"], result)))
    failing = Failing(times=2)
    dramatiq.actor(on_failure="bad", on_success="good")(failing).send(1)
    make_worker(broker)
    finish(broker)
    failure = ([1], {"type": "RuntimeError", "message": "no luck"})
    assert sorted(told, key=repr) == sorted([failure, failure, ([1], None)], key=repr)
