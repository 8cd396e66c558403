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
from support.workers import WORKERS, choose

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


#: The modules whose tests run under Dramatiq's worker and under ours; the others run under Dramatiq's ...
BOTH_WORKERS = set(
    "actor_invalidates batch_cancel batch_ends batch_gathering batch_hooks batches broker_actors broker_composition "
    "broker_counts broker_dead_letters broker_delays broker_hook_order broker_messages broker_middleware "
    "broker_priorities broker_rate_limits broker_results broker_retries broker_retry_decisions broker_robust "
    "broker_trouble broker_unreachable broker_workers cancel_actors current_job dead_bounds held_parents lifecycle "
    "listening repeat_actors sending_again signals trimmed_payloads unique_actors unique_compositions".split()
)
#: ... as do those which look into it: what they show of ours stands with the tests of our worker.
INTO_DRAMATIQS = {
    "test_a_batch_that_no_thread_has_started_goes_back_when_the_worker_stops",
    "test_a_stopped_worker_takes_nothing_of_a_queue_that_is_declared_later",
    "test_stop_gives_back_what_never_started",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the workers of a test that takes one."""
    choose(metafunc, BOTH_WORKERS, INTO_DRAMATIQS)


@pytest.fixture
def make_worker(make_broker: Callable[..., EchoMQBroker], worker_kind: str) -> Iterator[Callable[..., Worker]]:
    """Start workers; those that the test has not stopped are stopped before their brokers close."""
    with contextlib.ExitStack() as stack:

        def make(broker: Broker, threads: int = 4, **options: Any) -> Worker:
            # Whatever is compared with another broker runs under the worker that can run both.
            kind = worker_kind if isinstance(broker, EchoMQBroker) else "dramatiq"
            worker: Worker = WORKERS[kind](broker, worker_threads=threads, worker_timeout=50, **options)
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
