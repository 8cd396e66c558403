"""Renew the leases of jobs of several queues in one round trip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from echomq_tasks.errors import EchoMQError
from echomq_tasks.queue.model import Job, Renewal

if TYPE_CHECKING:
    from echomq_tasks.queue.queue import Queue


def extend_all(held: Mapping[Queue, Sequence[Job]], *, lease: float = 30.0) -> Renewal:
    """Renew the leases of jobs of several queues on one server, in one round trip and one script call a queue.

    Raises:
      ServerUnavailable: when the server did not answer; nothing is known of any of them.
    """
    queues = [queue for queue, jobs in held.items() if jobs]
    if not queues:
        return Renewal((), (), None)
    replies = queues[0].scripts.attempt([queue.extend_call(held[queue], lease) for queue in queues])
    lost: list[Job] = []
    unknown: list[Job] = []
    cancelled: list[Job] = []
    error: EchoMQError | None = None
    for queue, reply in zip(queues, replies, strict=True):
        if isinstance(reply, EchoMQError):
            # One queue's trouble must not cost the others' jobs their leases.
            error = error or reply
            unknown += held[queue]
        else:
            for job, word in zip(held[queue], reply, strict=True):
                if word == b"cancel":
                    cancelled.append(job)
                elif word != b"ok":
                    lost.append(job)
    return Renewal(tuple(lost), tuple(unknown), error, tuple(cancelled))
