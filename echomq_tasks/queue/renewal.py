"""Renew the leases of jobs of several queues in one round trip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from echomq_tasks.connection import Connection
from echomq_tasks.errors import EchoMQError, ServerUnavailable
from echomq_tasks.forks import after_fork
from echomq_tasks.queue.model import Job, Renewal
from echomq_tasks.scripts.calls import Sent
from echomq_tasks.scripts.courier import wait_for

if TYPE_CHECKING:
    from echomq_tasks.queue.queue import Queue


def extend_all(held: Mapping[Queue, Sequence[Job]], *, lease: float = 30.0) -> Renewal:
    """Renew the leases of jobs of several queues on one server, in one round trip and one script call a queue.

    In a cluster, a queue whose node has not answered after a third of ``lease`` is one of which nothing is known.

    Raises:
      ServerUnavailable: when the server did not answer; nothing is known of any of them.
    """
    queues = [queue for queue, jobs in held.items() if jobs]
    if not queues:
        return Renewal((), (), None)
    if len(queues) > 1 and queues[0].connection.is_cluster:
        replies = queues[0].connection.companion(_Apart).renew(held, queues, lease)
    else:
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


class _Apart:
    """Renewals in a cluster, by a courier for each queue: a node that is away must not cost others' jobs theirs."""

    def __init__(self, connection: Connection) -> None:
        self._late: dict[bytes, Sent] = {}
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        # The couriers are the parent's.
        self._late = {}

    def close(self) -> None:
        """Couriers that are on their way are left to it."""

    def renew(self, held: Mapping[Queue, Sequence[Job]], queues: Sequence[Queue], lease: float) -> list[Any]:
        """One reply for each queue, or the error."""
        sent: dict[Queue, Sent] = {}
        for queue in queues:
            late = self._late.get(queue.base)
            if late is None or late.errand is None or late.errand.done:
                sent[queue] = self._late[queue.base] = queue.scripts.send([queue.extend_call(held[queue], lease)])
        wait_for([each.errand for each in sent.values() if each.errand is not None], lease / 3)
        return [self._reply(queue, sent.get(queue)) for queue in queues]

    def _reply(self, queue: Queue, sent: Sent | None) -> Any:
        if sent is None or sent.errand is None or not sent.errand.done:
            return ServerUnavailable(f"the node of queue {queue.name!r} has not answered in time")
        self._late.pop(queue.base, None)
        try:
            (reply,) = queue.scripts.receive(sent)
        except EchoMQError as error:
            return error
        return reply
