"""The message that was sent: Dramatiq's own, which also knows its job."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from dramatiq import Message, MessageProxy
from dramatiq.results import ResultBackend, ResultMissing, Results

from echomq_tasks.brokers.dramatiq.delivery import decode
from echomq_tasks.brokers.dramatiq.transport import transport
from echomq_tasks.brokers.dramatiq.unsent import UnsentMessage
from echomq_tasks.errors import JobCancelled
from echomq_tasks.identity import minted_at_ms
from echomq_tasks.queue import Cancellation

if TYPE_CHECKING:
    from echomq_tasks.brokers.dramatiq.broker import EchoMQBroker

R = TypeVar("R", covariant=True)

_log = logging.getLogger(__name__)


class SentMessage(UnsentMessage[R]):
    """A message that an :class:`EchoMQBroker` has sent. Its fields, its encoding and what it equals are Dramatiq's.

    The message of our ``actor``, whose id nobody had read before, has its JOB id for its ``message_id``.

    Attributes:
      job_id: the JOB id; that of the job that holds the key when this one was refused as a duplicate.
      duplicate: True when it was not sent, because a job with its unique key is there.
    """

    job_id: str
    duplicate: bool
    _broker: EchoMQBroker | None

    @classmethod
    def of(cls, message: Message[Any], job_id: str, broker: EchoMQBroker, *, duplicate: bool = False) -> None:
        """Turn ``message`` itself into a sent one, so that the children of a group and the like know their jobs too."""
        if type(message) is Message or type(message) is UnsentMessage:
            object.__setattr__(message, "__class__", cls)
        # Beside the fields, so that messages stay equal and their encoding Dramatiq's.
        vars(message).update(job_id=job_id, duplicate=duplicate, _broker=broker)

    def _made_id(self) -> str:
        # What was sent without an id is found by that of its job; a duplicate was not sent.
        return super()._made_id() if self.duplicate else self.job_id

    def _made_timestamp(self) -> int:
        return super()._made_timestamp() if self.duplicate else minted_at_ms(self.job_id)

    def cancel(self) -> Cancellation:
        """Cancel the job: one that waits is removed; one that runs is asked to stop, and will not run again.

        The running function sees it as ``current_job().cancelled``, or by the exception that
        ``current_job().checkpoint()`` raises, in whatever process it runs.

        Who waits for its result is told that it was cancelled: by the worker when it ran, and from here when it waited.
        For that this process has to know the actor.

        Raises:
          ConnectionClosed: when the server did not answer; the call can be repeated.
          ValueError: when this message was unpickled: use ``broker.queue(name).cancel(job_id)``.
        """
        broker = vars(self).get("_broker")
        if broker is None:
            raise ValueError("this copy of a message knows no broker: use broker.queue(queue_name).cancel(job_id)")
        results = next((each for each in broker.middleware if isinstance(each, Results)), None)
        with transport():
            queue = broker.queue(self.queue_name)
            # A duplicate's job is another message's, and goes with its row.
            row = queue.get(self.job_id) if self.duplicate and results is not None else None
            cancellation: Cancellation = queue.cancel(self.job_id)
        if cancellation is Cancellation.REMOVED and results is not None:
            try:
                self._tell_waiters(broker, results, self if row is None else decode(row, self.queue_name))
            except Exception:
                # It is cancelled all the same.
                _log.warning("Who waits for the result of job %s is not told.", self.job_id, exc_info=True)
        return cancellation

    def _tell_waiters(self, broker: EchoMQBroker, results: Results, message: Message[Any]) -> None:
        # As when a worker rejects it: the middleware knows whether results are kept, and for how long.
        rejected = MessageProxy(message)
        rejected.stuff_exception(JobCancelled(f"{self.job_id} was cancelled before it ran"))
        rejected.fail()
        results.after_nack(broker, rejected)

    def get_result(self, *, backend: ResultBackend | None = None, block: bool = False, timeout: int | None = None) -> R:
        """The result; see :meth:`dramatiq.Message.get_result`.

        Raises:
          ResultMissing: when there is none and ``block`` is False. For a duplicate at once, whatever ``block`` says: it
            was not sent, and has no result of its own.
        """
        if not vars(self).get("duplicate", False):
            return super().get_result(backend=backend, block=block, timeout=timeout)
        try:
            # A copy of the holder's own message, sent again, shares its id and so its result.
            return super().get_result(backend=backend)
        except ResultMissing:
            raise ResultMissing(
                f"{self} was not sent: it is a duplicate of job {self.job_id}, and only the message that was sent as "
                f"that job has its result"
            ) from None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_broker"}
