"""ChasquiMQ, whose engine is in Rust."""

from __future__ import annotations

from typing import Any

from chasquimq import Queue, Worker

from peers import base


class Peer(base.AsyncAdapter):
    distribution = "chasquimq"
    variants = (
        ("at 8", "concurrency 8, as all others have"),
        ("at its default (100)", ""),
        ("tuned", "concurrency 100, no events"),
    )
    senders = ("at 8",)
    pace = 12000
    send_pace = 3000
    left = ("{chasqui:bench}:stream",)
    probes = (
        ("XADD", "probe", "IDMP", "producer", "1", "*", "d", "x"),
        ("XGROUP", "CREATE", "probe", "group", "0"),
        ("XREADGROUP", "GROUP", "group", "consumer", "CLAIM", "1000", "STREAMS", "probe", ">"),
        ("XACKDEL", "probe", "group", "IDS", "1", "0-1"),
    )
    bulk = True
    _queue: Queue

    async def open(self) -> None:
        self._queue = Queue("bench", redis_url=self.url)

    async def send_one(self, job: str, **arguments: Any) -> Any:
        await self._queue.add(job, arguments)

    async def send_all(self, job: str, jobs: int) -> None:
        for sent in range(0, jobs, 1000):
            await self._queue.add_bulk([{"name": job, "data": base.PAYLOAD}] * min(1000, jobs - sent))

    async def serve(self) -> None:
        async def process(job: Any) -> None:
            await base.ASYNC_JOBS[job.name](**job.data)

        concurrency = self.concurrency if self.variant == "at 8" else max(self.concurrency, 100)
        worker = Worker("bench", process, redis_url=self.url, concurrency=concurrency, events_enabled=not self.tuned)
        await worker.run()
