"""Newer wins: what is put and dropped here reaches the other caches, and what they put and drop reaches this one."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from echomq_tasks.cache.frames import EVERYTHING, coherence_message, read_coherence, read_wake, tag_id
from echomq_tasks.cache.freshness import Ttl
from echomq_tasks.cache.hands import HANDS
from echomq_tasks.cache.parts import Parts
from echomq_tasks.cache.puts import Put, Puts
from echomq_tasks.cache.reach import Away, Full
from echomq_tasks.cache.row import OVERHEAD, Row
from echomq_tasks.cache.siblings import Siblings
from echomq_tasks.cache.store import Store
from echomq_tasks.cache.versions import VERSIONS
from echomq_tasks.cache.weighing import weight
from echomq_tasks.errors import InvalidArgument
from echomq_tasks.forks import after_fork
from echomq_tasks.identity import is_branded
from echomq_tasks.keyspace import coherence_channel, wake_channel

_log = logging.getLogger(__name__)

#: At most so many messages wait for the lane.
_MOST_UNSENT: Final = 10_000


class Coherence:
    """What a table does about newer values.

    No caller gets a value that is older than a put or a drop which this process knew of before the call: because it was
    made here and has returned, or because it was heard. For that, all of this holds at any time:

    - The server orders. A put or a drop has a version above the row, the version under which it was dropped, those of
      its tags and the flight on its way, and ends that flight; and a flight stores its row only as long as it stands.
    - What the server was not told is owed, and paid before it is asked for anything. It is paid as a drop, also a put,
      whose value serves in its process until then alone: after that all processes load anew.
    - L1 takes a value only from a flight or a put that could be told of news of the row since before the server was
      asked, and of a refresh, once nothing older can come any more: whoever has asked before is detached.
    - News lets go of all that is here of the row but for what has that very version. Versions are compared only where
      the server gave both, and a row that is newer than the news is looked up there before it is used again: it may
      have been forgotten, as when it has expired, before the newer version was given. One that cannot be looked up is
      not used.
    - What may have missed news is looked up, too; when it cannot be, it is used, for nobody here knows of anything.
    - Other tables of this name in the process know all that this one knows, before a verb of it returns.

    What is dropped is gone for whoever comes after the drop has returned: so what is here goes after the server was
    told, and once before, for those who come meanwhile. While the server is away, the lane is told a version of our
    own, which says something to those whose clocks agree with ours; once it is paid, the lane is told again.

    Parameters:
      lane: sends a message to the other caches at least once, as a job; None when the broadcast is enough.
      siblings: the tables of its name in this process, which it joins; none by default.
    """

    def __init__(self, lane: Callable[[bytes], object] | None, siblings: Siblings | None = None) -> None:
        self._lane = lane
        self._siblings = Siblings() if siblings is None else siblings
        self._unsent: deque[bytes] = deque(maxlen=_MOST_UNSENT)
        self._puts = Puts()
        self._after_fork()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._sending = threading.Lock()

    def of(self, parts: Parts) -> None:
        """Let it be that of a table, whose parts refer to it in turn."""
        self._parts = parts
        self._channels = coherence_channel(parts.name), wake_channel(parts.name)
        if self._lane is not None and parts.reach is not None:
            parts.reach.owed.on_paid(self._paid)
        if parts.reach is not None:
            parts.reach.owed.on_gone(self.gone)
        self._siblings.join(self)

    # What is heard.

    def heard(self, channel: bytes, data: bytes) -> None:
        """A message on one of the table's channels."""
        if channel == self._channels[1]:
            wake = read_wake(data)
            if wake is not None:
                self._parts.wakes.heard(wake)
                return
        elif (message := read_coherence(data)) is not None and self._about_us(message[0]):
            self.gone(*message)
            return
        self._parts.tell_once("%s carries what is no message of ours, as %.100r", channel.decode(), data, kind=channel)

    def lost(self) -> None:
        """Nothing is heard any more. Who waits for another process looks whether the server is there."""
        self._parts.wakes.shake()

    def back(self) -> None:
        """All is heard again, and something may have been missed."""
        self._parts.l1.suspect()
        self._parts.wakes.shake()
        reach = self._parts.reach
        if reach is not None and reach.owed:
            reach.shared.breaker.hurry()
            HANDS.later(reach.pay)
        if self._unsent:
            HANDS.later(self._send)

    def apply(self, message: bytes) -> bool:
        """Do what a message says that came by the lane, here and on the server.

        Returns:
          Whether the server was told too; else it will be, once it is back.

        Raises:
          InvalidArgument: when it is no message for this table.
        """
        parsed = read_coherence(message) if isinstance(message, bytes) else None
        if parsed is None or not self._about_us(parsed[0]):
            raise InvalidArgument(
                f"a coherence message of the table {self._parts.name} is <id>:<version>, 29 bytes with an id of the "
                f"kind {self._parts.kind} or a tag's, not {message!r:.100}"
            )
        id, version = parsed
        self._gone_here(id, version, anchored=False)
        told, _ = self._tell(lambda store: store.apply(id, version))
        if not told:
            self._owe(id, version)
        # Whoever has read it here meanwhile.
        self._gone_here(id, version, anchored=False)
        return told

    def _about_us(self, id: str) -> bool:
        return is_branded(id, self._parts.kind) or is_branded(id, "TAG")

    def gone(self, id: str, version: str | None, *, anchored: bool = True, but: Put | None = None) -> None:
        """Let go here of what is older than ``version``, or of all there is; first of what will write into L1.

        Parameters:
          id: a row, a tag, or the one that stands for everything.
          version: under which it was dropped or put.
          anchored: whether the server gave the version; one that a process gave itself is older than nothing.
          but: not of this put, whose version it is.
        """
        parts, flown = self._parts, version if anchored else None
        doubt = parts.reach is not None
        if id == EVERYTHING:
            parts.flights.detach_all()
            self._puts.heard_all()
            parts.l1.clear()
        elif id.startswith("TAG"):
            parts.flights.detach_tag(id, flown)
            self._puts.heard(id, version)
            parts.l1.kill_tag(id, version, doubt=doubt)
        else:
            parts.flights.detach(id, flown)
            self._puts.heard(id, version, but)
            parts.l1.kill(id, version, doubt=doubt)

    def _gone_here(self, id: str, version: str | None, *, anchored: bool = True, but: Put | None = None) -> None:
        """As :meth:`gone`, in all tables of this name that the process has."""
        self.gone(id, version, anchored=anchored, but=but)
        for other in self._siblings.others(self):
            other.gone(id, version, anchored=anchored)

    def _owe(self, id: str, version: str) -> None:
        if self._parts.reach is None:
            return
        owed = self._parts.reach.owed
        if id == EVERYTHING:
            owed.everything()
        elif id.startswith("TAG"):
            owed.tag(id, version)
            self._siblings.owe_tag(id, version, but=owed)
        else:
            owed.row(id, version)

    # What is told.

    def drop(self, id: str) -> bool:
        """Drop a row everywhere; False when the server, and so the others, can only be told later."""
        version = self._mint(id)
        self._gone_here(id, None)
        told, answer = self._tell(lambda store: store.drop(id))
        if not told:
            self._owe(id, version)
        self._finish(id, answer, version)
        return told

    def drop_tag(self, tag: str) -> bool:
        """As :meth:`drop`, of all rows with a tag."""
        mark, version = tag_id(tag), self._mint()
        self._gone_here(mark, None)
        told, answer = self._tell(lambda store: store.drop_tag(tag))
        if not told:
            self._owe(mark, version)
        self._finish(mark, answer, version)
        return told

    def clear(self) -> bool:
        """As :meth:`drop`, of all rows."""
        version = self._mint()
        self._gone_here(EVERYTHING, None)
        told, _ = self._tell(lambda store: store.clear())
        if not told:
            self._owe(EVERYTHING, version)
        self._finish(EVERYTHING, None, version)
        return told

    def put(self, id: str, rest: bytes, value: Any, ttl: Ttl | None, tags: tuple[str, ...]) -> bool:
        """Put a value in place of whatever there is, everywhere; False as :meth:`drop`.

        Raises:
          Unencodable: when the codec has no bytes for it.
          InvalidArgument: when the ttl is none.
        """
        parts = self._parts
        seconds = parts.freshness.ttl_of(value, ttl)
        if seconds <= 0:
            return self.drop(id)
        payload = parts.encoded(id, rest, value)
        marks = tuple(tag_id(tag) for tag in tags)
        epoch, version = parts.l1.epoch, self._mint(id)
        self._gone_here(id, None)
        kept_ms = parts.freshness.kept_ms(seconds)
        put = self._puts.begin(id, marks)
        try:
            told, answer = self._tell(lambda store: store.put(id, None, rest + payload, kept_ms, tags))
            if answer is not None and parts.reach is not None:
                parts.reach.stored()
            elif told and parts.reach is not None:
                # There was no memory, and the row was dropped under a version that we were not told: under that of
                # another drop it is known what is older.
                told, answer = self._tell(lambda store: store.drop(id))
            if not told:
                self._owe(id, version)
            # Loads that began after the server was told are newer than its answer; without one, all are dropped.
            self._gone_here(id, answer, but=put)
            shared = parts.shared(value)
            early, until, expires = parts.freshness.loaded(seconds, time.monotonic())
            # Not the caller's own object, when that can be changed: nobody is to change the row by it.
            row = Row(
                id, rest, answer or version, value if shared else None, None if shared else payload,
                size=OVERHEAD + (weight(value) if shared else len(payload)), early=early, until=until, expires=expires,
                tags=marks, anchored=answer is not None or parts.reach is None,
            )  # fmt: skip
            parts.l1.put(row, epoch, unless=lambda: put.outdone(answer))
        finally:
            self._puts.end(put)
        self._enqueue(coherence_message(id, answer or version))
        return told

    def announce(self, row: Row) -> None:
        """A row was loaded anew, and the server has told so; tell it here and by the lane too."""
        # A version of our own stands in no order with those that the others here have.
        version = row.version if row.anchored and self._parts.reach is not None else None
        for other in self._siblings.others(self):
            other.gone(row.id, version)
        self._enqueue(coherence_message(row.id, row.version))

    def _mint(self, id: str | None = None) -> str:
        """A version of our own, above that of the row here."""
        row = None if id is None else self._parts.l1.get(id)
        return VERSIONS.mint(self._parts.kind, None if row is None else row.version)

    def _tell(self, what: Callable[[Store], Any]) -> tuple[bool, Any]:
        reach = self._parts.reach
        if reach is None:
            return True, None
        try:
            return True, reach.ask(what)
        except Full:
            # Then the store has dropped the row in place of putting it, and told so.
            return True, None
        except Away:
            self._parts.counters.add("skipped", "")
            return False, None

    def _finish(self, id: str, answer: str | None, version: str) -> None:
        # As in put.
        self._gone_here(id, answer)
        self._enqueue(coherence_message(id, answer or version))

    # The lane.

    def resend(self) -> bool:
        """Send what the lane did not take; whether nothing is left of it."""
        if self._unsent:
            self._send()
        return not self._unsent

    def _paid(self, id: str, version: str) -> None:
        """The server was told at last, and gave a version: the one that the lane was told may be older than a row."""
        self._unsent.append(coherence_message(id, version))
        HANDS.later(self._send)

    def _enqueue(self, message: bytes) -> None:
        if self._lane is not None:
            self._unsent.append(message)
            self._send()

    def _send(self) -> None:
        assert self._lane is not None
        with self._sending:
            while self._unsent:
                try:
                    self._lane(self._unsent[0])
                except Exception as error:
                    # It is sent with the next one, or when the server is back.
                    self._parts.tell_once("its coherence lane does not take messages: %s", error)
                    return
                self._unsent.popleft()
