"""BullMQ for Python."""

from __future__ import annotations

import asyncio
from typing import Any

from bullmq import Queue, Worker

from peers import base


class Peer(base.AsyncAdapter):
    distribution = "bullmq"
    variants = (
        ("default", ""),
        ("tuned", "removeOnComplete"),
    )
    senders = ("default", "tuned")
    pace = 800
    send_pace = 2000
    left = ("bull:bench:wait", "bull:bench:active")
    bulk = True
    _queue: Queue

    async def open(self) -> None:
        self._queue = Queue("bench", {"connection": self.url})

    async def send_one(self, job: str, **arguments: Any) -> Any:
        await self._queue.add(job, arguments, self._options())

    async def send_all(self, job: str, jobs: int) -> None:
        for sent in range(0, jobs, 1000):
            count = min(1000, jobs - sent)
            await self._queue.addBulk(
                [{"name": job, "data": dict(base.PAYLOAD), "opts": self._options()} for _ in range(count)]
            )

    def _options(self) -> dict[str, Any]:
        return {"removeOnComplete": True} if self.tuned else {}

    async def serve(self) -> None:
        async def process(job: Any, token: str) -> None:
            await base.ASYNC_JOBS[job.name](**job.data)

        worker = Worker("bench", process, {"connection": self.url, "concurrency": self.concurrency})
        await asyncio.Event().wait()
        del worker
