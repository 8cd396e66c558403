"""Fixtures of the worker's tests: an app with one worker or several, on each engine, and the command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from chaos.crew import PATIENCE
from support.eventually import eventually
from support.servers import ServerProcess
from support.supervised import Supervised

from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.connection import connect
from echomq_tasks.middleware import Retries
from echomq_tasks.queue import Queue
from echomq_tasks.worker import Worker


class Shop:
    """A broker with quick retries, its workers, and short words for what the tests do with them."""

    def __init__(self, **options: Any) -> None:
        middleware: list[Any] = [Retries(min_backoff=1, max_backoff=5), dramatiq.middleware.CurrentMessage()]
        self.broker = EchoMQBroker(**{"middleware": middleware, "lease": 20.0, **options})
        self.workers: list[Worker] = []

    def actor(self, function: Callable[..., Any], queue: str, name: str = "run", **options: Any) -> Any:
        return dramatiq.actor(function, broker=self.broker, queue_name=queue, actor_name=name, **options)

    def queue(self, name: str) -> Queue:
        return self.broker.queue(name)

    def work(self, threads: int = 2, **options: Any) -> Worker:
        worker = Worker(self.broker, worker_threads=threads, **options)
        worker.start()
        self.workers.append(worker)
        return worker

    def finished(self, *queues: str) -> None:
        """Wait until no job of these queues is unfinished."""
        for name in queues:
            eventually(lambda name=name: self.queue(name).counts().unfinished == 0, PATIENCE)  # type: ignore[misc]

    def close(self) -> None:
        while self.workers:
            self.workers.pop().stop(timeout=20_000)
        self.broker.close()
        self.broker.leases.stop()


@pytest.fixture
def open_shop() -> Iterator[Callable[..., Shop]]:
    """Make shops; all are closed in the end."""
    shops: list[Shop] = []

    def make(**options: Any) -> Shop:
        shops.append(Shop(**options))
        return shops[-1]

    yield make
    for shop in shops:
        shop.close()


@pytest.fixture
def command(server: ServerProcess, queue_name: str, tmp_path: Path) -> Iterator[Supervised]:
    """``echomq worker``, to be started on an app whose actors note what they do."""
    server.flush()
    with connect(server.url) as connection:
        supervised = Supervised(tmp_path, server.url, Queue(queue_name, connection))
        try:
            yield supervised
        finally:
            supervised.close()
