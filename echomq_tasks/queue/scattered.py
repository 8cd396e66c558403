"""Standing at several queues of a cluster: one BLPOP for each, and no node that is away keeps others waiting."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence

from echomq_tasks.connection import Connection
from echomq_tasks.errors import EchoMQError, ServerUnavailable
from echomq_tasks.keyspace import queue_key
from echomq_tasks.queue.breaks import Breaks
from echomq_tasks.queue.spot import Spot
from echomq_tasks.scripts.courier import Couriers, Errand, wait_for

_log = logging.getLogger(__name__)

#: Seconds that closing waits for nodes to take back what stands there.
_PARTING = 1.0


class _Place:
    """Where one queue is waited for. While a courier is at it, it is the courier's."""

    def __init__(self, queue: str, connection: Connection) -> None:
        self.spot = Spot((queue_key(queue, "wake"),), connection)
        self.errand: Errand | None = None
        self.breaks = Breaks()

    @property
    def stands(self) -> bool:
        return self.errand is None and self.spot.stands


class Scattered:
    """As :class:`~echomq_tasks.queue.standing.Standing`, for a cluster; what may take time is done by couriers.

    Parameters:
      connection: the cluster.
      ring: called in another thread when a courier is through, and :meth:`at` may have more to do.
    """

    def __init__(self, connection: Connection, ring: Callable[[], None]) -> None:
        self._connection = connection
        self._couriers = Couriers.of(connection)
        self._ring = ring
        # All that were made so far: which queues have room changes often, and a connection is dear.
        self._places: dict[str, _Place] = {}
        self._wanted: Collection[str] = ()
        self._passing: list[Errand] = []

    @property
    def queues(self) -> Sequence[str]:
        """Where a BLPOP stands."""
        return [queue for queue, place in self._places.items() if place.stands]

    @property
    def stands(self) -> bool:
        """Whether any does."""
        return any(place.stands for place in self._places.values())

    @property
    def spots(self) -> list[Spot]:
        """The places where one stands, whose descriptors a poll may wait for."""
        return [place.spot for place in self._places.values() if place.stands]

    @property
    def stand_at(self) -> float:
        """The monotonic second at which :meth:`at` had better be called again; in the past when it need not be."""
        now = time.monotonic()
        waiting = [self._places[queue].breaks.until for queue in self._wanted if queue in self._places]
        return min((second for second in waiting if second > now), default=0.0)

    def at(self, queues: Sequence[str]) -> list[Spot]:
        """Stand at these queues, as soon as their nodes let us, and at no others; answers :attr:`spots`."""
        self._wanted = queues
        for queue in queues:
            if queue not in self._places:
                self._places[queue] = _Place(queue, self._connection)
        now = time.monotonic()
        for queue, place in self._places.items():
            self._welcome(place)
            if place.errand is not None:
                continue
            if queue not in queues:
                if place.spot.stands:
                    self._send(place, place.spot.leave)
            elif place.breaks.until <= now and not place.spot.stands:
                self._stand(place)
        return self.spots

    def _stand(self, place: _Place) -> None:
        if not place.spot.connected:
            self._send(place, place.spot.connect)
            return
        try:
            place.spot.stand()
        except ServerUnavailable:
            if not place.breaks.broke():
                self._send(place, place.spot.connect)

    def _send(self, place: _Place, do: Callable[[], None]) -> None:
        place.errand = errand = self._couriers.send(do)
        errand.when_done(self._ring)

    def _welcome(self, place: _Place) -> None:
        """Take a place back from its courier."""
        if (errand := place.errand) is not None and errand.done:
            place.errand = None
            try:
                errand.result()
            except EchoMQError as error:
                # What is wrong with the node, a look finds out and says: nobody stands there then.
                _log.debug("%s", error)
                place.breaks.failed()
            except Exception:
                _log.exception("Standing at %s failed; it is tried again.", place.spot.keys)
                place.breaks.failed()

    def tokens(self, ready: Collection[int] = ()) -> list[str]:
        """The queues to look at: their tokens have come, and each is spent, or may be lost with a connection.

        Parameters:
          ready: descriptors that are known to be readable.
        """
        found: list[str] = []
        for queue, place in self._places.items():
            if place.stands:
                spot = place.spot
                try:
                    came = spot.take(ready=bool(ready) and spot.fileno() in ready) is not None
                except ServerUnavailable:
                    place.breaks.broke()
                    came = True
                if came:
                    found.append(queue)
        return found

    def leave(self) -> None:
        """Have all that stands taken back; tokens that came meanwhile are passed on."""
        self.at(())

    def pass_on(self, queue: str) -> None:
        """Give a queue's token back for another worker to take."""
        spot = Spot((queue_key(queue, "wake"),), self._connection)
        self._passing = [errand for errand in self._passing if not errand.done]
        self._passing.append(self._couriers.send(spot.pass_on))

    def close(self) -> None:
        """Close the connections, once nothing stands there any more, or their nodes do not answer."""
        self.leave()
        standing = [place.errand for place in self._places.values() if place.errand is not None]
        wait_for([*self._passing, *standing], _PARTING)
        for place in self._places.values():
            place.spot.close()
            if place.errand is not None:
                # It may be connecting just now.
                place.errand.when_done(place.spot.close)
