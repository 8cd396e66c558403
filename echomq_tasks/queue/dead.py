"""Dead jobs: list, look, give another life to one or many, drop, and keep their number within bounds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from echomq_tasks.errors import EchoMQError, Held, InvalidArgument, WrongState
from echomq_tasks.identity import check_id, is_branded
from echomq_tasks.queue.arguments import payload_bytes, seconds_to_ms, whole
from echomq_tasks.queue.handle import Handle
from echomq_tasks.queue.looking import Looking
from echomq_tasks.queue.model import JobInfo, State
from echomq_tasks.queue.replies import text
from echomq_tasks.scripts import Call

#: Ids looked at in one round trip.
_PAGE = 200


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """Which dead jobs are meant; all of what is given must hold.

    Attributes:
      older_than: dead for more than so many seconds. A job whose time of death is unknown counts from its id's mint.
      actor: the ``actor_name`` of its message (wire §10).
      error: a text that its ``last_error`` contains.
    """

    older_than: float | None = None
    actor: str | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        if self.older_than is not None:
            seconds_to_ms(self.older_than, "older_than")
        for name in ("actor", "error"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise InvalidArgument(f"{name} is a text, not {value!r}: leave it out to mean any")

    def matches(self, job: JobInfo, now: datetime) -> bool:
        """Whether a job is meant; ``now`` is the server's clock."""
        if self.older_than is not None and now - (job.died or job.minted) < timedelta(seconds=self.older_than):
            return False
        if self.error is not None and self.error not in (job.last_error or ""):
            return False
        return self.actor is None or self.actor == actor_name(job.payload)


def pages(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Ids in parts that one round trip takes."""
    for start in range(0, len(ids), _PAGE):
        yield ids[start : start + _PAGE]


def actor_name(payload: bytes) -> str | None:
    """The actor that a payload names (wire §10), None when it is no JSON message."""
    try:
        name = json.loads(payload)["actor_name"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return name if isinstance(name, str) else None


class DeadJobs(Looking, Handle):
    """The morgue of a queue."""

    def dead(
        self, *, older_than: float | None = None, actor: str | None = None, error: str | None = None
    ) -> Iterator[JobInfo]:
        """The dead jobs that are meant, newest first, read page by page; see :class:`DeadFilter`.

        Raises:
          InvalidArgument: when a condition is malformed; at once, not at the first step.
        """
        return self._dead(DeadFilter(older_than, actor, error), None)

    def _dead(self, wanted: DeadFilter, only: Sequence[str] | None) -> Iterator[JobInfo]:
        now = self.now()
        for ids in self._pages() if only is None else pages(only):
            for job in self.get_many(ids):
                if job is not None and job.state is State.DEAD and wanted.matches(job, now):
                    yield job

    def _pages(self) -> Iterator[Sequence[str]]:
        before: bytes | str = ""
        while found := self.run("queue_browse", "dead", _PAGE, before):
            before = found[-1]
            # What is no id, as a hand may have left it, is no job that could be read.
            yield [name for name in map(text, found) if is_branded(name, "JOB")]

    def retry_dead(
        self,
        *,
        older_than: float | None = None,
        actor: str | None = None,
        error: str | None = None,
        limit: int | None = None,
        only: Sequence[str] | None = None,
        payload: Callable[[JobInfo], bytes | None] | None = None,
    ) -> int:
        """Give another life to dead jobs, as :meth:`~echomq_tasks.queue.Queue.reprocess` does; answers how many.

        Actors' messages count their retries themselves: use :meth:`EchoMQBroker.retry_dead` for those.

        Parameters:
          older_than, actor, error: which ones, see :class:`DeadFilter`; all by default.
          limit: at most so many, newest first.
          only: none but these JOB ids; those of them that are not dead by now are left alone.
          payload: makes the new payload of each; None keeps the one that it has.
        """
        most = None if limit is None else whole(limit, "limit", 1)

        def call(job: JobInfo) -> Call:
            data = None if payload is None else payload(job)
            args = (job.id, b"1", b"") if data is None else (job.id, b"0", payload_bytes(data))
            return Call("job_reprocess", self.base, args, self.event_args())

        return self._each_dead(self._dead(DeadFilter(older_than, actor, error), only), most, "enqueued", call)

    def purge_dead(
        self,
        *,
        older_than: float | None = None,
        actor: str | None = None,
        error: str | None = None,
        only: Sequence[str] | None = None,
    ) -> int:
        """Drop dead jobs with all that is kept of them; answers how many.

        Parameters:
          older_than, actor, error: which ones, see :class:`DeadFilter`; all by default.
          only: none but these JOB ids; those of them that are not dead by now are left alone.
        """
        meant = self._dead(DeadFilter(older_than, actor, error), only)
        return self._each_dead(
            meant, None, "removed", lambda job: Call("job_remove", self.base, (job.id, b"dead"), self.event_args())
        )

    def _each_dead(self, jobs: Iterator[JobInfo], most: int | None, event: str, call: Callable[[JobInfo], Call]) -> int:
        done = 0
        while most is None or done < most:
            page = list(islice(jobs, _PAGE if most is None else min(_PAGE, most - done)))
            if not page:
                break
            for job, reply in zip(page, self.scripts.attempt([call(job) for job in page]), strict=True):
                if isinstance(reply, (WrongState, Held)):
                    # Somebody else gave it another life since it was read.
                    continue
                if isinstance(reply, EchoMQError):
                    raise reply
                if text(reply) == "ok":
                    done += 1
                    self.send_signal(event, job.id)
        return done

    def trim_dead(
        self, *, most: int | None = None, ttl: float | None = None, behind: str | None = None, limit: int = 500
    ) -> tuple[int, str | None]:
        """Keep the dead within bounds, one bounded step at a time; a worker does it on its beat.

        Parameters:
          most: the oldest go when there are more than so many.
          ttl: seconds after which a dead job goes.
          behind: the id to go on behind: what the last call answered; from the oldest by default.
          limit: how many jobs one call looks at at most.

        Returns:
          How many went, and the id to go on behind; None when all that are left are within the bounds.

        Raises:
          InvalidArgument: when a bound is out of range.
        """
        kept = 0 if most is None else whole(most, "most", 1)
        keep_ms = 0 if ttl is None else whole(seconds_to_ms(ttl, "ttl"), "ttl in milliseconds", 1)
        cursor = "" if behind is None else check_id(behind, "JOB")
        dropped, last = self.run("dead_trim", kept, keep_ms, whole(limit, "limit", 1, 10_000), cursor)
        return dropped, text(last) or None
