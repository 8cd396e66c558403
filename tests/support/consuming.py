"""Run consumers in threads of their own for the time of a ``with`` block, fill their logs, look at what they hold."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from echomq_tasks.bus import Consumer, Log

#: Seconds within which a busy machine must have ended what a stop ends.
PATIENCE = 30.0


class Run:
    """One consumer at work in a thread; :meth:`end` stops it and raises what its run raised."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=consumer.name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.consumer.run()
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self.consumer.stop()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), f"{self.consumer} does not stop"
        if self.error is not None:
            raise self.error


@contextmanager
def running(*consumers: Consumer) -> Iterator[list[Run]]:
    """The consumers at work; stopped at the end, whatever happened, and then whatever their runs raised is raised."""
    runs = [Run(consumer) for consumer in consumers]
    try:
        yield runs
    finally:
        for run in runs:
            run.consumer.stop()
        for run in runs:
            run.end()


def append(log: Log, count: int, first: int = 0) -> list[str]:
    """Append numbered records; answers their stream ids."""
    log.append_many([{"n": str(number)} for number in range(first, first + count)])
    return [record.stream_id for record in log.read()][-count:]


def pending(log: Log, group: str = "billing") -> list[dict[str, Any]]:
    """What a group was given and has not finished, as XPENDING tells it."""
    client: Any = log.connection.client
    rows: list[dict[str, Any]] = client.xpending_range(log.key, group, "-", "+", 1000)
    return rows
