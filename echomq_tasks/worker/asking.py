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
    """What one round trip asks of one line: ``count`` jobs, of which ``places`` have a place, whatever they are."""

    line: Line
    runs: list[Delivery]
    ends: list[Settlement]
    count: int
    places: int


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
        places = self._share_out(served, now) if claiming else {}
        asked = []
        for line in served:
            runs = [*islice(line.unsettled, MOST_ENDS)]
            ends = [*islice(line.refused, MOST_ENDS - len(runs))]
            mine = places.get(line)
            wanted = 0
            if mine is not None and not line.stuck and len(runs) == len(line.unsettled):
                # Else more would be held here, told of or not, than there are places.
                wanted = line.wants(mine)
            if wanted or runs or ends:
                asked.append(Ask(line, runs, ends, wanted, mine or 0))
        return asked

    def _share_out(self, lines: Sequence[Line], now: float) -> dict[Line, int]:
        """How many places each line is given for its next claim; those that are not to be asked are not in it."""
        due = [line for line in lines if line.is_due(now)]
        if len(lines) == 1:
            return {line: min(line.room, _MOST) for line in due}
        # Whose last place is the longest ago comes first, so that none starves when there is not one for each.
        due.sort(key=_given)
        left = {pool: pool.free for pool in self._pools}
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
        return sorted((line for line in lines if line.seen_at < before and line not in due), key=_given)


def _given(line: Line) -> int:
    return line.given
