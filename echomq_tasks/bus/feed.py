"""What one subscription has still to read: a bounded buffer between the hub's thread and a reader of any kind."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Final

from echomq_tasks.bus.channel import Channel, matcher
from echomq_tasks.bus.gap import Gap, Hole, Reason
from echomq_tasks.bus.places import Place, place_of
from echomq_tasks.errors import EchoMQError, ServerUnavailable
from echomq_tasks.events import Event

if TYPE_CHECKING:
    from echomq_tasks.bus.filling import Doubt, Filling
    from echomq_tasks.bus.hub import Hub
    from echomq_tasks.bus.recovery import Recovery

#: A full buffer makes room by one part in so many at once, or a reader that stays slow would meet a gap at every step.
_PARTS = 16


class Closed(EchoMQError):
    """The subscription was closed."""


class More:
    """What :meth:`Feed.take` answers when a log has to be read first."""


MORE: Final = More()


class Feed:
    """Owned by a subscription; the hub fills it. Safe for any number of threads.

    Parameters:
      queues: whose events.
      patterns: over names of queues; an event that comes by several ways is taken by the first only.
      events: their names; None for all.
      size: how many are kept for a reader that is slow.
      recovery: fills gaps from a log; None to tell them.
    """

    def __init__(
        self,
        queues: Sequence[str],
        patterns: Sequence[str],
        events: frozenset[str] | None,
        size: int,
        recovery: Recovery | None,
    ) -> None:
        self.queues = frozenset(queues)
        self.patterns = tuple(patterns)
        self.events = events
        self._matchers = {pattern: matcher(pattern) for pattern in patterns}
        self._size = size
        self._recovery = recovery
        self._pid = os.getpid()
        self._lock = threading.Lock()  # guards all down to `_reading`
        self._items: deque[Event | Hole] = deque()
        # What was thrown away in front of the buffer.
        self._dropped: Hole | None = None
        # How many were taken out of the buffer, so that each has a number.
        self._taken = 0
        self._filling: Filling | Doubt | None = None
        self._filled: deque[Event | Gap] = deque()
        self._error: EchoMQError | None = None
        self._closed = False
        self._wake: Callable[[], None] = lambda: None
        # One at a time reads the log.
        self._reading = threading.Lock()

        #: Done when the server has confirmed everything; the error when that failed.
        self.started: Future[None] = _uncancellable()
        #: Done when the hub has let go of it.
        self.ended: Future[None] = _uncancellable()
        #: The hub that it was given to, which may let go of it before it has begun.
        self.hub: Hub | None = None
        #: The hub's own: what it listens to for this feed, what of that is not confirmed yet, and until when to wait.
        self.channels: list[Channel] = []
        self.missing: set[Channel] = set()
        self.deadline = 0.0

    # The hub's side.

    def offer(self, event: Event, pattern: str | None) -> None:
        """Put an event in, which came by ``pattern`` or by its queue's own channel."""
        if pattern is not None and self._way(event.queue) != pattern:
            return
        wanted = self.events is None or event.event in self.events
        if not wanted and self._recovery is None:
            return
        with self._lock:
            if self._closed:
                return
            if wanted:
                if len(self._items) >= self._size:
                    self._make_room()
                self._items.append(event)
            if self._recovery is not None:
                self._recovery.hear(event, wanted=wanted)
        if wanted:
            self._wake()

    def miss(self, channels: Sequence[Channel]) -> None:
        """Note that events of ``channels`` may be missing between what came before and what comes next."""
        lost = [channel.lost_at for channel in channels if channel.lost_at is not None]
        reason: Reason = "moved" if all(channel.moved for channel in channels) else "reconnected"
        hole = Hole(reason, min(lost, default=None))
        topics = {channel.topic for channel in channels}
        with self._lock:
            hole.patterns |= topics & self._matchers.keys()
            names = topics & self.queues
            if self._recovery is not None:
                names |= {name for name in self._recovery.queues_heard() if self._way(name) in hole.patterns}
                hole.unlogged = dict.fromkeys(names & self._recovery.unlogged, 0)
            hole.starts = {name: self._seen(name) for name in names}
            last = self._items[-1] if self._items else None
            if isinstance(last, Hole) and last.reason == reason:
                last.merge(hole)
            else:
                self._items.append(hole)
        self._wake()

    def fail(self, error: EchoMQError) -> None:
        """End it with an error, which the reader meets behind what it has not read yet."""
        with self._lock:
            self._error = self._error or error
        if not self.started.done():
            self.started.set_exception(error)
        self._wake()

    def let_go(self) -> None:
        """The hub has let go of it."""
        # Whoever leaves may also find that the hub has ended, at the same moment.
        with contextlib.suppress(InvalidStateError):
            self.ended.set_result(None)

    def _seen(self, queue: str) -> tuple[Place, ...]:
        return () if self._recovery is None else self._recovery.seen(queue)

    def _way(self, queue: str) -> str | None:
        """The pattern by which this feed takes the events of a queue; None when it has the queue by name, or not."""
        if queue in self.queues:
            return None
        return next((pattern for pattern, each in self._matchers.items() if each.fullmatch(queue)), None)

    def _make_room(self) -> None:
        dropped = self._dropped or Hole("overflow")
        for _ in range(max(1, self._size // _PARTS)):
            item = self._items.popleft()
            self._taken += 1
            if isinstance(item, Hole):
                dropped.merge(item)
                continue
            place = place_of(item.id)
            start = (place.before(),) if place is not None else self._seen(item.queue)
            unlogged = {item.queue: 1} if place is None else {}
            dropped.merge(Hole("overflow", item.at, {item.queue: start}, lost=1, unlogged=unlogged))
        dropped.reason = "overflow"
        self._dropped = dropped

    # The reader's side.

    def attach(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` whenever there may be something new: from any thread, so it must be quick."""
        self._wake = wake

    def check(self) -> None:
        """Refuse the child of a fork, where a lock may be held by a thread that it does not have.

        Raises:
          EchoMQError: in a process that did not subscribe.
        """
        if os.getpid() != self._pid:
            raise EchoMQError("this subscription belongs to the parent process: subscribe again in the child")

    def take(self) -> Event | Gap | More | None:
        """The next item; MORE when :meth:`fill` has to be called first; None when there is none yet.

        Raises:
          Closed: when it was closed; whatever else ended it, behind the last item.
        """
        self.check()
        with self._lock:
            while True:
                if self._closed:
                    raise Closed("this subscription is closed: subscribe again")
                if self._filled:
                    return self._filled.popleft()
                if self._filling is not None:
                    return MORE
                item: Event | Hole
                if self._dropped is not None:
                    item, self._dropped = self._dropped, None
                elif self._items:
                    item = self._items.popleft()
                    self._taken += 1
                elif self._error is not None:
                    raise self._error
                else:
                    return None
                if isinstance(item, Hole):
                    if self._recovery is None:
                        return item.gap()
                    self._filling = self._recovery.fill(item, self.events, self._owned)
                elif self._recovery is None or not self._recovery.has_given(item):
                    return item
                elif not self._recovery.is_sure(item.queue, self._taken):
                    self._filling = self._recovery.doubt(item)

    def _owned(self, pattern: str, queue: str) -> bool:
        return self._way(queue) == pattern

    def fill(self) -> None:
        """Read the next records of a gap from the log; does nothing when that is not needed.

        Raises:
          ServerUnavailable: when the server cannot be reached; the next call goes on where this one stood.
        """
        with self._reading:
            with self._lock:
                filling = self._filling
                if filling is None or self._filled:
                    return
                here = self._taken + len(self._items)
            # The log is read without the lock, for the hub must never wait.
            try:
                found = filling.read(here)
            except ServerUnavailable:
                if self._error is None:
                    raise
                # Nobody waits for the server to come back.
                found, filling.done = [filling.given_up()], True
            with self._lock:
                self._filled.extend(found)
                if filling.done:
                    self._filling = None

    def begin(self) -> None:
        """Note where the logs end now; called once, when the subscription stands."""
        if self._recovery is not None:
            self._recovery.begin()

    def has_read(self, queue: str, place: Place) -> None:
        """Take the records of the log up to ``place`` for given: somebody has read them."""
        with self._lock:
            if self._recovery is not None:
                self._recovery.give(queue, place, 0)

    @property
    def connected(self) -> bool:
        """Whether everything that was confirmed is heard now: not while the connection is away."""
        return not any(self in channel.losers for channel in list(self.channels))

    @property
    def recovers(self) -> bool:
        """Whether it fills gaps from a log."""
        return self._recovery is not None

    @property
    def closed(self) -> bool:
        """Whether it was closed, or belongs to another process."""
        return self._closed or os.getpid() != self._pid

    def close(self) -> bool:
        """End it: readers meet :class:`Closed`. False when that is done, or is for another process to do."""
        if os.getpid() != self._pid:
            return False
        # Without the lock: a signal handler closes what its thread may just be reading.
        first, self._closed = not self._closed, True
        self._wake()
        if self.hub is None:
            return first
        if self.ended.done():
            return False
        # Again, when it was closed before: an exception may have been thrown into whoever did.
        self.hub.leave(self)
        return True

    def __str__(self) -> str:
        return ", ".join([*sorted(self.queues), *self.patterns])


def _uncancellable() -> Future[None]:
    future: Future[None] = Future()
    # asyncio cancels what it waits for; the hub must find these as they were.
    future.set_running_or_notify_cancel()
    return future
