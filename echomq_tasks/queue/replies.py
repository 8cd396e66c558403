"""Read what scripts answer: bytes and numbers in, typed results out."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from echomq_tasks.errors import StaleToken
from echomq_tasks.queue.model import Job, JobInfo, State, Verdict

_VERDICTS = {str(verdict).encode(): verdict for verdict in Verdict}


def verdict_of(word: bytes | str) -> Verdict:
    """The verdict that a script answered."""
    # By far the most are these, as bytes.
    return _VERDICTS[word] if word.__class__ is bytes and word in _VERDICTS else Verdict(text(word))


def verdicts_in_place(replies: list[Any], order: list[list[int]]) -> list[Verdict]:
    """Put each script's verdicts where the settlements that they answer stood; ``order`` has those places."""
    verdicts = [Verdict.GONE] * sum(len(places) for places in order)
    for reply, places in zip(replies, order, strict=True):
        for place, word in zip(places, reply, strict=True):
            verdicts[place] = verdict_of(word)
    return verdicts


def raise_stale(job: Job, verdict: Verdict) -> Verdict:
    """Return the verdict on ``job``.

    Raises:
      StaleToken: when it is STALE.
    """
    if verdict is Verdict.STALE:
        raise StaleToken(f"{job.id}: the lease of token {job.token} was lost; this settlement changed nothing")
    return verdict


def text(value: bytes | str) -> str:
    """A name or a word of the wire as a string."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def number(value: bytes | None) -> int:
    """A whole number of a row, rounded down as the scripts do; 0 when another runtime, or a hand, left none."""
    try:
        return math.floor(float(value or 0))
    except (ValueError, OverflowError):
        return 0


def _instant(seconds: float) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, tz=UTC)
    except (ValueError, OverflowError):
        # Another runtime may schedule past year 9999, which Python cannot name; its row must still be readable.
        return datetime.max.replace(tzinfo=UTC)


def job_info(job_id: str, row: list[bytes]) -> JobInfo | None:
    """Read one row of job_get; None when the job has none."""
    if not row:
        return None
    fields = {text(name): value for name, value in zip(row[2::2], row[3::2], strict=True)}
    error = fields.get("last_error")
    group = fields.get("group")
    progress = fields.get("progress")
    return JobInfo(
        id=job_id,
        state=State(text(row[0])),
        payload=fields.get("payload", b""),
        attempts=number(fields.get("attempts")),
        failures=number(fields.get("failures")),
        stalled=number(fields.get("stalled")),
        priority=number(fields.get("priority")),
        group=None if group is None else text(group),
        last_error=None if error is None else error.decode(errors="replace"),
        progress=None if progress is None else progress.decode(errors="replace"),
        due=_instant(float(row[1]) / 1000) if row[1] else None,
        died=_instant(int(fields["died"]) / 1000) if fields.get("died", b"").isdigit() else None,
        cancelled="cancel" in fields,
        fields=fields,
    )
