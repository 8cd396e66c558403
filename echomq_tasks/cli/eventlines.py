"""Events as lines: aligned while they come, cut to the terminal, coloured by what they say, or as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import date, datetime

from echomq_tasks.bus import Gap
from echomq_tasks.bus.places import place_of
from echomq_tasks.cli.showing import first_line
from echomq_tasks.cli.terminal import clean, for_how_long, shorten, width
from echomq_tasks.events import QUEUE_EVENTS, WORKER_EVENTS, Event

_RED, _GREEN, _YELLOW, _CYAN, _DIM = "31", "32", "33", "36", "2"
_COLOURS = {
    "failed": _RED,
    "retried": _YELLOW,
    "stalled": _YELLOW,
    "lease_lost": _YELLOW,
    "completed": _GREEN,
    "enqueued": _DIM,
    "scheduled": _DIM,
    "progress": _DIM,
    **dict.fromkeys((*WORKER_EVENTS, *QUEUE_EVENTS), _CYAN),
}
_GAP = "1;33"
#: From so many columns on there is room for milliseconds and for air.
_ROOMY = 100
#: The least and the most that names make their column wide, and how wide those columns are whose texts are known.
_LEAST, _MOST = 4, 32
_EVENT, _JOB, _ATTEMPT = 10, 14, 2
#: What is longer is nothing that a line can hold: an app's event, a foreign job's id.
_LONGEST = 40
#: A part of the terminal that is kept for how long it took and what went wrong.
_REST = 0.3


class Lines:
    """Makes lines of events; the columns grow with what has been seen.

    Parameters:
      coloured: whether to colour them.
    """

    def __init__(self, *, coloured: bool) -> None:
        self._coloured = coloured
        self._queue = self._actor = _LEAST
        self._day = _today()

    def lines(self, item: Event | Gap, most: int | None) -> Iterator[str]:
        """The line of an event or a gap; on a terminal, another one ahead of it when the day is another one.

        Parameters:
          item: what came.
          most: how many columns the terminal has; None when there is none, and nothing is cut.
        """
        at = moment(item)
        when = _local(at)
        if most is not None and when is not None and when.date() != self._day:
            self._day = when.date()
            yield self._painted(shorten(f"--- {self._day} ---", most), 0, most, _DIM)
        yield self._gap(item, when, most) if isinstance(item, Gap) else self._event(item, when, most)

    def _event(self, event: Event, when: datetime | None, most: int | None) -> str:
        name = shorten(clean(event.event), _LONGEST)
        queue, actor = event.queue, "-" if event.actor is None else clean(event.actor)
        job = "-" if event.job is None else shorten(clean(event.job), _LONGEST)
        attempt = "-" if event.attempt is None else f"#{event.attempt}"
        self._queue = min(max(self._queue, width(queue)), _MOST)
        self._actor = min(max(self._actor, width(actor)), _MOST)
        space = 1 if most is not None and most < _ROOMY else 2
        clock = _clock(when, most)
        queue_space, actor_space = self._queue, self._actor
        if most is not None:
            fixed = width(clock) + _EVENT + _JOB + _ATTEMPT + 6 * space
            queue_space, actor_space = _shared(queue_space, actor_space, most - fixed - int(most * _REST))
            queue, actor = shorten(queue, queue_space), shorten(actor, actor_space)
        cells = (
            (clock, width(clock)),
            (name, _EVENT),
            (queue, queue_space),
            (actor, actor_space),
            (job, _JOB),
            (attempt, _ATTEMPT),
        )
        line = _aligned(cells, space) + _rest(event)
        start = width(clock) + space
        return self._painted(_fitted(line, most), start, start + len(name), _COLOURS.get(event.event))

    def _gap(self, gap: Gap, when: datetime | None, most: int | None) -> str:
        space = 1 if most is not None and most < _ROOMY else 2
        clock = _clock(when, most)
        line = _aligned(((clock, width(clock)), ("gap", _EVENT)), space) + _told(gap)
        start = width(clock) + space
        return self._painted(_fitted(line, most), start, start + len("gap"), _GAP)

    def _painted(self, line: str, start: int, end: int, colour: str | None) -> str:
        if colour is None or not self._coloured:
            return line
        return f"{line[:start]}\x1b[{colour}m{line[start:end]}\x1b[0m{line[end:]}"


def wants_colours() -> bool:
    """Whether standard output shows colours, and nobody has asked for none."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def json_line(item: Event | Gap) -> str:
    """An event as it stands on the wire, or a gap in the same form."""
    if isinstance(item, Event):
        return json.dumps(item.fields())
    fields = {"event": "gap", "at": f"{time.time() * 1000:.0f}", "reason": item.reason}
    if item.since is not None:
        fields["since"] = f"{item.since * 1000:.0f}"
    for name, several in (("queues", item.queues), ("patterns", item.patterns)):
        if several:
            fields[name] = ",".join(several)
    if item.lost is not None:
        fields["lost"] = str(item.lost)
    return json.dumps(fields)


def moment(item: Event | Gap) -> float:
    """Unix seconds at which it happened, as far as it says; now when it does not."""
    if isinstance(item, Event):
        if item.at is not None:
            return item.at
        if (place := place_of(item.id)) is not None:
            return place.ms / 1000
    return time.time()


def _shared(queue: int, actor: int, room: int) -> tuple[int, int]:
    """How wide the columns of these two are, which would like to be so wide and have this room together."""
    room = max(room, 2 * _LEAST)
    actor = min(actor, max(room - queue, room * 3 // 5))
    return min(queue, room - actor), actor


def _aligned(cells: tuple[tuple[str, int], ...], space: int) -> str:
    """Texts at the beginnings of their columns; behind one that is too long, as soon as there is room again."""
    line, stop = "", 0
    for text, column in cells:
        line += text
        stop += column + space
        line += " " * max(space, stop - width(line))
    return line


def _fitted(line: str, most: int | None) -> str:
    return (line if most is None else shorten(line, most)).rstrip()


def _rest(event: Event) -> str:
    """What is said of some events only."""
    parts = []
    if event.duration is not None:
        parts.append(_took(event.duration))
    if event.delay is not None:
        parts.append(f"in {for_how_long(event.delay)}")
    if event.progress is not None:
        parts.append(clean(event.progress))
    parts += [f"{clean(name)}={clean(value)}" for name, value in event.more.items()]
    if error := ": ".join(first_line(text) for text in (event.error, event.message) if text):
        parts.append(error)
    return " ".join(parts)


def _took(seconds: float) -> str:
    return f"{seconds:.1f}s" if 1 <= seconds < 10 else for_how_long(seconds)


def _told(gap: Gap) -> str:
    since = None if gap.since is None else _local(gap.since)
    day = "" if since is None or since.date() == _today() else f"{since:%Y-%m-%d} "
    ages = "" if since is None else f" since {day}{since:%H:%M:%S}"
    of = "all queues" if "*" in gap.patterns else ", ".join((*gap.queues, *gap.patterns))
    what = f"{gap.lost:,} event{'' if gap.lost == 1 else 's'} dropped" if gap.lost else f"events{ages} may be missing"
    return f"{gap.reason}: {what}" + (f" of {clean(of)}" if of else "")


def _clock(when: datetime | None, most: int | None) -> str:
    if when is None:
        return "-" * (23 if most is None else 8 if most < _ROOMY else 12)
    if most is None:
        return f"{when:%Y-%m-%d %H:%M:%S}.{when.microsecond // 1000:03}"
    return f"{when:%H:%M:%S}" + (f".{when.microsecond // 1000:03}" if most >= _ROOMY else "")


def _today() -> date:
    return datetime.now().astimezone().date()


def _local(seconds: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds).astimezone()
    except (ValueError, OverflowError, OSError):
        # A foreign runtime wrote what is no time that has a name.
        return None
