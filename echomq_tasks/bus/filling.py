"""Fill a hole in a subscription from the log, and find out about an event that the log may have given."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from echomq_tasks.bus.gap import Gap, Hole
from echomq_tasks.bus.places import FIRST, Place
from echomq_tasks.errors import EchoMQError, ServerUnavailable
from echomq_tasks.events import Event

if TYPE_CHECKING:
    from echomq_tasks.bus.log import Log
    from echomq_tasks.bus.records import Record
    from echomq_tasks.bus.recovery import Recovery

_log = logging.getLogger(__name__)

#: Records read before the reader gets the first of them.
_PAGE = 500


class Filling:
    """The filling of one hole, page by page; used by one thread at a time."""

    def __init__(
        self, recovery: Recovery, hole: Hole, events: frozenset[str] | None, owned: Callable[[str, str], bool]
    ) -> None:
        self.hole = hole
        self._recovery = recovery
        self._events = events
        self._owned = owned
        self._left = deque(sorted(hole.starts))
        self._patterns = sorted(hole.patterns)
        # Told first, at its place, and then not once more.
        self._told = not hole.unlogged
        # How far the queue was read that is being read.
        self._reached: Place | None = None
        self._unfilled: list[str] = []
        self._unfound: list[str] = []
        #: All was read.
        self.done = False

    def given_up(self) -> Gap:
        """What is told when it cannot be read any more."""
        return self.hole.gap()

    def read(self, here: int) -> list[Event | Gap]:
        """The next events, none when there are none on this page; a Gap for what the log cannot give any more.

        Parameters:
          here: how many events the reader has been sent live so far.

        Raises:
          ServerUnavailable: the server cannot be asked; call it again.
        """
        if not self._told:
            self._told = True
            return [self.hole.unlogged_gap()]
        if self._patterns:
            pattern = self._patterns[0]
            try:
                more = {queue for queue in self._recovery.queues_of(pattern) if self._owned(pattern, queue)}
                # Where nothing that matches keeps such a log, what was missed, if anything, was not kept.
                blind = not more and not any(self._owned(pattern, queue) for queue in self.hole.starts)
            except ServerUnavailable:
                raise
            except EchoMQError as error:
                _log.warning("the logs that match %s cannot be found, to fill a gap: %s", pattern, error)
                more, blind = set(), True
            if blind:
                self._unfound.append(pattern)
            self._left.extend(sorted(more - self.hole.starts.keys()))
            del self._patterns[0]
            return []
        if self._left:
            events, another = self._page(self._left[0], here)
            if not another:
                self._left.popleft()
                self._reached = None
            return events
        self.done = True
        untold = [queue for queue in self._unfilled if queue not in self.hole.unlogged]
        return [self.hole.gap(untold, self._unfound)] if untold or self._unfound else []

    def _page(self, queue: str, here: int) -> tuple[list[Event | Gap], bool]:
        """One page of a queue's events, and whether there is another."""
        log = self._recovery.log(queue)
        found: list[Event | Gap] = []
        try:
            if self._reached is None:
                start, records, lost = self._begin(log)
                if lost:
                    found.append(Gap("trimmed", self.hole.since, (queue,)))
            else:
                start, records = self._reached, _page(log, self._reached)
        except ServerUnavailable:
            raise
        except EchoMQError as error:
            _log.warning("a gap in the events of queue %s cannot be filled from its log: %s", queue, error)
            self._unfilled.append(queue)
            return found, False
        self._reached = start
        for record in records:
            place = Place.of_entry(record.stream_id)
            if place <= start:
                continue
            self._reached = place
            self._recovery.give(queue, place, here)
            # A stranger's record may name no event.
            if (name := record.fields.get("event")) and (self._events is None or name in self._events):
                id_field = {} if record.id is None else {"id": record.id}
                found.append(Event.of({**record.fields, **id_field}, queue))
        return found, len(records) == _PAGE

    def _begin(self, log: Log) -> tuple[Place, list[Record], bool]:
        """The place behind which a queue is read, its first page, and whether something behind that place is gone."""
        seen = self.hole.starts.get(log.queue, ())
        start, stood = self._recovery.start(log.queue, seen)
        records = _page(log, start)
        if _joins(start, records):
            return start, records, False
        info = log.info()
        top = Place.of_entry(info.top)
        if top == FIRST and not stood:
            # No such log was ever written: what was missed, if anything, was not kept.
            self._unfilled.append(log.queue)
            return start, [], False
        if top < start and self._recovery.knows(log.queue, seen):
            start, stood = self._recovery.come_down(log.queue, seen, top)
            records = _page(log, start)
            return start, records, not (stood and _joins(start, records))
        removed = info.appended is None or info.appended > info.length
        return start, records, top != start and (stood or (top > start and removed))


class Doubt:
    """A live event whose id is not above what was given out of the log: it was read there, or the log is another one.

    Parameters:
      recovery: the subscription's.
      event: the event.
      given: up to where the log was given.
    """

    def __init__(self, recovery: Recovery, event: Event, given: Place) -> None:
        self._recovery = recovery
        self._event = event
        self._given = given
        #: It is decided.
        self.done = False

    def given_up(self) -> Gap:
        """What is told when it cannot be decided any more."""
        return Gap("trimmed", self._event.at, (self._event.queue,))

    def read(self, here: int) -> list[Event | Gap]:
        """Nothing when the event was given; else a Gap and the event. As :meth:`Filling.read`."""
        event = self._event
        try:
            top = Place.of_entry(self._recovery.log(event.queue).info().top)
        except ServerUnavailable:
            raise
        except EchoMQError as error:
            _log.warning("the log of queue %s cannot be looked at any more: %s", event.queue, error)
            top = FIRST
        self.done = True
        if top >= self._given:
            # Then so do all that have come by now.
            self._recovery.give(event.queue, self._given, here)
            return []
        self._recovery.come_down(event.queue, (), top)
        return [self.given_up(), event]


def _page(log: Log, start: Place) -> list[Record]:
    """Records from ``start`` itself on: one that still stands there proves that nothing behind it was trimmed."""
    return list(log.read(start=str(start), count=_PAGE))


def _joins(start: Place, records: list[Record]) -> bool:
    first = Place.of_entry(records[0].stream_id) if records else None
    return first is not None and start in (first, first.before())
