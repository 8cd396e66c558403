"""The app of worker processes that run flows over two queues; see :mod:`chaos.shift`, whose environment it takes.

A process ends itself with SIGKILL where it finds a token for that: before it reads an outbox, as between the completion
of a child and its delivery, or before it trims one, as between a delivery and its trim.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
import time
from typing import Any

import dramatiq
import dramatiq.worker
from dramatiq.middleware import CurrentMessage
from support.workers import chosen

from echomq_tasks import current_job
from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.queue import Queue

QUEUE = os.environ["CHAOS_QUEUE"]
KIDS = f"{QUEUE}.kids"
RUNS = f"chaos:{QUEUE}:runs"

dramatiq.worker.POST_PROCESS_MESSAGE_RETRY_DELAY_SECS = 0.1  # type: ignore[assignment]


def crash_point(script: str) -> str:
    """The list whose tokens end a process before it runs this script."""
    return f"chaos:{QUEUE}:crash:{script}"


#: One token is one death: the consumer of the other queue must not take another one meanwhile.
_dying = threading.Lock()


class CrashingQueue(Queue):
    """A queue that takes such tokens."""

    def run(self, script: str, *args: bytes | str | int, repeat: bool = True) -> Any:
        if script in ("outbox_read", "outbox_trim"):
            with _dying:
                if self.connection.client.lpop(crash_point(script)):
                    os.kill(os.getpid(), signal.SIGKILL)
        return super().run(script, *args, repeat=repeat)


class CrashingBroker(EchoMQBroker):
    """A broker of such queues."""

    @functools.cache  # noqa: B019  # there is one, for as long as the process lives
    def queue(self, queue_name: str) -> Queue:
        return CrashingQueue(queue_name, self.connection)


broker = CrashingBroker(lease=float(os.environ["CHAOS_LEASE"]), max_stalled=1000)
broker.add_middleware(CurrentMessage())


#: An actor that meets the server away is retried after some ten milliseconds.
options: dict[str, Any] = {"broker": broker, "min_backoff": 20, "max_backoff": 40}


@dramatiq.actor(queue_name=KIDS, **options)
def leaf(number: int, seconds: float) -> int:
    """A child away from its parent, or beside it."""
    time.sleep(seconds)
    return number


@dramatiq.actor(queue_name=QUEUE, **options)
def near(number: int, seconds: float) -> int:
    """A child in the queue of the uppermost parents."""
    time.sleep(seconds)
    return number


def gather(tag: str) -> int:
    """Note which claim ran with which results, and return their sum."""
    job, token = current_job(), CurrentMessage.get_current_message().job.token  # type: ignore[union-attr]
    results = sorted(job.children().results.values())
    info = job.queue.get(job.id)
    if info is not None and info.attempts == token:
        # Otherwise another claim has the job, which may be gone by now, and this run ends in vain.
        broker.client.rpush(RUNS, json.dumps([tag, job.id, token, results]))
    return sum(results)


top = dramatiq.actor(gather, queue_name=QUEUE, actor_name="top", **options)
middle = dramatiq.actor(gather, queue_name=KIDS, actor_name="middle", **options)


def main(threads: int) -> None:
    """Work until the input ends."""
    worker = chosen()(broker, worker_threads=threads, worker_timeout=100)
    worker.start()
    sys.stdin.read()
    worker.stop()
    broker.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
