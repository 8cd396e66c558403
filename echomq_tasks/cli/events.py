"""``echomq events``: follow what happens to jobs, workers and queues."""

from __future__ import annotations

import argparse
import difflib
import heapq
import re
import select
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from echomq_tasks.bus import Bus, Gap, Log, Subscription
from echomq_tasks.bus.channel import check_pattern, matcher
from echomq_tasks.bus.log import LogInfo
from echomq_tasks.bus.names import forget_to_warn, near_event
from echomq_tasks.bus.places import FIRST, Place
from echomq_tasks.cli.arguments import add_command, add_server, duration, gated, job_id, queue_name, text_to_find
from echomq_tasks.cli.eventlines import Lines, json_line, wants_colours
from echomq_tasks.cli.queues import missing
from echomq_tasks.cli.terminal import clean, columns, note
from echomq_tasks.connection import Connection, connect
from echomq_tasks.connection.failures import typed_errors
from echomq_tasks.events import EVENTS, Event
from echomq_tasks.keyspace import stream_key
from echomq_tasks.queue import Queue

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_LIFECYCLE = "lifecycle"
#: Seconds after which it is looked whether the reader of a pipe has left, and whether the server is still there.
_LOOK = 0.5
_LOG_KEY = re.compile(rb"emq:\{([A-Za-z0-9._-]{1,128})\}:stream:([A-Za-z0-9._-]{1,128})")
_EPILOG = """\
What a worker's jobs do is announced by the middleware Lifecycle, which actors of echomq_tasks have by default and a
Dramatiq app adds; without it there is next to nothing to see. Example: `echomq events 'mail.*' --event failed,retried
--since 10m`. Quote a pattern, or the shell takes it for files.
"""


def add(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = add_command(
        commands,
        "events",
        run,
        summary="follow what happens to jobs, workers and queues",
        description="Print events as they happen, until Ctrl-C: time, event, queue, actor, job, how many claims it has "
        "had, how long it took, and what went wrong. Events are live, and sent once: a line `gap` tells where some may "
        "be missing, as after the server was away.",
        epilog=_EPILOG,
    )
    command.add_argument(
        "queues",
        metavar="QUEUE",
        nargs="*",
        type=_queue_or_pattern,
        help="only these queues; * stands for any characters and ? for one (default: all queues)",
    )
    command.add_argument(
        "--event",
        metavar="E,...",
        action="extend",
        type=_names,
        default=[],
        help="only these, as failed,retried",
    )
    command.add_argument(
        "--actor", metavar="A", action="append", type=text_to_find, default=[], help="only jobs of this actor"
    )
    command.add_argument("--job", metavar="JOB", action="append", type=job_id, default=[], help="only this job")
    command.add_argument(
        "--since",
        metavar="AGE",
        type=_since,
        help="first print what the log has since then: an age as 90, 10m, 2h, 3d, or a time that is over, as "
        "2026-01-31T08:00",
    )
    command.add_argument(
        "--log",
        metavar="NAME",
        type=_log_name,
        help=f"the log that keeps the events (default: {_LIFECYCLE}); with it or --since, gaps are filled from it",
    )
    command.add_argument(
        "--no-follow", dest="follow", action="store_false", help="end behind what the log has; goes with --since"
    )
    add_server(command)
    command.add_argument("--json", action="store_true", help="print each as a line of JSON, as it stands on the wire")


def run(options: argparse.Namespace) -> int:
    """Print events; answers the exit code."""
    if not options.follow and options.since is None:
        options.parser.error("--no-follow goes with --since: without it there is nothing to print")
    for name in set(options.event) - EVENTS:
        _note_odd_event(name)
    with connect(options.url) as connection:
        return Watch(options, connection).run()


class Watch:
    """One run of the command."""

    def __init__(self, options: argparse.Namespace, connection: Connection) -> None:
        self._options = options
        self._connection = connection
        self._names = [name for name in options.queues if not _is_pattern(name)]
        self._patterns = [name for name in options.queues if _is_pattern(name)]
        if not options.queues:
            self._patterns = ["*"]
        self._log = options.log or _LIFECYCLE
        self._lines = Lines(coloured=wants_colours())
        # The newest record of each queue's log that was read.
        self._newest: dict[str, Place] = {}
        # The queues that were named and are not there, which was told.
        self._missing: set[str] = set()
        self._connected = True
        self._looked_at = -_LOOK

    def run(self) -> int:
        """Print what is asked for; answers the exit code."""
        options = self._options
        for name in dict.fromkeys(self._names):
            if problem := missing(Queue(name, self._connection)):
                self._missing.add(name)
                note(f"{problem}; listening to it all the same" if options.follow else problem)
        if not options.follow:
            return int(not self._show_past())
        catch_up = self._log if options.log or options.since is not None else None
        with (
            Bus(self._connection) as bus,
            bus.subscribe(
                *self._names, patterns=self._patterns, events=set(options.event) or None, catch_up=catch_up
            ) as live,
        ):
            if sys.stderr.isatty():
                self._say_what()
            # Only now: what happens while the log is read is in the subscription already.
            if options.since is not None:
                self._show_past()
                for queue, place in self._newest.items():
                    live.has_read(queue, str(place))
            elif catch_up is not None:
                self._logs()
            self._follow(live)
        return 0

    def _say_what(self) -> None:
        events = ", ".join(map(clean, dict.fromkeys(self._options.event))) or "all events"
        queues = "all queues" if not self._options.queues else ", ".join(dict.fromkeys(self._options.queues))
        note(f"listening to {events} of {queues} on {self._connection.config.address}")

    def _follow(self, live: Subscription) -> None:
        poll = None
        if hasattr(select, "poll") and not sys.stdout.isatty():
            poll = _hang_up()
        while True:
            item = live.get(timeout=_LOOK)
            self._look_at(live, isinstance(item, Gap))
            if item is not None:
                self._show(item)
                sys.stdout.flush()
            elif poll is not None and poll.poll(0):
                raise BrokenPipeError

    def _look_at(self, live: Subscription, at_once: bool) -> None:
        """Say that the server is away, and that it is back."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK and not at_once:
            return
        self._looked_at = now
        connected = live.connected
        if connected != self._connected:
            self._connected = connected
            address = self._connection.config.address
            note(f"{address} is back" if connected else f"the connection to {address} is lost: waiting for it")

    def _show(self, item: Event | Gap) -> None:
        if isinstance(item, Event) and not self._is_wanted(item):
            return
        if self._options.json:
            print(json_line(item))
        else:
            for line in self._lines.lines(item, columns()):
                print(line)

    def _is_wanted(self, event: Event) -> bool:
        options = self._options
        return (
            (not options.event or event.event in options.event)
            and (not options.actor or event.actor in options.actor)
            and (not options.job or event.job in options.job)
        )

    # What the log has.

    def _show_past(self) -> bool:
        """Print what the logs have since then; False, and says so, when there is no such log."""
        since = self._options.since
        if isinstance(since, timedelta):
            # By the server's clock, by which most of what is in the log was announced.
            since = (Queue("any", self._connection).now() - since).timestamp()
        start = max(0.0, since)
        logs = self._logs()
        sources: list[Iterator[tuple[Place, str, Event]]] = []
        for queue, info in logs.items():
            oldest = Place.of_entry(info.first or info.top)
            if (info.appended is None or info.appended > info.length) and oldest.ms > start * 1000:
                self._show(Gap("trimmed", start, (queue,)))
            sources.append(self._past(Log(queue, self._log, self._connection), start))
        for _, _, event in heapq.merge(*sources, key=lambda found: found[:2]):
            self._show(event)
        sys.stdout.flush()
        return bool(logs)

    def _logs(self) -> dict[str, LogInfo]:
        """The logs there are; says which of the queues that were named have none, or that there are none at all."""
        infos = {queue: Log(queue, self._log, self._connection).info() for queue in self._queues_with_logs()}
        found = {queue: info for queue, info in infos.items() if Place.of_entry(info.top) != FIRST}
        keep = f'workers keep one with the middleware Lifecycle(log="{self._log}")'
        if not found:
            whose = "no queue" if not self._options.queues else "none of these queues"
            note(f"{whose} has a log {self._log!r}: {self._other_log() or keep}")
            return found
        for queue in dict.fromkeys(self._names):
            if queue not in found and queue not in self._missing:
                note(f"the queue {queue!r} has no log {self._log!r}, so nothing of it can be read back: {keep}")
        return found

    def _other_log(self) -> str:
        """A hint at a log that may have been meant."""
        near = difflib.get_close_matches(self._log, _logs_of_all(self._connection), n=1)
        return f"did you mean {near[0]!r}?" if near else ""

    def _past(self, log: Log, start: float) -> Iterator[tuple[Place, str, Event]]:
        for record in log.read(start=start):
            place = Place.of_entry(record.stream_id)
            self._newest[log.queue] = place
            # A stranger's record may name no event.
            if record.fields.get("event"):
                mine = {} if record.id is None else {"id": record.id}
                yield place, log.queue, Event.of({**record.fields, **mine}, log.queue)

    def _queues_with_logs(self) -> Iterable[str]:
        names = dict.fromkeys(self._names)
        if self._patterns:
            shapes = [matcher(pattern) for pattern in self._patterns]
            names |= dict.fromkeys(
                queue
                for queue in _with_log(self._connection, self._log)
                if any(shape.fullmatch(queue) for shape in shapes)
            )
        return names


def _with_log(connection: Connection, log: str) -> list[str]:
    """The queues that have this log, found by a scan of all keys."""
    return sorted(queue for queue, name in _find_logs(connection, log) if name == log)


def _logs_of_all(connection: Connection) -> list[str]:
    """The names of the logs of all queues."""
    return sorted({name for _, name in _find_logs(connection, "*")})


def _find_logs(connection: Connection, pattern: str) -> set[tuple[str, str]]:
    with typed_errors(connection.config):
        keys = connection.client.scan_iter(match="emq:{*}:stream:" + pattern, count=1000, _type="stream")
        return {(found[1].decode(), found[2].decode()) for key in keys if (found := _LOG_KEY.fullmatch(key))}


def _hang_up() -> select.poll | None:
    """Tells, when polled, that the reader of standard output has left, which else only the next event would."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return None
    poll = select.poll()
    # An error is reported without being asked for. Nothing else is: that it can be written is no news.
    poll.register(descriptor, 0)
    return poll


def _note_odd_event(name: str) -> None:
    near = near_event(name, 0.6)
    hint = f"did you mean {near!r}?" if near is not None else f"it has {', '.join(sorted(EVENTS))}"
    forget_to_warn(name)
    note(f"the library has no event {name!r} ({hint}): listening for it as an app's own")


def _is_pattern(name: str) -> bool:
    return "*" in name or "?" in name


def _queue_or_pattern(text: str) -> str:
    return gated(lambda: check_pattern(text)) if _is_pattern(text) else queue_name(text)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"takes names with commas between them, as failed,retried, not {text!r}")
    return names


def _log_name(text: str) -> str:
    gated(lambda: stream_key("any", text).decode())
    return text


def _since(text: str) -> timedelta | float:
    """A time ago, or unix seconds."""
    try:
        return timedelta(seconds=duration(text))
    except (argparse.ArgumentTypeError, OverflowError):
        pass
    try:
        # Without a time zone it is this machine's.
        moment = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"is an age as 90 (seconds), 10m, 2h or 3d, or a time as 2026-01-31 or 2026-01-31T08:00, not {text!r}"
        ) from None
    if moment > time.time():
        raise argparse.ArgumentTypeError(f"is a time that is over, and {text!r} is still to come")
    return moment
