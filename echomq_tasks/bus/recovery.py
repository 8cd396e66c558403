"""Gap recovery: fill what a subscription has missed from the log that keeps the same events."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from echomq_tasks.bus.gap import Gap, Hole
from echomq_tasks.bus.log import Log
from echomq_tasks.bus.places import FIRST, Place, place_of
from echomq_tasks.connection import Connection
from echomq_tasks.connection.failures import typed_errors
from echomq_tasks.errors import EchoMQError, ServerUnavailable
from echomq_tasks.events import Event

_log = logging.getLogger(__name__)

#: Records read before the reader gets the first of them.
_PAGE = 500


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
        #: The newest record of each queue that was given out of the log.
        self.given: dict[str, Place] = {}

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

    def has_given(self, event: Event) -> bool:
        """Whether a live event was read from the log before."""
        given = self.given.get(event.queue)
        return given is not None and (place := place_of(event.id)) is not None and place <= given

    def start(self, queue: str, behind: Place | None) -> tuple[Place, bool]:
        """The place behind which to read, and whether a record was known to stand there, or right behind it."""
        start = (behind, True) if behind is not None else self._tops.get(queue, (self._began, False))
        given = self.given.get(queue, FIRST)
        return (given, True) if given >= start[0] and given != FIRST else start

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
        self._unfilled: list[str] = []
        self._unfound: list[str] = []
        #: All was read.
        self.done = False

    def read(self) -> list[Event | Gap]:
        """The next events, none when there are none on this page; a Gap for what the log cannot give any more.

        Raises:
          ServerUnavailable: the server cannot be asked; call it again.
        """
        if not self._told:
            self._told = True
            return [self.hole.gap()]
        if self._patterns:
            pattern = self._patterns[0]
            try:
                more = {queue for queue in self._recovery.queues_of(pattern) if self._owned(pattern, queue)}
            except ServerUnavailable:
                raise
            except EchoMQError as error:
                _log.warning("the logs that match %s cannot be found, to fill a gap: %s", pattern, error)
                more = set()
                self._unfound.append(pattern)
            self._left.extend(sorted(more - self.hole.starts.keys()))
            del self._patterns[0]
            return []
        if self._left:
            events, another = self._page(self._left[0])
            if not another:
                self._left.popleft()
            return events
        self.done = True
        # Had the hole been told already, these would be part of it.
        if self.hole.unlogged or not (self._unfilled or self._unfound):
            return []
        return [self.hole.gap(self._unfilled, self._unfound)]

    def _page(self, queue: str) -> tuple[list[Event | Gap], bool]:
        """One page of a queue's events, and whether there is another."""
        recovery = self._recovery
        start, stood = recovery.start(queue, self.hole.starts.get(queue))
        log = recovery.log(queue)
        found: list[Event | Gap] = []
        try:
            # From the place itself on: a record that still stands there proves that nothing behind it was trimmed.
            records = list(log.read(start=str(start), count=_PAGE))
            places = [Place.of_entry(record.stream_id) for record in records]
            joins = bool(places) and start in (places[0], places[0].before())
            if not joins:
                info = log.info()
                top = Place.of_entry(info.top)
                if top == FIRST and not stood:
                    # No such log was ever written: what was missed, if anything, was not kept.
                    self._unfilled.append(queue)
                    return found, False
                removed = info.appended is None or info.appended > info.length
                if top != start and (stood or (top > start and removed)):
                    found.append(Gap("trimmed", self.hole.since, (queue,)))
        except ServerUnavailable:
            raise
        except EchoMQError as error:
            _log.warning("a gap in the events of queue %s cannot be filled from its log: %s", queue, error)
            self._unfilled.append(queue)
            return found, False
        for record, place in zip(records, places, strict=True):
            if place <= start:
                continue
            recovery.given[queue] = place
            # A stranger's record may name no event.
            if (name := record.fields.get("event")) and (self._events is None or name in self._events):
                id_field = {} if record.id is None else {"id": record.id}
                found.append(Event.of({**record.fields, **id_field}, queue))
        return found, len(records) == _PAGE
