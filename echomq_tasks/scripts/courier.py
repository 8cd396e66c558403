"""Threads that wait for a node of a cluster, so that those who have to do with other nodes as well need not."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from echomq_tasks.connection import Connection
from echomq_tasks.forks import after_fork

#: Seconds after which a courier that has nothing to do ends.
_IDLE_SECONDS = 10.0


class Errand:
    """What a courier was sent for.

    Parameters:
      do: what to do. It ends by itself, as the client's timeouts end whatever it waits for.
    """

    __slots__ = ("_come", "_do", "_error", "_result", "_then")

    def __init__(self, do: Callable[[], Any]) -> None:
        self._do = do
        self._result: Any = None
        self._error: BaseException | None = None
        self._come = threading.Event()
        self._then: deque[Callable[[], Any]] = deque()

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._come.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for its end; answers :attr:`done`."""
        return self._come.wait(timeout)

    def result(self) -> Any:
        """What came of it; waits for that. Raises what it has raised."""
        self._come.wait()
        if self._error is not None:
            raise self._error
        return self._result

    def when_done(self, then: Callable[[], Any]) -> None:
        """Have ``then``, which must not raise nor wait, called once it has ended: by the courier, or here."""
        self._then.append(then)
        if self.done:
            self._tell()

    def run(self) -> None:
        """Do it; for the courier."""
        try:
            self._result = self._do()
        except BaseException as error:
            # Whoever asks for the result is told.
            self._error = error
        self._come.set()
        self._tell()

    def _tell(self) -> None:
        # Both threads may be at it: each is taken by one of them.
        with suppress(IndexError):
            while True:
                self._then.popleft()()


def wait_for(errands: Iterable[Errand], seconds: float) -> None:
    """Wait until all have ended, for so many seconds at most."""
    until = time.monotonic() + seconds
    for errand in errands:
        errand.wait(max(until - time.monotonic(), 0.0))


class Couriers:
    """The threads of one connection, as many as there are errands at once; safe to share, also across forks."""

    def __init__(self, connection: Connection) -> None:
        # Where each that is idle waits for its next errand, the last one used last. deque operations are atomic.
        self._idle: deque[SimpleQueue[Errand | None]] = deque()
        after_fork(self._after_fork)

    @classmethod
    def of(cls, connection: Connection) -> Couriers:
        """Those of ``connection``, made on first use; the idle ones end with it."""
        return connection.companion(cls)

    def _after_fork(self) -> None:
        # The threads are the parent's.
        self._idle = deque()

    def send(self, do: Callable[[], Any]) -> Errand:
        """Have it done in another thread."""
        errand = Errand(do)
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = SimpleQueue()
            threading.Thread(target=self._run, args=(inbox,), name="echomq-courier", daemon=True).start()
        inbox.put(errand)
        return errand

    def close(self) -> None:
        """End those that are idle."""
        with suppress(IndexError):
            while True:
                self._idle.pop().put(None)

    def _run(self, inbox: SimpleQueue[Errand | None]) -> None:
        while True:
            try:
                errand = inbox.get(timeout=_IDLE_SECONDS)
            except Empty:
                try:
                    self._idle.remove(inbox)
                except ValueError:
                    # Somebody has taken it just now, and is about to put something in.
                    errand = inbox.get()
                else:
                    return
            if errand is None:
                return
            errand.run()
            # Not while it waits: what the errand holds is to go with it.
            del errand
            self._idle.append(inbox)
