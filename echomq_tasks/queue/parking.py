"""Parking: wait for a wake token on a connection of its own, without polling and without losing other work's tokens."""

from __future__ import annotations

import time

import redis

from echomq_tasks.connection import Connection
from echomq_tasks.keyspace import queue_key
from echomq_tasks.queue.spot import BROKEN, Spot


class Parking(Spot):
    """One worker's place to wait for one queue; owned by one thread at a time.

    The ``BLPOP`` stays on the server between waits: an idle worker that looks up every second costs one command in
    twenty seconds. While it stands there this worker counts as ready, so whoever has no room for a job must
    :meth:`leave`, or :meth:`pass_on` the token it got.

    Parameters:
      queue: the queue's name.
      connection: the server.
    """

    def __init__(self, queue: str, connection: Connection) -> None:
        super().__init__((queue_key(queue, "wake"),), connection)

    def wait(self, timeout: float) -> bool:
        """Wait for a token for up to ``timeout`` seconds; True when there is one, which is then spent.

        Raises:
          ServerUnavailable: when the connection broke; a token may have been lost with it.
        """
        deadline = time.monotonic() + timeout
        while True:
            self.stand()
            left = deadline - time.monotonic()
            wire = self._wire
            if wire is None or self._parked_at is None:
                return False  # closed by another thread meanwhile
            try:
                ready = wire.can_read(max(left, 0.0))
                if ready:
                    if self._answer() is not None:
                        return True
                elif self._parked_at is not None and time.monotonic() > self.overdue_at:
                    raise redis.ConnectionError("no answer for too long")
            except BROKEN as error:
                if self._wire is not wire:
                    return False  # closed by another thread meanwhile
                self.close()
                raise self._broke(error) from error
            except BaseException as error:
                if self._wire is not wire and isinstance(error, Exception):
                    return False  # closed by another thread meanwhile, with a socket in use here
                # Thrown into this thread (a time limit, a shutdown), maybe in the middle of an answer.
                self.close()
                raise
            if left <= 0:
                return False
