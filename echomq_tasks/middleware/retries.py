"""Retries as one atomic transition of the same job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dramatiq import Broker, MessageProxy
from dramatiq import middleware as stock
from dramatiq.common import compute_backoff

from echomq_tasks.errors import JobCancelled


class Retries(stock.Retries):
    """Retries failed messages with exponential backoff; Dramatiq's own, with nothing to lose in between.

    All options and their meaning are Dramatiq's. Under :class:`~echomq_tasks.brokers.dramatiq.EchoMQBroker` a retry is
    not a copy that is enqueued before the original is acknowledged: the acknowledgement itself moves the job from
    active to the schedule, in one script.

    Three things differ:

    - A ``retry_when`` predicate that raises means a retry, with backoff and up to this middleware's ``max_retries``:
      the stock one would acknowledge the message.
    - :class:`~echomq_tasks.JobCancelled` is never retried.
    - ``min_backoff=0`` given here means no backoff, as it does on an actor; the stock middleware reads it as unset.

    Parameters:
      max_retries: how often a message is retried.
      min_backoff: the shortest backoff, in milliseconds; 15 seconds by default.
      max_backoff: the longest backoff, in milliseconds; 7 days by default and at most.
      retry_when: called with the number of retries and the exception; decides in place of ``max_retries``.
    """

    def __init__(
        self,
        *,
        max_retries: int = 20,
        min_backoff: int | None = None,
        max_backoff: int | None = None,
        retry_when: Callable[[int, BaseException], bool] | None = None,
    ) -> None:
        super().__init__(
            max_retries=max_retries, min_backoff=min_backoff, max_backoff=max_backoff, retry_when=retry_when
        )
        if min_backoff == 0:
            self.min_backoff = 0
        if max_backoff == 0:
            self.max_backoff = 0

    def after_process_message(
        self, broker: Broker, message: MessageProxy, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        """Decide what becomes of a message whose actor raised."""
        if isinstance(exception, JobCancelled):
            self.logger.info("Message %r was cancelled.", message.message_id)
            message.fail()
            return
        try:
            super().after_process_message(  # type: ignore[no-untyped-call]
                broker, message, result=result, exception=exception
            )
        except Exception:
            if exception is None or message.failed:
                raise
            self.logger.exception("Deciding on a retry of message %r failed.", message.message_id)
            self._retry_anyway(broker, message)

    def _retry_anyway(self, broker: Broker, message: MessageProxy) -> None:
        """Retry with backoff, as often as the broker's default allows, whatever the message and its actor say."""
        retries = message.options.get("retries")
        if not isinstance(retries, int):
            # The queue counts failures too, and what it counts cannot be spoilt by a message.
            retries = getattr(getattr(message, "job", None), "failures", 0) + 1
            message.options["retries"] = retries
        if self.max_retries is not None and retries > self.max_retries:
            message.fail()
            return
        _, delay = compute_backoff(retries - 1, factor=self.min_backoff, max_backoff=self.max_backoff)
        broker.enqueue(message, delay=delay)  # type: ignore[arg-type]
