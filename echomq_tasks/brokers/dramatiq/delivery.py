"""A claimed job as the Dramatiq message that a worker runs."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dramatiq import Message, MessageProxy, get_encoder
from dramatiq.errors import DecodeError
from dramatiq.middleware import SkipMessage

from echomq_tasks.brokers.dramatiq.slots import Places
from echomq_tasks.current import CurrentJob
from echomq_tasks.errors import InvalidArgument, InvalidId, JobCancelled
from echomq_tasks.identity import minted_at_ms
from echomq_tasks.queue import Complete, Discard, Job, JobInfo, NewJob, Queue, Retry, Settlement, Verdict

_log = logging.getLogger(__name__)

#: The tail of a traceback that a dead or retried job keeps: characters, and frames.
ERROR_TAIL = 8_000
_ERROR_FRAMES = 30
#: The fields of a message beside its queue, and what each is ...
_KINDS: dict[str, type | tuple[type, ...]] = {
    "actor_name": str,
    "args": (list, tuple),
    "kwargs": dict,
    "options": dict,
    "message_id": str,
    "message_timestamp": int,
}
#: ... and what is filled in where it was left out, for a job of this id.
_LEFT_OUT: dict[str, Callable[[str], Any]] = {
    "actor_name": lambda job_id: None,
    "args": lambda job_id: (),
    "kwargs": lambda job_id: {},
    "options": lambda job_id: {},
    "message_id": str,
    "message_timestamp": minted_at_ms,
}
#: How much of an exception's text an event tells.
_MESSAGE = 500


@dataclass(slots=True)
class RetryIntent:
    """What the retry middleware asked for: settled in place of the acknowledgement.

    Attributes:
      delay: seconds before the job runs again.
      payload: the message with its retry count; None keeps the row's.
    """

    delay: float
    payload: bytes | None = None


class Delivery(MessageProxy):
    """One claimed job, handed to a worker; settled exactly once, by whichever consumer the worker has then.

    Attributes:
      job: the claim, with its fencing token.
      queue: the queue it was claimed from.
      claimed_at: the monotonic second at which it was claimed.
      held_until: the monotonic second at which the lease ends unless it is renewed.
      lost: True once another claim took the job over.
      settling: True from when its end is on its way to the server.
      settled: True once the server has its verdict.
      failure: the exception that after_process_message hooks are being told of right now.
      final: True when this failure allows no retry, whatever the retry middleware says.
      intent: the retry that was asked for, if any.
      started_at: the monotonic second at which its function was called, None before.
      duration: seconds from then to its end, None before.

    Our own worker notes on it, beside that:

    Attributes:
      reported: True once the hooks were told how its run ended.
      outcome: what the server is to be told, once that is known.
      given_up: True when its end cannot be told to the server; it runs again.
      collected: True once the pump has it back.
      awaited: where its thread waits for the verdict, if it does.
      verdict: the server's, None before.
      heard: True once those who listen have heard of the verdict.
      in_task: True when its function is a task on an event loop: nothing is to be thrown into the thread of its hooks.
    """

    # How each begins, here and not in its own dictionary: most of them stay as they are in most runs.
    lost = settling = settled = final = reported = given_up = collected = heard = in_task = False
    failure: BaseException | None = None
    started_at: float | None = None
    duration: float | None = None
    intent: RetryIntent | None = None
    outcome: Settlement | None = None
    awaited: Any = None
    verdict: Verdict | None = None
    #: Told of what its function notes as its progress.
    on_progress: Callable[[Delivery, str], None] | None = None
    _excused = False
    _owed: Sequence[tuple[Queue, NewJob]] = ()
    # What its function returned, encoded for a flow's parent.
    _returned: bytes | None = None
    _current: CurrentJob | None = None

    def __init__(self, message: Message[Any], job: Job, queue: Queue, slots: Places, held_until: float) -> None:
        super().__init__(message)
        # Here, because a proxy looks each of them up by a slow way, and a run asks a dozen times.
        self.actor_name, self.args, self.kwargs = message.actor_name, message.args, message.kwargs
        self.options, self.message_id = message.options, message.message_id
        self.job = job
        self.queue = queue
        self.claimed_at = time.monotonic()
        self.held_until = held_until
        self._slots: Places | None = slots

    @property
    def current(self) -> CurrentJob:
        """The job as its function sees it; made when somebody looks."""
        if (current := self._current) is None:
            made = CurrentJob(self.job, self.queue, get_encoder().decode, lambda: self.lost, self._progressed)
            # The thread that renews its lease may look at the same time: both are to get the same one.
            current = vars(self).setdefault("_current", made)
        return current

    def see(self) -> CurrentJob:
        """:attr:`current`, for :func:`echomq_tasks.current.enter`."""
        return self.current

    def _progressed(self, progress: str) -> None:
        if self.on_progress is not None:
            self.on_progress(self, progress)

    @property
    def job_id(self) -> str:
        """The JOB id; unlike ``message_id``, no two messages in a queue share one."""
        return self.job.id

    def settlement(self, *, rejected: bool) -> Complete | Retry | Discard:
        """What the server is to be told: a retry that was asked for wins, or the message would be lost."""
        about = self.about() if self.queue.announcing.tells_ends else None
        if isinstance(self._exception, JobCancelled):
            return Discard(self.job, about=about)
        if self.intent is not None:
            return Retry(self.job, self.error_text(), self.intent.delay, None, self.intent.payload, about)
        if rejected:
            return Retry(self.job, self.error_text(), max_retries=0, about=about)
        if not self.job.is_child:
            return Complete(self.job, about=about)
        if self._exception is not None and not isinstance(self._exception, SkipMessage):
            # No middleware retries, so Dramatiq acknowledges it; its parent must not take it for done.
            return Retry(self.job, self.error_text(), max_retries=0, about=about)
        if self._returned is None:
            # It was skipped, and returned nothing.
            self.keep_result(None)
        return Complete(self.job, self._returned or b"", about)

    @property
    def raised(self) -> BaseException | None:
        """The exception that its function raised, None when it raised none."""
        return self._exception

    def about(self) -> dict[str, str]:
        """What its events tell beside the job."""
        about = {"actor": self.actor_name}
        if self.duration is not None:
            about["duration_ms"] = f"{self.duration * 1000:.3f}"
        if self._exception is not None:
            about["error"] = type(self._exception).__name__
            about["message"] = _text_of(self._exception)[:_MESSAGE]
        return about

    def keep_result(self, result: Any) -> InvalidArgument | None:
        """Encode what the function returned, when a flow's parent is to be told; answers why that cannot be done."""
        if not self.job.is_child:
            return None
        try:
            self._returned = get_encoder().encode(result)
        except Exception as error:
            # Without its result the parent would run on a hole.
            fault = InvalidArgument(
                f"{type(error).__name__}: {error}; a flow's parent is told what its children return: return what the "
                f"encoder can encode, not {type(result).__name__}"
            )
            fault.__cause__ = error
            return fault
        return None

    def stuff_exception(self, exception: BaseException) -> None:
        """Keep the exception that the function raised."""
        super().stuff_exception(exception)
        if isinstance(exception, JobCancelled):
            # The worker looks whether it was to be expected, and if so logs no traceback. Then it tells the hooks.
            self.excuse(exception)

    def excuse(self, exception: BaseException) -> None:
        """Show ``exception`` among those that the actor ``throws`` on purpose, until :meth:`accuse`.

        Only to who asks this proxy for its options: those of the message, which others encode and copy, stay as they
        are.
        """
        self.options = {**self._message.options, "throws": type(exception)}
        self._excused = True

    def accuse(self) -> None:
        """Show the message's own options again; harmless when they are shown."""
        if self._excused:
            self.options = self._message.options
            self._excused = False

    def error_text(self) -> str:
        """The failure for ``last_error``: the exception in one line, then the tail of its traceback."""
        error = self._exception
        if error is None:
            return "rejected without an exception"
        head = f"{type(error).__name__}{_text_of(error, ': ')}"[:ERROR_TAIL]
        if error.__traceback__ is None:
            return head
        return f"{head}\n{''.join(traceback.format_tb(error.__traceback__, -_ERROR_FRAMES))[-ERROR_TAIL:]}"

    def owe(self, queue: Queue, job: NewJob) -> None:
        """Note a job that could not be sent while this run was reported; its id keeps it one while its row is there."""
        self._owed = (*self._owed, (queue, job))

    @property
    def owes(self) -> bool:
        """True while something that follows from it is still to be sent."""
        return bool(self._owed)

    def pay_owed(self) -> None:
        """Send what is owed, before this job is settled: what follows from a job must not be lost with it.

        Raises:
          ServerError: when the server still does not take it; the call can be repeated.
        """
        while self._owed:
            queue, job = self._owed[0]
            queue.enqueue_many((job,))
            self._owed = self._owed[1:]

    @property
    def places(self) -> Places | None:
        """Where its slot is from, None when it has none or has given it back."""
        return self._slots

    def give_slot(self) -> None:
        """Free the worker's slot; harmless when that was done."""
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.give(1)


def _text_of(error: BaseException, lead: str = "") -> str:
    """What an exception says, behind ``lead``, or why it cannot be read."""
    try:
        return f"{lead}{error}"
    except BaseException as broken:
        # It must not leave this thread, whatever it is: the job would stay claimed, and the worker's thread end.
        return f"{lead and ' '}(its text cannot be read: {type(broken).__name__})"


def job_id(message: Message[Any] | MessageProxy) -> str:
    """The JOB id of a message: of one that ``send`` returned, or that a worker runs.

    Raises:
      ValueError: when the message was not enqueued on an EchoMQBroker.
    """
    found = getattr(message, "job_id", None)
    if not isinstance(found, str):
        raise ValueError(f"{message!r} has no job id: it was not enqueued on an EchoMQBroker, or is a copy made before")
    return found


def decode(job: Job | JobInfo, queue_name: str) -> Message[Any]:
    """Read a job's payload as a message, with what a producer in another language left out filled in (wire §10).

    Raises:
      DecodeError: when the payload is not a message; its text says what is wrong.
    """
    try:
        fields = get_encoder().decode(job.payload)
    except Exception as error:
        raise DecodeError(f"the payload cannot be decoded: {error}", job.payload, error) from error
    if not isinstance(fields, dict):
        raise DecodeError(f"the payload is a {type(fields).__name__}, not a message object", job.payload, None)
    if "actor_name" not in fields:
        raise DecodeError("the payload names no actor: a message has at least actor_name and args", job.payload, None)
    found: dict[str, Any] = {"queue_name": queue_name}
    for name, kind in _KINDS.items():
        value = fields.get(name)
        if value is None:
            try:
                value = _LEFT_OUT[name](job.id)
            except InvalidId as error:
                raise DecodeError(f"its {name} was left out, and {error}", job.payload, error) from error
        if not isinstance(value, kind):
            raise DecodeError(f"the message's {name} is a {type(value).__name__}", job.payload, None)
        found[name] = value
    found["args"] = tuple(found["args"])
    # A worker would hold a message with an eta in its memory. Those that came through the broker were held by the
    # server; another producer's runs now, for whoever wants a job later puts it on the schedule.
    eta = found["options"].pop("eta", None)
    if eta is not None:
        _log.warning("The eta %r in the payload of job %s is not heeded: enqueue the job with a delay.", eta, job.id)
    # The worker finds the consumer of a message by the name of this queue, whatever the producer wrote. The fields are
    # what Dramatiq's own constructor would make of them, one by one and past its freezing.
    message: Message[Any] = object.__new__(Message)
    vars(message).update(found)
    return message


def fresh_payload(payload: bytes) -> bytes | None:
    """A message's payload without what its retries left in it; None when it cannot be read, to be kept as it is."""
    encoder = get_encoder()
    try:
        fields = encoder.decode(payload)
        for name in ("retries", "traceback", "requeue_timestamp"):
            fields["options"].pop(name, None)
        return encoder.encode(fields)
    except Exception:
        return None


def lease_end(lease: float) -> float:
    """The monotonic second until which a lease granted now can be relied on."""
    return time.monotonic() + lease
