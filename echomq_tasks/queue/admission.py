"""Admission: check jobs before a byte is sent, pack them into script calls, and tell a retry from a collision."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain
from typing import Any

from echomq_tasks.errors import EchoMQError, InvalidArgument, ScriptError, ServerError
from echomq_tasks.identity import check_id, group_id
from echomq_tasks.keyspace import check_dedup
from echomq_tasks.queue.arguments import EXACT, payload_bytes, seconds_to_ms, whole
from echomq_tasks.queue.handle import Handle
from echomq_tasks.queue.model import Admission, Enqueued, NewJob, Unique
from echomq_tasks.scripts import Call
from echomq_tasks.scripts.callers import Callers

#: One script call takes so many jobs or bytes at most, so that the server answers others in between.
_JOBS_A_CALL = 250
_BYTES_A_CALL = 1 << 20
#: And one round trip so many bytes.
_BYTES_A_TRIP = 8 << 20
#: A collision is two processes on one node id in one millisecond; this many in a row is something else.
_MAX_COLLISIONS = 1000
#: What job_enqueue answers of a flow child whose parent knows of its end.
_ENDED = -2

_json = json.JSONEncoder(separators=(",", ":")).encode


class Offer:
    """One job on its way in: its arguments for job_enqueue, and the answer once there is one."""

    __slots__ = ("answer", "args", "minted")

    def __init__(self, args: list[bytes | str | int], minted: bool) -> None:
        self.args = args  # id, payload, mode, ms, priority, group, extras
        self.minted = minted
        self.answer: Enqueued | None = None

    @property
    def size(self) -> int:
        return len(self.args[1])  # type: ignore[arg-type]

    def admitted(self) -> None:
        admission = Admission.ENQUEUED if self.args[2] == "now" else Admission.SCHEDULED
        self.answer = Enqueued(str(self.args[0]), admission)

    def duplicate(self, holder: str | None = None) -> None:
        self.answer = Enqueued(holder or str(self.args[0]), Admission.DUPLICATE)


def _when(job: NewJob) -> tuple[str, int]:
    if job.at is None:
        if job.delay is None:
            return "now", 0
        return "in", seconds_to_ms(job.delay, "delay")
    if job.delay is not None:
        raise InvalidArgument("give delay= or at=, not both")
    at = job.at
    if isinstance(at, datetime):
        if at.utcoffset() is None:
            raise InvalidArgument(f"at={at!r} has no time zone: use an aware datetime, as datetime.now(timezone.utc)")
        at = at.timestamp()
    return "at", seconds_to_ms(at, "at")


def unique_fields(unique: Unique) -> dict[str, Any]:
    """Check what makes a job unique, and name it as the scripts do.

    Raises:
      InvalidArgument, InvalidName: when it is malformed.
    """
    if not isinstance(unique, Unique):
        raise InvalidArgument(f"unique is a Unique(key, until, ttl), not {unique!r}")
    if unique.until not in ("done", "start", "window"):
        raise InvalidArgument(f"a job is unique until 'done', until 'start' or for a 'window', not {unique.until!r}")
    ttl = whole(seconds_to_ms(unique.ttl, "the ttl of unique"), "the ttl of unique in milliseconds", 1)
    return {"dedup": check_dedup(unique.key), "unique": unique.until, "ttl": ttl}


def offer(job: NewJob, **flow: Any) -> Offer:
    """Check a job and pack it as an entry for job_enqueue; ``flow`` is what ties it to its parent or children.

    Raises:
      InvalidArgument, InvalidId, InvalidName: when the job is not admissible.
    """
    mode, ms = _when(job)
    priority = whole(job.priority, "priority", -EXACT, EXACT)
    payload = payload_bytes(job.payload)
    job_id = None if job.id is None else check_id(job.id, "JOB")
    group, extras = "", flow
    if job.group is not None:
        group = group_id(job.group)
        if job.group != group:
            # What a derived group was called is kept for people.
            extras["name"] = job.group
    if job.group_limit is not None:
        if job.group is None:
            raise InvalidArgument("group_limit= bounds the lane of a group: give group= too")
        extras["limit"] = whole(job.group_limit, "group_limit", 1)
    if job.unique is not None:
        extras |= unique_fields(job.unique)
    return Offer([job_id or "", payload, mode, ms, priority, group, _json(extras) if extras else ""], job_id is None)


def check_job(job: NewJob) -> None:
    """Check a job as its admission would, without sending it.

    Raises:
      InvalidArgument, InvalidId, InvalidName: when the job is not admissible.
    """
    offer(job)


def _chunks(offers: list[Offer], most: int, most_bytes: int) -> Iterator[list[Offer]]:
    if len(offers) == 1:
        yield offers
        return
    chunk: list[Offer] = []
    size = 0
    for each in offers:
        if chunk and (len(chunk) >= most or size + each.size > most_bytes):
            yield chunk
            chunk, size = [], 0
        chunk.append(each)
        size += each.size
    if chunk:
        yield chunk


def _trip(queue: Handle, callers: Callers, offers: list[Offer], key: bytes) -> EchoMQError | None:
    """Send offers in one round trip and note each answer; an offer without one collided, or its call failed."""
    chunks = list(_chunks(offers, _JOBS_A_CALL, _BYTES_A_CALL))
    tells = queue.announcing.tells_admissions
    # The server keeps one answer a caller, so each call of the trip has a caller of its own.
    mine = [callers.take() for _ in chunks]
    # Sent again on a fresh connection when the connection drops: the server knows the call by its nonce. A caller whose
    # call is not answered then either is not given back, for its next call would be taken for that one.
    replies = queue.scripts.attempt(
        [
            Call(
                "job_enqueue",
                key,
                [caller.id, caller.nonce(), *chain.from_iterable([each.args for each in chunk])],
                queue.event_args() if tells else (),
            )
            for caller, chunk in zip(mine, chunks, strict=True)
        ]
    )
    failure: EchoMQError | None = None
    for caller, chunk, reply in zip(mine, chunks, replies, strict=True):
        caller.answered()
        callers.give(caller)
        if isinstance(reply, EchoMQError):
            failure = failure or reply
            continue
        for each, code in zip(chunk, reply, strict=True):
            if isinstance(code, bytes):
                each.duplicate(code.decode())
            elif code > 0:
                each.admitted()
            elif not each.minted or code == _ENDED:
                each.duplicate()
            else:
                # A freshly minted id that has a row is a collision, and this job would be lost: mint another.
                each.args[0] = queue.scripts.mint.mint("JOB")
    return failure


def admit(queue: Handle, callers: Callers, jobs: Iterable[NewJob]) -> list[Enqueued]:
    """Admit jobs to ``queue``; one answer for each, in order.

    Every job is checked before the first byte is sent.

    Raises:
      InvalidArgument, InvalidId, InvalidName: when a job is not admissible; none was admitted.
      ServerError: when the server could not take them all; ``admitted`` lists the ids that it did take.
    """
    offers = [offer(job) for job in jobs]
    admit_offers(queue, callers, offers)
    return [each.answer for each in offers if each.answer is not None]


def admit_offers(
    queue: Handle, callers: Callers, offers: list[Offer], *, key: bytes | None = None, mint_first: bool = True
) -> None:
    """Admit checked jobs, and note each one's answer.

    Parameters:
      queue: whose scripts are called, and which says what they announce.
      callers: who calls.
      offers: the jobs.
      key: the base of the queue that they go to; that of ``queue`` by default.
      mint_first: without it, those to be minted have an id already.

    Raises:
      ServerError: as :func:`admit`.
    """
    # Only now: a mint may ask the server for a node id, and bad input must not get that far.
    for each in offers:
        if each.minted and mint_first:
            each.args[0] = queue.scripts.mint.mint("JOB")
    try:
        for trip in _chunks(offers, _JOBS_A_CALL * 16, _BYTES_A_TRIP):
            left = trip
            for _ in range(_MAX_COLLISIONS):
                failure = _trip(queue, callers, left, queue.base if key is None else key)
                if failure is not None:
                    raise failure
                left = [each for each in left if each.answer is None]
                if not left:
                    break
            else:
                raise ScriptError(f"{len(left)} jobs met ids that exist already {_MAX_COLLISIONS} times in a row")
    except ServerError as error:
        error.admitted = tuple(each.answer.id for each in offers if each.answer and not each.answer.duplicate)
        error.offered = tuple(str(each.args[0]) for each in offers)
        raise
