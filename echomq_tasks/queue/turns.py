"""One round trip of a worker that serves several queues: settle what is done, claim what there is room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from echomq_tasks.errors import EchoMQError, ServerUnavailable
from echomq_tasks.queue.model import Claimed, Settlement, Verdict
from echomq_tasks.queue.queue import Queue
from echomq_tasks.queue.replies import verdict_of
from echomq_tasks.scripts import Call
from echomq_tasks.scripts.callers import Caller
from echomq_tasks.scripts.calls import Sent
from echomq_tasks.scripts.courier import Errand


@dataclass(frozen=True, slots=True)
class Asked:
    """What a worker asks of one queue.

    Attributes:
      queue: the queue.
      settlements: what is done.
      count: how many jobs to claim; 0 claims nothing.
    """

    queue: Queue
    settlements: Sequence[Settlement]
    count: int


@dataclass(frozen=True, slots=True)
class Answered:
    """What one queue answered.

    Attributes:
      verdicts: one for each settlement; the error where its call failed, and then it can be repeated.
      claimed: the jobs, or the error; empty when nothing was asked.
    """

    verdicts: Sequence[Verdict | EchoMQError]
    claimed: Claimed | EchoMQError


#: What was asked when nothing was to be claimed.
_NOTHING = Claimed(())


class RoundTrip:
    """Settles and claims at several queues of one server: sent when this is made, answered by :meth:`answers`.

    For one thread, which may have several under way.

    Parameters:
      asked: what is asked of each.
      lease: seconds that the claimed jobs are leased for.

    Raises:
      InvalidArgument, InvalidId: before a byte is sent, when one of the settlements cannot be sent.
      ServerUnavailable: when the server is not there. All can be repeated: a settlement that had been heard changes
        nothing, and the next claim is given what this one took.
    """

    def __init__(self, asked: Sequence[Asked], *, lease: float = 30.0) -> None:
        self._asked = asked
        self._lease = lease
        self._orders: list[list[list[int]]] = []
        self._callers: list[Caller | None] = []
        #: Whether a node of a cluster did not answer, and all are to be repeated.
        self.failed = False
        self._scripts = asked[0].queue.scripts
        self._sent: Sent | None = None
        calls: list[Call] = []
        try:
            for one in asked:
                mine, order = one.queue.settle_calls(one.settlements, checked=False)
                calls += mine
                self._orders.append(order)
            # Behind them all, so that what is claimed does not come on top of what is done.
            for one in asked:
                caller = one.queue.claimers.take() if one.count else None
                self._callers.append(caller)
                if caller is not None:
                    calls.append(one.queue.claim_call(one.count, lease, caller))
            if calls:
                self._sent = self._scripts.send(calls)
        except BaseException:
            self._give_back_callers()
            raise

    def fileno(self) -> int | None:
        """The descriptor that becomes readable with the answers; None when they are to be asked for at once."""
        return None if self._sent is None else self._sent.fileno()

    @property
    def errand(self) -> Errand | None:
        """In a cluster, the courier's who brings the answers: once it is done, they are taken without waiting."""
        return None if self._sent is None else self._sent.errand

    def answers(self, *, late: bool = False) -> list[Answered]:
        """Wait for the answers, one for each queue, in order.

        Parameters:
          late: whether they are there or do not come.

        Raises:
          ServerUnavailable: when the server did not answer; all can be repeated then, too. In a cluster it is the
            answer of each queue instead.
        """
        try:
            return self._read(late)
        except ServerUnavailable as error:
            if not self._asked[0].queue.connection.is_cluster:
                raise
            self.failed = True
            return [Answered([error] * len(one.settlements), error if one.count else _NOTHING) for one in self._asked]
        finally:
            self._give_back_callers()

    def close(self) -> None:
        """Hear no answers.

        What was claimed is given to the next claim of this process that knows of it, or back when its lease ends.
        """
        if self._sent is not None:
            self._sent.close()
        self._give_back_callers()

    def _read(self, late: bool) -> list[Answered]:
        sent = self._sent
        replies = iter(() if sent is None else self._scripts.receive(sent, late=late))
        heard: list[list[Verdict | EchoMQError]] = []
        for one, order in zip(self._asked, self._orders, strict=True):
            verdicts: list[Any] = [Verdict.GONE] * len(one.settlements)
            for places in order:
                reply = next(replies)
                failed = isinstance(reply, EchoMQError)
                for index, place in enumerate(places):
                    verdicts[place] = reply if failed else verdict_of(reply[index])
            heard.append(verdicts)
        answers: list[Answered] = []
        read: list[Caller] = []
        for one, verdicts, caller in zip(self._asked, heard, self._callers, strict=True):
            claimed: Claimed | EchoMQError = _NOTHING
            if caller is not None:
                reply = next(replies)
                if isinstance(reply, EchoMQError):
                    claimed = reply
                else:
                    claimed = one.queue.claimed(reply)
                    read.append(caller)
            answers.append(Answered(verdicts, claimed))
        # Not before all was read: what is not answered is asked for again.
        for caller in read:
            caller.answered()
        return answers

    def _give_back_callers(self) -> None:
        # Fewer than were asked, when it went wrong on the way.
        for one, caller in zip(self._asked, self._callers, strict=False):
            if caller is not None:
                if (errand := self.errand) is None:
                    one.queue.claimers.give(caller)
                else:
                    # Not before its courier is through: what is still on its way must not come behind a later call, and
                    # take jobs of which nobody would hear.
                    errand.when_done(partial(one.queue.claimers.give, caller))
        self._callers = [None] * len(self._asked)


def turn_all(asked: Sequence[Asked], *, lease: float = 30.0) -> list[Answered]:
    """Settle and claim at several queues of one server, in one round trip; one answer for each, in order.

    Raises: as :class:`RoundTrip`.
    """
    trip = RoundTrip(asked, lease=lease)
    answers = trip.answers()
    if trip.failed and len(asked) > 1:
        # A node that is away must not keep the queues of the others from being served.
        return [answer for one in asked for answer in RoundTrip([one], lease=lease).answers()]
    return answers
