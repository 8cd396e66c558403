"""The cluster node that holds the fence, asked for whoever connects to another one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import redis
from redis.connection import ConnectionPool

from echomq_tasks.connection.fence import FENCE_KEY
from echomq_tasks.forks import after_fork

#: Seconds that the node may take. Every new connection to the other nodes waits for it, so it is not the reply timeout.
_PATIENCE = 1.0
#: Seconds for which it is not asked again after it did not answer: one node that hangs must not slow all others down.
_REST = 30.0


class FenceOwner:
    """One connection of its own to the node that holds the fence; safe to share between threads and across a fork.

    Parameters:
        pool: answers the pool of that node, of which only the address and the credentials are used, or None.
    """

    def __init__(self, pool: Callable[[], ConnectionPool | None]) -> None:
        self._pool = pool
        self._after_fork()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        # The socket is the parent's, and a thread that the child does not have may hold the lock.
        self._lock = threading.Lock()
        self._wire: Any = None
        self._rest_until = 0.0

    def ask(self) -> Any:
        """The fence's value; None when it has none, or when the node did not answer in time.

        A node that is away cannot be asked, and the queues on the other nodes go on: the fence is met again with the
        next connection that finds it there.
        """
        with self._lock:
            if time.monotonic() < self._rest_until:
                return None
            if self._wire is not None:
                try:
                    return self._get()
                except (redis.RedisError, OSError):
                    # It has stood idle, and the node may have been restarted meanwhile.
                    self._drop()
            try:
                return self._get()
            except (redis.RedisError, redis.RedisClusterException, OSError, AttributeError, KeyError):
                # The last two are redis-py's, of a client that is closed, or is learning the cluster's shape right now.
                self._drop()
                self._rest_until = time.monotonic() + _REST
                return None

    def close(self) -> None:
        """Close the connection; the next question opens another."""
        with self._lock:
            self._drop()

    def _get(self) -> Any:
        if self._wire is None:
            pool = self._pool()
            if pool is None:
                return None
            options = dict(pool.connection_kwargs)
            # No hook: it would ask for the fence, which is what this is for.
            options.update(redis_connect_func=None, socket_timeout=_PATIENCE, socket_connect_timeout=_PATIENCE)
            self._wire = pool.connection_class(**options)
            self._wire.connect()
        self._wire.send_command("GET", FENCE_KEY)
        return self._wire.read_response()

    def _drop(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.disconnect()
