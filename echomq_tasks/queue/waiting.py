"""Waiting for a value: a blocked command on a connection of its own, which outlives drops, restarts and moves."""

from __future__ import annotations

import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import redis
from redis.cluster import RedisCluster
from redis.exceptions import NoPermissionError, OutOfMemoryError, ResponseError

from echomq_tasks.connection import Connection
from echomq_tasks.errors import ConfigError, ServerOutOfMemory, ServerUnavailable
from echomq_tasks.forks import after_fork

_log = logging.getLogger(__name__)

#: Seconds one BLMOVE blocks on the server. It ends on its own now and then, so that a dead peer is noticed.
_BLOCK = 20.0
#: Seconds past that within which the server must have answered.
_GRACE = 10.0
#: Seconds of one look at the socket: an exception for this thread (a time limit) comes through between two of them.
_SLICE = 0.5
#: Seconds before the first new try after a broken wait, doubled up to the second: a restart takes a while.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
#: At most so many idle connections are kept, for each server.
_MOST_IDLE = 16

#: What ends one wait and not the whole; ServerUnavailable comes from connecting, and is an OSError.
_BROKEN = (redis.ConnectionError, redis.TimeoutError, redis.RedisClusterException, ResponseError, OSError)


class Waiting:
    """The connections of a server's client on which threads wait; one thread has one of them at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # By node of a cluster; elsewhere there is one server. deque operations are atomic, so no lock is needed.
        self._idle: dict[str, deque[Any]] = {}
        after_fork(self._after_fork)

    @classmethod
    def of(cls, connection: Connection) -> Waiting:
        """The one of ``connection``, made on first use and closed with it."""
        return connection.companion(cls)

    def _after_fork(self) -> None:
        # The sockets are the parent's; redis-py closes only the child's descriptors when these are collected.
        self._idle = {}

    def close(self) -> None:
        """Close the idle connections. One on which a thread waits is closed when that wait is over."""
        idle, self._idle = self._idle, {}
        for wires in idle.values():
            # A thread that is about to wait may take from it just now.
            with suppress(IndexError):
                while True:
                    wires.pop().disconnect()

    def wait(self, key: bytes, deadline: float | None, look: Callable[[], bytes | None]) -> bytes | None:
        """Wait until the list at ``key`` holds something, and answer its head, which stays there.

        Parameters:
          key: a list of one element, or absent.
          deadline: by :func:`now`; None is never.
          look: answers the head without waiting, over another connection. It is asked after each trouble: it follows
            a slot or a master to where they are now, and tells what is wrong in this package's errors.

        Returns:
          None when nothing was there by the deadline.

        Raises:
          ServerUnavailable: when the last try before the deadline failed.
          ServerOutOfMemory: when the server lets nobody wait because its memory is full.
          ConfigError: when the user may not wait.
        """
        pause = _FIRST_PAUSE
        while True:
            left = _left(deadline)
            try:
                value = self._block(key, max(min(left, _BLOCK), 0.001))
            except _BROKEN as error:
                if isinstance(error, redis.TimeoutError) and _left(deadline) <= 0:
                    # A look would wait as long again for a server that hangs.
                    raise ServerUnavailable(
                        f"{self._connection.config.address} did not answer within {_GRACE:g} s of the end of the wait"
                    ) from error
                if pause == _FIRST_PAUSE:
                    _log.warning("The wait for %s broke (%s) and goes on.", key.decode(), error)
                value, lost = self._look_after(error, look)
            else:
                pause, lost = _FIRST_PAUSE, None
                if value is None and _left(deadline) > 0:
                    continue
            if value is not None:
                return value
            if (left := _left(deadline)) <= 0:
                if lost is not None:
                    raise lost
                return None
            time.sleep(min(pause * random.uniform(0.5, 1.0), left))
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _block(self, key: bytes, seconds: float) -> bytes | None:
        """One BLMOVE: from the list onto itself, so that everybody who stands there is served, one after the other."""
        idle = self._idle
        node = self._node(key)
        wire = self._take(idle.get(node))
        try:
            if wire is None:
                # Not blocking without end: an answer that stops halfway must time out. The wait has its own limit.
                wire = self._connection.fresh(key, blocking=False)
            wire.send_command("BLMOVE", key, key, "LEFT", "LEFT", f"{seconds:.3f}")
            give_up = now() + seconds + _GRACE
            while not wire.can_read(max(min(_SLICE, give_up - now()), 0.0)):
                if now() >= give_up:
                    raise redis.TimeoutError(f"no answer within {_GRACE:g} seconds of its end")
            value: bytes | None = wire.read_response()
        except BaseException:
            # Also an exception thrown into this thread (a time limit, a shutdown), which leaves an answer unread.
            if wire is not None:
                wire.disconnect()
            raise
        if idle is self._idle and len(mine := idle.setdefault(node, deque())) < _MOST_IDLE:
            mine.append(wire)
        else:
            wire.disconnect()
        return value

    def _look_after(
        self, trouble: Exception, look: Callable[[], bytes | None]
    ) -> tuple[bytes | None, ServerUnavailable | None]:
        """After trouble: the value, when it is there, and what is wrong, when that cannot be seen."""
        try:
            value = look()
        except ServerUnavailable as error:
            return None, error
        address = self._connection.config.address
        if value is None and isinstance(trouble, OutOfMemoryError):
            raise ServerOutOfMemory(
                f"{address} has reached its maxmemory and lets nobody wait for a result; this one is not there. Raise "
                "maxmemory, or look again later without waiting"
            ) from trouble
        if value is None and isinstance(trouble, NoPermissionError):
            raise ConfigError(
                f"the user of {address} may not wait for results: {trouble}. It needs the command BLMOVE, as with the "
                "ACL SETUSER line in docs/operations.md"
            ) from trouble
        return value, None

    def _node(self, key: bytes) -> str:
        client = self._connection.client
        if not isinstance(client, RedisCluster):
            return ""
        try:
            return str(client.get_node_from_key(key).name)
        except redis.RedisClusterException:
            return ""  # no server has the slot as far as we know: connecting finds out and says so

    def _take(self, idle: deque[Any] | None) -> Any:
        while idle:
            try:
                wire = idle.pop()
                # An idle connection has nothing to say, unless the server has closed it.
                if not wire.can_read(0):
                    return wire
            except IndexError:
                return None  # another thread took it
            except redis.ConnectionError:
                pass
            wire.disconnect()
        return None


def now() -> float:
    """Seconds of a clock that goes on also in a test that has stopped Python's: the server waits by its own."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def _left(deadline: float | None) -> float:
    return math.inf if deadline is None else deadline - now()
