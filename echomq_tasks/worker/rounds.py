"""The round trips of a worker's pump: each tells ends and claims jobs, and the next need not wait for its answer."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from echomq_tasks.brokers.dramatiq.delivery import lease_end
from echomq_tasks.errors import ConfigError, EchoMQError, ServerError
from echomq_tasks.queue import Release
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
#: Seconds after which a node of a cluster that has not answered holds nobody up any more.
_LATE = 0.5


@dataclass(slots=True, eq=False)
class _Round:
    """A round trip under way.

    Attributes:
      asks: what it asks.
      trip: where the answers come.
      held_until: the monotonic second until which what it claims can be relied on.
      overdue_at: the monotonic second at which the answers should have come.
      watched: the descriptor that the pump's sleep ends for; None when nobody sleeps meanwhile.
      late: whether its node has not answered in good time; only in a cluster.
    """

    asks: Sequence[Ask]
    trip: RoundTrip
    held_until: float
    overdue_at: float
    watched: int | None = None
    late: bool = False


class Rounds:
    """What the server was asked, and what it answers; for the pump alone, but for :attr:`ends`.

    One server is asked for all queues at once. In a cluster each node is asked for its own, and each queue one question
    at a time: a node that does not answer leaves the others' queues alone. Such a round trip is not given up before its
    courier is, so what it brings at last is heard; but only for half a second does it keep places for that.

    Parameters:
      broker: whose server, and for how long its leases are.
      lookout: where the pump waits.
      ends: hears the verdicts.
      taking: has the claimed jobs run.
      outage: told when the server does not do what it is asked.

    Attributes:
      prompt: how many are under way that are likely answered in a moment.
      most: how many of these there may be at once.
    """

    def __init__(self, broker: EchoMQBroker, lookout: Lookout, ends: Ends, taking: Taking, outage: Outage) -> None:
        self._broker = broker
        self._lookout = lookout
        self._ends = ends
        self._taking = taking
        self._outage = outage
        self.most = _MOST
        self.prompt = 0
        self._under_way: list[_Round] = []

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def full(self) -> bool:
        """Whether an answer is about to come, and the next had better wait for it."""
        return self.prompt >= self.most

    @property
    def overdue_at(self) -> float:
        """The monotonic second at which something is to be done about the next; only while there is any."""
        return min(each.overdue_at for each in self._under_way)

    @property
    def ends(self) -> Iterator[End]:
        """What the server was told of and has not answered yet."""
        for each in self._under_way.copy():
            for ask in each.asks:
                yield from ask.runs
                yield from ask.ends

    def begin(self, asked: Sequence[Ask], *, claiming: bool) -> bool:
        """Send one, in a cluster one to each node; answers False when nothing was sent."""
        parts = _by_node(asked) if asked[0].line.apart else [asked]
        sent = [self._send(part, claiming=claiming) for part in parts]
        return any(sent)

    def _send(self, asked: Sequence[Ask], *, claiming: bool) -> bool:
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
        patience = _LATE if asked[0].line.apart else self._broker.connection.config.timeout
        begun = _Round(asked, trip, held_until, time.monotonic() + patience)
        # In this order: whoever counts what is untold may find it twice, but never nowhere.
        self._under_way.append(begun)
        self.prompt += 1
        for ask in asked:
            ask.sent()
        if trip.errand is not None:
            trip.errand.when_done(self._lookout.bell.ring)
        elif (descriptor := trip.fileno()) is None:
            self._land(begun, claiming=claiming)
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
                if (errand := each.trip.errand) is not None:
                    if errand.done:
                        self._land(each, claiming=claiming)
                        landed = True
                    elif late:
                        self._lag(each)
                elif late or each.watched in self._lookout.ready:
                    self._land(each, claiming=claiming, late=late)
                    landed = True
        return landed

    def land_all(self, *, claiming: bool) -> None:
        """Wait for all answers; in a cluster for those that come in good time."""
        while self.prompt:
            each = next(each for each in self._under_way if not each.late)
            errand = each.trip.errand
            if errand is None or errand.wait(max(each.overdue_at - time.monotonic(), 0.0)):
                self._land(each, claiming=claiming)
            else:
                self._lag(each)

    def close(self) -> None:
        """Hear no more."""
        for each in self._under_way:
            each.trip.close()

    def _lag(self, late: _Round) -> None:
        """Have it hold nobody up; what its courier brings at last is heard all the same."""
        late.late, late.overdue_at = True, math.inf
        self.prompt -= 1
        for ask in late.asks:
            ask.lag()

    def _land(self, landed: _Round, *, claiming: bool, late: bool = False) -> None:
        if landed.watched is not None:
            self._lookout.unwatch(landed.watched)
        self.prompt -= not landed.late
        try:
            answers = landed.trip.answers(late=late)
        except BaseException as error:
            for ask in landed.asks:
                ask.failed()
            self._under_way.remove(landed)
            if not isinstance(error, EchoMQError):
                raise
            outages = {ask.line.outage if ask.line.apart else self._outage for ask in landed.asks}
            for outage in outages:
                outage.begin(error)
            return
        faults: list[BaseException] = []
        for ask, answer in zip(landed.asks, answers, strict=True):
            ask.answered()
            if landed.late and not claiming:
                # Nobody has waited for it, and it is too late for these to run here.
                answer = self._give_back(ask, answer)
            self._answer(ask, answer, landed.held_until, faults, claiming=claiming)
        self._under_way.remove(landed)
        if faults:
            raise faults[0]
        # In a cluster, all that were asked may be on nodes that are away.
        if any(ask.line.outage.failed_at == -math.inf for ask in landed.asks):
            self._outage.end()

    def _give_back(self, ask: Ask, answer: Answered) -> Answered:
        if isinstance(answer.claimed, EchoMQError) or not answer.claimed.jobs:
            return answer
        ask.line.refused.extend(map(Release, answer.claimed.jobs))
        return replace(answer, claimed=replace(answer.claimed, jobs=()))

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


def _by_node(asked: Sequence[Ask]) -> Collection[Sequence[Ask]]:
    parts: dict[str, list[Ask]] = {}
    for ask in asked:
        queue = ask.line.queue
        # One that failed may be on its way to another node, and must not take its neighbours along.
        part = queue.name if ask.line.is_away else queue.scripts.node_of(queue.base)
        parts.setdefault(part, []).append(ask)
    return parts.values()
