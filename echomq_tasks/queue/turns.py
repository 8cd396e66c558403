"""One round trip of a worker that serves several queues: settle what is done, claim what there is room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from echomq_tasks.errors import EchoMQError, ServerUnavailable
from echomq_tasks.queue.model import Claimed, Settlement, Verdict
from echomq_tasks.queue.queue import Queue
from echomq_tasks.queue.replies import verdict_of
from echomq_tasks.scripts import Call


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


def turn_all(asked: Sequence[Asked], *, lease: float = 30.0) -> list[Answered]:
    """Settle and claim at several queues of one server, in one round trip; one answer for each, in order.

    Raises:
      InvalidArgument, InvalidId: before a byte is sent, when one of the settlements cannot be sent.
      ServerUnavailable: when the server did not answer. All can be repeated: a settlement that had been heard changes
        nothing, and the next claim is given what this one took.
    """
    try:
        return _turn(asked, lease)
    except ServerUnavailable:
        if len(asked) < 2 or not asked[0].queue.connection.is_cluster:
            raise
    # A node that is away must not keep the queues of the others from being served.
    answers: list[Answered] = []
    for one in asked:
        try:
            answers += _turn([one], lease)
        except ServerUnavailable as error:
            answers.append(Answered([error] * len(one.settlements), error if one.count else _NOTHING))
    return answers


def _turn(asked: Sequence[Asked], lease: float) -> list[Answered]:
    calls: list[Call] = []
    orders: list[list[list[int]]] = []
    callers = []
    try:
        for one in asked:
            mine, order = one.queue.settle_calls(one.settlements, checked=False)
            calls += mine
            orders.append(order)
            if one.count:
                caller = one.queue.claimers.take()
                callers.append((one.queue, caller))
                calls.append(one.queue.claim_call(one.count, lease, caller))
        replies = iter(asked[0].queue.scripts.attempt(calls) if calls else ())
        answering = iter(callers)
        answers: list[Answered] = []
        read = []
        for one, order in zip(asked, orders, strict=True):
            verdicts: list[Any] = [Verdict.GONE] * len(one.settlements)
            for places in order:
                reply = next(replies)
                failed = isinstance(reply, EchoMQError)
                for index, place in enumerate(places):
                    verdicts[place] = reply if failed else verdict_of(reply[index])
            claimed: Claimed | EchoMQError = _NOTHING
            if one.count:
                reply = next(replies)
                queue, caller = next(answering)
                claimed = reply if isinstance(reply, EchoMQError) else queue.claimed(reply)
                if not isinstance(reply, EchoMQError):
                    read.append(caller)
            answers.append(Answered(verdicts, claimed))
        # Not before all was read: what is not answered is asked for again.
        for caller in read:
            caller.answered()
        return answers
    finally:
        for queue, caller in callers:
            queue.claimers.give(caller)
