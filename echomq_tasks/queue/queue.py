"""The queue object: one method per transition of the wire (§5), each one script and one round trip."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from echomq_tasks.connection import Connection
from echomq_tasks.errors import InvalidArgument
from echomq_tasks.events import Announcing
from echomq_tasks.identity import check_id
from echomq_tasks.queue.admission import admit
from echomq_tasks.queue.arguments import about_text, lease_ms, payload_bytes, retry_args, shown, whole
from echomq_tasks.queue.dead import DeadJobs
from echomq_tasks.queue.editing import Editing
from echomq_tasks.queue.flows import Flows
from echomq_tasks.queue.handle import Handle
from echomq_tasks.queue.lanes import Lanes
from echomq_tasks.queue.model import (
    Claimed,
    Complete,
    Discard,
    Enqueued,
    Job,
    NewJob,
    Release,
    Retry,
    Settlement,
    Turn,
    Unique,
    Verdict,
)
from echomq_tasks.queue.operating import Operating
from echomq_tasks.queue.outbox import Outbox
from echomq_tasks.queue.renewal import extend_all
from echomq_tasks.queue.repeats import Repeats
from echomq_tasks.queue.replies import raise_stale, text, verdicts_in_place
from echomq_tasks.queue.results import Results
from echomq_tasks.queue.upkeep import Upkeep
from echomq_tasks.scripts import Call
from echomq_tasks.scripts.callers import Caller, Callers

#: The most jobs one claim may ask for: a claim holds the server for its whole length.
MAX_CLAIM = 1000
#: The order of a settlement's script in a round trip.
_SCRIPTS = ("job_complete", "job_retry", "job_release", "job_discard")


def _claimed_job(job: Job) -> Job:
    if not isinstance(job, Job):
        raise InvalidArgument(f"what a claim answered is settled, a Job, not {shown(job)}")
    check_id(job.id, "JOB")
    whole(job.token, "a token", 0)
    return job


class Queue(DeadJobs, Flows, Outbox, Editing, Upkeep, Results, Repeats, Operating, Lanes, Handle):
    """A queue by name: admits jobs, hands each to one worker, and settles them under a fencing token.

    Safe to share between threads and across forks. Every call takes one round trip and raises
    :class:`~echomq_tasks.errors.ServerUnavailable` when the server does not answer.

    Parameters:
      name: 1 to 128 of ``A-Z a-z 0-9 . _ -``, not ``emq``.
      connection: the server; :func:`echomq_tasks.connect` without arguments by default.
      announcing: what its transitions announce on the Bus; what a hand does to it by default.

    Raises:
      InvalidName: when the wire does not allow the name.
    """

    def __init__(
        self, name: str, connection: Connection | None = None, *, announcing: Announcing | None = None
    ) -> None:
        super().__init__(name, connection, announcing=announcing)
        # Apart, because a claim that was not answered is sent again with the next claim.
        self._senders = Callers()
        self.claimers = Callers()

    def new_id(self) -> str:
        """Mint a JOB id to give to :meth:`enqueue`, which makes that admission safe to repeat."""
        return self.scripts.mint.mint("JOB")

    # -- admission ----------------------------------------------------------------------------------------------

    def enqueue(
        self,
        payload: bytes | str,
        *,
        delay: float | None = None,
        at: datetime | float | None = None,
        priority: int = 0,
        group: str | None = None,
        id: str | None = None,
        unique: Unique | None = None,
        group_limit: int | None = None,
    ) -> Enqueued:
        """Admit one job; the parameters are those of :class:`~echomq_tasks.queue.NewJob`.

        A connection that drops on the way is tried once more under the same id. Without an ``id`` of your own, an
        error that remains means that the job may or may not be in; with one, repeat the call.

        Raises:
          InvalidArgument, InvalidId, InvalidName: before a byte is sent.
          ServerOutOfMemory: the server's memory is full; the job is not in.
        """
        job = NewJob(
            payload=payload,
            delay=delay,
            at=at,
            priority=priority,
            group=group,
            id=id,
            unique=unique,
            group_limit=group_limit,
        )
        return admit(self, self._senders, (job,))[0]

    def enqueue_many(self, jobs: Iterable[NewJob | bytes | str]) -> list[Enqueued]:
        """Admit many jobs in few round trips; one answer for each, in order.

        Raises:
          InvalidArgument, InvalidId, InvalidName: before a byte is sent, whichever job it is.
          ServerError: when the server could not take them all; its ``admitted`` lists the ids that are in.
        """
        if isinstance(jobs, (str, bytes)):
            # Iterable, but each of its characters would become a job.
            raise InvalidArgument("enqueue_many takes a list of jobs, not one payload: use enqueue for that")
        offered = [job if isinstance(job, NewJob) else NewJob(payload=job) for job in jobs]
        return admit(self, self._senders, offered)

    # -- claiming and settling ----------------------------------------------------------------------------------

    def claim(self, count: int = 1, *, lease: float = 30.0) -> Claimed:
        """Claim up to ``count`` waiting jobs for ``lease`` seconds; due scheduled jobs are promoted first.

        Flat jobs and lanes are served in turn. The queue's pause and its rate and concurrency ceilings hold. When no
        answer comes, the next claim of this process is given what this one took; at the latest it comes back when the
        lease is over.

        Raises:
          InvalidArgument: when ``count`` is not from 1 to 1000 or ``lease`` is below a millisecond.
        """
        return self.turn((), whole(count, "count", 1), lease=lease).claimed

    def complete(self, job: Job, result: bytes | str = b"") -> Verdict:
        """Settle a job as done: OK, or GONE when it was completed or removed meanwhile.

        Raises:
          StaleToken: when the lease was lost and another claim took the job over.
        """
        return self._settle_one(Complete(job, result))

    def complete_many(self, jobs: Iterable[Job]) -> list[Verdict]:
        """Settle many jobs as done in one round trip; one verdict for each, STALE included."""
        return self.settle([Complete(job) for job in jobs])

    def retry(
        self,
        job: Job,
        error: str = "",
        *,
        delay: float = 0.0,
        max_retries: int | None = None,
        payload: bytes | str | None = None,
    ) -> Verdict:
        """Settle a job as failed: SCHEDULED again, DEAD, or CANCELLED; see :class:`~echomq_tasks.queue.Retry`.

        Raises:
          StaleToken: when the lease was lost and another claim took the job over, or the job was removed.
        """
        return self._settle_one(Retry(job, error, delay, max_retries, payload))

    def release(self, job: Job) -> Verdict:
        """Give back a claimed job that never started: OK or GONE.

        Raises:
          StaleToken: when the lease was lost and another claim took the job over.
        """
        return self._settle_one(Release(job))

    def settle(self, settlements: Sequence[Settlement]) -> list[Verdict]:
        """Settle jobs in whatever way each needs, in one round trip; one verdict for each, STALE included."""
        calls, order = self.settle_calls(settlements)
        return verdicts_in_place(self.scripts.batch(calls) if calls else [], order)

    def turn(self, settlements: Sequence[Settlement], count: int, *, lease: float = 30.0) -> Turn:
        """Settle what is done and claim up to ``count`` more, in one round trip; 0 claims nothing."""
        calls, order = self.settle_calls(settlements)
        if not count:
            return Turn(tuple(verdicts_in_place(self.scripts.batch(calls) if calls else [], order)), Claimed(()))
        caller = self.claimers.take()
        try:
            *replies, taken = self.scripts.batch([*calls, self.claim_call(count, lease, caller)])
            claimed = self.claimed(taken)
            # Not before it was read: what is not answered is asked for again.
            caller.answered()
        finally:
            self.claimers.give(caller)
        return Turn(tuple(verdicts_in_place(replies, order)), claimed)

    def extend(self, job: Job, *, lease: float = 30.0) -> Verdict:
        """Renew the lease of one job, to ``lease`` seconds from now: OK or GONE.

        Raises:
          StaleToken: when the lease was lost.
        """
        (reply,) = self.scripts.call(*self.extend_call([job], lease))
        return raise_stale(job, Verdict.OK if reply == b"cancel" else Verdict(text(reply)))

    def extend_many(self, jobs: Sequence[Job], *, lease: float = 30.0) -> list[Job]:
        """Renew the leases of many jobs in one script call; answers the jobs whose lease was lost."""
        renewal = extend_all({self: jobs}, lease=lease)
        if renewal.error is not None:
            raise renewal.error
        return list(renewal.lost)

    # -- the wire -----------------------------------------------------------------------------------------------

    def claim_call(self, count: int, lease: float, caller: Caller) -> Call:
        ms = lease_ms(lease)
        form = self.connection.server.lock_form
        args = (whole(count, "count", 1, MAX_CLAIM), ms, form, caller.id, caller.nonce())
        return Call("job_claim", self.base, args, self.event_args())

    def claimed(self, reply: list[Any]) -> Claimed:
        look_again, chores, *entries = reply
        jobs = tuple(
            Job(text(id), payload, token, text(group) if group else None, failures, stalled, bool(is_child))
            for id, payload, token, group, failures, stalled, is_child in entries
        )
        return Claimed(jobs, None if look_again < 0 else look_again / 1000, bool(chores & 1), bool(chores & 2))

    def _settle_one(self, settlement: Settlement) -> Verdict:
        return raise_stale(settlement.job, self.settle([settlement])[0])

    def settle_calls(
        self, settlements: Sequence[Settlement], *, checked: bool = True
    ) -> tuple[list[Call], list[list[int]]]:
        """The script calls of a batch, and for each the places in ``settlements`` that its replies answer.

        Parameters:
          settlements: what is done.
          checked: False for jobs just as a claim has answered them, which are not looked at again.
        """
        if not checked:
            done: list[bytes | str | int] = []
            for settlement in settlements:
                if type(settlement) is not Complete or settlement.result:
                    break
                job = settlement.job
                done += (job.id, job.token, b"")
            else:
                # What a worker settles most of the time.
                if not done:
                    return [], []
                ends = [about_text(end) for end in settlements] if self.announcing.tells_ends else ()  # type: ignore[arg-type]
                return [Call("job_complete", self.base, done, self.event_args(ends))], [list(range(len(settlements)))]
        args: dict[str, list[bytes | str | int]] = {}
        places: dict[str, list[int]] = {}
        texts: dict[str, list[str]] = {}
        for place, settlement in enumerate(settlements):
            if not isinstance(settlement, (Complete, Retry, Release, Discard)):
                raise InvalidArgument(
                    f"a settlement is a Complete, a Retry, a Release or a Discard, not {settlement!r}"
                )
            job = _claimed_job(settlement.job) if checked else settlement.job
            rest: tuple[bytes | str | int, ...] = ()
            if isinstance(settlement, Complete):
                name, rest = "job_complete", (settlement.result and payload_bytes(settlement.result),)
            elif isinstance(settlement, Retry):
                name, rest = "job_retry", retry_args(settlement)
            elif isinstance(settlement, Discard):
                name, rest = "job_discard", (payload_bytes(settlement.reason),)
            else:
                name = "job_release"
            args.setdefault(name, []).extend((job.id, job.token, *rest))
            places.setdefault(name, []).append(place)
            if self.announcing.tells_ends and not isinstance(settlement, Release):
                texts.setdefault(name, []).append(about_text(settlement))
        names = [name for name in _SCRIPTS if name in args]
        calls = [Call(name, self.base, args[name], self.event_args(texts.get(name, ()))) for name in names]
        return calls, [places[name] for name in names]

    def extend_call(self, jobs: Sequence[Job], lease: float) -> Call:
        """The script call that renews ``jobs``, for callers that send several in one round trip."""
        form = self.connection.server.lock_form
        args: list[bytes | str | int] = [lease_ms(lease), form]
        for job in map(_claimed_job, jobs):
            args += (job.id, job.token)
        return Call("job_extend", self.base, args)
