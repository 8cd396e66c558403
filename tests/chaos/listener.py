"""A consumer process for the fault tests: notes every entry it handles in a file of its own.

``python -m chaos.listener FILE MIN_IDLE`` waits for a line on its input, then works until its input ends. ``EMQ_URL``
and ``CHAOS_QUEUE`` say where. The file holds one number a line, written by the kernel before the handler returns, so
that it outlives the process.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from echomq_tasks.bus import Consumer, Delivery, Log
from echomq_tasks.connection import connect

#: Seconds that one entry takes.
PACE = 0.0002


def main(path: str, min_idle: float) -> None:
    """Consume until the input ends."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(delivery: Delivery) -> None:
        os.write(file, f"{delivery.fields['n']}\n".encode())
        time.sleep(PACE)

    with connect() as connection:
        log = Log(os.environ["CHAOS_QUEUE"], "audit", connection)
        consumer = Consumer(log, "billing", start="head", handler=note, min_idle=min_idle, beat=0.1)
        sys.stdin.readline()
        thread = threading.Thread(target=consumer.run)
        thread.start()
        sys.stdin.read()
        consumer.stop()
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
