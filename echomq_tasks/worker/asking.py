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


@dataclass(slots=True)
class Ask:
    """What one round trip asks of one line, and what that takes from the others until it is answered.

    Attributes:
      line: the line.
      runs: whose ends it tells.
      ends: what it tells beside that.
      count: how many jobs it claims.
      places: how many of these have a place, whatever they are.
      pools: in each of these.
      late: whether it is under way for too long, and takes nothing from others any more.
    """

    line: Line
    runs: list[Delivery]
    ends: list[Settlement]
    count: int
    places: int
    pools: tuple[FreePlaces, ...]
    late: bool = False

    def sent(self) -> None:
        """It is under way."""
        line = self.line
        for listed, ends in ((line.unsettled, self.runs), (line.refused, self.ends)):
            for _ in ends:
                listed.popleft()
        self._be_under_way(1)
        self._take(1)

    def answered(self) -> None:
        """It is not under way any more."""
        self._be_under_way(-1)
        if self.late:
            self.line.late = False
        else:
            self._take(-1)

    def failed(self) -> None:
        """It is not under way any more, and its ends are still to be told."""
        self.line.unsettled.extendleft(reversed(self.runs))
        self.line.refused.extendleft(reversed(self.ends))
        self.answered()

    def lag(self) -> None:
        """It is under way for long: others are given what it holds. What it brings runs if there is room then."""
        self._take(-1)
        self.late = self.line.late = True
        self.line.backlog = self.line.flowing = False

    def _be_under_way(self, by: int) -> None:
        line = self.line
        line.telling += by * (len(self.runs) + len(self.ends))
        if self.count:
            line.called = line.called and by < 0
            line.claims += by

    def _take(self, by: int) -> None:
        places = self.places if self.count else 0
        # The rest of what it tells is held by the server until it has come, as far as is known here. What it claims is
        # held in the place of what it tells.
        self.line.held += by * max(len(self.runs) + len(self.ends) - places, 0)
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
        served = [line for line in lines if line.outage.until <= now and not (line.apart and line.under_way)]
        all_held = held = self.held(lines)
        told: list[tuple[Line, list[Delivery], list[Settlement]]] = []
        for line in served:
            runs = [*islice(line.unsettled, MOST_ENDS)]
            ends = [*islice(line.refused, MOST_ENDS - len(runs))]
            told.append((line, runs, ends))
            held -= len(runs) + len(ends)
        places = self._share_out(served, now, held) if claiming else {}
        spare = {pool: max(pool.open - all_held, 0) for pool in self._pools}
        asked = []
        for line, runs, ends in told:
            mine = places.get(line)
            wanted = 0
            if mine is not None:
                if line.apart:
                    if line.is_away:
                        # Others had better have the rest.
                        mine = min(mine, 1)
                    # The others' ends go to other nodes, and may come there later than this claim to its own.
                    own = len(runs) + len(ends)
                    mine = min(mine, own + min(spare[pool] for pool in line.pools))
                    for pool in line.pools:
                        spare[pool] -= max(mine - own, 0)
                wanted = line.wants(mine)
            if wanted or runs or ends:
                asked.append(Ask(line, runs, ends, wanted, mine or 0, line.pools))
        return asked

    def held(self, lines: Collection[Line]) -> int:
        """How many places are free here, and are held by the server all the same: what ended there is not told."""
        # Two round trips go by two connections, and the server may take the second one first: no claim counts on what
        # another one tells.
        held = 0
        for line in lines:
            # A node that is away must not keep the others' jobs from running.
            if not (line.apart and line.is_away):
                held += line.held + len(line.unsettled) + len(line.refused)
        return held

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
        # One that has no room in one of its pools takes nobody's place in another. An open batch asks without a place.
        places: dict[Line, int] = {line: 0 for line in due if not all(left[pool] for pool in line.pools)}
        due = [line for line in due if line not in places]
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
