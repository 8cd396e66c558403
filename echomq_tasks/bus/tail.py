"""Follow a log: read what is there, then wait for more, over whatever happens to the connection."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Self

from redis.exceptions import ResponseError

from echomq_tasks.bus.blocking import BlockingWire
from echomq_tasks.bus.failures import backoff, log_errors
from echomq_tasks.bus.places import FIRST, Place
from echomq_tasks.bus.records import FIRST_PAGE, Codec, Record, next_page
from echomq_tasks.bus.stepper import Stepper
from echomq_tasks.connection import Connection
from echomq_tasks.errors import ServerUnavailable
from echomq_tasks.forks import after_fork

_log = logging.getLogger(__name__)

#: Seconds one read blocks on the server.
_BLOCK = 5.0
#: So many of the newest places are remembered, for a log that loses its end.
_REMEMBERED = 16


class Tail:
    """An iterator of a log's records that waits for more; see :meth:`echomq_tasks.bus.Log.tail`.

    A log that is deleted and begun anew may have its new records below the old ones, by the clocks of its writers: then
    it goes on with the new head. When a log loses its end, it goes on behind what is left. It notices either once
    nothing has come for a few seconds, and logs a warning.

    One thread at a time gets a record; any may :meth:`close` it, which ends the iteration of the others. A fork's
    child goes on from where the parent was, over a connection of its own.
    """

    def __init__(
        self,
        connection: Connection,
        key: bytes,
        begin: Place,
        codec: Codec | None,
        *,
        follow: bool,
        timeout: float | None,
        shown: bool = False,
    ) -> None:
        self._connection = connection
        self._key = key
        self._codec = codec
        self._follow = follow
        self._timeout = timeout
        self._behind = begin
        # The newest places that the log has shown; ``begin`` is one of them, or it is where the caller wants to begin.
        self._shown: deque[Place] = deque([begin] if shown else [], _REMEMBERED)
        self._records: deque[Record] = deque()
        self._page = FIRST_PAGE
        self._wire: BlockingWire | None = None
        # Held by the thread that reads: it alone uses and closes the wire, which others may only interrupt.
        self._reading = threading.Lock()
        self._closed = False
        self._halt = threading.Event()
        # A server that was never there is not waited for.
        self._reached = False
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        # The socket is the parent's; redis-py closes only the child's descriptor when this is collected.
        self._wire = None
        self._reading = threading.Lock()
        self._halt = threading.Event()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        while self.fill():
            record = self.take()
            # Another thread may have been faster.
            if record is not None:
                return record
        raise StopIteration

    def take(self) -> Record | None:
        """The next of the records that were read already; None when there is none."""
        try:
            return None if self._closed else self._records.popleft()
        except IndexError:
            return None

    def fill(self) -> bool:
        """Wait until there is a record to take; False when there will be none, or :meth:`halt` was called.

        Raises:
          ServerUnavailable: when the server was never reached, or not when the time was up.
          EchoMQError: for what waiting does not mend.
        """
        try:
            with self._reading:
                # Ahead of the look at `_closed`: who closes sets that first.
                self._halt.clear()
                self._wait()
                return bool(self._records) and not self._closed
        finally:
            if self._closed:
                self._tidy()

    def _wait(self) -> None:
        deadline = None if self._timeout is None else _now() + self._timeout
        tries = 0
        while not (self._records or self._closed or self._halt.is_set()):
            left = _BLOCK if deadline is None else min(_BLOCK, deadline - _now())
            last = left <= 0 or not self._follow
            try:
                with log_errors(self._connection.config, self._key):
                    self._read(0 if last else left)
                    if self._is_lost() and last:
                        self._read(0)
            except ServerUnavailable as error:
                if self._closed or self._halt.is_set():
                    return
                if last or not self._reached:
                    raise
                self._pause(tries, error)
                tries += 1
                continue
            if last:
                return

    def halt(self) -> None:
        """Let the thread that waits in :meth:`fill` return; what it reads meanwhile is kept."""
        self._halt.set()
        wire = self._wire
        if wire is not None:
            wire.interrupt()

    def close(self) -> None:
        """End the iteration, also of a thread that waits for a record, and close the connection. Twice does no harm."""
        self._closed = True
        self.halt()
        self._tidy()

    def _tidy(self) -> None:
        # Whoever reads does this on its way out, when it has let go of the lock.
        if self._reading.acquire(blocking=False):
            try:
                self._disconnect()
            finally:
                self._reading.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, block: float) -> None:
        """Read what is there, or wait for it. After an error the connection is closed."""
        wire = self._wire
        try:
            if wire is None:
                wire = self._wire = BlockingWire(self._connection, self._key)
                # It is there, even if it drops us now.
                self._reached = True
                if self._halt.is_set():
                    return
            blocking = ("BLOCK", max(int(block * 1000), 1)) if block else ()
            where = (self._key, str(self._behind))
            reply = wire.ask(block, "XREAD", "COUNT", self._page, *blocking, "STREAMS", *where)
        except BaseException:
            # Also what was thrown into this thread, maybe in the middle of an answer.
            self._disconnect()
            raise
        size = 0
        for entry_id, pairs in _entries(reply):
            self._records.append(Record.of(entry_id, pairs, self._codec))
            self._behind = Place.of_entry(entry_id)
            self._shown.append(self._behind)
            size += sum(map(len, pairs))
        if self._records:
            self._page = next_page(self._page, len(self._records), size)

    def _is_lost(self) -> bool:
        """Whether nothing came because the log ends below what it has shown; this goes on from where that leaves it."""
        wire = self._wire
        if self._records or not self._shown or self._halt.is_set() or wire is None:
            return False
        try:
            info = wire.ask(0, "XINFO", "STREAM", self._key)
        except ResponseError as error:
            if "no such key" not in str(error):
                self._disconnect()
                raise
            top = FIRST
        except BaseException:
            self._disconnect()
            raise
        else:
            top = Place.of_entry(_pairs(info)[b"last-generated-id"])
        if top >= self._behind:
            return False
        left = [place for place in self._shown if place <= top]
        self._behind = max(left, default=FIRST)
        self._shown = deque(left, _REMEMBERED)
        _log.warning(
            "the log at %s was deleted, or has lost its newest records: its tail goes on from %s",
            self._key.decode(),
            self._behind if left else "its new head",
        )
        return True

    def _pause(self, tries: int, error: ServerUnavailable) -> None:
        if tries == 1:
            # Not at the first: a connection that only dropped is back by then.
            _log.warning("the tail of %s lost the server and tries to get back: %s", self._key.decode(), error)
        self._halt.wait(backoff(tries))

    def _disconnect(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()


def _now() -> float:
    # Also in a test that has stopped Python's clocks: the server waits by its own.
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def _entries(reply: Any) -> Iterable[Any]:
    """The entries of one stream in a reply of XREAD: nothing, a list of streams, or with RESP3 a mapping."""
    if not reply:
        return ()
    found: Iterable[Any] = next(iter(reply.values())) if isinstance(reply, dict) else reply[0][1]
    return found


def _pairs(reply: Any) -> dict[bytes, Any]:
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


class AsyncTail:
    """A :class:`Tail` for ``async with`` and ``async for``; see :meth:`echomq_tasks.bus.Log.atail`.

    A step that is cancelled loses nothing: what its thread reads meanwhile is there for the next one.
    """

    def __init__(self, make: Callable[[], Tail]) -> None:
        self._make = make
        self._tail: Tail | None = None
        self._closed = False
        # Its one thread is the reader: steps of which one was cancelled still follow each other.
        self._thread = Stepper("echomq-tail")

    async def _open(self) -> Tail:
        if self._tail is None:
            self._tail = await self._thread.run(self._make)
        return self._tail

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        if self._closed:
            raise StopAsyncIteration
        tail = await self._open()
        record = tail.take()
        if record is None:
            try:
                await self._thread.run(tail.fill)
            except (asyncio.CancelledError, GeneratorExit):
                # The latter when its loop is gone.
                tail.halt()
                raise
            record = tail.take()
        if record is None:
            raise StopAsyncIteration
        return record

    async def aclose(self) -> None:
        """End the iteration and close the connection."""
        self._closed = True
        if self._tail is not None:
            self._tail.close()
        self._thread.end()
