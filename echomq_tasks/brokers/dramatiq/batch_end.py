"""The end of a batch: every member settled as it ended, together in one round trip."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from dramatiq.errors import ConnectionClosed

from echomq_tasks.brokers.dramatiq.batches import Batch, Member
from echomq_tasks.brokers.dramatiq.transport import settling
from echomq_tasks.errors import EchoMQError
from echomq_tasks.queue import Queue, Release, Settlement, Verdict

_log = logging.getLogger(__name__)

#: The most settlements in one call; the server is held for its length.
_MOST = 256

#: Told of each member that is done with: its verdict, or None when it was given back, or the server was not asked or
#: could not take it.
Done = Callable[[Member, Verdict | None], None]


def settle_batch(batch: Batch, done: Done, *, rejected: bool) -> None:
    """Settle all members that are not settled yet; ``rejected`` counts for a batch that no worker ran.

    Raises:
      ConnectionClosed: when the server did not take them all; the call can be repeated.
    """
    trouble: ConnectionClosed | None = None
    ends: list[tuple[Member, Settlement]] = []
    for member in batch.unsettled():
        if member.lost:
            # Its token may still fit, but this run was not reported: the job's next run must end it.
            _log.debug("The late end of job %s is dropped: its lease was lost.", member.job_id)
            done(member, None)
            continue
        member.settling = True
        if member.owes and trouble is not None:
            continue
        try:
            with settling():
                member.pay_owed()
            ends.append((member, batch.as_ended(member, rejected=rejected)))
        except ConnectionClosed as error:
            # The others owe nothing that the server refuses, so they need not wait.
            trouble = error
        except Exception:
            _give_up(member, done)
    for start in range(0, len(ends), _MOST):
        _settle(batch.queue, ends[start : start + _MOST], done)
    if trouble is not None:
        raise trouble


def _settle(queue: Queue, ends: Sequence[tuple[Member, Settlement]], done: Done) -> None:
    try:
        with settling():
            verdicts = queue.settle([end for _, end in ends])
    except ConnectionClosed:
        raise
    except EchoMQError:
        if len(ends) > 1:
            # One of them cannot be settled as it is. It must not take the others along; repeats are harmless.
            for one in ends:
                _settle(queue, [one], done)
            return
        _give_up(ends[0][0], done)
    else:
        for (member, end), verdict in zip(ends, verdicts, strict=True):
            # One that was given back has not ended.
            done(member, None if isinstance(end, Release) else verdict)


def _give_up(member: Member, done: Done) -> None:
    _log.exception("The end of job %s cannot be told: it runs again when its lease ends.", member.job_id)
    member.given_up = True
    done(member, None)
