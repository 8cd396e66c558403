"""Fixtures of the broker's tests: brokers, workers, and short words for what every test waits for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq import Broker, Worker
from dramatiq import middleware as stock
from dramatiq.middleware import CurrentMessage
from failing_actors import QUICK
from support.servers import ServerProcess

from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.middleware import Retries
from echomq_tasks.queue import JobInfo, State


@pytest.fixture
def make_broker(server: ServerProcess) -> Iterator[Callable[..., EchoMQBroker]]:
    """Make brokers on the emptied shared server; the newest is Dramatiq's global one until the test ends."""
    server.flush()
    before = dramatiq.broker.global_broker
    made: list[EchoMQBroker] = []

    def make(**options: Any) -> EchoMQBroker:
        broker = EchoMQBroker(server.url, **options)
        made.append(broker)
        dramatiq.set_broker(broker)
        return broker

    yield make
    dramatiq.broker.global_broker = before
    for broker in made:
        broker.close()
        # A test may end with jobs in hand, which else would be renewed while the next one counts commands.
        broker.leases.stop()


@pytest.fixture
def broker(make_broker: Callable[..., EchoMQBroker]) -> EchoMQBroker:
    """A broker with the default middleware."""
    return make_broker()


@pytest.fixture
def make_worker(make_broker: Callable[..., EchoMQBroker]) -> Iterator[Callable[..., Worker]]:
    """Start workers; those that the test has not stopped are stopped before their brokers close."""
    with contextlib.ExitStack() as stack:

        def make(broker: Broker, threads: int = 4, **options: Any) -> Worker:
            worker = Worker(broker, worker_threads=threads, worker_timeout=50, **options)
            worker.start()
            stack.callback(lambda: worker.stop() if any(thread.is_alive() for thread in worker.workers) else None)
            return worker

        yield make


@pytest.fixture
def worker(broker: EchoMQBroker, make_worker: Callable[..., Worker]) -> Worker:
    """A worker of four threads on ``broker``; it follows queues that are declared later."""
    return make_worker(broker)


@pytest.fixture
def finish() -> Callable[..., None]:
    """Wait until every job of the named queues has ended, "default" when none is named."""

    def wait(broker: Broker, *queues: str) -> None:
        for queue in queues or ("default",):
            broker.join(queue, interval=10, timeout=20_000)  # type: ignore[call-arg]

    return wait


@pytest.fixture
def dead_jobs() -> Callable[..., list[JobInfo]]:
    """Look at the rows of a queue's dead jobs, newest first."""

    def look(broker: EchoMQBroker, queue: str = "default") -> list[JobInfo]:
        rows = broker.queue(queue).get_many(broker.queue(queue).browse(State.DEAD))
        return [row for row in rows if row is not None]

    return look


@pytest.fixture(params=[Retries, stock.Retries], ids=["ours", "stock"])
def retrying(request: pytest.FixtureRequest, make_broker: Callable[..., EchoMQBroker]) -> Callable[..., EchoMQBroker]:
    """Make a broker whose retry middleware, ours or Dramatiq's, has these options."""
    kind: type[stock.Retries] = request.param

    def make(**options: Any) -> EchoMQBroker:
        return make_broker(middleware=[stock.Callbacks(), CurrentMessage(), kind(**(QUICK | options))])

    return make
