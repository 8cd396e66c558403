"""What events cost jobs: `python bus_jobs.py MEASURE VARIANTS URL JOBS` prints the figures of each variant as JSON.

The variants take turns in one process, slice by part, for they differ by less than the machine does from second to
second.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from typing import Any

import dramatiq
from dramatiq.worker import Worker
from rounds import TURNS, Figures, Meter, answer_for, in_turn

from echomq_tasks import connect, signals
from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.bus import Bus
from echomq_tasks.events import Event
from echomq_tasks.middleware import Lifecycle
from echomq_tasks.queue import Admission, Enqueued, Verdict

#: Turns of a drain: more than elsewhere, for it is what swings most.
DRAINS = 10
#: The settings of the middleware: what is announced, and the log that keeps it. Beside them there is "unset", a broker
#: without it, which announces only what a hand does. "off-again" differs from "off" in nothing: as far as its figures
#: are from those of "off", the others' may be by chance.
SETTINGS: dict[str, tuple[Any, str | None]] = {
    "off": (None, None),
    "off-again": (None, None),
    "failed": ({"failed"}, None),
    "all": ("all", None),
    "all-heard": ("all", None),
    "all-logged": ("all", "lifecycle"),
}
#: The events of a job that succeeds, in the order of its life.
A_JOB = ("enqueued", "started", "completed")


class Bench:
    """A broker with a queue and an actor that does nothing, and how long its jobs took."""

    def __init__(self, url: str, queue: str, *middleware: dramatiq.Middleware) -> None:
        self.broker = EchoMQBroker(url)
        for each in middleware:
            self.broker.add_middleware(each)
        self.queue = self.broker.queue(queue)
        self.sent = self.ran = 0
        self._expected = -1
        self._done = threading.Event()
        self._send, self._bulk, self._drain = Meter(url, "job"), Meter(url, "job"), Meter(url, "job")
        # One thread at a time runs Python, and each adds one; a lost count would leave the drain waiting.
        counting = threading.Lock()

        @dramatiq.actor(broker=self.broker, queue_name=queue, max_retries=0)
        def nothing(x: int, y: int) -> None:
            with counting:
                self.ran += 1
            if self.ran >= self._expected:
                self._done.set()

        self.nothing = nothing

    def send(self, jobs: int) -> None:
        """Send one by one."""
        with self._send.measuring(jobs):
            for _ in range(jobs):
                self.nothing.send(1, 2)
        self.sent += jobs

    def bulk(self, jobs: int) -> None:
        """Send in bulk."""
        messages = [self.nothing.message(1, 2) for _ in range(jobs)]
        with self._bulk.measuring(jobs):
            self.broker.enqueue_many(messages)
        self.sent += jobs

    def work(self) -> None:
        """Start a worker with 8 threads, on an empty queue."""
        self.queue.drain()
        Worker(self.broker, worker_threads=8).start()

    def drain(self, jobs: int) -> None:
        """Let the worker work off a queue that fills while it is paused."""
        self.queue.pause()
        self.broker.enqueue_many([self.nothing.message(1, 2) for _ in range(jobs)])
        self.sent += jobs
        self._expected = self.ran + jobs
        self._done.clear()
        with self._drain.measuring(jobs):
            self.queue.resume()
            assert self._done.wait(300)
            self.broker.join(self.queue.name)

    def figures(self) -> Figures:
        """What was measured."""
        named = {"send": self._send, "bulk": self._bulk, "drain": self._drain}
        return {f"{name} {figure}": value for name, meter in named.items() for figure, value in meter.figures().items()}


def cost(names: list[str], url: str, jobs: int) -> dict[str, Figures]:
    """Send one by one and in bulk, and drain, under each setting of the middleware."""
    benches = {name: Bench(url, name, *_middleware(name)) for name in names}
    with ExitStack() as stack:
        heard = {name: stack.enter_context(listening(url, name)) for name in names if name.endswith("-heard")}
        for bench in benches.values():
            # What only the first call of a broker does.
            bench.nothing.send(1, 2)
            bench.sent += 1
        part = jobs // TURNS
        # Before there are workers: with few threads in a process, one by one is another matter.
        in_turn(names, lambda name: benches[name].send(part // 4))
        in_turn(names, lambda name: benches[name].bulk(part))
        for bench in benches.values():
            bench.work()
        in_turn(names, lambda name: benches[name].drain(jobs // DRAINS), DRAINS)
        for name, bench in benches.items():
            if name in heard:
                told = heard[name](bench.ran)
                assert [told[event] for event in A_JOB] == [bench.sent, bench.ran, bench.ran], (told, bench.sent)
            if log := SETTINGS.get(name, (None, None))[1]:
                kept = bench.broker.client.xlen(f"emq:{{{name}}}:stream:{log}")
                assert kept >= bench.sent + 2 * bench.ran, (kept, bench.sent, bench.ran)
    return {name: bench.figures() for name, bench in benches.items()}


def _middleware(setting: str) -> list[dramatiq.Middleware]:
    if setting == "unset":
        return []
    events, log = SETTINGS[setting]
    return [Lifecycle(events, log=log)]


@contextmanager
def listening(url: str, queue: str) -> Iterator[Callable[[int], Counter[str]]]:
    """Another process subscribes to the queue; gives what asks it how often it heard each event."""
    # Not forked: this process has threads.
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=listen, args=(url, queue, theirs))
    process.start()
    assert ours.recv() == "listening"

    def heard(jobs: int) -> Counter[str]:
        ours.send(jobs)
        counts: Counter[str] = ours.recv()
        return counts

    yield heard
    process.join()


def listen(url: str, queue: str, pipe: Pipe) -> None:
    """Read events as an app would, until as many jobs were completed as the pipe says."""
    counts: Counter[str] = Counter()
    expected: int | None = None
    with connect(url) as connection, Bus(connection) as bus, bus.subscribe(queue) as events:
        pipe.send("listening")
        while expected is None or counts["completed"] < expected:
            item = events.get(timeout=1)
            if isinstance(item, Event):
                counts[item.event] += 1
            elif item is None and pipe.poll():
                expected = pipe.recv()
            else:
                assert item is None, item
        pipe.send(counts)


def signal(names: list[str], url: str, jobs: int) -> dict[str, Figures]:
    """Send and drain with nobody connected to a signal, or a receiver connected to the three that a job sends."""
    calls = 0

    def receiver(sender: Any, event: Event) -> None:
        nonlocal calls
        calls += 1

    def listen(name: str) -> None:
        for event in A_JOB:
            if name == "none":
                signals.namespace[event].disconnect(receiver)
            else:
                signals.namespace[event].connect(receiver)

    benches = {name: Bench(url, name, Lifecycle(None)) for name in names}
    own: dict[str, list[float]] = defaultdict(list)

    def micro(name: str) -> None:
        listen(name)
        own[name].append(of_a_job(benches[name]))

    def send(name: str) -> None:
        listen(name)
        benches[name].send(part // 4)

    def drain(name: str) -> None:
        listen(name)
        benches[name].drain(jobs // DRAINS)

    part = jobs // TURNS
    in_turn(names, micro)
    calls = 0
    in_turn(names, send)
    for bench in benches.values():
        bench.work()
    in_turn(names, drain, DRAINS)
    assert calls == sum(bench.sent + 2 * bench.ran for name, bench in benches.items() if name != "none"), calls
    return {name: {"signals us/job": statistics.median(own[name]) * 1e6, **benches[name].figures()} for name in names}


def of_a_job(bench: Bench) -> float:
    """Seconds that the signals of a job take, sent as the broker does."""
    bench.nothing.send(1, 2)
    consumer = bench.broker.consume(bench.queue.name, prefetch=1, timeout=1000)
    delivery: Any = next(consumer)
    message, sent = bench.nothing.message(1, 2), Enqueued(delivery.job_id, Admission.ENQUEUED)
    signalling, rounds = bench.broker.signalling, 5000
    begin = time.perf_counter()
    for _ in range(rounds):
        signalling.sent(message, sent, None)
        signalling.started(delivery)
        signalling.settled(delivery, Verdict.OK)
    seconds = (time.perf_counter() - begin) / rounds
    consumer.ack(delivery)
    consumer.close()
    return seconds


if __name__ == "__main__":
    answer_for({"cost": cost, "signals": signal})
