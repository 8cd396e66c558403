"""The job that runs: its progress, its log, its children, and whether it was asked to stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from echomq_tasks.errors import EchoMQError, JobCancelled, ServerError
from echomq_tasks.queue import Job, Queue, Verdict

#: Seconds for which an answer to "was it cancelled?" stands, so that a tight loop may ask at every step.
_ASK_AGAIN = 1.0

# What gives it: most jobs never look.
_running: ContextVar[Callable[[], CurrentJob] | None] = ContextVar("echomq_current_job", default=None)


@dataclass(frozen=True, slots=True)
class ChildResults:
    """What a flow parent's children came to.

    Attributes:
      results: JOB id to what the child's function returned, decoded.
      ignored: JOB id to the error of a child that died and was ignored.
    """

    results: dict[str, Any]
    ignored: dict[str, str]


class CurrentJob:
    """A claimed job, for the code that runs it; made by the worker, see :func:`current_job`.

    Parameters:
      job: the claim.
      queue: its queue.
      decode: how a child's result is read.
      has_lost: tells whether the lease was lost to another worker, as far as is known here.
      progressed: called with what :meth:`progress` noted, for the signal.
    """

    def __init__(
        self,
        job: Job,
        queue: Queue,
        decode: Callable[[bytes], Any],
        has_lost: Callable[[], bool],
        progressed: Callable[[str], None] | None = None,
    ) -> None:
        self._job = job
        self.queue = queue
        self._decode = decode
        self._has_lost = has_lost
        self._cancelled = False
        # Whether its function has been told so.
        self._aware = False
        self._ask_at = 0.0
        #: Why its coroutine is cancelled: ``TimeLimitExceeded``, ``Shutdown`` or ``JobCancelled``; None when it is not.
        self.interrupted: BaseException | None = None
        self._progressed = progressed

    @property
    def id(self) -> str:
        """The JOB id."""
        return self._job.id

    @property
    def attempt(self) -> int:
        """How often it was claimed, from 1: as in its events, and ``attempts`` of :meth:`echomq_tasks.queue.Queue.get`.

        Every run counts, also one that was cut short by a stop or by the end of its worker, and so does a claim that
        was given back before it ran: at 1, nothing of it was ever done, and above that some of it may have been.
        """
        return self._job.token

    @property
    def failures(self) -> int:
        """How often its function has raised, from 0: what its retries are counted by. Runs cut short do not count."""
        return self._job.failures

    @property
    def group(self) -> str | None:
        """The branded id of its lane, None when flat."""
        return self._job.group

    @property
    def cancelled(self) -> bool:
        """Whether it was asked to stop (:meth:`echomq_tasks.queue.Queue.cancel`).

        Asks the server at most once a second. While the server is away the answer is the last known one.
        """
        now = time.monotonic()
        if not self._cancelled and now >= self._ask_at:
            self._ask_at = now + _ASK_AGAIN
            try:
                self._cancelled = self.queue.is_cancelled(self.id)
            except ServerError:
                # A job need not fail because nobody can tell whether it was cancelled.
                return False
        self._aware = self._cancelled
        return self._cancelled

    @property
    def told_cancelled(self) -> bool:
        """Whether it is known that it was asked to stop; never asks the server."""
        return self._cancelled

    @property
    def unaware(self) -> bool:
        """True when it was asked to stop and its function has not asked since."""
        return self._cancelled and not self._aware

    def tell_cancelled(self) -> None:
        """Note that it was asked to stop, learned with the renewal of its lease."""
        self._cancelled = True

    def checkpoint(self) -> None:
        """Raise when going on is in vain; call it where the job can stop.

        Raises:
          JobCancelled: when it was asked to stop, or when its lease was lost and another worker has it. Let it through:
            the job ends without a retry.
        """
        if self._has_lost():
            raise JobCancelled(f"{self.id}: the lease was lost and another worker has the job; stop without a result")
        if self.cancelled:
            raise JobCancelled(f"{self.id} was cancelled")

    def progress(self, progress: float | str) -> None:
        """Note how far it is, as a number or a text of yours: readable from any process, and published.

        Raises:
          InvalidArgument: when it is neither.
          ServerUnavailable: when the server did not answer.
        """
        verdict = self.queue.update_progress(self.id, progress)
        if self._progressed is not None and verdict is Verdict.OK:
            self._progressed(str(progress))

    def log(self, line: str, *, keep: int | None = 1000) -> None:
        """Add a line to its log, of which the last ``keep`` are kept; None keeps all.

        Readable from any process (:meth:`echomq_tasks.queue.Queue.logs`) until the job has completed.

        Raises:
          InvalidArgument: when the line is no text.
          ServerUnavailable: when the server did not answer.
        """
        self.queue.add_log(self.id, line, keep=keep)

    def children(self) -> ChildResults:
        """What its children came to, when it is the parent of a flow; empty otherwise.

        Raises:
          EchoMQError: when a result cannot be read, as one that another runtime wrote in a form of its own: read the
            bytes with :meth:`echomq_tasks.queue.Queue.children`.
          ServerUnavailable: when the server did not answer.
        """
        known = self.queue.children(self.id)
        if known is None:
            return ChildResults({}, {})
        results = {}
        for child, result in known.results.items():
            try:
                # A job that completed without a result, as a plain Queue's may.
                results[child] = self._decode(result) if result else None
            except Exception as error:
                raise EchoMQError(
                    f"the result of child {child} cannot be decoded ({error}): read it with queue.children({self.id!r})"
                ) from error
        return ChildResults(results, dict(known.ignored))


def current_job() -> CurrentJob:
    """The job that runs here; works in the function of an actor, plain or async, and in what it calls.

    Raises:
      RuntimeError: when no job runs here: in a thread that the job started itself, or when the function was called
        without a worker.
    """
    give = _running.get()
    if give is None:
        raise RuntimeError(
            "no job runs here: current_job() works in an actor that a worker runs, not in a thread it started"
        )
    return give()


def enter(give: Callable[[], CurrentJob] | None) -> None:
    """Make the job that ``give`` answers the current one of this thread (for workers); None when it has ended."""
    _running.set(give)
