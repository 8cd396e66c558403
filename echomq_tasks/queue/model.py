"""What goes into the queue's verbs and comes out of them: typed, immutable, no tuples of strings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Literal

from echomq_tasks.errors import EchoMQError
from echomq_tasks.identity import minted_at_ms

#: How many levels a flow may have (wire §7).
MAX_LEVELS = 8


class State(StrEnum):
    """Where a job is."""

    PENDING = "pending"  #: waits, flat or in a lane
    ACTIVE = "active"  #: claimed by a worker
    SCHEDULED = "scheduled"  #: waits for its time
    DEAD = "dead"  #: failed for good; its row and error stay
    AWAITING_CHILDREN = "awaiting_children"  #: a flow parent whose children run
    UNKNOWN = "unknown"  #: has a row that no set holds
    ABSENT = "absent"  #: has no row: completed, removed or never admitted


class Admission(StrEnum):
    """What became of a job offered to a queue."""

    ENQUEUED = "enqueued"
    SCHEDULED = "scheduled"
    DUPLICATE = "duplicate"


class Verdict(StrEnum):
    """What became of a settlement."""

    OK = "ok"
    SCHEDULED = "scheduled"  #: retried: it runs again after its delay
    DEAD = "dead"  #: its retries are used up
    GONE = "gone"  #: the row is gone: it was completed or removed meanwhile
    STALE = "stale"  #: another claim took the job over; this settlement changed nothing
    CANCELLED = "cancelled"  #: it failed after it had been asked to stop: it is gone, and not retried


class Cancellation(StrEnum):
    """What became of a request to cancel a job."""

    REMOVED = "removed"  #: it waited, and is gone
    REQUESTED = "requested"  #: it runs and was asked to stop; it will not run again
    ENDED = "ended"  #: it is dead already
    GONE = "gone"  #: it has no row: it was completed or removed


@dataclass(frozen=True, slots=True)
class Unique:
    """Keeps a second job like this one out while the first one holds the key.

    Attributes:
      key: 1 to 255 of ``A-Z a-z 0-9 . _ -``; one queue's jobs with one key exclude each other.
      until: ``done``: held until the job has completed, died or was removed. ``start``: until a worker claims it, so
        that one may wait while another runs. ``window``: for ``ttl`` seconds from its admission; only its death or its
        removal ends that early.
      ttl: seconds after which the key is free at the latest; what a delayed job waits for its time is not counted.
    """

    key: str
    until: Literal["done", "start", "window"] = "done"
    ttl: float = 86_400.0


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to admit.

    Attributes:
      payload: the job's data; text is sent as UTF-8. The queue never looks inside.
      delay: seconds from now, by the server's clock, before it may run.
      at: when it may run: an aware datetime, or unix seconds. Not together with ``delay``.
      priority: lower runs first; 0 is the rest.
      group: the lane it waits in: a branded id, or any text (see :func:`echomq_tasks.identity.group_id`).
      id: a JOB id of the caller's, which makes the admission safe to repeat; minted by default.
      unique: keeps others like it out: one that comes while the key is held is refused, with its holder's id.
      group_limit: how many jobs of its group may run at once; sets the lane's limit.
    """

    payload: bytes | str
    _: KW_ONLY
    delay: float | None = None
    at: datetime | float | None = None
    priority: int = 0
    group: str | None = None
    id: str | None = None
    unique: Unique | None = None
    group_limit: int | None = None


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The answer to an admission: the job's id, and whether this call admitted it.

    A refused duplicate has the id of the job that is there: its own, or that of the one that holds its unique key.
    """

    id: str
    admission: Admission

    @property
    def duplicate(self) -> bool:
        """True when a job of that id, or one with its unique key, was there already, and stays as it was."""
        return self.admission is Admission.DUPLICATE


@dataclass(frozen=True, slots=True)
class Job:
    """A claimed job.

    Attributes:
      id: its JOB id.
      payload: its data.
      token: the fencing token of this claim; every settlement shows it.
      group: the branded id of its lane, None when flat.
      failures: how often its handler raised.
      stalled: how often a worker died with it.
      is_child: whether a flow parent waits for it, which is told the result that it is completed with.
    """

    id: str
    payload: bytes
    token: int
    group: str | None = None
    failures: int = 0
    stalled: int = 0
    is_child: bool = False


@dataclass(frozen=True, slots=True)
class Claimed:
    """The answer to a claim: iterable over its jobs, false when there are none.

    Attributes:
      jobs: at most as many as asked for.
      look_again: seconds until the earliest scheduled job or repeat is due or a rate window ends; None when there is
        none of them.
      repeats_due: whether :meth:`~echomq_tasks.queue.Queue.fire_repeats` has something to do.
      outbox: whether :meth:`~echomq_tasks.queue.Queue.deliver` has something to do.
    """

    jobs: tuple[Job, ...]
    look_again: float | None = None
    repeats_due: bool = False
    outbox: bool = False

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)


@dataclass(frozen=True, slots=True)
class Complete:
    """Settle a job as done.

    Attributes:
      job: the claimed job.
      result: for a flow parent that waits for it.
      about: what its event tells beside the job; see :class:`echomq_tasks.events.Event`.
    """

    job: Job
    result: bytes | str = b""
    about: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """Settle a job as failed.

    Attributes:
      job: the claimed job.
      error: kept in the row as ``last_error``.
      delay: seconds before it runs again.
      max_retries: how many failures are retried: None without end, 0 sends it to dead now.
      payload: replaces the row's payload when given.
      about: what its event tells beside the job; the error's first line by default.
    """

    job: Job
    error: str = ""
    delay: float = 0.0
    max_retries: int | None = None
    payload: bytes | str | None = None
    about: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """Give a claimed job back that never started; nothing counts as a failure."""

    job: Job


@dataclass(frozen=True, slots=True)
class Discard:
    """End a job that will not be done: it is gone, and a flow parent that waits for it learns that it failed."""

    job: Job
    reason: str = "cancelled"
    about: Mapping[str, str] | None = None


Settlement = Complete | Retry | Release | Discard


@dataclass(frozen=True, slots=True)
class Turn:
    """The answer to one round trip of a worker: a verdict for each settlement, and what was claimed."""

    verdicts: tuple[Verdict, ...]
    claimed: Claimed


@dataclass(frozen=True, slots=True)
class Renewal:
    """The answer to a renewal of leases.

    Attributes:
      lost: jobs that another claim has, or that are gone.
      cancelled: jobs that were asked to stop; their leases are renewed.
      unknown: jobs of queues whose renewal failed.
      error: the first failure, None when there was none.
    """

    lost: tuple[Job, ...]
    unknown: tuple[Job, ...]
    error: EchoMQError | None
    cancelled: tuple[Job, ...] = ()


@dataclass(frozen=True, slots=True)
class Swept:
    """The ids that a sweep of stalled jobs brought back, and those it sent to dead."""

    recovered: tuple[str, ...]
    dead: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Counts:
    """A queue at one instant.

    Attributes:
      pending: waiting, outside lanes.
      in_lanes: waiting in lanes.
      active: claimed.
      scheduled: waiting for their time.
      dead: failed for good.
      completed: completed since the queue exists.
      failed: sent to dead since the queue exists.
      paused: whether the whole queue is paused.
      awaiting: flow parents that wait for their children.
    """

    pending: int
    in_lanes: int
    active: int
    scheduled: int
    dead: int
    completed: int
    failed: int
    paused: bool
    awaiting: int = 0

    @property
    def waiting(self) -> int:
        """Jobs that could be claimed, flat and in lanes."""
        return self.pending + self.in_lanes

    @property
    def unfinished(self) -> int:
        """Jobs that have still to end: waiting, claimed, scheduled, or flow parents that wait for their children."""
        return self.pending + self.in_lanes + self.active + self.scheduled + self.awaiting


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A job's row, and where the job is.

    Attributes:
      id: its JOB id.
      state: the set that holds it.
      payload: its data.
      attempts: how often it was claimed; the newest fencing token.
      failures: how often its handler raised.
      stalled: how often a worker died with it.
      priority: its score; lower runs first.
      group: the branded id of its lane, None when flat.
      last_error: the error of its last failure, None when it has not failed.
      progress: what it noted of its progress, None when nothing.
      due: when it runs (scheduled) or when its lease ends (active), else None.
      died: when it went to dead; None when it is not, or when a runtime buried it that does not note the time.
      cancelled: whether it was asked to stop while it ran.
      fields: the whole row as it is on the wire.
    """

    id: str
    state: State
    payload: bytes
    attempts: int
    failures: int
    stalled: int
    priority: int
    group: str | None
    last_error: str | None
    progress: str | None
    due: datetime | None
    died: datetime | None
    cancelled: bool
    fields: Mapping[str, bytes] = field(repr=False)

    @property
    def minted(self) -> datetime:
        """When its id was minted, by its producer's clock."""
        return datetime.fromtimestamp(minted_at_ms(self.id) / 1000, tz=UTC)
