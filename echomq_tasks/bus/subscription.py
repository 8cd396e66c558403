"""A subscription that a thread reads."""

from __future__ import annotations

import contextlib
import threading
import time
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self

from echomq_tasks.bus.feed import Closed, Feed, More
from echomq_tasks.bus.gap import Gap
from echomq_tasks.bus.places import behind
from echomq_tasks.errors import ServerUnavailable
from echomq_tasks.events import Event
from echomq_tasks.keyspace import check_queue
from echomq_tasks.scripts.arguments import seconds_to_ms

#: Seconds until a log that could not be reached is tried again.
RETRY = 0.2
#: Seconds that closing waits for the hub's thread to let go. It does so at once, unless a signal handler closes while
#: its own thread is just being given an event.
_PATIENCE = 2.0
#: Seconds that no lock could wait longer than: centuries, but for some platforms.
_EVER = threading.TIMEOUT_MAX / 2


class Subscription:
    """Live events, as :meth:`echomq_tasks.bus.Bus.subscribe` makes it: iterate over it, or :meth:`get` one by one.

    ::

        with bus.subscribe("orders", events={"failed"}) as events:
            for event in events:
                ...

    Iterating yields :class:`~echomq_tasks.events.Event`, and :class:`~echomq_tasks.bus.Gap` where some may be missing;
    it waits for the next one, and ends when the subscription is closed, by any thread. Several threads may read: each
    item goes to one of them. It belongs to the process that made it.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        # Whoever waits, waits alone: the others would be woken for nothing.
        self._turn = threading.Lock()
        # No threading.Event, whose lock a signal handler that closes this may find held by its own thread.
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._rung = False
        feed.attach(self._wake)

    def _wake(self) -> None:
        """Called by the hub for each event: the first of a burst rings."""
        if not self._rung:
            self._rung = True
            self._bell.put(None)

    def get(self, timeout: float | None = None) -> Event | Gap | None:
        """The next event, or a gap; waits for it.

        Parameters:
          timeout: seconds to wait; None waits for ever. While a gap is read from a log, the server's answer is waited
            for beyond that.

        Returns:
          None when none came in time.

        Raises:
          EchoMQError: when the subscription is closed, or belongs to the parent of this process.
          ConfigError, ServerError: when the server does not let it go on, which waiting would not mend.
        """
        deadline = None if timeout is None else time.monotonic() + min(seconds_to_ms(timeout, "timeout") / 1000, _EVER)
        self._feed.check()
        if not self._turn.acquire(timeout=-1 if deadline is None else max(0.0, deadline - time.monotonic())):
            return None
        try:
            return self._next(deadline)
        finally:
            self._turn.release()

    def _next(self, deadline: float | None) -> Event | Gap | None:
        while True:
            # In this order: what comes behind the look rings again, and the bell is not emptied of that.
            self._hear(0)
            self._rung = False
            item = self._feed.take()
            longest = None
            if isinstance(item, More):
                try:
                    self._feed.fill()
                    continue
                except ServerUnavailable:
                    longest = RETRY
            elif item is not None:
                return item
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            waits = [seconds for seconds in (left, longest) if seconds is not None]
            self._hear(min(waits, default=None))

    def _hear(self, timeout: float | None) -> None:
        with contextlib.suppress(Empty):
            self._bell.get(timeout != 0, timeout)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event | Gap:
        try:
            item = self.get()
        except Closed:
            raise StopIteration from None
        assert item is not None
        return item

    def has_read(self, queue: str, record_id: str) -> None:
        """Say that the log was read up to a record, by other means, as to show what happened before.

        With ``catch_up``, what stands in that log up to there is not given any more.

        Parameters:
          queue: one of the queues that are listened to.
          record_id: the record's EVT id, or its stream id.

        Raises:
          InvalidArgument, InvalidId: when it is malformed.
        """
        self._feed.has_read(check_queue(queue), behind(None, record_id))

    @property
    def connected(self) -> bool:
        """Whether events are heard now. While the connection is away this is False; a gap tells when it is back."""
        return self._feed.connected

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self._feed.closed

    def close(self) -> None:
        """End it, and every iteration over it; what was not read is dropped. Any thread may, any number of times."""
        if self._feed.close() and (hub := self._feed.hub) is not None:
            with contextlib.suppress(TimeoutError):
                self._feed.ended.result(_PATIENCE)
            if hub.over:
                hub.thread.join(_PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Subscription to {self._feed}>"
