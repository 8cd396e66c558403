"""The ends of runs, as the pump of a worker tells them: what becomes of each, and of those that cannot be told."""

from __future__ import annotations

from collections.abc import Sequence
from logging import Logger
from typing import TYPE_CHECKING

from echomq_tasks.brokers.dramatiq.delivery import Delivery
from echomq_tasks.brokers.dramatiq.hearing import note_verdict
from echomq_tasks.errors import ConfigError, EchoMQError, ServerError
from echomq_tasks.queue import Release, Retry, Settlement, Verdict
from echomq_tasks.queue.turns import Asked, turn_all
from echomq_tasks.worker.asking import Ask
from echomq_tasks.worker.line import Line
from echomq_tasks.worker.verdicts import Awaited

if TYPE_CHECKING:
    from echomq_tasks.brokers.dramatiq.broker import EchoMQBroker

#: A run that has ended, or the end of a job of which there is no delivery.
End = Delivery | Settlement


def settlements(ends: Sequence[End]) -> list[Settlement]:
    """What the server is to be told of each."""
    return [end.outcome if isinstance(end, Delivery) else end for end in ends]  # type: ignore[misc]


class Ends:
    """Hears what the server says of ends; for the pump alone.

    Parameters:
      broker: whose leases they have.
      logger: told of what cannot be told to the server.
    """

    def __init__(self, broker: EchoMQBroker, logger: Logger) -> None:
        self._broker = broker
        self._logger = logger

    def hear(self, ask: Ask, verdicts: Sequence[Verdict | EchoMQError]) -> EchoMQError | None:
        """Note the verdicts on all ends in ``ask``; answers what kept some from being told, which are told again."""
        line = ask.line
        failed, spoilt = self._note(line, [*ask.runs, *ask.ends], verdicts)
        if len(spoilt) == 1:
            self._give_up(line, *spoilt[0])
        elif spoilt:
            failed = self._tell_singly(line, [end for end, _ in spoilt]) or failed
        line.stuck = failed is not None
        return failed

    def _tell_singly(self, line: Line, ends: Sequence[End]) -> EchoMQError | None:
        """Tell ends in calls of their own: one of them spoils a call for all, and repeats are harmless."""
        try:
            answers = turn_all([Asked(line.queue, [end], 0) for end in settlements(ends)])
            verdicts = [answer.verdicts[0] for answer in answers]
        except (ServerError, ConfigError) as error:
            verdicts = [error] * len(ends)
        failed, spoilt = self._note(line, ends, verdicts)
        for spoiler in spoilt:
            self._give_up(line, *spoiler)
        return failed

    def _note(
        self, line: Line, ends: Sequence[End], verdicts: Sequence[Verdict | EchoMQError]
    ) -> tuple[EchoMQError | None, list[tuple[End, EchoMQError]]]:
        """Note verdicts; answers what kept some ends from being told, and those that spoilt their call."""
        failed: EchoMQError | None = None
        spoilt: list[tuple[End, EchoMQError]] = []
        heard = iter(zip(ends, verdicts, strict=True))
        try:
            for end, verdict in heard:
                if isinstance(verdict, Verdict):
                    self._heard(line, end, verdict)
                elif isinstance(verdict, (ServerError, ConfigError)):
                    failed = verdict
                    _keep(line, end)
                else:
                    spoilt.append((end, verdict))
        except BaseException:
            # Those of which nothing was made yet are told again.
            for end, _ in (*spoilt, *heard):
                _keep(line, end)
            raise
        return failed, spoilt

    def give_up_unsendable(self, asked: Sequence[Ask]) -> bool:
        """Give up those that cannot be sent as they are, and would take the others along; True if any was found."""
        found = False
        for ask in asked:
            for listed, ends in ((ask.line.unsettled, ask.runs), (ask.line.refused, ask.ends)):
                for end in (*ends,):
                    try:
                        ask.line.queue.settle_calls(settlements([end]))
                    except EchoMQError as error:
                        found = True
                        # By what it is: two ends may be equal.
                        del listed[next(place for place, each in enumerate(listed) if each is end)]
                        self._give_up(ask.line, end, error)
        return found

    def _heard(self, line: Line, end: End, verdict: Verdict) -> None:
        if isinstance(end, Delivery):
            self.done(end, None if isinstance(end.outcome, Release) else verdict, end.awaited)
        elif isinstance(end, Retry):
            self._broker.signalling.refused(line.queue, end, verdict)

    def _give_up(self, line: Line, end: End, error: EchoMQError) -> None:
        self._logger.error(
            "The end of job %s on queue %r cannot be told: it runs again when its lease ends.",
            (end.job_id if isinstance(end, Delivery) else end.job.id), line.queue_name, exc_info=error,
        )  # fmt: skip
        if isinstance(end, Delivery):
            end.given_up = True
            self.done(end, None, end.awaited)

    def done(self, run: Delivery, verdict: Verdict | None, awaited: Awaited | None) -> None:
        """Let go of a run: nothing more is told of it."""
        run.settled = True
        self._broker.leases.drop(run)
        run.verdict = verdict
        if awaited is not None:
            awaited.arrive()
        elif verdict is not Verdict.OK:
            note_verdict(run, verdict)


def _keep(line: Line, end: End) -> None:
    if isinstance(end, Delivery):
        line.unsettled.append(end)
    else:
        line.refused.append(end)
