"""Tables of several processes, as one process can have them: each with a connection of its own."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator
from typing import Any

from echomq_tasks.cache.table import Table
from echomq_tasks.connection import Connection
from support.eventually import eventually

#: Seconds within which a busy machine must have done anything that a test waits for.
PATIENCE = 30.0


class Source:
    """A loader whose n-th value is n, and which can be held up and made to fail."""

    def __init__(self) -> None:
        self.count = 0
        self.error: Exception | None = None
        self._lock = threading.Lock()
        self._running = threading.Semaphore(0)
        self._go = threading.Event()
        self._go.set()

    def __call__(self) -> int:
        with self._lock:
            self.count += 1
            mine = self.count
        self._running.release()
        assert self._go.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return mine

    def hold(self) -> None:
        """Let the loads that begin from now on wait."""
        self._go.clear()

    def started(self) -> None:
        """Wait until one more load has begun."""
        assert self._running.acquire(timeout=PATIENCE)

    def go(self) -> None:
        """Let them go on."""
        self._go.set()


@contextlib.contextmanager
def tables(connection: Connection, count: int = 2, *, name: str | None = None, **options: Any) -> Iterator[list[Table]]:
    """So many tables of one name, each of which is to the others what another process's is."""
    name = name or f"cache-{secrets.token_hex(6)}"
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            own = stack.enter_context(Connection(connection.config))
            made.append(Table(name, "ROW", own, **options))
            stack.callback(made[-1].close)
        yield made


def joined(table: Table, id: str, count: int = 1) -> None:
    """Wait until so many callers wait for the flight of a row in this process."""
    flights = table._parts.flights._flights  # noqa: SLF001 - nothing tells how many wait
    eventually(lambda: id in flights and flights[id].waiters >= count, PATIENCE)


def follows(table: Table, id: str) -> bool:
    """Whether the table waits for another process's load of a row."""
    waiters = table._parts.wakes._waiters  # noqa: SLF001 - nothing tells who waits
    return any(each._woken is not None for each in list(waiters.get(id, ())))  # noqa: SLF001


def following(table: Table, id: str) -> None:
    """Wait until :func:`follows`."""
    eventually(lambda: follows(table, id), PATIENCE)


def suspects(table: Table, id: str) -> bool:
    """Whether a row is to be checked before it is used."""
    row = table._parts.l1.get(id)  # noqa: SLF001 - nothing tells
    return row is not None and row.suspect
