"""Dramatiq's rate limiters in actors, on the server that keeps the queue."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
import redis
from dramatiq import Worker
from dramatiq.errors import RateLimitExceeded
from dramatiq.rate_limits import Barrier, BucketRateLimiter, ConcurrentRateLimiter, WindowRateLimiter
from dramatiq.rate_limits.backends import RedisBackend
from support.servers import ServerProcess

from echomq_tasks.brokers.dramatiq import EchoMQBroker


@pytest.fixture
def backend(server: ServerProcess) -> RedisBackend:
    return RedisBackend(client=redis.Redis(port=server.port))


def test_a_concurrent_limit_holds_over_workers_and_all_jobs_run(
    broker: EchoMQBroker, backend: RedisBackend, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    limiter = ConcurrentRateLimiter(backend, "mutex", limit=2)
    lock, inside, most, done = threading.Lock(), 0, 0, 0

    @dramatiq.actor(max_retries=None, min_backoff=2, max_backoff=10)
    def careful() -> None:
        nonlocal inside, most, done
        with limiter.acquire():
            with lock:
                inside += 1
                most = max(most, inside)
            with lock:
                inside -= 1
                done += 1

    for _ in range(20):
        careful.send()
    make_worker(broker)
    make_worker(broker)
    finish(broker)
    assert done == 20
    assert 1 <= most <= 2
    assert broker.get_queue_message_counts("default") == (0, 0, 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda backend: WindowRateLimiter(backend, "window", limit=3, window=60),
        lambda backend: BucketRateLimiter(backend, "bucket", limit=3, bucket=10**11),
    ],
)
def test_a_limit_over_time_lets_so_many_through_and_retries_the_rest(
    broker: EchoMQBroker,
    backend: RedisBackend,
    worker: Worker,
    finish: Callable[..., None],
    make: Callable[[RedisBackend], Any],
) -> None:
    limiter = make(backend)
    passed: list[int] = []

    @dramatiq.actor(max_retries=1, min_backoff=1, max_backoff=1)
    def limited(number: int) -> None:
        with limiter.acquire():
            passed.append(number)

    for number in range(5):
        limited.send(number)
    finish(broker)
    assert len(passed) == 3
    assert broker.get_queue_message_counts("default") == (0, 0, 2)


def test_a_limit_that_does_not_raise_tells(broker: EchoMQBroker, backend: RedisBackend) -> None:
    limiter = ConcurrentRateLimiter(backend, "mutex", limit=1)
    with limiter.acquire():
        with limiter.acquire(raise_on_failure=False) as acquired:
            assert not acquired
        with pytest.raises(RateLimitExceeded), limiter.acquire():
            pass
    with limiter.acquire(raise_on_failure=False) as acquired:
        assert acquired


def test_a_barrier_opens_when_all_jobs_have_come(
    broker: EchoMQBroker, backend: RedisBackend, worker: Worker, finish: Callable[..., None]
) -> None:
    barrier = Barrier(backend, "all-here", ttl=60_000)
    assert barrier.create(parties=4)
    outcomes: list[bool] = []

    @dramatiq.actor(max_retries=0)
    def meet() -> None:
        outcomes.append(barrier.wait(timeout=10_000))

    for _ in range(4):
        meet.send()
    finish(broker)
    assert outcomes == [True] * 4
