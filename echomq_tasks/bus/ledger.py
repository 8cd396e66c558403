"""The books of a consumer: what is finished is told to the server, and what went wrong to whoever reads the log."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from echomq_tasks.bus.groups import dead_log
from echomq_tasks.bus.holding import Held, Holding
from echomq_tasks.bus.member import Member
from echomq_tasks.bus.settings import Settings
from echomq_tasks.bus.tries import Tries
from echomq_tasks.errors import EchoMQError, ServerUnavailable
from echomq_tasks.scripts import Call

_log = logging.getLogger("echomq_tasks.bus.consumer")


@dataclass(slots=True)
class Tally:
    """What a consumer has done since it was made.

    Attributes:
      handled: deliveries whose handler returned.
      failed: deliveries whose handler raised, or that could not be decoded.
      buried: entries that went to the dead log.
      dropped: entries that were trimmed while they were pending.
      behind: entries that were trimmed before the group read them, as far as this consumer noticed first.
    """

    handled: int = 0
    failed: int = 0
    buried: int = 0
    dropped: int = 0
    behind: int = 0


class Unfinished(EchoMQError):
    """Stands for the errors of those who died with an entry, or lost it; ``known`` is the last one, where it is."""

    def __init__(self, deliveries: int, known: str | None = None) -> None:
        self.deliveries = deliveries
        super().__init__(
            f"delivered {deliveries} times and never finished: its handler failed, or its consumers died or lost it"
            if known is None
            else known
        )


class Ledger:
    """Tells the server what is finished, and what is not; the consumer's own thread does, any other may renew.

    Parameters:
      member: the consumer's calls.
      holding: what it has in hand.
      settings: what it was made with.
      tally: what to count in.
    """

    def __init__(self, member: Member, holding: Holding, settings: Settings, tally: Tally) -> None:
        self._member = member
        self._holding = holding
        self._most = settings.max_deliveries
        self._min_idle = settings.min_idle
        self._on_behind = settings.on_behind
        self._tally = tally
        self._told = 0.0
        #: What failed here.
        self.tries = Tries()
        #: Group, queue and log, for people.
        self.where = f"{member.group} on {member.log.queue}/{member.log.name}"

    def tell(self, every: float) -> None:
        """Tell the server what is finished, unless that was done less than ``every`` seconds ago."""
        if self._holding.any_finished and time.monotonic() - self._told >= every:
            self.exchange()

    def exchange(self, *calls: Call) -> Any:
        """Tell the server what is finished, and call a script in the same round trip; answers its reply."""
        finished = self._holding.finished
        done = [held for held in finished if held.error is None]
        dead = [held for held in finished if held.error is not None and held.delivery.deliveries >= self._most]
        settling = [self._member.ack(held.id for held in done)] if done else []
        settling += [self._member.bury(held.id, _told(held.error), _deliveries(held)) for held in dead]
        # Sent once: a read that is repeated delivers twice, and what the first one delivered is in nobody's hand.
        replies = self._member.scripts.attempt([*settling, *calls], repeat=False) if settling or calls else []
        self._told = time.monotonic()
        answers = iter(replies)
        if done:
            good(next(answers))
            self._tally.handled += len(done)
            for held in done:
                self.tries.forget(held.id)
            self._holding.forget(done)
        for held in dead:
            self._buried(held, next(answers))
        failed = [held for held in finished if held.error is not None and held.delivery.deliveries < self._most]
        for held in failed:
            self._fail(held)
        self._holding.forget(failed)
        reply = [good(answer) for answer in answers]
        return reply[0] if reply else None

    def _fail(self, held: Held) -> None:
        """Leave an entry pending until it may be tried again."""
        self._tally.failed += 1
        self.tries.failed(held.id, _told(held.error), self._min_idle)
        _log.warning(
            "the entry %s of %s failed at delivery %d of %d, and is tried again after %g s",
            *(held.id, self.where, held.delivery.deliveries, self._most, self._min_idle),
            exc_info=held.error,
        )

    def renew(self, several: list[Held]) -> None:
        """Tell the server that entries are still at work, and note what it says of them; from any thread."""
        now = time.monotonic()
        ours = self._member.renew(held.id for held in several)
        for held in self._holding.renewed(several, ours, now):
            _log.warning("the entry %s of %s is at work, and was trimmed or taken over", held.id, self.where)

    def renew_stale(self) -> None:
        """Renew what was not renewed for a while; from any thread."""
        if stale := self._holding.stale(self._min_idle / 8):
            self.renew(stale)

    def interrupted(self) -> None:
        """Remember what ended the run, should its entry be buried; it may be tried again at once."""
        for held in self._holding.interrupted():
            self.tries.failed(held.id, _told(held.error), 0)

    def _buried(self, held: Held, answer: Any) -> None:
        """What came of burying an entry."""
        if isinstance(answer, ServerUnavailable):
            raise answer
        if isinstance(answer, EchoMQError):
            _log.error(
                "the entry %s of %s cannot go to its dead log, and stays pending: %s", held.id, self.where, answer
            )
            self._fail(held)
        else:
            self.tries.forget(held.id)
            if not isinstance(held.error, Unfinished):
                self._tally.failed += 1
            if answer == b"lost":
                _log.info(
                    "the entry %s of %s failed here, and was finished or taken over elsewhere", held.id, self.where
                )
            elif answer == b"gone":
                self.drop([held.id.encode()])
            else:
                self._tally.buried += 1
                _log.error(
                    "the entry %s of %s was given up after %d deliveries: it is in the log %s as %s",
                    *(held.id, self.where, _deliveries(held), dead_log(self._member.log.name), answer.decode()),
                    exc_info=None if isinstance(held.error, Unfinished) else held.error,
                )
        self._holding.forget([held])

    def drop(self, gone: list[bytes]) -> None:
        """Entries were trimmed while they were pending."""
        if gone:
            self._tally.dropped += len(gone)
            for entry in gone:
                self.tries.forget(entry.decode())
            _log.warning(
                "%d entries of %s were trimmed before they were finished: %s",
                *(len(gone), self.where, ", ".join(entry.decode() for entry in gone[:10])),
            )

    def miss(self, lost: int) -> None:
        """So many entries were trimmed before the group read them; 0 or -1 when none were, or nobody can tell."""
        if lost <= 0:
            return
        self._tally.behind += lost
        _log.warning("%s has fallen behind: %d entries were trimmed before it read them", self.where, lost)
        if self._on_behind is not None:
            try:
                self._on_behind(lost)
            except Exception:
                _log.exception("on_behind of %s failed", self.where)


def _deliveries(held: Held) -> int:
    """How often an entry was handed out: the last delivery may have been for its burial only."""
    return held.error.deliveries if isinstance(held.error, Unfinished) else held.delivery.deliveries


def _told(error: BaseException | None) -> str:
    try:
        return str(error) if isinstance(error, Unfinished) else f"{type(error).__name__}: {error}"
    except Exception as failure:
        return f"{type(error).__name__}, which cannot be printed: its __str__ raises {type(failure).__name__}"


def good(answer: Any) -> Any:
    """A script's reply.

    Raises:
      EchoMQError: when it is one.
    """
    if isinstance(answer, EchoMQError):
        raise answer
    return answer
