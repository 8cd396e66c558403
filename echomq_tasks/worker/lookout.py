"""Where the pump sleeps: one poll over its bell and the places at the wake keys."""

from __future__ import annotations

import contextlib
import logging
import select
import time
from collections.abc import Callable, Collection, Sequence

from echomq_tasks.connection import Connection
from echomq_tasks.errors import ServerUnavailable
from echomq_tasks.queue.breaks import Breaks
from echomq_tasks.queue.scattered import Scattered
from echomq_tasks.queue.standing import Standing
from echomq_tasks.worker.bell import Bell

_log = logging.getLogger(__name__)


class Lookout:
    """Stands at wake keys and waits; for one thread, but for the bell.

    Parameters:
      connect: gives the connection, when it is needed.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        #: Whoever rings it ends the sleep.
        self.bell = Bell()
        self._connect = connect
        self._poll = select.poll()
        self._poll.register(self.bell.fileno(), select.POLLIN)
        self._watched: tuple[int, ...] = ()
        #: Which of the descriptors that are watched were readable after the last sleep.
        self.ready: Collection[int] = ()
        self._standing: Standing | Scattered | None = None
        self._breaks = Breaks()

    def stand(self, queues: Sequence[str]) -> None:
        """Stand at the wake keys of these queues, and at no others; in a cluster as soon as their nodes let it.

        Raises:
          ServerError, ConfigError: when there is no connection.
        """
        standing = self._standing
        if standing is None:
            connection = self._connect()
            scattered = connection.is_cluster
            standing = self._standing = Scattered(connection, self.bell.ring) if scattered else Standing(connection)
        if isinstance(standing, Standing) and time.monotonic() < self._breaks.until:
            return
        try:
            spots = standing.at(queues)
        except BaseException:
            # A connection was closed, and its number may be another's soon.
            self._watch(())
            raise
        self._watch([spot.fileno() for spot in spots])

    @property
    def stand_at(self) -> float:
        """The monotonic second before which it does not stand, in a cluster at some queue."""
        return self._standing.stand_at if isinstance(self._standing, Scattered) else self._breaks.until

    @property
    def at(self) -> Sequence[str]:
        """The queues at whose wake keys it stands."""
        return () if self._standing is None else self._standing.queues

    def stands_among(self, queues: Collection[str]) -> bool:
        """Whether it stands at none but these."""
        return all(each in queues for each in self.at)

    def leave(self) -> None:
        """Stand nowhere: while a BLPOP stands, tokens come here that a worker with room should have."""
        if self._standing is not None and self._standing.stands:
            self._watch(())
            self._standing.leave()

    def pass_on(self, queue: str) -> None:
        """Give a queue's token back for another worker to take."""
        if self._standing is not None:
            self._standing.pass_on(queue)

    def close(self) -> None:
        """Leave, and close the connections."""
        self.leave()
        if self._standing is not None:
            self._standing.close()

    def sleep(self, until: float, queues: Collection[str]) -> Collection[str]:
        """Sleep until a monotonic second, a ring or a token; answers which of the ``queues`` to look at."""
        self.ready = ready = [found for found, _ in self._poll.poll(max((until - time.monotonic()) * 1000, 0.0))]
        if self.bell.fileno() in ready:
            self.bell.clear()
        if self._watched and any(map(ready.count, self._watched)) and not self.at:
            # Nothing is to come there: it was closed by the server, and would end each sleep.
            self._watch(())
        if self._standing is None or not self._standing.stands or (ready and not any(map(ready.count, self._watched))):
            return ()
        try:
            # Without an answer, too: one that is overdue is noticed there.
            found = self._standing.tokens(ready)
        except ServerUnavailable as error:
            # If only this connection broke, a look finds the server there; if not, the look says so.
            _log.debug("%s", error)
            self._watch(())
            self._breaks.broke()
            return queues
        if isinstance(self._standing, Scattered):
            # One of the connections may have broken.
            self._watch([spot.fileno() for spot in self._standing.spots])
        return found

    def watch(self, descriptor: int) -> None:
        """Have a sleep end when this is readable, too."""
        self._poll.register(descriptor, select.POLLIN)

    def unwatch(self, descriptor: int) -> None:
        """Watch this no more."""
        self._poll.unregister(descriptor)
        self.ready = [each for each in self.ready if each != descriptor]

    def _watch(self, descriptors: Sequence[int]) -> None:
        if (wanted := tuple(descriptors)) != self._watched:
            for old in self._watched:
                with contextlib.suppress(KeyError):
                    self._poll.unregister(old)
            for new in wanted:
                self._poll.register(new, select.POLLIN)
            self._watched = wanted
