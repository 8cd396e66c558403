"""Where a consumer's entries come from: what it was given before, what dead members hold, and what is new."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from echomq_tasks.bus.delivery import Delivery
from echomq_tasks.bus.holding import Held, Holding
from echomq_tasks.bus.ledger import Ledger, Unfinished
from echomq_tasks.bus.log import Log
from echomq_tasks.bus.member import Entry, Member, entries
from echomq_tasks.bus.records import Record
from echomq_tasks.bus.settings import Settings

#: Pending entries of our own that are asked for in one step.
_PAGE = 100


class Intake:
    """Takes entries in hand; used by the consumer's own thread.

    New entries come in batches. What was delivered before may have ended the process that had it, or may only have been
    in hand beside such a one, read ahead and never started. Nobody can tell, so each is a suspect: it is taken, and so
    counted, alone, when its handler can have it at once, and the next one after its end was told to the server. Should
    the process end, then no count but that of the culprit has grown. What has failed here is no suspect: this process
    is still there. Neither is what is delivered for the first time, as after it was given back.

    Parameters:
      log: whose entries.
      member: the consumer's calls.
      holding: what it has in hand.
      ledger: whose news travel with each call.
      settings: what it was made with.
    """

    def __init__(self, log: Log, member: Member, holding: Holding, ledger: Ledger, settings: Settings) -> None:
        self._log = log
        self._member = member
        self._holding = holding
        self._ledger = ledger
        self._settings = settings
        #: The group's last delivered id, as far as this consumer knows.
        self.last = "0-0"
        self._next_claim = 0.0
        self._cursor = "0-0"
        self.begin()

    def begin(self) -> None:
        """The consumer runs, maybe again: first comes what it holds pending, for it may have died with that."""
        self._suspect: Held | None = None
        self._asked: str | None = None
        self._again = False
        self._look(counts=True)

    def lost(self) -> None:
        """A reply may have been lost on its way, and with it what it delivered: look for that, too."""
        if self._looking:
            self._again = True
        else:
            self._look(counts=False)

    def regrouped(self) -> None:
        """The group was made again, and nothing is pending."""
        self._cursor = "0-0"

    @property
    def left(self) -> float:
        """Seconds until there may be something for us that is not new; no more than 0 when there may be now."""
        if self._suspect_at_work:
            return self._settings.beat
        return 0.0 if self._looking else self._next_claim - time.monotonic()

    def more(self, most: int) -> list[Held] | None:
        """Take entries in hand: our own first, then those of the dead, then at most ``most`` new ones.

        Returns:
          What the handler is to have; None when the group is gone.
        """
        now = time.monotonic()
        if not self._suspect_at_work:
            for look in (self._own, self._claim):
                taken = look(now)
                if taken is None or taken:
                    return taken
        reply = self._ledger.exchange(self._member.read(most))
        if not reply:
            return None
        self._ledger.miss(reply[0])
        self.last = reply[1].decode()
        return self._take(entries(reply[2]), now)

    @property
    def _suspect_at_work(self) -> bool:
        suspect = self._suspect
        return suspect is not None and not suspect.finished and self._holding.has(suspect)

    def _look(self, *, counts: bool) -> None:
        self._counts = counts
        self._behind: str | None = ""  # where the look goes on; None when its last page is here
        self._page: deque[str] = deque()

    @property
    def _looking(self) -> bool:
        return bool(self._page) or self._behind is not None or self._again

    def _own(self, now: float) -> list[Held] | None:
        """The next of our own pending entries that is due; the others stay as they are, as idle as before."""
        tries = self._ledger.tries
        while self._looking:
            if not self._page and self._behind is None:
                self._again = False
                self._look(counts=False)
            elif not self._page:
                reply = self._ledger.exchange(self._member.held(self._behind or "", _PAGE))
                if not reply:
                    return None
                self._page.extend(entry.decode() for entry in reply[0])
                self._behind = self._page[-1] if len(self._page) == _PAGE else None
            elif self._holding.holds(self._page[0]) or not tries.due(self._page[0]):
                self._page.popleft()
            else:
                entry = self._page[0]
                # What was lost on its way was counted when the server sent it; what has failed here is tried anew.
                counts = (self._counts or tries.known(entry)) and entry != self._asked
                self._asked = entry
                reply = self._ledger.exchange(self._member.own(entry, counts))
                self._asked = None
                self._page.popleft()
                if not reply:
                    return None
                self._ledger.drop(reply[1])
                if taken := self._take(entries(reply[0]), now):
                    return taken
        return []

    def _claim(self, now: float) -> list[Held] | None:
        """One entry of which nobody was heard for long."""
        if now < self._next_claim:
            return []
        # What is at work here must not look as if nobody was: it would be counted again.
        self._ledger.renew_stale()
        reply = self._ledger.exchange(self._member.claim(self._settings.min_idle, self._cursor))
        if not reply:
            return None
        self._cursor = reply[0].decode()
        if self._cursor == "0-0":
            self._next_claim = now + self._settings.beat
        self._ledger.drop(reply[2])
        return self._take(entries(reply[1]), now)

    def _take(self, delivered: Iterable[Entry], now: float) -> list[Held]:
        taken = []
        for entry in delivered:
            record = Record.of(entry.id, entry.pairs, self._log.codec)
            delivery = Delivery(record, self._log.queue, self._log.name, self._member.group, entry.deliveries)
            held = self._holding.take(delivery, now)
            if held is None:
                continue
            known = self._ledger.tries.known(entry.id)
            # The first delivery may have been one that was read ahead and never started: it gives nothing up by itself.
            if entry.deliveries > (self._settings.max_deliveries if known else max(self._settings.max_deliveries, 2)):
                self._holding.finish(held, Unfinished(entry.deliveries - 1, self._ledger.tries.error(entry.id)))
                continue
            if entry.deliveries > 1 and not known:
                self._suspect = held
            taken.append(held)
        return taken
