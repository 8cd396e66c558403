"""RQ: a process of its own for each job by default; a worker runs one at a time."""

from __future__ import annotations

import time

import redis
from rq import Queue, SimpleWorker, Worker

from peers import base


class Peer(base.Adapter):
    distribution = "rq"
    variants = (
        ("default", "forks for each job"),
        ("tuned", "SimpleWorker, result_ttl=0"),
    )
    senders = ("default", "tuned")
    pace = 80
    send_pace = 1200
    left = ("rq:queue:default", "rq:wip:default")
    note = "a worker process runs one job at a time, whatever the concurrency"

    def __init__(self, url: str, variant: str, concurrency: int) -> None:
        super().__init__(url, variant, concurrency)
        self._connection = redis.Redis.from_url(url)
        self._queue = Queue(connection=self._connection)
        self._options = {"result_ttl": 0} if self.tuned else {}

    def send(self, job: str, jobs: int) -> None:
        for _ in range(jobs):
            self._queue.enqueue(base.JOBS[job], kwargs=base.PAYLOAD, **self._options)

    def send_many(self, job: str, jobs: int) -> None:
        for sent in range(0, jobs, 1000):
            many = [
                Queue.prepare_data(base.JOBS[job], kwargs=base.PAYLOAD, **self._options)
                for _ in range(min(1000, jobs - sent))
            ]
            self._queue.enqueue_many(many)

    def send_clock(self) -> None:
        self._queue.enqueue(base.clock, kwargs={"sent": time.time()}, **self._options)

    def work(self) -> None:
        worker = SimpleWorker if self.tuned else Worker
        worker([self._queue], connection=self._connection).work(logging_level="WARNING")
