"""Lifecycle events: their names, one event as Python sees it, and what a queue's transitions announce."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from functools import lru_cache
from typing import Any, Final

from echomq_tasks.errors import InvalidArgument
from echomq_tasks.identity import EPOCH_MS, Mint

__all__ = [
    "CACHE_EVENTS",
    "CONTROL_EVENTS",
    "EVENTS",
    "JOB_EVENTS",
    "QUEUE_EVENTS",
    "WORKER_EVENTS",
    "Announcing",
    "CacheEvent",
    "Event",
    "chosen_events",
    "event_text",
]

#: What happens to a job.
JOB_EVENTS: Final = (
    "enqueued", "scheduled", "started", "progress", "completed", "retried", "failed", "stalled", "cancelled", "removed",
    "lease_lost",
)  # fmt: skip
#: What happens to a worker, told on the channel of each queue that it serves.
WORKER_EVENTS: Final = ("worker_started", "worker_stopping", "worker_stopped")
#: What an operator does to a queue.
QUEUE_EVENTS: Final = ("paused", "resumed", "drained")
#: What is rare, and done by a hand: announced also where nobody has chosen.
CONTROL_EVENTS: Final = frozenset({*QUEUE_EVENTS, "cancelled", "removed"})
#: How a job gets in.
_ADMISSIONS = frozenset({"enqueued", "scheduled"})
#: How a run ends.
_ENDS = frozenset({"completed", "retried", "failed"})
#: What happens to cached functions: told to receivers in their process alone, as a :class:`CacheEvent`.
CACHE_EVENTS: Final = ("cache_hit", "cache_miss", "cache_load")
#: All of those on the Bus.
EVENTS: Final = frozenset((*JOB_EVENTS, *WORKER_EVENTS, *QUEUE_EVENTS))

#: The fields that have an attribute of their own.
_KNOWN = frozenset(
    {"event", "id", "at", "job", "queue", "actor", "attempt", "duration_ms", "delay_ms", "error", "message", "progress"}
)
_json = json.JSONEncoder(separators=(",", ":")).encode
#: A text as JSON has it; the same of what is said of every job.
_quoted = json.encoder.encode_basestring_ascii
_quoted_again = lru_cache(1024)(_quoted)


@dataclass(frozen=True, slots=True, repr=False)
class Event:
    """One fact that was announced: on the wire a JSON object of flat strings.

    Attributes:
      event: its name, one of :data:`EVENTS`, or any other that an app publishes.
      queue: the queue.
      job: the JOB id; None when it is not about one job.
      actor: the actor's name, when the payload names one.
      attempt: the job's fencing token, which counts its claims: 0 before the first one.
      at: unix seconds at which it happened, by the server's clock.
      duration: seconds from the start of the function to its end.
      delay: seconds until a job that was scheduled or retried may run.
      error: the class of the exception.
      message: the exception's text, or the reason.
      progress: what the job noted.
      id: the EVT id of its record, when a log keeps it too.
      more: every other field.
    """

    event: str
    queue: str
    job: str | None = None
    actor: str | None = None
    attempt: int | None = None
    at: float | None = None
    duration: float | None = None
    delay: float | None = None
    error: str | None = None
    message: str | None = None
    progress: str | None = None
    id: str | None = None
    more: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __repr__(self) -> str:
        said = [f"{field.name}={getattr(self, field.name)!r}" for field in dataclass_fields(self)]
        return f"Event({', '.join(each for each in said if not each.endswith(('=None', '={}')))})"

    @classmethod
    def of(cls, fields: Mapping[str, str], queue: str) -> Event:
        """The event in ``fields``, which any runtime may have written: a field that is no number where one is due is
        None.

        Parameters:
          fields: as they stand on the wire.
          queue: the queue whose channel or log they came from.
        """
        attempt = _number(fields.get("attempt"))
        return cls(
            event=fields.get("event", ""),
            queue=queue,
            job=fields.get("job"),
            actor=fields.get("actor"),
            attempt=None if attempt is None else int(attempt),
            at=_seconds(fields.get("at")),
            duration=_seconds(fields.get("duration_ms")),
            delay=_seconds(fields.get("delay_ms")),
            error=fields.get("error"),
            message=fields.get("message"),
            progress=fields.get("progress"),
            id=fields.get("id"),
            more={name: value for name, value in fields.items() if name not in _KNOWN},
        )

    @classmethod
    def read(cls, data: bytes, queue: str) -> Event | None:
        """The event in a message of a queue's channel; None when it is not a JSON object that names an event."""
        try:
            fields = json.loads(data)
            if not isinstance(fields, dict) or not isinstance(fields.get("event"), str):
                return None
            # Another runtime may write null for what it leaves out.
            flat = {_clean(name): _flat(value) for name, value in fields.items() if value is not None}
        except (ValueError, RecursionError):
            return None
        return cls.of(flat, queue)

    def fields(self) -> dict[str, str]:
        """The event as it stands on the wire: flat strings, without what is None."""
        known = {
            "event": self.event,
            "id": self.id,
            "at": _milliseconds(self.at),
            "job": self.job,
            "queue": self.queue,
            "actor": self.actor,
            "attempt": None if self.attempt is None else str(self.attempt),
            "duration_ms": _milliseconds(self.duration),
            "delay_ms": _milliseconds(self.delay),
            "error": self.error,
            "message": self.message,
            "progress": self.progress,
        }
        return {name: value for name, value in known.items() if value is not None} | dict(self.more)


def _flat(value: Any) -> str:
    # Another runtime may write a number or a nested value.
    return _clean(value) if isinstance(value, str) else json.dumps(value)


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text is not None else None
    except ValueError:
        return None
    return number if number is not None and abs(number) < 1e18 else None


def _seconds(text: str | None) -> float | None:
    milliseconds = _number(text)
    # To the nanosecond: 0.692 / 1000 is 0.0006919999999999999.
    return None if milliseconds is None else round(milliseconds / 1000, 9)


def _milliseconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds * 1000:.15g}"


def chosen_events(events: Collection[str] | str | bool | None) -> frozenset[str]:
    """The names that a setting means: ``"all"`` or True, None or False for none, or the names themselves.

    Raises:
      InvalidArgument: when it is something else, or a name is not one of :data:`EVENTS`.
    """
    if events is True or events == "all":
        return EVENTS
    if events is None or events is False:
        return frozenset()
    # A generator would be used up by the first who looks.
    if isinstance(events, (str, bytes)) or not isinstance(events, Collection):
        raise InvalidArgument(f'events is "all", a set of names as {{"failed"}}, or None, not {events!r}')
    for name in events:
        if not isinstance(name, str) or name not in EVENTS:
            raise InvalidArgument(f"there is no event {name!r}: choose from {', '.join(sorted(EVENTS))}")
    return frozenset(events)


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """What a cached function did.

    Attributes:
      event: ``cache_hit``: a call was answered from a layer; ``cache_miss``: it was not, and loads, or waits for
        another one's load; ``cache_load``: the function was called, for whatever reason, and has returned or raised.
      table: the cache table.
      id: the row.
      at: unix seconds.
      layer: of a hit, ``"l1"`` for the process, ``"l2"`` for the server, ``"stale"`` for an old value of either.
      duration: of a load, seconds from the start of the function to its end.
      error: of a load, the exception that it raised.
    """

    event: str
    table: str
    id: str
    at: float
    layer: str | None = None
    duration: float | None = None
    error: BaseException | None = None


class Announcing:
    """What the transitions of a process announce; one object is shared by all who are to follow a change.

    A plain :class:`~echomq_tasks.queue.Queue` announces :data:`CONTROL_EVENTS`. Progress is always announced live: the
    wire has it so.

    Parameters:
      events: the names.
    """

    def __init__(self, events: Iterable[str] = CONTROL_EVENTS) -> None:
        self._actors: dict[str, str] = {}
        self.choose(events)

    def choose(self, events: Iterable[str], *, log: str | None = None, sharded: bool = False) -> None:
        """Announce these events from now on.

        Parameters:
          events: the names.
          log: the log of each queue that keeps them too.
          sharded: live by ``SPUBLISH``, which other runtimes do not hear.
        """
        self.events = frozenset(events)
        self.log = log
        self.sharded = sharded
        self._prepare()

    def choose_for(self, actor: str, events: Iterable[str] | None) -> None:
        """Announce these events of one actor's jobs, in place of :attr:`events`; None is as all the others."""
        if events is None:
            self._actors.pop(actor, None)
        else:
            self._actors[_clean(actor)] = _spaced(events)
        self._prepare()

    def _prepare(self) -> None:
        more: dict[str, Any] = {}
        if self._actors:
            more["actors"] = dict(self._actors)
        if self.sharded:
            more["sharded"] = True
        if self.log is not None:
            more["log"] = self.log
        # What a hand does includes giving a dead job another life, which is an event like an admission's.
        self._names = _spaced(self.events | {"hand"} if self.events == CONTROL_EVENTS else self.events)
        self._more = more
        #: Whether anything is announced.
        self.announces = bool(self.events or self._actors)
        #: Whether admissions are announced.
        self.tells_admissions = bool(self.events & _ADMISSIONS or self._actors)
        #: Whether an event may tell more of a run's end than its row says; what is told then is made beforehand.
        self.tells_ends = bool(self.events & _ENDS or self._actors)

    def arguments(self, mint: Mint, texts: Sequence[str] = ()) -> tuple[bytes | str | int, ...]:
        """The last arguments of a script that announces (``lua/_event.lua``).

        Parameters:
          mint: mints for the records of a log.
          texts: what :func:`event_text` made for each entry of the call.
        """
        if not self.announces:
            return ()
        number = mint.snowflake()
        ms, low = (number >> 22) + EPOCH_MS, number & 0x3FFFFF
        if not self._more:
            return (self._names, f"{ms}-{low}", *texts)
        return (self._names, _json(self._more | {"ms": ms, "low": low}), *texts)


def event_text(actor: str | None, about: Mapping[str, str]) -> str:
    """Fields of an event as a script takes them: the inside of a JSON object, the actor first.

    Any text will do: what UTF-8 cannot carry becomes a question mark.
    """
    told = "" if actor is None else f',"actor":{_quoted_again(_clean(actor))}'
    for name, value in about.items():
        told += f",{_quoted_again(_clean(name))}:{_quoted(_clean(value))}"
    return told


def _clean(text: str) -> str:
    # A lone surrogate, as file names bring them, would be valid for Python and for nobody else.
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _spaced(names: Iterable[str]) -> str:
    joined = " ".join(sorted(names))
    return f" {joined} " if joined else ""
