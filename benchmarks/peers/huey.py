"""Huey with its threads."""

from __future__ import annotations

import time

from huey import RedisHuey

from peers import base


class Peer(base.Adapter):
    distribution = "huey"
    variants = (
        ("default", ""),
        ("tuned", "results=False"),
    )
    pace = 4000
    send_pace = 4500
    left = ("huey.redis.bench",)
    bulk = False
    note = "acknowledges nothing: a job that is taken is gone from the server; no call for bulk: one by one"

    def __init__(self, url: str, variant: str, concurrency: int) -> None:
        super().__init__(url, variant, concurrency)
        self._huey = RedisHuey("bench", url=url, results=not self.tuned)
        self._tasks = {name: self._huey.task(name=name)(job) for name, job in base.JOBS.items()}

    def send(self, job: str, jobs: int) -> None:
        task = self._tasks[job]
        for _ in range(jobs):
            task(**base.PAYLOAD)

    def send_clock(self) -> None:
        self._tasks["clock"](sent=time.time())

    def work(self) -> None:
        self._huey.create_consumer(workers=self.concurrency).run()
