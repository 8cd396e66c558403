"""One measurement in a fresh process: `python measures.py MEASURE BROKER URL JOBS` prints figures as JSON."""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import dramatiq
import redis

Figures = dict[str, float]


def make_broker(name: str, url: str) -> dramatiq.Broker:
    """`echomq` or `redis`.

    `own` is ours under our own worker; `echomq-batch` is ours, with an actor that takes a hundred messages a call.
    """
    if name == "redis":
        from dramatiq.brokers.redis import RedisBroker

        return RedisBroker(url=url)
    from echomq_tasks.brokers.dramatiq import EchoMQBroker

    return EchoMQBroker(url)


class Bench:
    """A broker with one actor, and what it has seen."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.broker = make_broker(name, url)
        self.client = redis.Redis.from_url(url)
        dramatiq.set_broker(self.broker)
        self.delays: list[float] = []
        self.ran = 0
        self.expected = -1
        self.done = threading.Event()

        @dramatiq.actor(max_retries=0)
        def nothing(x: int, y: int) -> None:
            self.ran += 1
            if self.ran >= self.expected:
                self.done.set()

        @dramatiq.actor(max_retries=0)
        def clock(sent: float) -> None:
            self.delays.append(time.time() - sent)
            self.done.set()

        if name == "echomq-batch":

            @dramatiq.actor(max_retries=0, batch=100, batch_wait=0.01)
            def items(numbers: list[int]) -> None:
                self.count(len(numbers))

        else:

            @dramatiq.actor(max_retries=0)
            def items(number: int) -> None:
                self.count(1)

        self.nothing, self.clock, self.items = nothing, clock, items
        self._counting = threading.Lock()

    def count(self, items: int) -> None:
        """Note that so many items were worked off."""
        with self._counting:
            self.ran += items
        if self.ran >= self.expected:
            self.done.set()

    def worker(self) -> Any:
        """A worker of eight threads: ours where that is measured, else Dramatiq's."""
        if self.name == "own":
            from echomq_tasks.worker import Worker as OwnWorker

            return OwnWorker(self.broker, worker_threads=8)
        return dramatiq.Worker(self.broker, worker_threads=8)


def delayed(bench: Bench, jobs: int) -> Figures:
    """Milliseconds from its time to its start, of jobs delayed by 20 to 250 ms, on an idle worker."""
    worker = bench.worker()
    worker.start()
    time.sleep(2)
    for number in range(max(jobs // 100, 40)):
        bench.done.clear()
        delay = 20 + number * 37 % 230
        bench.clock.send_with_options(args=(time.time() + delay / 1000,), delay=delay)
        assert bench.done.wait(30)
    worker.stop()
    late = sorted(delay * 1000 for delay in bench.delays)
    return {"late p50 ms": statistics.median(late), "late p99 ms": late[int(len(late) * 0.99) - 1]}


def lonely(bench: Bench, jobs: int) -> Figures:
    """Milliseconds from send to start of one tenant's only job, sent while another tenant's many are worked off."""
    for _ in range(jobs):
        bench.nothing.send_with_options(args=(1, 2), group="greedy")
    # What ends the wait is the lonely job, not a number of the others.
    bench.expected = 2 * jobs
    worker = bench.worker()
    worker.start()
    while not bench.ran:
        time.sleep(0.001)
    bench.clock.send_with_options(args=(time.time(),), group="modest")
    assert bench.done.wait(300)
    waited = bench.delays[0] * 1000
    worker.stop()
    return {"waited ms": waited, "jobs ran before": float(bench.ran)}


def result(bench: Bench, jobs: int) -> Figures:
    """Milliseconds from send to having the result, on an idle worker."""
    from dramatiq.results import Results
    from dramatiq.results.backends import RedisBackend

    from echomq_tasks.results import EchoMQBackend

    ours = hasattr(bench.broker, "connection")
    backend = EchoMQBackend(broker=bench.broker) if ours else RedisBackend(client=bench.client)
    bench.broker.add_middleware(Results(backend=backend))

    @dramatiq.actor(store_results=True)
    def add(x: int, y: int) -> int:
        return x + y

    worker = bench.worker()
    worker.start()
    time.sleep(2)
    took = []
    for number in range(max(jobs // 25, 100)):
        begin = time.perf_counter()
        assert add.send(number, 1).get_result(block=True, timeout=30_000) == number + 1
        took.append((time.perf_counter() - begin) * 1000)
    worker.stop()
    took.sort()
    return {"p50 ms": statistics.median(took), "p99 ms": took[int(len(took) * 0.99) - 1]}


def batched(bench: Bench, jobs: int) -> Figures:
    """Work off a full queue of items with 8 threads."""
    for number in range(jobs):
        bench.items.send(number)
    bench.expected = jobs
    worker = bench.worker()
    begin = time.perf_counter()
    worker.start()
    assert bench.done.wait(300)
    bench.broker.join("default")
    seconds = time.perf_counter() - begin
    worker.stop()
    return {"jobs/s": jobs / seconds}


MEASURES: dict[str, Callable[[Bench, int], Figures]] = {
    "delayed": delayed,
    "lonely": lonely,
    "result": result,
    "batched": batched,
}


if __name__ == "__main__":
    measure, name, url, jobs = sys.argv[1:]
    print(json.dumps(MEASURES[measure](Bench(name, url), int(jobs))))
    sys.stdout.flush()
    # Some workers leave threads behind that would delay the exit.
    os._exit(0)
