"""Dramatiq with its RedisBroker."""

from __future__ import annotations

import os
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.worker import Worker

from peers import base


class Peer(base.Adapter):
    distribution = "dramatiq"
    variants = (
        ("default", ""),
        ("tuned", "dramatiq_queue_prefetch=500"),
    )
    pace = 1800
    two_queues = True
    send_pace = 3500
    left = ("dramatiq:default.msgs",)
    bulk = False
    note = "no call for bulk: one by one"

    def __init__(self, url: str, variant: str, concurrency: int) -> None:
        super().__init__(url, variant, concurrency)
        if self.tuned:
            os.environ["dramatiq_queue_prefetch"] = "500"
        self._broker = RedisBroker(url=url)
        dramatiq.set_broker(self._broker)
        self._actors = {name: dramatiq.actor(job) for name, job in base.JOBS.items()}

    def send(self, job: str, jobs: int) -> None:
        send = self._actors[job].send
        for _ in range(jobs):
            send(**base.PAYLOAD)

    def send_clock(self) -> None:
        self._actors["clock"].send(sent=time.time())

    def open_second_queue(self) -> None:
        self._actors["aside"] = dramatiq.actor(base.clock, actor_name="aside", queue_name="aside")

    def send_aside(self) -> None:
        self._actors["aside"].send(sent=time.time())

    def work(self) -> None:
        worker = Worker(self._broker, worker_threads=self.concurrency)
        worker.start()
        while True:
            time.sleep(3600)
