"""Coherence by the job lane: each message is a job too, which one of the processes that use the table settles.

A broadcast reaches whoever listens at that moment. The job stays until somebody has applied it, and what that drops on
the server is gone for everybody: a process that missed the broadcast looks there before it uses what it holds.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final

from echomq_tasks.cache.reach import Shared
from echomq_tasks.cache.table import Table
from echomq_tasks.connection import Connection
from echomq_tasks.errors import EchoMQError, InvalidArgument, ServerUnavailable
from echomq_tasks.forks import after_fork
from echomq_tasks.keyspace import coherence_queue
from echomq_tasks.queue import Complete, Job, Parking, Queue, Release, Retry, Settlement

_log = logging.getLogger(__name__)

#: The most messages of one round trip.
_MOST: Final = 100
#: Seconds that one of them takes at the very most.
_LEASE: Final = 30.0
#: Seconds between two looks for messages of a process that died with them, when nothing else comes.
_LOOK: Final = 15.0
#: Seconds before the first new try when the server does not answer, and before the later ones.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
#: Seconds until a message is tried again that could not be applied.
_AGAIN: Final = 1.0
#: Seconds that closing waits for the thread.
_PATIENCE: Final = 2.0
_MOMENT: Final = 0.02


class Lanes:
    """The lanes of a connection, which end when it is closed."""

    def __init__(self, connection: Connection) -> None:
        self._all: weakref.WeakSet[Lane] = weakref.WeakSet()

    def add(self, lane: Lane) -> None:
        """Let a lane end with the connection."""
        self._all.add(lane)

    def close(self) -> None:
        """End all of their threads; one that is used again starts anew."""
        for lane in list(self._all):
            lane.close()


class Lane:
    """The lane of one table: sends its messages, and applies those that are there.

    The thread that applies them is started when the table is first used, and ends with the table or the connection.

    Parameters:
      name: the table's.
      connection: the server; None is where ``connect()`` without arguments leads.
    """

    def __init__(self, name: str, connection: Connection | None) -> None:
        self._name = coherence_queue(name)
        self._shared = Shared.of(connection)
        self._table: weakref.ref[Table] | None = None
        self._queue: Queue | None = None
        self._after_fork()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._change = threading.Lock()
        self._run: _Run | None = None

    def of(self, table: Table) -> None:
        """Let it be that of a table."""
        self._table = weakref.ref(table)

    def __call__(self, message: bytes) -> None:
        """Send a message.

        Raises:
          EchoMQError: when the server does not take it.
        """
        # First, for the thread sends later what cannot be sent now.
        self.start()
        if self._shared.breaker.open:
            raise ServerUnavailable("the server of the cache did not answer when it was last asked")
        self._opened().enqueue(message)

    def start(self) -> None:
        """Apply what is there, and what comes, from now on; costs nothing when that is done already."""
        run = self._run
        if run is not None and run.is_alive():
            return
        with self._change:
            run = self._run
            if self._table is None or (run is not None and run.is_alive()):
                return
            self._run = _Run(self._opened, self._table)
            try:
                self._run.start()
            except RuntimeError as error:
                # At the end of the interpreter, for one.
                self._run = None
                _log.debug("Nothing is taken from the lane of a cache any more: %s", error)

    def close(self) -> None:
        """End the thread."""
        with self._change:
            run, self._run = self._run, None
        if run is not None:
            run.stop()

    def _opened(self) -> Queue:
        if self._queue is None:
            if self._shared.breaker.shut:
                raise ServerUnavailable("the server of the cache did not answer a moment ago, and is left alone")
            connection = self._shared.connection(self._shared.config())
            connection.companion(Lanes).add(self)
            self._queue = Queue(self._name, connection)
        elif self._shared.breaker.shut:
            raise ServerUnavailable(f"{self._queue.connection.config.address} did not answer a moment ago")
        return self._queue


class _Run(threading.Thread):
    """Takes messages until its table is gone or it is stopped. It owns the connection that it waits on."""

    def __init__(self, opened: Callable[[], Queue], table: weakref.ref[Table]) -> None:
        super().__init__(name="echomq-cache-lane", daemon=True)
        self._opened = opened
        self._table = table
        self._over = threading.Event()
        self._parking: Parking | None = None
        #: What became of the jobs that were claimed, as far as the server was not told yet.
        self._settlements: list[Settlement] = []
        self._look_at = 0.0

    def stop(self) -> None:
        """End it, and wait for that a moment."""
        self._over.set()
        until = time.monotonic() + _PATIENCE
        while self.is_alive() and threading.current_thread() is not self and time.monotonic() < until:
            # Again and again, for it may have been about to wait.
            if (parking := self._parking) is not None:
                parking.close()
            self.join(_MOMENT)

    def run(self) -> None:
        """Take messages."""
        pause = 0.0
        try:
            while not self._over.is_set() and self._table() is not None:
                try:
                    self._turn()
                    pause = 0.0
                except EchoMQError as error:
                    pause = min(max(2 * pause, _FIRST_PAUSE), _LONGEST_PAUSE)
                    _log.debug("The lane of a cache is left alone for %g seconds: %s", pause, error)
                    self._over.wait(pause * random.uniform(0.5, 1.0))
                except Exception:
                    # What it waited on was closed under its hands, when it is over.
                    if not self._over.is_set():
                        _log.exception("The lane of a cache failed; it begins anew")
                        self._over.wait(_LONGEST_PAUSE)
        finally:
            self._end()

    def _turn(self) -> None:
        queue = self._opened()
        parking = self._parking = self._parking or queue.parking()
        if time.monotonic() >= self._look_at:
            queue.reap()
            self._look_at = time.monotonic() + _LOOK
        # What was not answered stays in the list: to settle a job twice does no harm.
        turn = queue.turn(self._settlements, _MOST, lease=_LEASE)
        self._settlements = [self._applied(job) for job in turn.claimed]
        if self._settlements:
            return
        table = self._table()
        if table is not None and not table.resend():
            self._over.wait(_AGAIN)
            return
        # Not held while it waits: the table may go.
        del table
        # To connect may take long. Once it is parked, whoever ends this thread can end the wait.
        if not parking.wait(0) and not self._over.is_set():
            again = turn.claimed.look_again
            parking.wait(_LOOK if again is None else min(again, _LOOK))

    def _applied(self, job: Job) -> Settlement:
        table = self._table()
        if table is None:
            return Release(job)
        try:
            if table.apply(bytes(job.payload)):
                return Complete(job)
        except InvalidArgument as error:
            return Retry(job, str(error), max_retries=0)
        return Retry(job, "the server of the cache does not answer", delay=_AGAIN)

    def _end(self) -> None:
        if self._parking is not None:
            self._parking.close()
        if self._settlements:
            # Else somebody applies them again, when their leases end.
            with contextlib.suppress(EchoMQError):
                self._opened().settle(self._settlements)
