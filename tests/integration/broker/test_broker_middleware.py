"""Dramatiq's middleware on the broker: callbacks, limits of age and time, shutdown, the current message, skips."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
from dramatiq import Middleware, Worker
from dramatiq.errors import RateLimitExceeded
from dramatiq.middleware import (
    CurrentMessage,
    MiddlewareError,
    Shutdown,
    ShutdownNotifications,
    SkipMessage,
    TimeLimit,
    TimeLimitExceeded,
)
from support.eventually import eventually

from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.middleware import Retries
from echomq_tasks.queue import JobInfo


@pytest.mark.parametrize("as_option", [False, True])
def test_on_success_is_sent_the_message_and_its_result(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None], as_option: bool
) -> None:
    told: list[Any] = []
    done = dramatiq.actor(actor_name="done")(lambda data, result: told.append((data["args"], result)))
    callback: dict[str, Any] = {"on_success": done if as_option else "done"}
    add = dramatiq.actor(actor_name="add", **({} if as_option else callback))(lambda x, y: x + y)
    add.send_with_options(args=(1, 2), **(callback if as_option else {}))
    finish(broker)
    assert told == [([1, 2], 3)]


def test_on_failure_may_be_an_actor(broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]) -> None:
    told: list[Any] = []
    failed = dramatiq.actor(actor_name="failed")(lambda data, error: told.append((data["actor_name"], error)))

    @dramatiq.actor(max_retries=0)
    def bad() -> None:
        raise ValueError("as it happens")

    bad.send_with_options(on_failure=failed)
    finish(broker)
    assert told == [("bad", {"type": "ValueError", "message": "as it happens"})]


def test_a_callback_that_is_no_actor_is_refused(broker: EchoMQBroker) -> None:
    f = dramatiq.actor(actor_name="f")(lambda: None)
    with pytest.raises(TypeError, match="must be an Actor"):
        f.send_with_options(on_success=print)


def test_a_callback_to_an_actor_that_is_not_there_does_not_hurt_the_job(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    dramatiq.actor(actor_name="f", on_success="nobody")(lambda: None).send()
    finish(broker)
    assert broker.queue("default").counts().completed == 1


def test_a_message_past_its_age_is_dead_and_never_runs(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None], dead_jobs: Any
) -> None:
    runs: list[int] = []
    f = dramatiq.actor(actor_name="f", max_age=60_000)(lambda: runs.append(1))
    stale = f.message().copy(message_timestamp=int(time.time() * 1000) - 61_000)
    broker.enqueue(stale)
    f.send()
    make_worker(broker)
    finish(broker)
    assert runs == [1]
    (dead,) = dead_jobs(broker)
    assert dead.last_error.startswith("SkipMessage: Message age limit exceeded")


def test_a_job_over_its_time_is_stopped_and_retried(
    make_broker: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    limit = TimeLimit(interval=20)
    broker = make_broker(middleware=[limit, Retries()])
    # The dramatiq command emits this in each of its processes.
    broker.emit_after("process_boot")
    outcomes: list[str] = []

    @dramatiq.actor(time_limit=100, min_backoff=1, max_backoff=1, max_retries=1)
    def endless() -> None:
        try:
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                time.sleep(0.005)
            outcomes.append("ran out")
        except TimeLimitExceeded:
            outcomes.append("stopped")
            raise

    endless.send()
    make_worker(broker)
    finish(broker)
    assert outcomes == ["stopped", "stopped"]
    assert broker.get_queue_message_counts("default") == (0, 0, 1)


def test_a_shutdown_interrupts_a_job_that_asked_for_it_and_the_job_is_retried(
    make_broker: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    broker = make_broker(middleware=[ShutdownNotifications(), Retries(min_backoff=1, max_backoff=1)])
    started, outcomes = threading.Event(), []

    @dramatiq.actor(notify_shutdown=True)
    def long() -> None:
        if outcomes:
            outcomes.append("second run")
            return
        try:
            started.set()
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                time.sleep(0.005)
        except Shutdown:
            outcomes.append("interrupted")
            raise

    message: Any = long.send()
    worker = make_worker(broker)
    started.wait(10)
    worker.stop()
    job = broker.queue("default").get(message.job_id)
    assert job is not None
    assert job.last_error is not None
    assert job.last_error.startswith("Shutdown")
    make_worker(broker)
    finish(broker)
    assert outcomes == ["interrupted", "second run"]


def test_the_current_message_is_the_one_that_runs(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    broker.add_middleware(CurrentMessage())
    seen: list[Any] = []
    f = dramatiq.actor(actor_name="f")(lambda: seen.append(CurrentMessage.get_current_message()))
    message = f.send()
    finish(broker)
    assert seen == [message]
    assert CurrentMessage.get_current_message() is None


def test_an_actor_that_enqueues_its_own_message_gets_a_second_run_as_a_job_of_its_own(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    broker.add_middleware(CurrentMessage())
    runs: list[str] = []

    @dramatiq.actor
    def again() -> None:
        message: Any = CurrentMessage.get_current_message()
        runs.append(message.job_id)
        if len(runs) < 3:
            broker.enqueue(message, delay=1)

    again.send()
    finish(broker)
    assert len(set(runs)) == 3
    assert broker.queue("default").counts().completed == 3


def test_an_actor_that_enqueues_its_own_message_and_fails_runs_twice_more(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    broker.add_middleware(CurrentMessage())
    runs: list[str] = []

    @dramatiq.actor(min_backoff=1, max_backoff=1)
    def again() -> None:
        message: Any = CurrentMessage.get_current_message()
        runs.append(message.job_id)
        if len(runs) == 1:
            broker.enqueue(message)
            raise RuntimeError("and the job itself is retried")

    again.send()
    finish(broker)
    assert len(runs) == 3
    assert len(set(runs)) == 2


def test_a_dead_message_that_a_hook_enqueues_is_a_job_of_its_own(
    broker: EchoMQBroker, make_worker: Callable[..., Worker]
) -> None:
    class Redrive(Middleware):
        def after_nack(self, broker: Any, message: Any) -> None:
            broker.enqueue(message)

    broker.add_middleware(Redrive())
    broker.add_middleware(CurrentMessage())
    runs: list[str] = []

    @dramatiq.actor(max_retries=0)
    def flaky() -> None:
        message: Any = CurrentMessage.get_current_message()
        runs.append(message.job_id)
        if len(runs) == 1:
            raise RuntimeError("once")

    flaky.send()
    make_worker(broker)
    eventually(lambda: broker.queue("default").counts().completed == 1, message="the second job is done")
    assert len(set(runs)) == len(runs) == 2
    assert broker.get_queue_message_counts("default") == (0, 0, 1)


class Skip(Middleware):
    """Skips every message; one with an option ``fail`` is failed, too."""

    def before_process_message(self, broker: Any, message: Any) -> None:
        if message.options.get("fail"):
            message.fail()
        raise SkipMessage("not today")


@pytest.mark.parametrize("fail", [False, True])
def test_a_skipped_message_is_done_and_a_failed_one_dead(
    broker: EchoMQBroker,
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    dead_jobs: Callable[..., list[JobInfo]],
    fail: bool,
) -> None:
    broker.add_middleware(Skip())
    runs: list[int] = []
    dramatiq.actor(actor_name="f")(lambda: runs.append(1)).send_with_options(fail=fail)
    make_worker(broker)
    finish(broker)
    assert runs == []
    assert broker.queue("default").counts().completed == int(not fail)
    errors = [str(job.last_error) for job in dead_jobs(broker)]
    assert len(errors) == int(fail)
    assert all(error.startswith("SkipMessage: not today") for error in errors)


def test_a_message_failed_by_a_middleware_is_dead_without_a_run(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    class Fail(Middleware):
        def before_process_message(self, broker: Any, message: Any) -> None:
            message.fail()

    broker.add_middleware(Fail())
    runs: list[int] = []
    dramatiq.actor(actor_name="f")(lambda: runs.append(1)).send()
    make_worker(broker)
    finish(broker)
    assert runs == []
    assert broker.get_queue_message_counts("default") == (0, 0, 1)


@pytest.mark.parametrize("hook", ["before_process_message", "after_process_message", "before_ack", "after_ack"])
def test_a_middleware_that_raises_is_logged_and_the_job_is_done(
    broker: EchoMQBroker,
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    hook: str,
) -> None:
    def broken(self: Any, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("a bug in a hook")

    broker.add_middleware(type("Broken", (Middleware,), {hook: broken})())
    runs: list[int] = []
    dramatiq.actor(actor_name="f")(lambda: runs.append(1)).send()
    make_worker(broker)
    finish(broker)
    eventually(lambda: f"Unexpected failure in {hook}" in caplog.text, message="the failure is logged")
    assert runs == [1]
    assert broker.queue("default").counts().completed == 1


def test_a_middleware_error_before_processing_is_a_failure_that_is_retried(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    asked: list[int] = []

    class Gate(Middleware):
        def before_process_message(self, broker: Any, message: Any) -> None:
            asked.append(1)
            if len(asked) == 1:
                raise MiddlewareError("closed")

    broker.add_middleware(Gate())
    runs: list[int] = []
    dramatiq.actor(actor_name="f", min_backoff=1, max_backoff=1)(lambda: runs.append(1)).send()
    make_worker(broker)
    finish(broker)
    assert (len(asked), len(runs)) == (2, 1)


def test_a_middleware_error_before_enqueue_reaches_the_sender_and_nothing_is_sent(broker: EchoMQBroker) -> None:
    class Closed(Middleware):
        def before_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
            raise MiddlewareError("closed")

    broker.add_middleware(Closed())
    f = dramatiq.actor(actor_name="f")(lambda: None)
    with pytest.raises(MiddlewareError, match="closed"):
        f.send()
    assert broker.get_queue_message_counts("default") == (0, 0, 0)


def test_before_enqueue_may_change_options(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    class Stamp(Middleware):
        def before_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
            message.options.update(tenant="acme", priority=-3)

    broker.add_middleware(Stamp())
    broker.add_middleware(CurrentMessage())
    seen: list[Any] = []
    f = dramatiq.actor(actor_name="f")(lambda: seen.append(CurrentMessage.get_current_message().options))  # type: ignore[union-attr]
    message: Any = f.send()
    job = broker.queue("default").get(message.job_id)
    assert job is not None
    assert job.priority == -3
    make_worker(broker)
    finish(broker)
    assert seen == [{"tenant": "acme", "priority": -3}]


def test_the_enqueue_hooks_are_told_of_the_delay(broker: EchoMQBroker) -> None:
    told: list[Any] = []

    class Recorder(Middleware):
        def before_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
            told.append(("before", delay, broker.get_queue_message_counts("default")))

        def after_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
            told.append(("after", delay, broker.get_queue_message_counts("default")))

    broker.add_middleware(Recorder())
    dramatiq.actor(actor_name="f")(lambda: None).send_with_options(delay=60_000)
    assert told == [("before", 60_000, (0, 0, 0)), ("after", 60_000, (0, 1, 0))]


def test_the_hooks_of_a_worker_are_told(broker: EchoMQBroker, make_worker: Callable[..., Worker]) -> None:
    told: list[str] = []
    names = [f"{when}_worker_{what}" for when in ("before", "after") for what in ("boot", "shutdown")]
    hooks = {name: (lambda self, broker, worker, name=name: told.append(name)) for name in names}
    broker.add_middleware(type("Recorder", (Middleware,), hooks)())
    make_worker(broker).stop()
    assert told == ["before_worker_boot", "after_worker_boot", "before_worker_shutdown", "after_worker_shutdown"]


def test_a_rate_limit_inside_an_actor_is_retried(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    runs: list[int] = []

    @dramatiq.actor(min_backoff=1, max_backoff=1)
    def limited() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise RateLimitExceeded("too fast")

    limited.send()
    finish(broker)
    assert len(runs) == 2
