"""Parking: wait for a wake token on a connection of its own, without polling and without losing other work's tokens."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import redis
from redis.exceptions import ResponseError

from echomq_tasks.connection import Connection
from echomq_tasks.errors import EchoMQError, ServerUnavailable
from echomq_tasks.forks import after_fork
from echomq_tasks.keyspace import queue_key

#: Seconds one BLPOP blocks on the server. It ends on its own now and then, so that a dead peer is noticed.
_BLOCK = 20
#: Seconds past that within which the server must have answered.
_GRACE = 10.0
#: Seconds between two tries to unblock a BLPOP that may still be on its way to the server.
_UNBLOCK_AGAIN = 0.05


class Parking:
    """One worker's place to wait for one queue; owned by one thread at a time.

    The ``BLPOP`` stays on the server between waits: an idle worker that looks up every second costs one command in
    twenty seconds. While it stands there this worker counts as ready, so whoever has no room for a job must
    :meth:`leave`, or :meth:`pass_on` the token it got.

    Parameters:
      queue: the queue's name.
      connection: the server.
    """

    def __init__(self, queue: str, connection: Connection) -> None:
        self._key = queue_key(queue, "wake")
        self._connection = connection
        self._wire: Any = None
        self._client_id = 0
        # A blocked connection cannot take itself back: another one unblocks it. Opened when that is needed.
        self._control: Any = None
        self._parked_at: float | None = None
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        # The sockets are the parent's; redis-py closes only the child's descriptors when these are collected.
        self._wire = self._control = self._parked_at = None

    def wait(self, timeout: float) -> bool:
        """Wait for a token for up to ``timeout`` seconds; True when there is one, which is then spent.

        Raises:
          ServerUnavailable: when the connection broke; a token may have been lost with it.
        """
        deadline = time.monotonic() + timeout
        while True:
            if (self._parked_at is None or self._wire is None) and not self._park():
                return False
            left = deadline - time.monotonic()
            wire = self._wire
            if wire is None:
                return False
            try:
                ready = wire.can_read(max(left, 0.0))
                if ready:
                    if self._answer() is not None:
                        return True
                elif self._parked_at is not None and time.monotonic() - self._parked_at > _BLOCK + _GRACE:
                    raise redis.ConnectionError(f"no answer for {_BLOCK + _GRACE:g} seconds")
            except (redis.ConnectionError, redis.TimeoutError, ResponseError, OSError) as error:
                if self._wire is not wire:
                    return False  # closed by another thread meanwhile
                # UNBLOCKED and READONLY come here too: the master has moved, so the next wait looks for it.
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

    def leave(self) -> None:
        """Take the ``BLPOP`` back, so that tokens go to workers that have room. Costs nothing when there is none."""
        if self._parked_at is None:
            return
        try:
            if self._control is None:
                self._control = self._connection.fresh(self._key, blocking=False)
            self._unblock()
            if self._answer() is not None:
                self.pass_on()
        except (redis.RedisError, EchoMQError, OSError):
            # Not allowed here, or the connection broke: closing it takes the BLPOP back too.
            self.close()
        except BaseException:
            self.close()
            raise

    def _unblock(self) -> None:
        deadline = time.monotonic() + _GRACE
        while True:
            self._control.send_command("CLIENT", "UNBLOCK", self._client_id)
            self._control.read_response()
            # The BLPOP travels on another connection and may arrive after the first try, which then does nothing.
            if self._wire.can_read(_UNBLOCK_AGAIN):
                return
            if time.monotonic() > deadline:
                raise redis.TimeoutError(f"no answer for {_GRACE:g} seconds")

    def pass_on(self) -> None:
        """Give a token back for another worker to take."""
        with contextlib.suppress(redis.RedisError, redis.RedisClusterException, EchoMQError, OSError):
            # Best effort by nature: a parked worker that misses a token looks again on its next beat.
            self._connection.client.rpush(self._key, "1")

    def close(self) -> None:
        """Close the connections; the next wait opens others. Another thread may do it, to end a wait at once."""
        wires = self._wire, self._control
        self._wire = self._control = self._parked_at = None
        for wire in wires:
            if wire is not None:
                # Who is about to wait on it would else have redis-py connect it again, and wait there for nothing.
                wire.connect = wire.connect_check_health = _stay_closed
                wire.disconnect()

    def _park(self) -> bool:
        """Send the ``BLPOP``; False when another thread has closed the connection meanwhile."""
        wire = self._wire
        try:
            if wire is None:
                wire = self._wire = self._connection.fresh(self._key, blocking=True)
                wire.send_command("CLIENT", "ID")
                self._client_id = int(wire.read_response())
            wire.send_command("BLPOP", self._key, _BLOCK)
        except BaseException as error:
            if wire is not None and self._wire is not wire and isinstance(error, Exception):
                return False
            self.close()
            if isinstance(error, (redis.RedisError, OSError)):
                raise self._broke(error) from error
            raise
        self._parked_at = time.monotonic()
        return True

    def _broke(self, error: Exception) -> ServerUnavailable:
        return ServerUnavailable(
            f"the wait for jobs on {self._connection.config.address} broke: {error}; the next wait connects again"
        )

    def _answer(self) -> Any:
        reply = self._wire.read_response()
        self._parked_at = None
        return reply


def _stay_closed(**options: Any) -> None:
    raise redis.ConnectionError("closed by another thread")
