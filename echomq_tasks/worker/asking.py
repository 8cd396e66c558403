"""What the pump of a worker asks of the server next: which ends to tell, and how many jobs to claim for each queue."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import count, islice

from echomq_tasks.brokers.dramatiq.delivery import Delivery
from echomq_tasks.queue import Settlement
from echomq_tasks.worker.line import MOST_ENDS, Line
from echomq_tasks.worker.places import FreePlaces

#: Seconds that an end waits at most for others to be told together with it, while short jobs queue up. It is told
#: within 5 ms of its end, as long as the server answers and no job holds the interpreter.
PATIENCE = 0.001
#: Seconds after which a queue that was empty, and at which nobody stands for want of room, is given the next free
#: place; and so many more for each queue, so that a worker of many does not spend its places on looks.
UNSEEN = 0.02
_UNSEEN_EACH = 0.002
#: The most jobs in one claim.
_MOST = 256


@dataclass(frozen=True, slots=True)
class Ask:
    """What one round trip asks of one line.

    Attributes:
      line: the line.
      runs: whose ends it tells.
      ends: what it tells beside that.
      count: how many jobs it claims.
      places: how many of these have a place, whatever they are.
      pools: in each of these.
    """

    line: Line
    runs: list[Delivery]
    ends: list[Settlement]
    count: int
    places: int
    pools: tuple[FreePlaces, ...]

    def sent(self) -> None:
        """It is under way."""
        line = self.line
        for listed, ends in ((line.unsettled, self.runs), (line.refused, self.ends)):
            for _ in ends:
                listed.popleft()
        self._count(1)

    def answered(self) -> None:
        """It is not under way any more."""
        self._count(-1)

    def failed(self) -> None:
        """It is not under way any more, and its ends are still to be told."""
        self.line.unsettled.extendleft(reversed(self.runs))
        self.line.refused.extendleft(reversed(self.ends))
        self._count(-1)

    def _count(self, by: int) -> None:
        line, ends, places = self.line, len(self.runs) + len(self.ends), self.places if self.count else 0
        line.telling += by * ends
        # The rest of what it tells is held by the server until it has come, as far as is known here. What it claims is
        # held in the place of what it tells.
        line.held += by * max(ends - places, 0)
        if self.count:
            line.called = line.called and by < 0
            line.claims += by
            for pool in self.pools:
                pool.asked += by * places


class Asking:
    """Shares the free places out among the queues; for the pump alone.

    Parameters:
      pools: the places.

    Attributes:
      tell_by: the monotonic second until which a round trip may be put off, for more to end that it could tell of.
      urgent: True when somebody waits for a verdict.
    """

    def __init__(self, pools: Sequence[FreePlaces]) -> None:
        self.tell_by = 0.0
        self.urgent = False
        self._pools = pools
        self._numbers = count(1)

    def told(self) -> None:
        """Note that a round trip was made: what ends from now on may wait for the next."""
        self.urgent = False
        self.tell_by = time.monotonic() + PATIENCE

    def is_patient(self, lines: Collection[Line], now: float, *, claiming: bool) -> bool:
        """Whether it had better wait for more to end before the next round trip."""
        if now >= self.tell_by or self.urgent:
            return False
        busy = [line for line in lines if line.is_busy]
        return bool(busy) and not (claiming and any(line.room >= line.half for line in busy))

    def asks(self, lines: Collection[Line], now: float, *, claiming: bool) -> list[Ask]:
        """What the next round trip asks of each line; empty when it is better to wait."""
        if self.is_patient(lines, now, claiming=claiming):
            # More will end in a moment, and one round trip serves them all.
            return []
        served = [line for line in lines if line.outage.until <= now]
        # What ended is free, and the server holds it until it is told. Two round trips go by two connections, and the
        # server may take the second one first: no claim counts on what another one tells.
        held = 0
        told: list[tuple[Line, list[Delivery], list[Settlement]]] = []
        for line in lines:
            held += line.held + len(line.unsettled) + len(line.refused)
        for line in served:
            # By halves, as it claims: the server works on one half while the other one runs.
            runs = [*islice(line.unsettled, line.half if line.is_busy else MOST_ENDS)]
            ends = [*islice(line.refused, MOST_ENDS - len(runs))]
            told.append((line, runs, ends))
            held -= len(runs) + len(ends)
        places = self._share_out(served, now, held) if claiming else {}
        asked = []
        for line, runs, ends in told:
            mine = places.get(line)
            wanted = 0
            if mine is not None and not line.stuck:
                if line.is_busy:
                    mine = min(mine, line.half)
                wanted = line.wants(mine)
            if wanted or runs or ends:
                asked.append(Ask(line, runs, ends, wanted, mine or 0, line.pools))
        return asked

    def _share_out(self, lines: Sequence[Line], now: float, held: int) -> dict[Line, int]:
        """How many places each line is given for its next claim, when so many that are free are held all the same.

        Those that are not to be asked are not in it.
        """
        due = [line for line in lines if line.is_due(now)]
        if len(lines) == 1:
            return {line: min(max(line.room - held, 0), _MOST) for line in due}
        # Whose last place is the longest ago comes first, so that none starves when there is not one for each.
        due.sort(key=_given)
        left = {pool: max(pool.open - held, 0) for pool in self._pools}
        places: dict[Line, int] = {}
        for line in self._unseen(lines, due, now):
            if all(left[pool] > 0 for pool in line.pools):
                places[line] = 1
                for pool in line.pools:
                    left[pool] -= 1
        for pool in self._pools:
            sharing = [line for line in due if pool in line.pools]
            share, more = divmod(left[pool], len(sharing)) if sharing else (0, 0)
            for place, line in enumerate(sharing):
                places[line] = min(places.get(line, _MOST), share + (place < more))
        # Who was given fewest of them now is the first to be given more.
        for line in sorted((line for line in places if places[line]), key=places.__getitem__):
            line.given = next(self._numbers)
        return places

    def _unseen(self, lines: Sequence[Line], due: Sequence[Line], now: float) -> list[Line]:
        """Lines that are not due as far as anybody knows, and nobody has looked for too long."""
        before = now - UNSEEN - _UNSEEN_EACH * len(lines)
        unseen = (line for line in lines if line.seen_at < before and not line.claims and line not in due)
        return sorted(unseen, key=_given)


def _given(line: Line) -> int:
    return line.given
