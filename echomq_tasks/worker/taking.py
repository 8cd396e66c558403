"""What the pump of a worker does with the jobs that a claim has answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from echomq_tasks.brokers.dramatiq.intake import Accepted, Room
from echomq_tasks.errors import EchoMQError
from echomq_tasks.queue import Claimed
from echomq_tasks.worker.asking import Ask
from echomq_tasks.worker.line import Line
from echomq_tasks.worker.places import FreePlaces, Work

if TYPE_CHECKING:
    from echomq_tasks.brokers.dramatiq.broker import EchoMQBroker

#: Seconds until the second look after a claim that got less than it asked for: a ceiling may have cut it.
_SOON = 0.003


class Taking:
    """Has claimed jobs run; for the pump alone.

    Parameters:
      broker: whose leases they have.
      pools: the places.
      release: gives back what has a place.
      tend: has the queues' upkeep looked after.
    """

    def __init__(
        self,
        broker: EchoMQBroker,
        pools: Sequence[FreePlaces],
        release: Callable[[Work], None],
        tend: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._pools = pools
        self._release = release
        self._tend = tend

    def take(self, ask: Ask, claimed: Claimed | EchoMQError, held_until: float) -> EchoMQError | None:
        """Have what was claimed run; answers why nothing was. Whatever is raised, each job runs or is given back."""
        line = ask.line
        if isinstance(claimed, EchoMQError):
            line.backlog = line.flowing = False
            return claimed
        now = time.monotonic()
        line.seen_at = now
        line.owes_look = False
        line.flowing = bool(claimed.jobs)
        line.backlog = len(claimed.jobs) == ask.count
        if claimed.jobs:
            line.look_at = 0.0 if line.backlog else now + _SOON
            self._accept(ask, claimed, held_until)
        else:
            pause = line.quiet_beat if claimed.look_again is None else min(line.quiet_beat, claimed.look_again)
            line.look_at = now + pause
            line.owes_look = claimed.look_again is not None
        if line.called or line.queue.claimers.owed:
            # The next claim is given what one took of which no answer came.
            line.call()
        line.tending.after_claim(claimed)
        if claimed.repeats_due or claimed.outbox:
            self._tend()
        return None

    def _accept(self, ask: Ask, claimed: Claimed, held_until: float) -> None:
        line = ask.line
        # What the other pool has free is free for a job that nobody expected here, and may be what another line was
        # to have had.
        rooms = [Room(pool, min(ask.places, pool.open) if pool in ask.pools else pool.open) for pool in self._pools]
        taken = line.intake.accept(claimed.jobs, held_until, *rooms)
        line.refused.extend(taken.ends)
        for pool, room in zip(self._pools, rooms, strict=True):
            pool.free -= room.size - room.left
        self._hold(line, taken, rooms)
        if taken.fits and line.backlog and ask.count > ask.places:
            line.gathering.grow()
        for pool, room in zip(self._pools, rooms, strict=True):
            if room.ready:
                pool.team.push(room.ready)
        if taken.error is not None:
            raise taken.error

    def _hold(self, line: Line, taken: Accepted, rooms: Sequence[Room]) -> None:
        try:
            self._broker.leases.hold(taken.held)
        except BaseException:
            # Without a lease that is renewed, it would run a second time beside this one.
            for work in [*line.gathering.take_all(), *(work for room in rooms for work in room.ready)]:
                self._release(work)
            raise
