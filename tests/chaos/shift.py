"""The app of the worker processes: one actor that writes down its starts and ends on the server.

Run as a module it is a plain worker (``python -m chaos.shift THREADS``) that stops in order when its input ends; the
``dramatiq`` command takes it as a module with a broker. ``EMQ_URL``, ``CHAOS_QUEUE`` and ``CHAOS_LEASE`` say where,
``CHAOS_WORKER=own`` that our own worker runs it.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import dramatiq
import dramatiq.worker
from support.workers import chosen

from echomq_tasks.brokers.dramatiq import EchoMQBroker

QUEUE = os.environ["CHAOS_QUEUE"]
STARTS, ENDS = f"chaos:{QUEUE}:starts", f"chaos:{QUEUE}:ends"
CALLS = f"chaos:{QUEUE}:calls"

dramatiq.worker.POST_PROCESS_MESSAGE_RETRY_DELAY_SECS = 0.1  # type: ignore[assignment]
broker = EchoMQBroker(lease=float(os.environ["CHAOS_LEASE"]))


def client() -> Any:
    """The redis client of the broker."""
    return broker.client


@dramatiq.actor(broker=broker, queue_name=QUEUE, actor_name="run")
def run(number: int, seconds: float = 0.0) -> None:
    """Take ``seconds``, and note which process started and ended it."""
    client().rpush(STARTS, f"{number} {os.getpid()}")
    time.sleep(seconds)
    client().rpush(ENDS, f"{number} {os.getpid()}")


@dramatiq.actor(broker=broker, queue_name=QUEUE, actor_name="killer")
def killer() -> None:
    """End the process, as a crash in native code does."""
    os.kill(os.getpid(), 9)


@dramatiq.actor(broker=broker, queue_name=QUEUE, actor_name="collect", batch=20, batch_wait=0.2)
def collect(orders: list[dict[str, Any]]) -> None:
    """Note which numbers came together; kill the process if one says so; take as long as they say, in company."""
    client().rpush(CALLS, " ".join(str(order["number"]) for order in orders))
    for order in orders:
        client().rpush(STARTS, f"{order['number']} {os.getpid()}")
    if any(order.get("kill") for order in orders):
        os.kill(os.getpid(), 9)
    if len(orders) > 1:
        time.sleep(max(order.get("seconds", 0.0) for order in orders))
    for order in orders:
        client().rpush(ENDS, f"{order['number']} {os.getpid()}")


def main(threads: int) -> None:
    """Work until the input ends."""
    worker = chosen()(broker, worker_threads=threads, worker_timeout=100)
    worker.start()
    sys.stdin.read()
    worker.stop()
    broker.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
