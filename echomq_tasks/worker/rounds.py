"""The round trips of a worker's pump: each tells ends and claims jobs, and the next need not wait for its answer."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from echomq_tasks.brokers.dramatiq.delivery import lease_end
from echomq_tasks.errors import ConfigError, EchoMQError, ServerError
from echomq_tasks.queue.turns import Answered, Asked, RoundTrip
from echomq_tasks.worker.asking import Ask
from echomq_tasks.worker.ends import End, Ends, settlements
from echomq_tasks.worker.lookout import Lookout
from echomq_tasks.worker.outage import Outage
from echomq_tasks.worker.taking import Taking

if TYPE_CHECKING:
    from echomq_tasks.brokers.dramatiq.broker import EchoMQBroker

#: With two, the server works on one while the worker works on what the other has brought.
_MOST = 2


@dataclass(slots=True, eq=False)
class _Round:
    """A round trip under way.

    Attributes:
      asks: what it asks.
      trip: where the answers come.
      held_until: the monotonic second until which what it claims can be relied on.
      overdue_at: the monotonic second at which the answers should have come.
      watched: the descriptor that the pump's sleep ends for; None when nobody sleeps meanwhile.
    """

    asks: Sequence[Ask]
    trip: RoundTrip
    held_until: float
    overdue_at: float
    watched: int | None = None


class Rounds:
    """What the server was asked, and what it answers; for the pump alone, but for :attr:`ends`.

    Parameters:
      broker: whose server, and for how long its leases are.
      lookout: where the pump waits.
      ends: hears the verdicts.
      taking: has the claimed jobs run.
      outage: told when the server does not do what it is asked.
    """

    def __init__(self, broker: EchoMQBroker, lookout: Lookout, ends: Ends, taking: Taking, outage: Outage) -> None:
        self._broker = broker
        self._lookout = lookout
        self._ends = ends
        self._taking = taking
        self._outage = outage
        self._under_way: list[_Round] = []

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def full(self) -> bool:
        """Whether an answer is to come before the next can begin."""
        return len(self._under_way) >= _MOST

    @property
    def overdue_at(self) -> float:
        """The monotonic second at which the next is given up; only while there is any."""
        return min(each.overdue_at for each in self._under_way)

    @property
    def ends(self) -> Iterator[End]:
        """What the server was told of and has not answered yet."""
        for each in self._under_way.copy():
            for ask in each.asks:
                yield from ask.runs
                yield from ask.ends

    def begin(self, asked: Sequence[Ask], *, claiming: bool, alone: bool = False) -> bool:
        """Send one; answers False when nothing was sent.

        When the pump is ``alone``, as nothing runs, its answer is taken at once: nothing can come in between, and the
        first job is there the sooner.
        """
        lease = self._broker.lease
        held_until = lease_end(lease)
        try:
            trip = RoundTrip(
                [Asked(ask.line.queue, settlements([*ask.runs, *ask.ends]), ask.count) for ask in asked], lease=lease
            )
        except (ServerError, ConfigError) as error:
            self._outage.begin(error)
            return False
        except EchoMQError as error:
            if not self._ends.give_up_unsendable(asked):
                self._outage.begin(error)
            return False
        begun = _Round(asked, trip, held_until, time.monotonic() + self._broker.connection.config.timeout)
        # In this order: whoever counts what is untold may find it twice, but never nowhere.
        self._under_way.append(begun)
        for ask in asked:
            ask.sent()
        if alone or (descriptor := trip.fileno()) is None:
            self._land(begun, claiming=claiming, alone=alone)
        else:
            self._lookout.watch(descriptor)
            begun.watched = descriptor
        return True

    def land(self, *, claiming: bool) -> bool:
        """Take the answers that have come, if any."""
        landed = False
        if self._under_way:
            now = time.monotonic()
            for each in self._under_way.copy():
                late = each.overdue_at <= now
                if late or each.watched in self._lookout.ready:
                    self._land(each, claiming=claiming, late=late)
                    landed = True
        return landed

    def land_all(self, *, claiming: bool) -> None:
        """Wait for all answers."""
        while self._under_way:
            self._land(self._under_way[0], claiming=claiming)

    def close(self) -> None:
        """Hear no more."""
        for each in self._under_way:
            each.trip.close()

    def _land(self, landed: _Round, *, claiming: bool, late: bool = False, alone: bool = False) -> None:
        if landed.watched is not None:
            self._lookout.unwatch(landed.watched)
        try:
            answers = landed.trip.answers(late=late, alone=alone)
        except BaseException as error:
            for ask in landed.asks:
                ask.failed()
            self._under_way.remove(landed)
            if not isinstance(error, EchoMQError):
                raise
            self._outage.begin(error)
            return
        faults: list[BaseException] = []
        for ask, answer in zip(landed.asks, answers, strict=True):
            ask.answered()
            self._answer(ask, answer, landed.held_until, faults, claiming=claiming)
        self._under_way.remove(landed)
        if faults:
            raise faults[0]
        # In a cluster, all that were asked may be on nodes that are away.
        if any(ask.line.outage.failed_at == -math.inf for ask in landed.asks):
            self._outage.end()

    def _answer(
        self, ask: Ask, answer: Answered, held_until: float, faults: list[BaseException], *, claiming: bool
    ) -> None:
        failed: EchoMQError | None = None
        # Whatever goes wrong with one of them, nobody else will take care of the others.
        try:
            failed = self._ends.hear(ask, answer.verdicts)
        except BaseException as error:
            faults.append(error)
        if ask.count:
            try:
                failed = self._taking.take(ask, answer.claimed, held_until) or failed
            except BaseException as error:
                faults.append(error)
        if failed is not None:
            ask.line.outage.begin(failed)
            # A look ends it; until then it stands nowhere, so nothing else would bring one about.
            ask.line.look_at = 0.0
        elif ask.count or not claiming:
            ask.line.outage.end()
