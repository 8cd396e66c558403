"""Standing at several queues of one server at once: one BLPOP for all of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from echomq_tasks.connection import Connection
from echomq_tasks.errors import ServerUnavailable
from echomq_tasks.keyspace import queue_key
from echomq_tasks.queue.spot import Spot


class Standing:
    """One worker's places to wait for several queues; owned by one thread at a time.

    One ``BLPOP`` over the wake keys of all queues, on one connection. It stays on the server until a token comes or
    :meth:`leave` takes it back: while it stands, the worker counts as ready for jobs of all these queues.

    Parameters:
      connection: the server; not a cluster, whose nodes take a ``BLPOP`` each
        (:class:`~echomq_tasks.queue.scattered.Scattered`).
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queues: dict[bytes, str] = {}
        self._spots: list[Spot] = []
        self._names: Sequence[str] = ()

    @property
    def stands(self) -> bool:
        """Whether a BLPOP stands."""
        return any(spot.stands for spot in self._spots)

    @property
    def queues(self) -> Sequence[str]:
        """Where it stands."""
        return self._names if self.stands else ()

    def at(self, queues: Sequence[str]) -> list[Spot]:
        """Stand at these queues and at no others; answers the places, whose descriptors a poll may wait for.

        Raises:
          ServerUnavailable: when a connection cannot be made, or broke.
        """
        keys = {queue_key(queue, "wake"): queue for queue in queues}
        if keys != self._queues:
            self._move(tuple(keys))
            self._queues, self._names = keys, queues
        for spot in self._spots:
            spot.stand()
        return self._spots

    def _move(self, keys: tuple[bytes, ...]) -> None:
        """Stand elsewhere with the one connection there is."""
        self.leave()
        if not keys:
            self.close()
            self._spots = []
        elif self._spots:
            self._spots[0].keys = keys
        else:
            self._spots = [Spot(keys, self._connection)]

    def tokens(self, ready: Collection[int] = ()) -> list[str]:
        """The queues whose tokens have come; each token is spent.

        Parameters:
          ready: descriptors that are known to be readable.

        Raises:
          ServerUnavailable: when a connection broke: look at all queues, for any token may be lost with it.
        """
        found: list[str] = []
        broken: ServerUnavailable | None = None
        for spot in self._spots:
            try:
                key = spot.take(ready=bool(ready) and spot.stands and spot.fileno() in ready)
            except ServerUnavailable as error:
                broken = error
            else:
                if key is not None:
                    found.append(self._queues[key])
        if broken is not None:
            raise broken
        return found

    def leave(self) -> None:
        """Take back what stands; tokens that came meanwhile are passed on. Costs nothing when nothing stands."""
        for spot in self._spots:
            spot.leave()

    def pass_on(self, queue: str) -> None:
        """Give a queue's token back for another worker to take."""
        # Any of them can: it goes by the client.
        for spot in self._spots:
            spot.pass_on(queue_key(queue, "wake"))
            return

    def close(self) -> None:
        """Close the connections."""
        for spot in self._spots:
            spot.close()
