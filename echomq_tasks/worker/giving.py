"""Giving jobs back: what has not started, what runs and is to be another worker's, and what was stranded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from echomq_tasks.brokers.dramatiq.batches import deliveries
from echomq_tasks.queue import Release
from echomq_tasks.worker.line import Line
from echomq_tasks.worker.places import FreePlaces, Work

if TYPE_CHECKING:
    from echomq_tasks.brokers.dramatiq.broker import EchoMQBroker


class Giving:
    """Releases what a worker holds; for the pump alone, which tells the server with its next round trip.

    Parameters:
      broker: whose leases they have.
      pools: where they have their places.
      lines: the queues by name, as they are at each moment.
    """

    def __init__(
        self, broker: EchoMQBroker, pools: Sequence[FreePlaces], lines: Callable[[], Mapping[str, Line]]
    ) -> None:
        #: How many jobs that ran were given back.
        self.cut_short = 0
        self._broker = broker
        self._pools = pools
        self._lines = lines

    def give_back(self) -> None:
        """Release what was claimed and not started."""
        taken: list[Any] = [work for pool in self._pools for work in pool.team.drain()]
        for line in self._lines().values():
            taken += line.gathering.take_all()
        for work in taken:
            self.release(work)

    def give_up(self) -> None:
        """Release what runs: its end will not be heard."""
        for pool in self._pools:
            for work in pool.team.running:
                for delivery in deliveries([work]):
                    # From now on it is another worker's, and whoever asks in here is told so.
                    delivery.lost = True
                    self.cut_short += delivery.outcome is None
                self.release(work)

    def rescue(self) -> None:
        """Release what nobody will bring to its end any more."""
        for pool in self._pools:
            for work in pool.team.stranded():
                for delivery in deliveries([work]):
                    delivery.lost = True
                self.release(work)

    def release(self, work: Work) -> None:
        """Give this back, and its place; what has ended is told of in the ordinary way."""
        for delivery in deliveries([work]):
            if delivery.outcome is not None:
                continue
            delivery.settling = delivery.settled = True
            # Before the server is asked: what it does not hear of must no longer be renewed, or it never came back.
            self._broker.leases.drop(delivery)
            self._lines()[delivery.queue.name].refused.append(Release(delivery.job))
        work.give_slot()
