"""taskiq with its stream broker, the one of its Redis brokers that acknowledges."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from peers import base


class Peer(base.AsyncAdapter):
    distribution = "taskiq"
    variants = (
        ("default", "RedisStreamBroker"),
        ("tuned", "uvloop, max_prefetch=64, no parsing of parameters"),
    )
    pace = 1000
    send_pace = 1300
    left = ("taskiq@taskiq",)
    note = "no call for bulk: 100 calls at once"

    def __init__(self, url: str, variant: str, concurrency: int) -> None:
        super().__init__(url, variant, concurrency)
        # The group is made by whoever starts first, and must see what was sent before.
        self._broker = RedisStreamBroker(url, consumer_id="0")
        self._tasks = {name: self._broker.task(task_name=name)(job) for name, job in base.ASYNC_JOBS.items()}

    def loop_factory(self) -> Callable[[], asyncio.AbstractEventLoop] | None:
        if not self.tuned:
            return None
        import uvloop

        return uvloop.new_event_loop

    async def open(self) -> None:
        await self._broker.startup()

    async def send_one(self, job: str, **arguments: Any) -> Any:
        await self._tasks[job].kiq(**arguments)

    async def serve(self) -> None:
        quick: dict[str, Any] = {"max_prefetch": 64, "validate_params": False} if self.tuned else {}
        await run_receiver_task(self._broker, max_async_tasks=self.concurrency, run_startup=True, **quick)
