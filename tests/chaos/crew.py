"""What the fault tests are made of: an app with one actor, a record of its runs, and worker processes to kill."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dramatiq
from dramatiq import Worker
from support.workers import WORKERS

from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.connection import connect
from echomq_tasks.queue import Queue

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
#: Seconds within which a busy machine must have done anything that a test waits for.
PATIENCE = 40.0


class Record:
    """Which jobs started and ended, by their number; filled by worker threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starts: Counter[Any] = Counter()
        self._ends: Counter[Any] = Counter()

    def start(self, number: Any) -> int:
        """Note a start; answers how many there were of this job."""
        with self._lock:
            self._starts[number] += 1
            return self._starts[number]

    def end(self, number: Any) -> None:
        with self._lock:
            self._ends[number] += 1

    @property
    def starts(self) -> Counter[Any]:
        with self._lock:
            return self._starts.copy()

    @property
    def ends(self) -> Counter[Any]:
        with self._lock:
            return self._ends.copy()


class App:
    """A broker of its own with one actor ``run``, as one process has it; its workers stop when it is closed."""

    def __init__(self, url: str, queue_name: str, body: Callable[..., Any], worker: str, **options: Any) -> None:
        self._kind = WORKERS[worker]
        self.broker = EchoMQBroker(url, **{"lease": 5.0, **options})
        self.run = self.actor(body, queue_name)
        self.queue_name = queue_name
        self.workers: list[Worker] = []
        self._resting = threading.Lock()

    def actor(self, body: Callable[..., Any], queue_name: str, name: str = "run") -> Any:
        """Declare an actor; it is retried after some ten milliseconds."""
        return dramatiq.actor(
            body, broker=self.broker, queue_name=queue_name, actor_name=name, min_backoff=20, max_backoff=40
        )

    @property
    def queue(self) -> Queue:
        return self.broker.queue(self.queue_name)

    def work(self, threads: int = 2, queues: set[str] | None = None) -> Worker:
        """Start a worker that wakes every tenth of a second, so that it also stops fast."""
        worker: Worker = self._kind(self.broker, queues=queues, worker_timeout=100, worker_threads=threads)
        worker.start()
        self.workers.append(worker)
        return worker

    def rest(self) -> None:
        """Stop the workers; one that another thread is stopping is waited for."""
        with self._resting:
            while self.workers:
                self.workers.pop().stop(timeout=20_000)

    def close(self) -> None:
        self.rest()
        self.broker.close()


@contextmanager
def hiring(queue_name: str, worker: str) -> Iterator[Callable[..., App]]:
    """Make apps as ``make(url, body, **options of the broker)`` with this kind of worker; all are closed in the end."""
    apps: list[App] = []

    def make(url: str, body: Callable[..., Any], **options: Any) -> App:
        apps.append(App(url, queue_name, body, worker, **options))
        return apps[-1]

    try:
        yield make
    finally:
        for app in apps:
            app.close()


@contextmanager
def watching(url: str, queue_name: str) -> Iterator[Queue]:
    """The queue over a connection of the test's own, which no fault touches."""
    with connect(url) as connection:
        yield Queue(queue_name, connection)


class Processes:
    """Worker processes of :mod:`chaos.shift`; those that are left are killed at the end."""

    def __init__(self, url: str, queue_name: str, *, lease: float, threads: int) -> None:
        self.environ = {
            **os.environ,
            "EMQ_URL": url,
            "CHAOS_QUEUE": queue_name,
            "CHAOS_LEASE": str(lease),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(TESTS)]),
            "dramatiq_restart_delay": "50",
        }
        self.threads = threads
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a worker, or ``python`` with the arguments given."""
        arguments = command or ("-m", "chaos.shift", str(self.threads))
        process = subprocess.Popen(
            [sys.executable, *arguments], env=self.environ, stdin=subprocess.PIPE, cwd=TESTS, start_new_session=True
        )
        self.running[process.pid] = process
        return process

    def kill(self, pid: int) -> None:
        """End one with SIGKILL."""
        process = self.running.pop(pid)
        process.kill()
        process.communicate()

    def wait(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the end of one; answers its exit code."""
        code = process.wait(PATIENCE)
        del self.running[process.pid]
        process.communicate()
        return code

    def close(self) -> None:
        for pid in list(self.running):
            self.kill(pid)
