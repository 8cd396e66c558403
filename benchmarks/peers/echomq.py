"""Ours: under Dramatiq's worker, and under our own with threads or with asyncio."""

from __future__ import annotations

import time

import dramatiq

import echomq_tasks
from echomq_tasks import actor
from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.keyspace import queue_key
from peers import base


class Peer(base.Adapter):
    variants = (
        ("dramatiq's worker", ""),
        ("threads", "the default"),
        ("threads at 100", "worker_threads=100"),
        ("asyncio", "async actors, concurrency 8, as all others have"),
        ("asyncio at 100", "async actors, at their default"),
    )
    senders = ("threads",)
    pace = 8000
    two_queues = True
    send_pace = 6000
    left = tuple(queue_key("default", key).decode() for key in ("pending", "active"))

    @classmethod
    def version(cls) -> str:
        # A checkout need not be installed.
        return echomq_tasks.__version__

    def __init__(self, url: str, variant: str, concurrency: int) -> None:
        super().__init__(url, variant, concurrency)
        self._broker = EchoMQBroker(url)
        dramatiq.set_broker(self._broker)
        self._asyncio = variant.startswith("asyncio")
        self._jobs = base.ASYNC_JOBS if self._asyncio else base.JOBS
        self._actors = {name: actor(job, actor_name=name) for name, job in self._jobs.items()}

    def send(self, job: str, jobs: int) -> None:
        send = self._actors[job].send
        for _ in range(jobs):
            send(**base.PAYLOAD)

    def send_many(self, job: str, jobs: int) -> None:
        message = self._actors[job].message
        for sent in range(0, jobs, 1000):
            self._broker.enqueue_many(message(**base.PAYLOAD) for _ in range(min(1000, jobs - sent)))

    def send_clock(self) -> None:
        self._actors["clock"].send(sent=time.time())

    def open_second_queue(self) -> None:
        self._actors["aside"] = actor(self._jobs["clock"], actor_name="aside", queue_name="aside")

    def send_aside(self) -> None:
        self._actors["aside"].send(sent=time.time())

    def work(self) -> None:
        if self.variant == "dramatiq's worker":
            from dramatiq.worker import Worker as DramatiqWorker

            DramatiqWorker(self._broker, worker_threads=self.concurrency).start()
        else:
            from echomq_tasks import Worker

            concurrency = max(self.concurrency, 100) if "100" in self.variant else self.concurrency
            places = {"async_concurrency" if self._asyncio else "worker_threads": concurrency}
            Worker(self._broker, **places).start()
        while True:
            time.sleep(3600)
