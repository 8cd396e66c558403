"""Handlers: functions that are registered with a bus, and run by a worker, by ``echomq listen`` or by a Runner."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakKeyDictionary, WeakMethod

from echomq_tasks.bus.channel import check_pattern
from echomq_tasks.bus.consumer import Consumer
from echomq_tasks.bus.delivery import Delivery
from echomq_tasks.bus.groups import GroupInfo, dead_log, delete_group, read_groups
from echomq_tasks.bus.hands import is_async
from echomq_tasks.bus.log import Log
from echomq_tasks.bus.names import warn_of_odd_events
from echomq_tasks.bus.records import Codec
from echomq_tasks.bus.replay import replay_dead
from echomq_tasks.bus.settings import Settings, Start, check_function, check_handler
from echomq_tasks.errors import InvalidArgument
from echomq_tasks.keyspace import check_queue, stream_key
from echomq_tasks.scripts.arguments import shown, whole

if TYPE_CHECKING:
    from echomq_tasks.bus.bus import Bus
    from echomq_tasks.connection import Connection

#: A live handler is given an event, and, when it asks for them, gaps.
LiveFunction = TypeVar("LiveFunction", bound=Callable[[Any], Any])
GroupFunction = TypeVar("GroupFunction", bound=Callable[[Delivery], Any] | Callable[[Delivery], Awaitable[None]])


@dataclass(frozen=True, slots=True)
class LiveHandler:
    """A function that is called with live events; see :meth:`Handlers.on`."""

    function: Callable[[Any], Any]
    events: frozenset[str] | None
    queues: tuple[str, ...]
    patterns: tuple[str, ...]
    gaps: bool
    catch_up: str | None


@dataclass(frozen=True, slots=True)
class GroupHandler:
    """A function that is called with a group's deliveries; see :meth:`Handlers.consumer`."""

    function: Callable[[Delivery], Any]
    queue: str
    log: str
    codec: Codec | None
    threads: int
    settings: Settings

    @property
    def group(self) -> str:
        """The group's name."""
        return self.settings.group

    def consumer(self, connection: Connection, place: int = 0) -> Consumer:
        """A consumer that runs the function, for one of its threads."""
        settings = self.settings
        if settings.name is not None and self.threads > 1:
            settings = replace(settings, name=f"{settings.name}-{place + 1}")
        return Consumer(Log(self.queue, self.log, connection, self.codec), handler=self.function, **settings.options())


@dataclass(slots=True)
class Registered:
    """What is registered with one bus, in the order of registration."""

    live: list[LiveHandler] = field(default_factory=list)
    groups: list[GroupHandler] = field(default_factory=list)


# Weakly: registering does not keep a bus alive. In the order of the first registration.
_registered: WeakKeyDictionary[Handlers, Registered] = WeakKeyDictionary()
# Weakly too: who watches is not kept alive by it.
_watchers: list[WeakMethod[Callable[[Bus, LiveHandler | GroupHandler], None]]] = []


class Handlers:
    """The part of a bus that registers functions; no decorator does any I/O."""

    if TYPE_CHECKING:

        def connect(self) -> Connection:
            """The bus's connection."""

    def on(
        self,
        *events: str,
        queues: Iterable[str] = (),
        patterns: Iterable[str] = (),
        gaps: bool = False,
        catch_up: str | None = None,
    ) -> Callable[[LiveFunction], LiveFunction]:
        """Have a function called with live events, as ``@bus.on("failed", queues=["orders"])``.

        Each process that runs the bus calls it with every event, one after the other; it may be async. An exception is
        logged, and the next event follows. What happens while no process listens is not seen: for that, use a log and
        :meth:`consumer`.

        Parameters:
          events: the names of the events; none means any. One that is almost an event of the library's is logged as a
            warning.
          queues: the queues to hear; with ``patterns`` left out too, all queues are heard.
          patterns: patterns over the names of queues, as ``"mail.*"``.
          gaps: call it with each :class:`~echomq_tasks.bus.Gap` too, which tells where events may be missing.
          catch_up: the log that gaps are filled from, as :meth:`echomq_tasks.bus.Bus.subscribe` does, as
            ``"lifecycle"``.

        Raises:
          InvalidName: when a queue or a pattern is not allowed.
          InvalidArgument: when another argument is wrong, or the function cannot be called with one event.
        """
        for event in events:
            if not isinstance(event, str) or not event:
                raise InvalidArgument(f'@bus.on takes the names of events, as @bus.on("failed"), not {shown(event)}')
        warn_of_odd_events(events)
        names = tuple(check_queue(queue) for queue in _several(queues, "queues"))
        globs = tuple(check_pattern(pattern) for pattern in _several(patterns, "patterns"))
        if catch_up is not None:
            # Its gate; the queue's name is fine.
            stream_key("any", catch_up)
        if not names and not globs:
            globs = ("*",)

        def register(function: LiveFunction) -> LiveFunction:
            check_function(function, "@bus.on decorates a function", "event")
            handler = LiveHandler(function, frozenset(events) or None, names, globs, gaps, catch_up)
            registered(self).live.append(handler)
            _tell(self, handler)
            return function

        return register

    def consumer(
        self,
        queue: str,
        log: str,
        *,
        group: str,
        start: Start,
        codec: Codec | None = None,
        name: str | None = None,
        threads: int = 1,
        batch: int = 100,
        concurrency: int = 1,
        min_idle: float = 30.0,
        max_deliveries: int = 5,
        beat: float = 5.0,
        forget: float = 600.0,
        on_behind: Callable[[int], Any] | None = None,
    ) -> Callable[[GroupFunction], GroupFunction]:
        """Have a function called with the records of a log, each finished by one of the group's members at least once.

        Parameters:
          queue: the queue whose log it is.
          log: the log's name.
          group: the group that shares the work.
          start: where the group begins when it is made: ``"head"`` or ``"new"``.
          codec: what makes values of records.
          name: the name of this process's consumer, when it is to be the same after a restart; with several ``threads``
            a number is added.
          threads: how many consumers of this process call a function that is not async at once.
          batch, concurrency, min_idle, max_deliveries, beat, forget, on_behind: as
            :class:`~echomq_tasks.bus.Consumer` has them.

        Raises:
          InvalidName: when a name is not allowed.
          InvalidArgument: when another argument is wrong, or this bus has a handler for this group already.
        """
        stream_key(queue, log)
        dead_log(log)
        whole(threads, "threads", 1, 256)
        settings = Settings(group, start, name, batch, concurrency, min_idle, max_deliveries, beat, forget, on_behind)

        def register(function: GroupFunction) -> GroupFunction:
            check_handler(function, concurrency)
            if threads > 1 and is_async(function):
                raise InvalidArgument(f"threads={threads} is for functions that are not async: use concurrency")
            found = registered(self)
            if any((each.queue, each.log, each.settings.group) == (queue, log, group) for each in found.groups):
                raise InvalidArgument(
                    f"the group {group} of {queue}/{log} has a handler: two would share its records between them; give "
                    "the second one a group of its own, or call both from one function"
                )
            handler = GroupHandler(function, queue, log, codec, threads, settings)
            found.groups.append(handler)
            _tell(self, handler)
            return function

        return register

    def groups(self, queue: str, log: str) -> list[GroupInfo]:
        """The consumer groups of a log by name; none when there is no such log.

        Raises:
          InvalidName: when a name is not allowed.
          ServerError: when the server cannot be asked.
        """
        stream_key(queue, log)
        return read_groups(Log(queue, log, self.connect()))

    def delete_group(self, queue: str, log: str, group: str) -> bool:
        """Delete a consumer group with all that it holds pending; the log stays. False when there is none.

        A consumer that is at work makes its group again, from its declared start: stop the consumers first.

        Raises:
          InvalidName: when a name is not allowed.
          ServerError: when the server cannot be asked.
        """
        stream_key(queue, log)
        return delete_group(Log(queue, log, self.connect()), group)

    def replay_dead(self, queue: str, log: str, group: str | None = None, limit: int | None = None) -> int:
        """Give the entries in the dead log ``<log>.dead`` back to the groups that gave them up, and to no others.

        An entry that went back is no more in the dead log: it is pending in its group, as never delivered, and the
        group's members take it over at their next beat, with ``max_deliveries`` before them again. What the log itself
        has trimmed meanwhile cannot go back: it stays in the dead log, and a warning tells how many there are.

        Parameters:
          queue: the queue whose log it is.
          log: the log's name, not that of its dead log.
          group: only what this group gave up; None for all groups.
          limit: at most so many, the oldest first; None for all.

        Returns:
          How many went back.

        Raises:
          InvalidName: when a name is not allowed.
          InvalidArgument: when the limit is no whole number from 0 up.
          WrongState: when the key of the dead log holds something else.
          ServerError: when the server cannot be asked; what went back is back.
        """
        stream_key(queue, log)
        return replay_dead(Log(queue, log, self.connect()), group, limit)


def registered(bus: Handlers) -> Registered:
    """What is registered with a bus."""
    found = _registered.get(bus)
    # Two threads may both make one; setdefault lets one of them win.
    return _registered.setdefault(bus, Registered()) if found is None else found


def buses_with_handlers() -> list[Bus]:
    """Every bus of this process with which something is registered, in the order of their first registrations."""
    return [cast("Bus", bus) for bus, found in list(_registered.items()) if found.live or found.groups]


def watch(watcher: Callable[[Bus, LiveHandler | GroupHandler], None]) -> None:
    """Call a bound method with each registration from now on, for as long as its object lives."""
    _watchers[:] = [each for each in _watchers if each() is not None]
    _watchers.append(WeakMethod(watcher))


def _tell(bus: Handlers, handler: LiveHandler | GroupHandler) -> None:
    for each in list(_watchers):
        if (watcher := each()) is not None:
            watcher(cast("Bus", bus), handler)


def _several(names: Iterable[str], what: str) -> Iterable[str]:
    if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
        raise InvalidArgument(f'{what} takes several names, as ["orders"], not {shown(names)}')
    return names
