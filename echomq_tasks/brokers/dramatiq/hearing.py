"""The server's verdict on a run: who hears of it, and what follows."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from echomq_tasks.brokers.dramatiq.delivery import Delivery
from echomq_tasks.brokers.dramatiq.invalidating import invalidate_after
from echomq_tasks.queue import Verdict

if TYPE_CHECKING:
    from echomq_tasks.brokers.dramatiq.broker import EchoMQBroker

_log = logging.getLogger(__name__)


def hear(broker: EchoMQBroker, delivery: Delivery, verdict: Verdict | None) -> None:
    """Tell the receivers of signals, drop what the job has made out of date, and log a refusal.

    Parameters:
      broker: whose delivery it is.
      delivery: what has ended; it still has its exception.
      verdict: the server's; None when it was not asked, or the job was given back.
    """
    broker.signalling.settled(delivery, verdict)
    invalidate_after(broker.actors, delivery, verdict)
    note_verdict(delivery, verdict)


def note_verdict(delivery: Delivery, verdict: Verdict | None) -> None:
    """Log a refusal."""
    if verdict is Verdict.STALE:
        _log.warning(
            "The late end of job %s was refused: its lease was lost and another worker has it, or it was removed.",
            delivery.job_id,
        )
    elif verdict is Verdict.GONE:
        _log.debug("Job %s was gone when it ended.", delivery.job_id)
