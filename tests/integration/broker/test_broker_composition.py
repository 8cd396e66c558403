"""Pipelines and groups."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
import redis
from dramatiq import Worker, group, pipeline
from dramatiq.middleware import GroupCallbacks
from dramatiq.rate_limits.backends import RedisBackend as RateLimits
from dramatiq.rate_limits.backends import StubBackend as StubRateLimits
from dramatiq.results import ResultFailure, Results
from dramatiq.results.backends import RedisBackend
from support.servers import ServerProcess

from echomq_tasks.brokers.dramatiq import EchoMQBroker


@pytest.fixture
def results(broker: EchoMQBroker, server: ServerProcess, worker: Worker) -> RedisBackend:
    """``broker`` keeps results on the same server, and ``worker`` works on it."""
    backend = RedisBackend(client=redis.Redis(port=server.port))
    broker.add_middleware(Results(backend=backend))
    return backend


@pytest.fixture
def add(results: RedisBackend) -> dramatiq.Actor[..., Any]:
    return dramatiq.actor(actor_name="add", store_results=True)(lambda x, y: x + y)


def test_a_pipeline_hands_each_result_on(add: dramatiq.Actor[..., Any]) -> None:
    pipe = add.message(1, 2) | add.message(3) | add.message(4)
    pipe.run()
    assert pipe.get_result(block=True) == 10
    assert list(pipe.get_results()) == [3, 6, 10]
    assert pipe.completed
    assert pipe.completed_count == len(pipe) == 3


def test_pipelines_nest(add: dramatiq.Actor[..., Any]) -> None:
    inner = pipeline([add.message(1), add.message(2)])
    pipe = pipeline([add.message(1, 1), inner, pipeline([add.message(3)])])
    assert pipe.run().get_result(block=True) == 8


def test_a_pipeline_may_ignore_a_result(add: dramatiq.Actor[..., Any]) -> None:
    seven = dramatiq.actor(actor_name="seven", store_results=True)(lambda: 7)
    pipe = add.message(1, 2) | seven.message_with_options(pipe_ignore=True) | add.message(1)
    pipe.run()
    assert pipe.get_result(block=True) == 8


def test_a_pipeline_waits_for_its_delay(broker: EchoMQBroker, add: dramatiq.Actor[..., Any]) -> None:
    pipe = add.message(1, 2) | add.message(3)
    pipe.run(delay=60_000)
    assert broker.get_queue_message_counts("default") == (0, 1, 0)
    assert not pipe.completed
    assert pipe.completed_count == 0


def test_a_step_of_a_pipeline_may_have_a_delay_of_its_own(broker: EchoMQBroker, add: dramatiq.Actor[..., Any]) -> None:
    pipe = add.message(1, 2) | add.message_with_options(args=(3,), delay=200)
    pipe.run()
    assert pipe.get_result(block=True) == 6


def test_a_failing_step_is_retried_and_the_pipeline_goes_on(add: dramatiq.Actor[..., Any]) -> None:
    runs: list[int] = []

    @dramatiq.actor(store_results=True, min_backoff=1, max_backoff=1)
    def flaky(x: int) -> int:
        runs.append(x)
        if len(runs) == 1:
            raise RuntimeError("once")
        return 10 * x

    pipe = add.message(1, 2) | flaky.message() | add.message(1)
    assert pipe.run().get_result(block=True) == 31
    assert runs == [3, 3]


def test_a_dead_step_ends_the_pipeline(
    broker: EchoMQBroker, add: dramatiq.Actor[..., Any], finish: Callable[..., None]
) -> None:
    @dramatiq.actor(max_retries=0, store_results=True)
    def bad(x: int) -> int:
        raise RuntimeError("the end")

    pipe = add.message(1, 2) | bad.message() | add.message(1)
    pipe.run()
    results = pipe.get_results(block=True)
    assert next(results) == 3
    with pytest.raises(ResultFailure, match="the end"):
        next(results)
    finish(broker)
    assert not pipe.completed
    assert broker.get_queue_message_counts("default") == (0, 0, 1)


def test_a_pipeline_crosses_queues(broker: EchoMQBroker, add: dramatiq.Actor[..., Any]) -> None:
    double = dramatiq.actor(actor_name="double", queue_name="other", store_results=True)(lambda x: 2 * x)
    pipe = add.message(1, 2) | double.message() | add.message(1)
    assert pipe.run().get_result(block=True) == 7


def test_a_group_runs_side_by_side_and_gathers_results(add: dramatiq.Actor[..., Any]) -> None:
    jobs = group(add.message(n, n) for n in range(10))
    jobs.run()
    assert list(jobs.get_results(block=True)) == [2 * n for n in range(10)]
    assert jobs.completed
    assert jobs.completed_count == len(jobs) == 10


def test_a_group_of_pipelines_and_groups(add: dramatiq.Actor[..., Any]) -> None:
    jobs = group([add.message(1, 1) | add.message(1), group([add.message(2, 2), add.message(3, 3)])])
    jobs.run()
    assert list(jobs.get_results(block=True)) == [3, [4, 6]]


def test_a_group_can_be_waited_for(add: dramatiq.Actor[..., Any]) -> None:
    jobs = group([add.message(1, 1), add.message(2, 2)]).run()
    jobs.wait(timeout=10_000)
    assert jobs.completed


def test_a_group_run_twice_runs_its_messages_twice(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    seen: list[int] = []
    record = dramatiq.actor(actor_name="record")(seen.append)
    jobs = group([record.message(1), record.message(2)])
    jobs.run()
    jobs.run()
    finish(broker)
    assert sorted(seen) == [1, 1, 2, 2]


def test_a_group_may_be_delayed(broker: EchoMQBroker) -> None:
    f = dramatiq.actor(actor_name="f")(lambda: None)
    group([f.message(), f.message()]).run(delay=60_000)
    assert broker.get_queue_message_counts("default") == (0, 2, 0)


@pytest.mark.parametrize("kind", ["redis", "stub"])
def test_a_groups_callback_runs_once_when_all_are_done(
    broker: EchoMQBroker,
    server: ServerProcess,
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    kind: str,
) -> None:
    backend = RateLimits(client=redis.Redis(port=server.port)) if kind == "redis" else StubRateLimits()
    broker.add_middleware(GroupCallbacks(backend))
    seen: list[Any] = []
    lock = threading.Lock()

    @dramatiq.actor(min_backoff=1, max_backoff=1)
    def work(n: int) -> None:
        with lock:
            seen.append(n)
            if n == 3 and seen.count(3) == 1:
                raise RuntimeError("a member that is retried counts when it is done")

    done = dramatiq.actor(actor_name="done")(lambda name: seen.append(name))
    jobs = group(
        [*(work.message(n) for n in range(5)), work.message(5) | work.message_with_options(pipe_ignore=True, args=(6,))]
    )
    jobs.add_completion_callback(done.message("all"))
    jobs.add_completion_callback(done.message("done"))
    make_worker(broker)
    jobs.run()
    finish(broker)
    assert sorted(seen[:-2]) == [0, 1, 2, 3, 3, 4, 5, 6]
    assert sorted(seen[-2:]) == ["all", "done"]


def test_a_groups_callback_needs_its_middleware(broker: EchoMQBroker) -> None:
    f = dramatiq.actor(actor_name="f")(lambda: None)
    jobs = group([f.message()])
    jobs.add_completion_callback(f.message())
    with pytest.raises(RuntimeError, match="GroupCallbacks"):
        jobs.run()
    assert broker.get_queue_message_counts("default") == (0, 0, 0)
