"""A BLPOP on wake keys, on a connection of its own, that can be looked at and taken back without losing tokens."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import redis
from redis.exceptions import ResponseError

from echomq_tasks.connection import Connection
from echomq_tasks.errors import EchoMQError, ServerUnavailable
from echomq_tasks.forks import after_fork

#: Seconds one BLPOP blocks on the server. It ends on its own now and then, so that a dead peer is noticed.
_BLOCK = 20
#: Seconds past that within which the server must have answered.
_GRACE = 10.0
#: Seconds between two tries to unblock a BLPOP that may still be on its way to the server.
_UNBLOCK_AGAIN = 0.05
#: What a broken wire raises. UNBLOCKED and READONLY come as ResponseError: the master has moved.
BROKEN = (redis.ConnectionError, redis.TimeoutError, ResponseError, OSError)


class Spot:
    """A place to stand at some wake keys of one slot, or of one server; owned by one thread at a time.

    While the ``BLPOP`` stands there its owner counts as ready, so whoever has no room for a job must :meth:`leave`, or
    :meth:`pass_on` the token it got.

    Parameters:
      keys: the wake keys.
      connection: the server.
    """

    def __init__(self, keys: Sequence[bytes], connection: Connection) -> None:
        #: The wake keys.
        self.keys = tuple(keys)
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

    @property
    def stands(self) -> bool:
        """Whether the BLPOP stands, or its answer is still to be read."""
        return self._parked_at is not None

    @property
    def overdue_at(self) -> float:
        """The monotonic second at which a server that has not answered is taken for dead."""
        return (self._parked_at or 0.0) + _BLOCK + _GRACE

    def fileno(self) -> int:
        """The descriptor that becomes readable with the answer."""
        return int(self._wire._get_socket().fileno())  # noqa: SLF001 - redis-py has no public way to the socket

    def stand(self) -> None:
        """Have the BLPOP stand; nothing happens when it does, or when another thread closes the connections meanwhile.

        It waits for the server only when it has to :meth:`connect`.

        Raises:
          ServerUnavailable: when the connection cannot be made, or broke.
        """
        if self._parked_at is not None:
            return
        wire = self._wire
        try:
            if wire is None:
                wire = self._wire = self._connection.fresh(self.keys[0], blocking=True)
                self._ask_id(wire)
            wire.send_command("BLPOP", *self.keys, _BLOCK)
        except BaseException as error:
            if wire is not None and self._wire is not wire and isinstance(error, Exception):
                return  # closed by another thread meanwhile
            self.close()
            if isinstance(error, (redis.RedisError, OSError)):
                raise self._broke(error) from error
            raise
        self._parked_at = time.monotonic()

    @property
    def connected(self) -> bool:
        """Whether there is a connection, as far as anybody knows."""
        return self._wire is not None

    def connect(self) -> None:
        """Have a connection, for :meth:`stand`.

        Raises:
          ServerUnavailable: when there is none to be had; and whatever else connecting raises.
        """
        try:
            self._wire = self._connection.fresh(self.keys[0], blocking=True)
            self._ask_id(self._wire)
        except BaseException as error:
            self.close()
            if isinstance(error, (redis.RedisError, OSError)):
                raise self._broke(error) from error
            raise

    def _ask_id(self, wire: Any) -> None:
        # It waits without end only for what the BLPOP brings.
        sock = wire._get_socket()  # noqa: SLF001
        sock.settimeout(self._connection.config.timeout)
        wire.send_command("CLIENT", "ID")
        self._client_id = int(wire.read_response())
        sock.settimeout(None)

    def take(self, *, ready: bool = False) -> bytes | None:
        """The key whose token has come, which is then spent; None when none has, or the BLPOP ended without one.

        Parameters:
          ready: whether the descriptor is known to be readable.

        Raises:
          ServerUnavailable: when the connection broke, or has not answered for too long; a token may be lost with it.
        """
        if self._parked_at is None:
            return None
        try:
            if ready or self._wire.can_read(0):
                return self._answer()
            if time.monotonic() > self.overdue_at:
                raise redis.ConnectionError(f"no answer for {_BLOCK + _GRACE:g} seconds")
        except BROKEN as error:
            self.close()
            raise self._broke(error) from error
        except BaseException:
            self.close()
            raise
        return None

    def leave(self) -> None:
        """Take the ``BLPOP`` back, so that tokens go to workers that have room. Costs nothing when there is none."""
        if self._parked_at is None:
            return
        try:
            if self._control is None:
                self._control = self._connection.fresh(self.keys[0], blocking=False)
            self._unblock()
            if (key := self._answer()) is not None:
                self.pass_on(key)
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

    def pass_on(self, key: bytes | None = None) -> None:
        """Give a token of ``key``, or of the only key, back for another worker to take."""
        with contextlib.suppress(redis.RedisError, redis.RedisClusterException, EchoMQError, OSError):
            # Best effort by nature: a parked worker that misses a token looks again on its next beat.
            self._connection.client.rpush(self.keys[0] if key is None else key, "1")

    def close(self) -> None:
        """Close the connections; the next :meth:`stand` opens others.

        Another thread may do it, to end a wait at once.
        """
        wires = self._wire, self._control
        self._wire = self._control = self._parked_at = None
        for wire in wires:
            if wire is not None:
                # Who is about to wait on it would else have redis-py connect it again, and wait there for nothing.
                wire.connect = wire.connect_check_health = _stay_closed
                wire.disconnect()

    def _broke(self, error: Exception) -> ServerUnavailable:
        return ServerUnavailable(
            f"the wait for jobs on {self._connection.config.address} broke: {error}; the next wait connects again"
        )

    def _answer(self) -> bytes | None:
        reply = self._wire.read_response()
        self._parked_at = None
        return None if reply is None else bytes(reply[0])


def _stay_closed(**options: Any) -> None:
    raise redis.ConnectionError("closed by another thread")
