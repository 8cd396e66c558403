"""Gap recovery: fill what a subscription has missed from the log that keeps the same events."""

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from echomq_tasks.bus.filling import Doubt, Filling
from echomq_tasks.bus.gap import Hole
from echomq_tasks.bus.log import Log
from echomq_tasks.bus.places import FIRST, Place, place_of
from echomq_tasks.connection import Connection
from echomq_tasks.connection.failures import typed_errors
from echomq_tasks.events import Event

#: So many of a queue's newest places are remembered: the last may be one that somebody made up, or gone with its log.
_REMEMBERED = 8


class Recovery:
    """One subscription's way back into its log; used by one thread at a time.

    Parameters:
      log: the name of the log that the events are kept in too, each record in the order in which it was published.
      queues: the queues that the subscription names.
      patterns: its patterns.
      connect: answers the server.
    """

    def __init__(
        self, log: str, queues: Sequence[str], patterns: Sequence[str], connect: Callable[[], Connection]
    ) -> None:
        self.name = log
        self._connect = connect
        self._queues = queues
        self._patterns = patterns
        # Where each queue's log ended when the subscription began, and whether a record stood there.
        self._tops: dict[str, tuple[Place, bool]] = {}
        self._began = FIRST
        # The newest record of each queue that was given out of the log; and the number in the reader's buffer up to
        # which events had come when the log was last seen to reach so far.
        self._given: dict[str, Place] = {}
        self._sure: dict[str, int] = {}
        # The newest records of each queue that were heard live.
        self._heard: dict[str, deque[Place]] = {}
        #: The queues of which an event was heard that no log keeps.
        self.unlogged: set[str] = set()

    def begin(self) -> None:
        """Note where the logs end: what comes behind that belongs to the subscription.

        Raises:
          ServerUnavailable: the server cannot be asked.
          WrongState: a queue has something else in the place of the log.
        """
        for queue in self._queues:
            info = self.log(queue).info()
            self._tops[queue] = (Place.of_entry(info.top), info.length > 0)
        if self._patterns:
            # Logs of queues that are not known yet: what was minted before now is not ours.
            self._began = Place(self._server_ms(), 0)

    def _server_ms(self) -> int:
        client: Any = self.connection.client
        with typed_errors(self.connection.config):
            if self.connection.is_cluster:
                times: list[tuple[int, int]] = list(client.time(target_nodes="primaries").values())
            else:
                times = [client.time()]
        # Of several clocks the one that is behind: rather an event too many than one too few.
        return min(seconds * 1000 + microseconds // 1000 for seconds, microseconds in times)

    @property
    def connection(self) -> Connection:
        """The server."""
        return self._connect()

    def log(self, queue: str) -> Log:
        """A queue's log."""
        return Log(queue, self.name, self.connection)

    def hear(self, event: Event, *, wanted: bool) -> None:
        """Note an event that came live, whether or not its reader wants it."""
        place = place_of(event.id)
        if place is not None:
            heard = self._heard.get(event.queue)
            if heard is None:
                heard = self._heard[event.queue] = deque(maxlen=_REMEMBERED)
            heard.append(place)
        elif wanted:
            self.unlogged.add(event.queue)

    def queues_heard(self) -> set[str]:
        """The queues of which something was heard."""
        return self._heard.keys() | self.unlogged

    def seen(self, queue: str) -> tuple[Place, ...]:
        """The newest places in a queue's log that were heard live."""
        return tuple(self._heard.get(queue, ()))

    def give(self, queue: str, place: Place, number: int) -> None:
        """Note that the log was given up to ``place``, and reached so far when the reader had been sent ``number``."""
        self._given[queue] = max(place, self._given.get(queue, FIRST))
        self._sure[queue] = number

    def has_given(self, event: Event) -> bool:
        """Whether a live event was read from the log before, as far as its id tells."""
        given = self._given.get(event.queue)
        return given is not None and (place := place_of(event.id)) is not None and place <= given

    def is_sure(self, queue: str, number: int) -> bool:
        """Whether the log still reached up to what was given when the event with this number was there."""
        return number <= self._sure.get(queue, 0)

    def doubt(self, event: Event) -> Doubt:
        """Find out about an event whose id is not above what was given."""
        return Doubt(self, event, self._given[event.queue])

    def start(self, queue: str, seen: Sequence[Place]) -> tuple[Place, bool]:
        """The place behind which to read, and whether a record was known to stand there, or right behind it."""
        start = (max(seen), True) if seen else self._tops.get(queue, (self._began, False))
        given = self._given.get(queue, FIRST)
        return (given, True) if given >= start[0] and given != FIRST else start

    def knows(self, queue: str, seen: Sequence[Place]) -> bool:
        """Whether :meth:`start` is a place that was seen, and not just a time."""
        return bool(seen) or queue in self._given or queue in self._tops

    def come_down(self, queue: str, seen: Sequence[Place], top: Place) -> tuple[Place, bool]:
        """As :meth:`start`, for a log whose top is below what is remembered of it, which is forgotten.

        Either somebody made up an id, or the log was begun anew, or has lost its end: that is certain when the log
        itself had shown a higher place.
        """
        for place in self.seen(queue):
            if place > top:
                # The hub's thread may just have pushed it out.
                with contextlib.suppress(ValueError):
                    self._heard[queue].remove(place)
        shown = max(self._given.get(queue, FIRST), self._tops.get(queue, (FIRST, False))[0])
        known = [place for place in seen if place <= top]
        if shown > top:
            self._given.pop(queue, None)
            self._tops.pop(queue, None)
            return (max(known), True) if known else (FIRST, False)
        return (max(*known, shown), True) if known else (top, False)

    def queues_of(self, pattern: str) -> set[str]:
        """The queues that have the log now, found by a scan of all keys.

        Raises:
          ServerUnavailable: the server cannot be asked.
        """
        before, behind = b"emq:{", b"}:stream:" + self.name.encode()
        shape = re.compile(re.escape(before) + rb"([A-Za-z0-9._-]{1,128})" + re.escape(behind))
        with typed_errors(self.connection.config):
            keys = self.connection.client.scan_iter(match=before + pattern.encode() + behind, count=1000)
            return {found[1].decode() for key in keys if (found := shape.fullmatch(key))}

    def fill(self, hole: Hole, events: frozenset[str] | None, owned: Callable[[str, str], bool]) -> Filling:
        """Begin to fill a hole; ``owned(pattern, queue)`` tells whether the queue's events come by that pattern."""
        return Filling(self, hole, events, owned)
