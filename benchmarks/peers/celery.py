"""Celery with its pool of threads: of its pools, the one that has several places in one process."""

from __future__ import annotations

import time

from celery import Celery

from peers import base


class Peer(base.Adapter):
    distribution = "celery"
    variants = (
        ("default", "pool of threads"),
        ("tuned", "prefetch multiplier 64, no gossip, mingle or heartbeat, ignore_result, no rate limits"),
    )
    pace = 700
    send_pace = 900
    left = ("celery", "unacked")
    bulk = False
    note = "no call for bulk: one by one"

    def __init__(self, url: str, variant: str, concurrency: int) -> None:
        super().__init__(url, variant, concurrency)
        self._app = Celery("bench", broker=url)
        self._app.conf.broker_connection_retry_on_startup = True
        if self.tuned:
            self._app.conf.update(
                worker_prefetch_multiplier=64,
                task_ignore_result=True,
                worker_disable_rate_limits=True,
                worker_send_task_events=False,
            )
        self._tasks = {name: self._app.task(job, name=name) for name, job in base.JOBS.items()}

    def send(self, job: str, jobs: int) -> None:
        delay = self._tasks[job].delay
        for _ in range(jobs):
            delay(**base.PAYLOAD)

    def send_clock(self) -> None:
        self._tasks["clock"].delay(sent=time.time())

    def work(self) -> None:
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"] if self.tuned else []
        command = ["worker", "--pool", "threads", "--concurrency", str(self.concurrency), "--loglevel", "WARNING"]
        self._app.worker_main([*command, *quiet])
