"""The queue object: one method per transition of the wire (§5), each one script and one round trip."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import InvalidArgument
from echomq_tasks.identity import check_id, group_id
from echomq_tasks.keyspace import check_queue, queue_key
from echomq_tasks.queue.admission import admit
from echomq_tasks.queue.arguments import lease_ms, payload_bytes, retry_args, whole
from echomq_tasks.queue.callers import Caller, Callers
from echomq_tasks.queue.model import (
    Claimed,
    Complete,
    Counts,
    Enqueued,
    Job,
    JobInfo,
    NewJob,
    Release,
    Retry,
    Settlement,
    State,
    Swept,
    Turn,
    Verdict,
)
from echomq_tasks.queue.parking import Parking
from echomq_tasks.queue.renewal import extend_all
from echomq_tasks.queue.replies import job_info, raise_stale, text, verdicts_in_place
from echomq_tasks.scripts import Call, Scripts

#: The most jobs one claim may ask for: a claim holds the server for its whole length.
MAX_CLAIM = 1000
#: The order of a settlement's script in a round trip.
_SCRIPTS = ("job_complete", "job_retry", "job_release")
#: What a person calls the sets, and their names on the wire.
_SETS = {
    "pending": "pending",
    "lanes": "lanes",
    "scheduled": "schedule",
    "schedule": "schedule",
    "dead": "dead",
    "active": "active",
}


class Queue:
    """A queue by name: admits jobs, hands each to one worker, and settles them under a fencing token.

    Safe to share between threads and across forks. Every call takes one round trip and raises
    :class:`~echomq_tasks.errors.ServerUnavailable` when the server does not answer.

    Parameters:
      name: 1 to 128 of ``A-Z a-z 0-9 . _ -``, not ``emq``.
      connection: the server; :func:`echomq_tasks.connect` without arguments by default.

    Raises:
      InvalidName: when the wire does not allow the name.
    """

    def __init__(self, name: str, connection: Connection | None = None) -> None:
        self.name = check_queue(name)
        self.connection = connection if connection is not None else connect()
        self.scripts = Scripts.of(self.connection)
        self._base = queue_key(name)
        # Apart, because a claim that was not answered is sent again with the next claim.
        self._senders = Callers()
        self._claimers = Callers()

    def __repr__(self) -> str:
        return f"Queue({self.name!r}, {self.connection!r})"

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
    ) -> Enqueued:
        """Admit one job; the parameters are those of :class:`~echomq_tasks.queue.NewJob`.

        A connection that drops on the way is tried once more under the same id. Without an ``id`` of your own, an
        error that remains means that the job may or may not be in; with one, repeat the call.

        Raises:
          InvalidArgument, InvalidId, InvalidName: before a byte is sent.
          ServerOutOfMemory: the server's memory is full; the job is not in.
        """
        job = NewJob(payload=payload, delay=delay, at=at, priority=priority, group=group, id=id)
        return admit(self.scripts, self._base, self._senders, (job,))[0]

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
        return admit(self.scripts, self._base, self._senders, offered)

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
        """Settle a job as failed: SCHEDULED again, DEAD, or GONE; see :class:`~echomq_tasks.queue.Retry`.

        Raises:
          StaleToken: when the lease was lost and another claim took the job over.
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
        calls, order = self._settle_calls(settlements)
        return verdicts_in_place(self.scripts.batch(calls) if calls else [], order)

    def turn(self, settlements: Sequence[Settlement], count: int, *, lease: float = 30.0) -> Turn:
        """Settle what is done and claim up to ``count`` more, in one round trip; 0 claims nothing."""
        calls, order = self._settle_calls(settlements)
        if not count:
            return Turn(tuple(verdicts_in_place(self.scripts.batch(calls) if calls else [], order)), Claimed(()))
        caller = self._claimers.take()
        try:
            *replies, taken = self.scripts.batch([*calls, self._claim_call(count, lease, caller)])
            caller.answered()
        finally:
            self._claimers.give(caller)
        return Turn(tuple(verdicts_in_place(replies, order)), self._claimed(taken))

    def extend(self, job: Job, *, lease: float = 30.0) -> Verdict:
        """Renew the lease of one job, to ``lease`` seconds from now: OK or GONE.

        Raises:
          StaleToken: when the lease was lost.
        """
        (reply,) = self.scripts.call(*self.extend_call([job], lease))
        return raise_stale(job, Verdict(text(reply)))

    def extend_many(self, jobs: Sequence[Job], *, lease: float = 30.0) -> list[Job]:
        """Renew the leases of many jobs in one script call; answers the jobs whose lease was lost."""
        renewal = extend_all({self: jobs}, lease=lease)
        if renewal.error is not None:
            raise renewal.error
        return list(renewal.lost)

    # -- one job ------------------------------------------------------------------------------------------------

    def update_data(self, job_id: str, payload: bytes | str) -> Verdict:
        """Replace a job's payload: OK or GONE. A worker that runs it already has the old one.

        Raises:
          InvalidId, InvalidArgument: before a byte is sent.
        """
        return self._verb("job_update", job_id, payload_bytes(payload))

    def update_progress(self, job_id: str, progress: float | str) -> Verdict:
        """Note how far a job is, as a number or a text of yours, and publish it on the queue's events: OK or GONE.

        Raises:
          InvalidId, InvalidArgument: before a byte is sent.
        """
        if isinstance(progress, bool) or not isinstance(progress, (int, float, str)):
            raise InvalidArgument(f"a progress is a number or a text, not {progress!r}")
        return self._verb("job_progress", job_id, payload_bytes(str(progress)))

    def add_log(self, job_id: str, line: str, *, keep: int | None = None) -> int | None:
        """Add a line to a job's log; answers how many lines there are, None when the job is gone.

        Parameters:
          job_id: the job.
          line: the text.
          keep: keep only so many last lines; all by default.

        Raises:
          InvalidId, InvalidArgument: before a byte is sent.
        """
        kept = 0 if keep is None else whole(keep, "keep", 1)
        args = (check_id(job_id, "JOB"), payload_bytes(line), kept)
        lines = int(self.scripts.call("job_log", self._base, args, repeat=False))
        return None if lines < 0 else lines

    def logs(self, job_id: str, *, count: int = 1000) -> list[str]:
        """The last lines of a job's log, oldest first."""
        args = (check_id(job_id, "JOB"), whole(count, "count", 1))
        return [line.decode(errors="replace") for line in self.scripts.call("job_logs", self._base, args)]

    def remove(self, job_id: str) -> Verdict:
        """Remove a job that waits, is scheduled or dead, with all that is kept of it: OK or GONE.

        Raises:
          Held: when a worker holds it.
          InvalidId: when ``job_id`` is not a JOB id.
        """
        return self._verb("job_remove", job_id)

    def reprocess(self, job_id: str, *, payload: bytes | str | None = None) -> Verdict:
        """Let a dead job run again, with its failures forgotten: OK or GONE.

        An actor's message counts its retries itself: use :meth:`EchoMQBroker.reprocess` for those.

        Parameters:
          job_id: the dead job.
          payload: replaces the row's payload when given.

        Raises:
          WrongState: when it is not dead.
          InvalidId: when ``job_id`` is not a JOB id.
        """
        kept, data = (b"1", b"") if payload is None else (b"0", payload_bytes(payload))
        return self._verb("job_reprocess", job_id, kept, data)

    # -- upkeep -------------------------------------------------------------------------------------------------

    def promote(self, limit: int = 100) -> int:
        """Bring due scheduled jobs back to where they wait; answers how many. Claims do this by themselves."""
        return int(self.scripts.call("job_promote", self._base, (whole(limit, "limit", 1),)))

    def reap(self, limit: int = 100) -> int:
        """Bring jobs whose lease ran out back to where they wait; answers how many."""
        return int(self.scripts.call("job_reap", self._base, (whole(limit, "limit", 1),)))

    def sweep_stalled(self, *, max_stalled: int = 3, limit: int = 100) -> Swept:
        """As :meth:`reap`, and count it: a job whose worker died ``max_stalled`` times with it goes to dead."""
        args = (whole(limit, "limit", 1), whole(max_stalled, "max_stalled", 1))
        recovered, dead = self.scripts.call("job_sweep", self._base, args)
        return Swept(tuple(text(id) for id in recovered), tuple(text(id) for id in dead))

    def drain(self, *sets: str) -> int:
        """Drop jobs and their rows; answers how many. Bounded steps, so a large queue takes several round trips.

        Parameters:
          sets: any of ``pending``, ``lanes``, ``scheduled``, ``dead``, ``active``; the first two by default. A worker
            that runs an ``active`` job finishes it and finds it gone.

        Raises:
          InvalidArgument: on another name.
        """
        chosen = sets or ("pending", "lanes")
        for name in chosen:
            if name not in _SETS:
                raise InvalidArgument(f"a queue has no set {name!r} to drain: it has {', '.join(_SETS)}")
        total, step = 0, 500
        while True:
            dropped = int(self.scripts.call("queue_drain", self._base, (step, *(_SETS[name] for name in chosen))))
            total += dropped
            if dropped < step:
                return total

    # -- looking ------------------------------------------------------------------------------------------------

    def state(self, job_id: str) -> State:
        """Where a job is.

        Raises:
          InvalidId: when ``job_id`` is not a JOB id.
        """
        return State(text(self.scripts.call("job_state", self._base, (check_id(job_id, "JOB"),))))

    def get(self, job_id: str) -> JobInfo | None:
        """A job's row and place; None when it has no row.

        Raises:
          InvalidId: when ``job_id`` is not a JOB id.
        """
        return self.get_many([job_id])[0]

    def get_many(self, job_ids: Sequence[str]) -> list[JobInfo | None]:
        """The rows of many jobs in one round trip, in order."""
        ids = [check_id(job_id, "JOB") for job_id in job_ids]
        rows = self.scripts.call("job_get", self._base, ids) if ids else []
        return [job_info(job_id, row) for job_id, row in zip(ids, rows, strict=True)]

    def browse(
        self, state: State = State.PENDING, *, count: int = 50, before: str | None = None, group: str | None = None
    ) -> list[str]:
        """The ids of one state, newest first.

        Parameters:
          state: PENDING, ACTIVE, SCHEDULED or DEAD.
          count: at most so many.
          before: only ids older than this one: the last id of the page before.
          group: the lane to look into, for PENDING.

        Raises:
          InvalidArgument: on another state, or a group with a state other than PENDING.
        """
        names = {State.PENDING: "pending", State.ACTIVE: "active", State.SCHEDULED: "schedule", State.DEAD: "dead"}
        name = names.get(state)
        if name is None:
            raise InvalidArgument(f"{state!r} cannot be browsed: use PENDING, ACTIVE, SCHEDULED or DEAD")
        if group is not None:
            if state is not State.PENDING:
                raise InvalidArgument("a lane holds pending jobs only: leave group= out, or browse PENDING")
            name = f"g:{group_id(group)}:pending"
        cursor = "" if before is None else check_id(before, "JOB")
        ids = self.scripts.call("queue_browse", self._base, (name, whole(count, "count", 1, 10_000), cursor))
        return [text(id) for id in ids]

    def counts(self) -> Counts:
        """Count the jobs of each state at one instant."""
        pending, in_lanes, active, scheduled, dead, completed, failed, paused = self.scripts.call(
            "queue_counts", self._base
        )
        return Counts(pending, in_lanes, active, scheduled, dead, completed, failed, bool(paused))

    def parking(self) -> Parking:
        """A place to wait for jobs of this queue, for one thread; close it after use."""
        return Parking(self.name, self.connection)

    # -- the wire -----------------------------------------------------------------------------------------------

    def _verb(self, script: str, job_id: str, *args: bytes) -> Verdict:
        return Verdict(text(self.scripts.call(script, self._base, (check_id(job_id, "JOB"), *args))))

    def _claim_call(self, count: int, lease: float, caller: Caller) -> Call:
        ms = lease_ms(lease)
        form = "field" if self.connection.server.hash_field_ttl else "key"
        return Call("job_claim", self._base, (whole(count, "count", 1, MAX_CLAIM), ms, form, caller.id, caller.nonce()))

    def _claimed(self, reply: list[Any]) -> Claimed:
        jobs = tuple(
            Job(text(id), payload, token, text(group) if group else None, failures, stalled)
            for id, payload, token, group, failures, stalled in reply[1:]
        )
        return Claimed(jobs, None if reply[0] < 0 else reply[0] / 1000)

    def _settle_one(self, settlement: Settlement) -> Verdict:
        return raise_stale(settlement.job, self.settle([settlement])[0])

    def _settle_calls(self, settlements: Sequence[Settlement]) -> tuple[list[Call], list[list[int]]]:
        """The script calls of a batch, and for each the places in ``settlements`` that its replies answer."""
        args: dict[str, list[bytes | str | int]] = {}
        places: dict[str, list[int]] = {}
        for place, settlement in enumerate(settlements):
            if not isinstance(settlement, (Complete, Retry, Release)):
                raise InvalidArgument(f"a settlement is a Complete, a Retry or a Release, not {settlement!r}")
            job = settlement.job
            check_id(job.id, "JOB")
            rest: tuple[bytes | str | int, ...] = ()
            if isinstance(settlement, Complete):
                name, rest = "job_complete", (payload_bytes(settlement.result),)
            elif isinstance(settlement, Retry):
                name, rest = "job_retry", retry_args(settlement)
            else:
                name = "job_release"
            args.setdefault(name, []).extend((job.id, job.token, *rest))
            places.setdefault(name, []).append(place)
        names = [name for name in _SCRIPTS if name in args]
        return [Call(name, self._base, args[name]) for name in names], [places[name] for name in names]

    def extend_call(self, jobs: Sequence[Job], lease: float) -> Call:
        """The script call that renews ``jobs``, for callers that send several in one round trip."""
        form = "field" if self.connection.server.hash_field_ttl else "key"
        args: list[bytes | str | int] = [lease_ms(lease), form]
        for job in jobs:
            args += (check_id(job.id, "JOB"), job.token)
        return Call("job_extend", self._base, args)
