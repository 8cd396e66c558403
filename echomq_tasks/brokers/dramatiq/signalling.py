"""The signals of a broker: what its process learns of jobs, told to receivers in it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from blinker import NamedSignal
from dramatiq import Actor, Message

from echomq_tasks import signals
from echomq_tasks.brokers.dramatiq.delivery import Delivery
from echomq_tasks.errors import JobCancelled
from echomq_tasks.events import Event
from echomq_tasks.middleware.lifecycle import worker_fields
from echomq_tasks.queue import Admission, Enqueued, Queue, Retry, Swept, Verdict

_ENDS = {
    Verdict.OK: signals.completed,
    Verdict.SCHEDULED: signals.retried,
    Verdict.DEAD: signals.failed,
    Verdict.CANCELLED: signals.cancelled,
}


class Signalling:
    """Sends signals with the actor as their sender; where nobody receives one, nothing is made for it.

    Parameters:
      actors: the actors that this process knows, by name.
    """

    def __init__(self, actors: Mapping[str, Actor[..., Any]]) -> None:
        self._actors = actors

    def sent(self, message: Message[Any], enqueued: Enqueued, delay: float | None) -> None:
        """A message was sent; ``delay`` in milliseconds."""
        signal = signals.scheduled if enqueued.admission is Admission.SCHEDULED else signals.enqueued
        if signal.receivers and not enqueued.duplicate:
            self._send(
                signal,
                message.queue_name,
                enqueued.id,
                message.actor_name,
                attempt=0,
                delay=delay / 1000 if delay else None,
            )

    def started(self, delivery: Delivery) -> None:
        """A job's function is about to be called."""
        if signals.started.receivers:
            self._of(signals.started, delivery)

    def settled(self, delivery: Delivery, verdict: Verdict | None) -> None:
        """The server has its verdict on a run."""
        signal = None if verdict is None else _ENDS.get(verdict)
        if verdict is Verdict.OK and isinstance(delivery.raised, JobCancelled):
            signal = signals.cancelled
        if signal is not None and signal.receivers:
            delay = delivery.intent.delay if signal is signals.retried and delivery.intent is not None else None
            about = delivery.about()
            error, message = about.get("error"), about.get("message")
            self._of(signal, delivery, duration=delivery.duration, delay=delay, error=error, message=message)

    def refused(self, queue: Queue, end: Retry, verdict: Verdict) -> None:
        """A job that cannot be run was sent to dead: its actor is not known here."""
        if verdict is Verdict.DEAD and signals.failed.receivers:
            self._send(signals.failed, queue.name, end.job.id, None, attempt=end.job.token, message=end.error)

    def lease_lost(self, delivery: Delivery) -> None:
        """Another worker may have the job."""
        if signals.lease_lost.receivers:
            self._of(signals.lease_lost, delivery)

    def progressed(self, delivery: Delivery, progress: str) -> None:
        """The function noted how far it is."""
        if signals.progress.receivers:
            self._of(signals.progress, delivery, progress=progress)

    def fired(self, queue: Queue, ids: Sequence[str]) -> None:
        """Repeats have admitted jobs: their actors are not known here."""
        if signals.enqueued.receivers:
            for job_id in ids:
                self._send(signals.enqueued, queue.name, job_id, None, attempt=0)

    def swept(self, queue: Queue, swept: Swept) -> None:
        """Jobs of a lost worker came back, or went to dead: their actors are not known here."""
        for signal, ids, error in ((signals.stalled, swept.recovered, None), (signals.failed, swept.dead, "stalled")):
            if signal.receivers:
                for job_id in ids:
                    self._send(signal, queue.name, job_id, None, error=error)

    def worker(self, signal: NamedSignal, worker: Any) -> None:
        """A worker started, is stopping, or has stopped."""
        if signal.receivers:
            for queue_name in sorted(worker.consumers):
                event = Event(signal.name, queue_name, at=time.time(), more=worker_fields(worker))
                signals.send(signal, worker, event)

    def _of(self, signal: NamedSignal, delivery: Delivery, **about: Any) -> None:
        self._send(
            signal, delivery.queue.name, delivery.job_id, delivery.actor_name, attempt=delivery.job.token, **about
        )

    def _send(self, signal: NamedSignal, queue: str, job_id: str, actor_name: str | None, **about: Any) -> None:
        sender = None if actor_name is None else self._actors.get(actor_name)
        event = Event(signal.name, queue, job=job_id, actor=actor_name, at=time.time(), **about)
        signals.send(signal, sender, event)
