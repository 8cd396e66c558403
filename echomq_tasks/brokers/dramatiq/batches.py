"""Batches: messages of one actor that are gathered, run in one call, and end each on its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dramatiq import Message, MessageProxy
from dramatiq.middleware import MiddlewareError, SkipMessage

from echomq_tasks.brokers.dramatiq.delivery import Delivery
from echomq_tasks.brokers.dramatiq.slots import Places
from echomq_tasks.errors import BatchError, JobCancelled
from echomq_tasks.queue import Queue, Release, Settlement

_log = logging.getLogger(__name__)

#: The most messages in one call: what one claim may ask for.
MAX_BATCH = 1000
#: The longest time, in seconds, that a message waits for others.
MAX_WAIT = 60.0
_DEFAULT_WAIT = 0.1


@dataclass(frozen=True, slots=True)
class BatchRule:
    """How the messages of a batch actor are gathered: up to ``size`` of them, for up to ``wait`` seconds."""

    size: int
    wait: float


def batch_rule(options: Mapping[str, Any]) -> BatchRule | None:
    """What an actor's options say of batches; None when they say nothing.

    Raises:
      ValueError: when ``batch`` is no whole number from 1 to 1000, ``batch_wait`` is no number of seconds from 0 to 60,
        or it is given without ``batch``, or the actor repeats.
    """
    if "batch" not in options:
        if "batch_wait" in options:
            raise ValueError("batch_wait needs batch: how many messages one call takes at most.")
        return None
    size, wait = options["batch"], options.get("batch_wait", _DEFAULT_WAIT)
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_BATCH:
        raise ValueError(f"batch is a whole number from 1 to {MAX_BATCH}, not {size!r}.")
    if isinstance(wait, bool) or not isinstance(wait, (int, float)) or not 0 <= wait <= MAX_WAIT:
        raise ValueError(f"batch_wait is a number of seconds from 0 to {MAX_WAIT:g}, not {wait!r}.")
    if options.get("every") is not None or options.get("cron") is not None:
        raise ValueError("A batch actor does not repeat: its messages carry an item. Let one that repeats send to it.")
    return BatchRule(size, float(wait))


def malformed(message: Message[Any]) -> str | None:
    """Why a message cannot be a member of a batch; None when it can."""
    if len(message.args) == 1 and not message.kwargs:
        return None
    return (
        f"TypeError: a message of the batch actor {message.actor_name!r} carries exactly one positional argument, "
        f"this one has {len(message.args)} and {len(message.kwargs)} by name"
    )


class Member(Delivery):
    """One message of a batch.

    Attributes:
      error: what it failed with, once that is known.
      result: its own result.
      skipped: True when a middleware skipped it.
      told: True once all hooks know how it ended.
    """

    def __init__(self, message: Message[Any], job: Any, queue: Queue, slots: Places, held_until: float) -> None:
        super().__init__(message, job, queue, slots, held_until)
        # The batch has the slot: one thread runs all of it.
        self._slots = None
        self.error: BaseException | None = None
        self.result: Any = None
        self.skipped = False
        self.told = False

    @property
    def alone(self) -> bool:
        """True when it may be what made a batch fail, or killed its worker: then it must not take others along."""
        return self.job.failures > 0 or self.job.stalled > 0

    @property
    def suspect(self) -> bool:
        """True when workers died with it again and again, so that nothing should run beside it."""
        return self.job.stalled > 1

    def end(self) -> Settlement:
        """What the server is to be told; a run that was torn away before its hooks were told is given back."""
        if self.told or self.failed or self.intent is not None:
            return self.settlement(rejected=self.failed)
        return Release(self.job)


class Batch(MessageProxy):
    """Messages of one actor on their way through a worker as one; made by a consumer.

    To Dramatiq's worker it is a message whose only argument is the list. Hooks and settlements are for its members.

    Attributes:
      members: the messages, in the order they were claimed.
      due: the monotonic second at which it starts, full or not.
      crowded: True when other jobs wait behind it, so that no more is claimed than there are free threads for.
    """

    def __init__(self, first: Member, rule: BatchRule, slots: Places, places: int = 1) -> None:
        super().__init__(
            Message(queue_name=first.queue_name, actor_name=first.actor_name, args=(), kwargs={}, options={})
        )
        self.members = [first]
        self.queue = first.queue
        self.claimed_at = first.claimed_at
        self.due = first.claimed_at + rule.wait
        self.crowded = False
        self._size = 1 if first.alone else rule.size
        self._slots: Places | None = slots
        self._places = places
        self._running: list[Member] = []
        self._started = False
        self._concluded = False
        self._telling: Member | None = None
        # As of a delivery, for our own worker.
        self.reported = False
        self.collected = False
        self.awaited: Any = None

    @property
    def places(self) -> Places | None:
        """Where its slots are from, None once it has given them back."""
        return self._slots

    @property
    def running(self) -> list[Member]:
        """The members that the function is given."""
        return self._running

    @property
    def room(self) -> int:
        """How many more it takes."""
        return self._size - len(self.members)

    def __str__(self) -> str:
        return f"{self.actor_name}(a list of {len(self._running or self.members)})"

    def give_slot(self) -> None:
        """Free what it has of the worker's slots; harmless when that was done."""
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.give(self._places)

    # -- what Dramatiq's worker tells a message that it cannot run -------------------------------------------------

    def fail(self) -> None:
        """Mark all members for rejection."""
        super().fail()
        for member in self.members:
            member.fail()

    def stuff_exception(self, exception: BaseException) -> None:
        """Keep an exception; one that came before the run is every member's."""
        super().stuff_exception(exception)
        if not self._started:
            for member in self.members:
                member.stuff_exception(exception)

    def clear_exception(self) -> None:
        """Forget the exceptions."""
        super().clear_exception()
        for member in self.members:
            member.clear_exception()
            member.error = None

    # -- the run ---------------------------------------------------------------------------------------------------

    def start(self, before: Callable[[Member], None]) -> None:
        """Call ``before`` for each member and find out which of them run.

        The hooks that follow a skip come with all others after the run: some of them undo for the whole thread what
        the next member's hooks have set up, a time limit for one.
        """
        self._started = True
        # What was lost while it waited for others belongs to another worker.
        self.members = [member for member in self.members if not member.lost]
        for member in self.members:
            try:
                before(member)
            except SkipMessage as skip:
                if member.failed:
                    member.stuff_exception(skip)
                member.skipped = True
                _log.warning("Message %s was skipped.", member)
            except MiddlewareError as error:
                member.error = error
                _log.error("Failed to process message %s with unhandled exception.", member, exc_info=True)
            else:
                if member.failed:
                    continue
                if member.current.told_cancelled:
                    member.error = JobCancelled(f"{member.job_id} was cancelled before it started")
                else:
                    self._running.append(member)
        self._message.options.clear()
        if any(member.options.get("pipe_target") is not None for member in self._running):
            # The worker would warn that results are discarded.
            self._message.options["pipe_target"] = {}
        # The list is the function's only argument.
        self.args = ([member.args[0] for member in self._running],)
        # The worker calls nothing for a message that failed before its run.
        self.failed = not self._running

    def conclude(self, result: Any, exception: BaseException | None) -> None:
        """Find out how each member ended, from what the function returned or raised."""
        if self._concluded:
            # Something was thrown into this thread while a member's hooks ran. The others ended as they did.
            if self._telling is not None:
                self._telling.error, self._telling.skipped = exception, False
            return
        self._concluded = True
        failures: Mapping[int, BaseException] = {}
        results: Any = result
        if isinstance(exception, BatchError):
            failures, results, exception = exception.failures, exception.results, None
        elif isinstance(exception, JobCancelled):
            exception = self._whose(exception)
        if exception is None and self._running:
            exception = self._mismatch(results, failures)
        if exception is not None:
            for member in self.members:
                if member.error is None and not member.skipped and not member.failed:
                    member.error = exception
            return
        for index, member in enumerate(self._running):
            member.error = failures.get(index)
            if member.error is None and results is not None:
                member.result = results[index]

    def _whose(self, cancelled: JobCancelled) -> Exception:
        """It would end all members for good, and who raises it means one: an ordinary failure, so each runs alone."""
        error = RuntimeError(
            f"the batch actor {self.actor_name!r} raised JobCancelled and does not say for which member: raise "
            f"BatchError({{index: JobCancelled()}}) to end that one"
        )
        error.__cause__ = cancelled
        return error.with_traceback(cancelled.__traceback__)

    def _mismatch(self, results: Any, failures: Mapping[int, BaseException]) -> Exception | None:
        count = len(self._running)
        error: Exception | None = None
        if results is not None and not isinstance(results, (list, tuple)):
            error = TypeError(
                f"the batch actor {self.actor_name!r} returned a {type(results).__name__}: return None, or a list with "
                f"one result for each of its {count} members"
            )
        elif results is not None and len(results) != count:
            error = ValueError(
                f"the batch actor {self.actor_name!r} returned {len(results)} results for {count} members: return "
                f"None, or a list with one result for each"
            )
        elif failures and max(failures) >= count:
            error = ValueError(
                f"the batch actor {self.actor_name!r} raised BatchError for member {max(failures)}, and there are "
                f"{count}: name members by their index in the list"
            )
        if error is not None:
            _log.error("All members of %s failed: %s", self, error)
        return error

    def tell(self, after: Callable[[Member], None]) -> None:
        """Call ``after`` for each member that was not told yet, as a worker does while it handles its exception."""
        for member in self.members:
            if member.told:
                continue
            self._telling = member
            if member.error is None:
                after(member)
            else:
                member.stuff_exception(member.error)
                while_handling(member.error, partial(after, member))
            member.told = True
            self._telling = None

    def unsettled(self) -> list[Member]:
        """The members that the server has not heard of yet."""
        return [member for member in self.members if not member.settled]

    def as_ended(self, member: Member, *, rejected: bool) -> Settlement:
        """How a member is settled; a batch that no worker ran is settled as whoever took it says."""
        return member.end() if self._started else member.settlement(rejected=rejected)


def while_handling(error: BaseException, call: Callable[[], None]) -> None:
    """Call with ``error`` as the exception that is being handled: hooks format that one's traceback."""
    before = error.__traceback__, error.__context__
    try:
        raise error
    except BaseException as raised:
        if raised is not error:
            raise
        error.__traceback__, error.__context__ = before
        call()


def deliveries(messages: Sequence[MessageProxy]) -> list[Delivery]:
    """The deliveries among ``messages``, members of batches included, that are not settled."""
    found: list[Delivery] = []
    for message in messages:
        if isinstance(message, Batch):
            found.extend(message.unsettled())
        elif isinstance(message, Delivery) and not message.settled:
            found.append(message)
    return found
