"""streaQ."""

from __future__ import annotations

from typing import Any

from streaq import Worker

from peers import base


class Peer(base.AsyncAdapter):
    distribution = "streaq"
    variants = (
        ("default", ""),
        ("tuned", "prefetch=64, ttl=0 (no results), uvloop"),
    )
    pace = 400
    send_pace = 1300
    left = ("streaq:bench:queues:normal@workers",)
    bulk = True

    def __init__(self, url: str, variant: str, concurrency: int) -> None:
        super().__init__(url, variant, concurrency)
        quick: dict[str, Any] = {"prefetch": 64, "anyio_kwargs": {"use_uvloop": True}} if self.tuned else {}
        self._worker = Worker(redis_url=url, queue_name="bench", concurrency=concurrency, **quick)
        rule = {"ttl": 0} if self.tuned else {}
        self._tasks = {name: self._worker.task(name=name, **rule)(job) for name, job in base.ASYNC_JOBS.items()}

    async def open(self) -> None:
        # It stays open for as long as the process.
        await self._worker.__aenter__()

    async def send_one(self, job: str, **arguments: Any) -> Any:
        await self._tasks[job].enqueue(**arguments)

    async def send_all(self, job: str, jobs: int) -> None:
        for sent in range(0, jobs, 1000):
            many = [self._tasks[job].enqueue(**base.PAYLOAD) for _ in range(min(1000, jobs - sent))]
            await self._worker.enqueue_many(many)

    def work(self) -> None:
        self._worker.run_sync()
