"""The bus: publish events, and subscribe to those of any queue."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from echomq_tasks.bus.asubscription import AsyncSubscription
from echomq_tasks.bus.channel import check_pattern
from echomq_tasks.bus.feed import Feed
from echomq_tasks.bus.handlers import Handlers
from echomq_tasks.bus.hub import Hub
from echomq_tasks.bus.log import Log
from echomq_tasks.bus.names import warn_of_odd_events
from echomq_tasks.bus.records import Codec
from echomq_tasks.bus.recovery import Recovery
from echomq_tasks.bus.subscription import Subscription
from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import InvalidArgument, InvalidName
from echomq_tasks.events import EVENTS, Announcing, event_text
from echomq_tasks.forks import after_fork
from echomq_tasks.keyspace import check_queue, queue_key, stream_key
from echomq_tasks.scripts import Scripts
from echomq_tasks.scripts.arguments import shown, whole
from echomq_tasks.scripts.callers import Callers

_EVENT = re.compile(r"[A-Za-z0-9._:-]{1,128}")
#: What the wire puts into an event itself.
_RESERVED = ("event", "id", "queue", "at")


class Bus(Handlers):
    """Live events of any queue of one server. Safe to share between threads and across a fork; making it does no I/O.

    All subscriptions share one thread and one connection (one for each node of a cluster), which stand for as long as
    there are any. What is heard live is heard at most once: an event that is published while the connection is away is
    not sent again, and the readers are told by a :class:`~echomq_tasks.bus.Gap`.

    Parameters:
      connection: the server; :func:`echomq_tasks.connect` without arguments by default, on first use.
    """

    def __init__(self, connection: Connection | None = None) -> None:
        self._connection = connection
        self._own = connection is None
        self._hub: Hub | None = None
        self._callers = Callers()
        self._after_fork()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        # The hub's thread stayed with the parent, which may hold the lock too.
        self._lock = threading.Lock()  # guards the two above
        self._hub = None

    def connect(self) -> Connection:
        """The server's connection, made on first use when the bus was given none.

        Raises:
          ServerError, ConfigError: what :func:`echomq_tasks.connect` raises.
        """
        if self._connection is None:
            with self._lock:
                self._connection = self._connection or connect()
        return self._connection

    def log(self, queue: str, name: str, codec: Codec | None = None) -> Log:
        """A retained log of a queue; see :class:`~echomq_tasks.bus.Log`.

        Parameters:
          queue: the queue's name.
          name: the log's.
          codec: what makes records of values, and values of records.

        Raises:
          InvalidName: when the wire does not allow a name.
        """
        return Log(queue, name, self.connect(), codec)

    def publish(self, queue: str, event: str, /, **fields: str) -> int:
        """Announce an event of the app's own to whoever listens now, and in the log that the queue's workers keep.

        That is the log of their :class:`~echomq_tasks.middleware.Lifecycle`, if it has one: then the event is there for
        those who come later, or catch up.

        Parameters:
          queue: on whose channel.
          event: its name, 1 to 128 letters, digits, dots, underscores, colons or dashes; none of a job's life.
          fields: what it says, flat strings.

        Returns:
          How many connections got it: a bus counts once, whatever listens to it, and once more for each of its patterns
          that matches. A cluster counts those to the queue's node.

        Raises:
          InvalidName, InvalidArgument: when a name or a value is not allowed; nothing was sent.
          ServerUnavailable: when the connection broke twice; it may have been sent.
          ConfigError: when the server's ACL forbids it.
        """
        check_queue(queue)
        if not isinstance(event, str) or not _EVENT.fullmatch(event):
            raise InvalidName(
                f"the event {shown(event)} is not allowed: use 1 to 128 letters, digits, dots, underscores, colons or "
                "dashes"
            )
        if event in EVENTS:
            raise InvalidArgument(
                f"the event {event!r} tells what the wire itself did: choose another name, as 'order.{event}'"
            )
        text = event_text(None, _checked(fields))
        scripts = Scripts.of(self.connect())
        caller = self._callers.take()
        args = (caller.id, caller.nonce(), str.__str__(event), "", text)
        heard = scripts.call("event_send", queue_key(queue), args, Announcing((event,)).arguments(scripts.mint))
        # Given back only now: under the id of a call that was not answered, the next one would be taken for it.
        caller.answered()
        self._callers.give(caller)
        return int(heard)

    def subscribe(
        self,
        *queues: str,
        events: Iterable[str] | None = None,
        patterns: Iterable[str] = (),
        catch_up: str | None = None,
        buffer: int = 10_000,
    ) -> Subscription:
        """Listen to the events of queues: what is published after this returned is heard.

        After a broken connection the bus connects and subscribes again by itself, and the reader gets a
        :class:`~echomq_tasks.bus.Gap` where something may be missing. With ``catch_up`` it gets what was missed
        instead, read from the log that keeps the same events, without doubles: each queue's events in their order.
        What no log can give is still told by a gap: for a queue without that log, or one of which an event was heard
        that no log keeps, or whose log was trimmed or deleted meanwhile.

        Parameters:
          queues: their names.
          events: the names of the events to hear, also of an app's own; None for all. One that is almost an event of
            the library's is logged as a warning.
          patterns: over names of queues, ``*`` for any characters and ``?`` for one, as ``("mail.*",)``. A queue that
            is named too, or matches twice, is heard once. Patterns do not hear what is published sharded
            (``SPUBLISH``), and after a gap ``catch_up`` looks for their logs among all keys of the server. A queue that
            was not heard before, and has no log, is told of only when no queue that matches has one.
          catch_up: the name of that log, as ``"lifecycle"``.
          buffer: how many events are kept for a reader that is slow. Then the oldest are dropped, which a gap tells, or
            ``catch_up`` reads again.

        Returns:
          An open subscription: close it, or use it in a ``with`` statement.

        Raises:
          InvalidName, InvalidArgument: when an argument is not allowed; nothing was sent.
          ServerUnavailable: when the server cannot be reached, or does not confirm in time.
          ConfigError: when the server's ACL forbids it.
          WrongState: when the key of the log to catch up from holds something else.
        """
        feed = self._feed(queues, events, patterns, catch_up, buffer)
        subscription = Subscription(feed)
        try:
            self._join(feed)
            feed.started.result()
            feed.begin()
        except BaseException:
            subscription.close()
            raise
        return subscription

    def asubscribe(
        self,
        *queues: str,
        events: Iterable[str] | None = None,
        patterns: Iterable[str] = (),
        catch_up: str | None = None,
        buffer: int = 10_000,
    ) -> AsyncSubscription:
        """As :meth:`subscribe`, for asyncio: ``async with bus.asubscribe("orders") as events``.

        Arguments are checked at once; ``async with``, or ``await``, subscribes and raises what the server says.
        """
        return AsyncSubscription(self._feed(queues, events, patterns, catch_up, buffer), self._join)

    def close(self) -> None:
        """End every subscription, and close the connection if this bus has made it. A later use opens others."""
        with self._lock:
            hub, self._hub = self._hub, None
            own, self._connection = (self._connection, None) if self._own else (None, self._connection)
        if hub is not None:
            hub.close()
            hub.thread.join()
        if own is not None:
            own.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Bus on {self._connection or 'its own connection'}>"

    def _feed(
        self,
        queues: Iterable[str],
        events: Iterable[str] | None,
        patterns: Iterable[str],
        catch_up: str | None,
        buffer: int,
    ) -> Feed:
        names = list(dict.fromkeys(_queue(queue) for queue in queues))
        if isinstance(patterns, str) or not isinstance(patterns, Iterable):
            raise InvalidArgument(f"patterns is a tuple of them, as ('mail.*',), not {shown(patterns)}")
        globs = list(dict.fromkeys(check_pattern(pattern) for pattern in patterns))
        if not names and not globs:
            raise InvalidArgument("say which queues to listen to: name them, or give patterns=('*',) for all")
        recovery = None
        if catch_up is not None:
            # Its gate, for the queue's name is fine.
            stream_key("any", catch_up)
            recovery = Recovery(catch_up, names, globs, self.connect)
        return Feed(names, globs, _chosen(events), whole(buffer, "buffer", 1), recovery)

    def _join(self, feed: Feed) -> None:
        connection = self.connect()
        with self._lock:
            feed.hub = self._hub
            if feed.hub is None or not feed.hub.join(feed):
                feed.hub = hub = Hub(connection)
                # It has this to do before it starts, and so an end, whatever interrupts us from here on.
                hub.join(feed)
                hub.start()
                self._hub = hub


def _queue(queue: str) -> str:
    if isinstance(queue, str) and ("*" in queue or "?" in queue):
        raise InvalidName(f"{queue!r} is no queue's name: for a pattern, use patterns=({queue!r},)")
    return check_queue(queue)


def _chosen(events: Iterable[str] | None) -> frozenset[str] | None:
    if events is None:
        return None
    if isinstance(events, str) or not isinstance(events, Iterable):
        raise InvalidArgument(f"events is a set of names, as {{'failed'}}, or None for all, not {shown(events)}")
    names = frozenset(events)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise InvalidArgument(f"events is a set of names, as {{'failed'}}, or None for all, not {shown(events)}")
    warn_of_odd_events(names)
    return names


def _checked(fields: dict[str, str]) -> dict[str, str]:
    for name, value in fields.items():
        if name in _RESERVED:
            raise InvalidArgument(f"an event's field {name!r} is the wire's own: use another name")
        if not isinstance(value, str):
            raise InvalidArgument(f"the field {shown(name)} of an event is a str, not {shown(value)}: use str()")
        try:
            (name + value).encode()
        except UnicodeEncodeError:
            raise InvalidArgument(
                f"the field {shown(name)} of an event holds a lone surrogate, which UTF-8 cannot carry"
            ) from None
    return fields
