"""What happens to one message: the hooks, the function, and its end, in Dramatiq's order."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from dramatiq import Actor
from dramatiq.errors import ActorNotFound, ConnectionClosed, RateLimitExceeded, Retry
from dramatiq.logging import get_logger
from dramatiq.middleware import SkipMessage
from dramatiq.results import Results

from echomq_tasks import signals
from echomq_tasks.brokers.dramatiq.batches import Batch, Member, while_handling
from echomq_tasks.brokers.dramatiq.delivery import Delivery
from echomq_tasks.brokers.dramatiq.hearing import hear
from echomq_tasks.brokers.dramatiq.transport import settling
from echomq_tasks.forks import after_fork
from echomq_tasks.queue import Complete, Release
from echomq_tasks.worker.verdicts import Awaited

if TYPE_CHECKING:
    from echomq_tasks.brokers.dramatiq.broker import EchoMQBroker

#: Seconds between two tries to send what follows from a job, which must be in before the job is settled.
_OWED_AGAIN = 0.2
_ENDS = (signals.completed, signals.retried, signals.failed, signals.cancelled)


class Processing:
    """Runs deliveries and prepares their ends; used by all threads of a worker.

    Parameters:
      broker: whose actors and hooks.
      ended: given each delivery that has ended, with whether its thread waits for the verdict.
      awaiting: how verdicts are waited for.
    """

    def __init__(
        self,
        broker: EchoMQBroker,
        ended: Callable[[Delivery | Batch, bool], None],
        awaiting: Callable[[int], Awaited] = Awaited,
    ) -> None:
        self.logger = get_logger(__name__, type(self))
        self._broker = broker
        self._ended = ended
        self._awaiting = awaiting
        #: True when the process is about to go: what cannot be sent is left for the next run of its job.
        self.hurry = False
        self._forked = False
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        # There is no pump in a child of a fork: no verdict will come.
        self._forked = True

    # -- the run --------------------------------------------------------------------------------------------------

    def run(self, message: Delivery | Batch) -> None:
        """Call the hooks and the function of a message; whatever is raised there becomes a part of its end."""
        broker, actor = self._broker, self._broker.actors.get(message.actor_name)
        if actor is None:
            self._unknown(message)
            return
        try:
            broker.emit_before("process_message", message)
            result = None
            if not message.failed:
                result = _function(actor)(*message.args, **message.kwargs)
            self._succeeded(message, actor, result)
        except BaseException as error:
            self._failed(message, actor, error)
        message.reported = True

    def begin(self, message: Delivery | Batch) -> None:
        """Call the hooks that come before the function, for who calls that itself."""
        self._broker.emit_before("process_message", message)

    def finish(
        self, message: Delivery | Batch, actor: Actor[..., Any], result: Any, error: BaseException | None
    ) -> None:
        """Call the hooks that come after the function, for who has called that itself."""
        if error is None:
            try:
                self._succeeded(message, actor, result)
            except BaseException as raised:
                self._failed(message, actor, raised)
        else:
            while_handling(error, partial(self._failed, message, actor, error))
        message.reported = True

    def _succeeded(self, message: Delivery | Batch, actor: Actor[..., Any], result: Any) -> None:
        if result is not None:
            self._warn_of_discarded(message, actor)
        self._broker.emit_after("process_message", message, result=result)

    def _failed(self, message: Delivery | Batch, actor: Actor[..., Any], error: BaseException) -> None:
        if isinstance(error, SkipMessage):
            if message.failed:
                message.stuff_exception(error)
            self.logger.warning("Message %s was skipped.", message)
            self._broker.emit_after("skip_message", message)
        else:
            message.stuff_exception(error)
            self._log(message, actor, error)
            self._broker.emit_after("process_message", message, exception=error)

    def _unknown(self, message: Delivery | Batch) -> None:
        error = ActorNotFound(message.actor_name)
        self.logger.error("There is no actor %r here: message %s goes to dead.", message.actor_name, message)
        message.fail()
        message.stuff_exception(error)
        message.reported = True

    def _warn_of_discarded(self, message: Delivery | Batch, actor: Actor[..., Any]) -> None:
        if message.options.get("pipe_target") is None and not any(
            isinstance(each, Results) for each in self._broker.middleware
        ):
            self.logger.warning(
                "Actor %r returned a value, which is discarded: add the Results middleware to the broker, pipe the "
                "result into another actor, or return None.",
                actor.actor_name,
            )

    def _log(self, message: Delivery | Batch, actor: Actor[..., Any], error: BaseException) -> None:
        throws = message.options.get("throws") or actor.options.get("throws")
        if isinstance(error, RateLimitExceeded):
            self.logger.debug("Rate limit exceeded in message %s: %s.", message, error)
        elif throws and isinstance(error, throws):
            self.logger.info("Failed to process message %s with expected exception %s.", message, type(error).__name__)
        elif not isinstance(error, Retry):
            self.logger.error("Failed to process message %s with unhandled exception.", message, exc_info=True)

    # -- its end --------------------------------------------------------------------------------------------------

    def hand_in(self, message: Delivery | Batch) -> None:
        """Find out what the server is to be told, and give it to the pump; harmless when that was done."""
        if type(message) is Delivery and self._is_plain(message):
            message.settling = True
            about = message.about() if message.queue.announcing.tells_ends else None
            message.outcome = Complete(message.job, about=about)
            self._ended(message, False)
            return
        members: list[Any] = message.unsettled() if isinstance(message, Batch) else [message]
        try:
            self._broker.emit_before("nack" if message.failed else "ack", message)
        except Exception:
            self.logger.exception("A hook lets %s not end: it runs again when its lease ends.", message)
            for member in members:
                member.given_up = True
        waits = any(self._is_awaited(member) for member in members)
        if waits and message.awaited is None:
            message.awaited = self._awaiting(len(members))
        waits = waits and message.awaited.holds_thread
        # Those which owe something may wait long for the server; the others are not to wait with them.
        owing = [member for member in members if member.owes]
        for member in members:
            if not member.owes:
                self._decide(member)
                if owing and message is not member:
                    member.awaited = message.awaited
                    self._ended(member, waits)
        for member in owing:
            self._decide(member)
        self._ended(message, waits)

    def _is_plain(self, message: Delivery) -> bool:
        """Whether it is done, and nobody waits for more than that: the way of most messages, and a short one."""
        return (
            message.reported
            and message.raised is None
            and not (message.failed or message.lost or message.settled or message.intent or message.owes)
            and not message.job.is_child
            and not self._broker.has_hook("before_ack")
            and not self._is_awaited(message)
        )

    def _decide(self, member: Delivery) -> None:
        if member.outcome is not None or member.given_up or member.settled:
            return
        if member.lost:
            # Its token may still fit, when the job waits again and nobody has claimed it. But this run was not
            # reported, so the job's next run must end it.
            self.logger.debug("The late end of job %s is dropped: its lease was lost.", member.job_id)
            return
        member.settling = True
        try:
            self._pay(member)
            if isinstance(member, Member):
                member.outcome = member.end()
            elif member.reported or member.failed or member.intent is not None:
                member.outcome = member.settlement(rejected=member.failed)
            else:
                # Torn off before its hooks were told how it ended: nobody knows, so it runs again.
                member.outcome = Release(member.job)
        except Exception:
            self.logger.exception("The end of job %s cannot be told: it runs again when its lease ends.", member.job_id)
            member.given_up = True

    def _pay(self, member: Delivery) -> None:
        """Send what follows from a job before it is settled, however long the server does not take it."""
        told = False
        while member.owes:
            try:
                with settling():
                    member.pay_owed()
            except ConnectionClosed as error:
                if self.hurry:
                    raise
                if not told:
                    self.logger.warning(
                        "What follows job %s is sent once the server takes it: %s", member.job_id, error
                    )
                    told = True
                time.sleep(_OWED_AGAIN)

    def _is_awaited(self, member: Delivery) -> bool:
        """Whether anybody in this thread is told of the verdict."""
        if member.given_up:
            return False
        if self._broker.has_hook("after_nack" if member.failed else "after_ack"):
            return True
        completed, retried, failed, cancelled = _ENDS
        if completed.receivers or retried.receivers or failed.receivers or cancelled.receivers:
            return True
        actor = self._broker.actors.get(member.actor_name)
        return actor is not None and "invalidates" in actor.options

    def give_up(self, message: Delivery | Batch) -> None:
        """Let go of a message whose end fails again and again: it runs again when its lease ends."""
        members: list[Any] = message.unsettled() if isinstance(message, Batch) else [message]
        for member in members:
            member.given_up = member.outcome is None
        self._ended(message, False)

    def conclude(self, message: Delivery | Batch) -> None:
        """Wait for the verdict where somebody is to be told of it, tell them, and let go of the exception."""
        if message.awaited is not None and not self._forked:
            message.awaited.wait()
            self._tell(message)
            if message.awaited.holds_thread:
                # Once more: this thread was not free until now, so neither was its place.
                self._ended(message, False)
        # Kept, it would keep the frames of the run.
        message.clear_exception()

    def _tell(self, message: Delivery | Batch) -> None:
        members: list[Any] = message.members if isinstance(message, Batch) else [message]
        for member in members:
            if not member.heard:
                member.heard = True
                try:
                    hear(self._broker, member, member.verdict)
                except Exception:
                    self.logger.exception("The end of job %s is told to nobody.", member.job_id)
        if isinstance(message, Batch) or not message.given_up:
            self._broker.emit_after("nack" if message.failed else "ack", message)


def _function(actor: Actor[..., Any]) -> Callable[..., Any]:
    """What to call for an actor: without its debug log, when nobody reads that."""
    if type(actor).__call__ is Actor.__call__ and not actor.logger.isEnabledFor(logging.DEBUG):
        return actor.fn
    return actor
