"""arq."""

from __future__ import annotations

from typing import Any

from arq import create_pool, func
from arq.connections import ArqRedis, RedisSettings
from arq.worker import Worker

from peers import base


class Peer(base.AsyncAdapter):
    distribution = "arq"
    variants = (
        ("default", ""),
        ("tuned", "poll_delay=0.01, keep_result=0, log_results=False"),
    )
    pace = 300
    send_pace = 1400
    left = ("arq:queue",)
    note = "no call for bulk: 100 calls at once"
    _pool: ArqRedis

    async def open(self) -> None:
        self._pool = await create_pool(RedisSettings.from_dsn(self.url))

    async def send_one(self, job: str, **arguments: Any) -> Any:
        await self._pool.enqueue_job(job, **arguments)

    async def serve(self) -> None:
        functions = [func(_with_context(job), name=name) for name, job in base.ASYNC_JOBS.items()]
        quick: dict[str, Any] = {"poll_delay": 0.01, "keep_result": 0, "log_results": False} if self.tuned else {}
        settings = RedisSettings.from_dsn(self.url)
        await Worker(functions, redis_settings=settings, max_jobs=self.concurrency, **quick).async_run()


def _with_context(job: Any) -> Any:
    async def run(ctx: dict[str, Any], **arguments: Any) -> None:
        await job(**arguments)

    return run
