"""SAQ."""

from __future__ import annotations

from typing import Any

from saq import Queue, Worker

from peers import base


class Peer(base.AsyncAdapter):
    distribution = "saq"
    variants = (
        ("default", ""),
        ("tuned", "ttl=-1 (no results)"),
    )
    senders = ("default", "tuned")
    pace = 700
    send_pace = 2000
    left = ("saq:default:queued", "saq:default:active")
    note = "no call for bulk that does not wait for the results: 100 calls at once"
    _queue: Any

    async def open(self) -> None:
        self._queue = Queue.from_url(self.url)
        await self._queue.connect()

    async def send_one(self, job: str, **arguments: Any) -> Any:
        await self._queue.enqueue(job, **arguments, **({"ttl": -1} if self.tuned else {}))

    async def serve(self) -> None:
        await self.open()
        functions = [(name, _with_context(job)) for name, job in base.ASYNC_JOBS.items()]
        await Worker(self._queue, functions=functions, concurrency=self.concurrency).start()


def _with_context(job: Any) -> Any:
    async def run(ctx: Any, **arguments: Any) -> None:
        await job(**arguments)

    return run
