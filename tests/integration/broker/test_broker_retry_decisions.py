"""Whether a failed job is retried, and when: predicates, expected exceptions, backoff, exhaustion."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
from dramatiq import Worker
from dramatiq.middleware import CurrentMessage
from failing_actors import QUICK, Failing
from support.eventually import eventually

from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.middleware import Retries
from echomq_tasks.queue import JobInfo


def test_retry_when_decides(
    retrying: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    asked: list[tuple[int, str]] = []

    def retry_when(retries: int, error: BaseException) -> bool:
        asked.append((retries, str(error)))
        return retries < 2

    broker = retrying(max_retries=0)
    failing = Failing()
    dramatiq.actor(retry_when=retry_when)(failing).send()
    make_worker(broker)
    finish(broker)
    assert asked == [(0, "no luck"), (1, "no luck"), (2, "no luck")]
    assert broker.get_queue_message_counts("default") == (0, 0, 1)


def test_retry_when_of_the_middleware_is_used(
    retrying: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    broker = retrying(retry_when=lambda retries, _: retries < 1)
    failing = Failing()
    dramatiq.actor(failing).send()
    make_worker(broker)
    finish(broker)
    assert len(failing.runs) == 2


def test_a_retry_when_that_raises_means_retry(
    make_broker: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    def retry_when(retries: int, error: BaseException) -> bool:
        raise KeyError("a bug in the predicate")

    broker = make_broker(middleware=[CurrentMessage(), Retries(**QUICK)])  # type: ignore[arg-type]
    failing = Failing(times=2)
    dramatiq.actor(retry_when=retry_when)(failing).send()
    make_worker(broker)
    finish(broker)
    assert len(failing.runs) == 3
    assert broker.queue("default").counts().completed == 1


@pytest.mark.parametrize("throws", [ValueError, (KeyError, ValueError)])
def test_an_expected_exception_is_not_retried(
    retrying: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None], throws: Any
) -> None:
    broker = retrying()
    failing = Failing(error=ValueError("expected"))
    dramatiq.actor(throws=throws)(failing).send()
    make_worker(broker)
    finish(broker)
    assert len(failing.runs) == 1
    assert broker.get_queue_message_counts("default") == (0, 0, 1)


def test_another_exception_than_the_expected_is_retried(
    retrying: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    broker = retrying()
    failing = Failing(times=1)
    dramatiq.actor(throws=KeyError)(failing).send()
    make_worker(broker)
    finish(broker)
    assert len(failing.runs) == 2


def test_raising_retry_sets_the_delay(
    retrying: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker]
) -> None:
    broker = retrying()
    message: Any = dramatiq.actor(Failing(error=dramatiq.errors.Retry("busy", delay=300_000))).send()
    make_worker(broker)
    eventually(lambda: broker.get_queue_message_counts("default") == (0, 1, 0), message="the retry is scheduled")
    job = broker.queue("default").get(message.job_id)
    assert job is not None
    assert job.due is not None
    assert job.last_error is not None
    assert job.last_error.startswith("Retry: busy")
    assert 299 < (job.due - job.minted).total_seconds() < 360


@pytest.mark.parametrize("delay", [0, -5, None])
def test_raising_retry_without_a_delay_to_speak_of_retries_soon(
    retrying: Callable[..., EchoMQBroker],
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    delay: int | None,
) -> None:
    broker = retrying()
    failing = Failing(times=2, error=dramatiq.errors.Retry("busy", delay=delay))
    dramatiq.actor(failing).send()
    make_worker(broker)
    finish(broker)
    assert len(failing.runs) == 3


@pytest.mark.parametrize(
    "delay",
    [float("nan"), float("inf"), 10**30, 10**400, "soon", True],
    ids=["nan", "inf", "1e30", "1e400", "text", "bool"],
)
def test_a_retry_with_a_delay_that_is_none_is_still_a_retry(
    retrying: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], delay: Any
) -> None:
    broker = retrying()
    message: Any = dramatiq.actor(Failing(error=dramatiq.errors.Retry("busy", delay=delay))).send()
    make_worker(broker)
    eventually(lambda: broker.get_queue_message_counts("default") == (0, 1, 0), message="the retry is scheduled")
    job = broker.queue("default").get(message.job_id)
    assert job is not None
    assert job.due is not None
    assert 14 < (job.due - job.minted).total_seconds() < 75
    assert json.loads(job.payload)["options"]["retries"] == 1


def test_zero_backoff_on_an_actor_retries_at_once(
    retrying: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    broker = retrying(min_backoff=60_000, max_backoff=60_000)
    failing = Failing(times=3)
    dramatiq.actor(min_backoff=0)(failing).send()
    make_worker(broker)
    finish(broker)
    assert len(failing.runs) == 4


def test_zero_backoff_of_our_middleware_means_zero(
    make_broker: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    broker = make_broker(middleware=[CurrentMessage(), Retries(min_backoff=0)])
    failing = Failing(times=3)
    dramatiq.actor(failing).send()
    make_worker(broker)
    finish(broker)
    assert len(failing.runs) == 4


def test_the_backoff_of_a_message_wins(
    retrying: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    broker = retrying(min_backoff=60_000, max_backoff=60_000)
    failing = Failing(times=1)
    dramatiq.actor(failing).send_with_options(min_backoff=1, max_backoff=1)
    make_worker(broker)
    finish(broker)
    assert len(failing.runs) == 2


def test_on_retry_exhausted_is_sent_the_message_and_the_count(
    retrying: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    broker = retrying()
    told: list[Any] = []
    dramatiq.actor(actor_name="gave_up")(lambda data, retries: told.append((data, retries)))
    message = dramatiq.actor(max_retries=2, on_retry_exhausted="gave_up")(Failing()).send(5)
    make_worker(broker)
    finish(broker)
    ((data, retries),) = told
    assert (data["message_id"], data["actor_name"], data["args"]) == (message.message_id, "failing", [5])
    assert retries == {"retries": 2, "max_retries": 2}


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_whatever_an_actor_raises_is_retried(
    retrying: Callable[..., EchoMQBroker],
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    error: BaseException,
) -> None:
    broker = retrying()
    failing = Failing(times=1, error=error)
    dramatiq.actor(failing).send()
    make_worker(broker)
    finish(broker)
    assert len(failing.runs) == 2


class Unreadable(Exception):
    """Its text is an error itself."""

    def __str__(self) -> str:
        raise LookupError("no text")


@pytest.mark.parametrize(
    ("error", "head"),
    [
        (OSError("no file \udcff\x00"), "OSError: no file \\udcff\x00\n"),
        (Unreadable(), "Unreadable (its text cannot be read: LookupError)\n"),
    ],
)
def test_an_exception_whose_text_cannot_be_read_or_encoded_goes_to_dead(
    retrying: Callable[..., EchoMQBroker],
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    dead_jobs: Callable[..., list[JobInfo]],
    error: Exception,
    head: str,
) -> None:
    broker = retrying(max_retries=0)
    dramatiq.actor(Failing(error=error)).send()
    make_worker(broker)
    finish(broker)
    (dead,) = dead_jobs(broker)
    assert dead.last_error is not None
    assert dead.last_error.startswith(head)
