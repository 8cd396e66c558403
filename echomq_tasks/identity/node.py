"""Node ids: two processes with one node id could mint one id, so each leases its own from the server."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from typing import Protocol

from echomq_tasks.errors import EchoMQError, ServerUnavailable
from echomq_tasks.forks import after_fork

_log = logging.getLogger(__name__)

#: Node ids are ten bits.
NODES = 1024
#: Seconds for which nobody asks a server again that did not answer.
_QUIET = 0.1


class NoLease(ServerUnavailable):
    """The server did not answer in time, and whoever mints is to be told so."""


class NodeStore(Protocol):
    """Where node ids are leased."""

    def lease(self, owner: str, lease_ms: int, held: int | None) -> int | None:
        """Lease a node id to ``owner``, preferably the one ``held``; None when all are taken.

        Raises:
          NoLease: when nothing is to be minted meanwhile.
          EchoMQError: when a random one will do.
        """


class NodeLease:
    """The node id of this process, leased from the server and renewed when an id is minted.

    No thread is needed: a process that mints nothing needs no node id, and one that comes back after its lease ran out
    leases anew before it mints. Away from the server, or with every node id taken, the id is random and the lease is
    asked for again soon; admission tells a collision from its own retry, so a random id costs a round trip at worst.

    Parameters:
      store: where to lease.
      lease: seconds a lease lasts without renewal.
    """

    def __init__(self, store: NodeStore, *, lease: float = 60.0) -> None:
        self._store = store
        self._lease = lease
        self._reset()
        after_fork(self._reset)

    def _reset(self) -> None:
        # A forked child is another minting process: it must not share its parent's node id or lock.
        self._owner = secrets.token_hex(8)
        self._held: int | None = None
        self._node = secrets.randbelow(NODES)
        self._fresh_until = self._quiet_until = 0.0
        self._lock = threading.Lock()

    def current(self) -> int:
        """The node id to mint with now. Asks the server once every third of a lease at most.

        Raises:
          NoLease: when the store does, or has just done so.
        """
        if time.monotonic() < self._fresh_until:
            return self._node
        with self._lock:
            now = time.monotonic()
            if now < self._fresh_until:
                return self._node
            if now < self._quiet_until:
                raise NoLease("the server did not answer a moment ago")
            try:
                leased = self._store.lease(self._owner, int(self._lease * 1000), self._held)
                if leased is None:
                    _log.warning("all %d node ids are taken; minting with a random one until one is free", NODES)
            except NoLease:
                # Those who wait here would wait as long, one after the other.
                self._quiet_until = time.monotonic() + _QUIET
                raise
            except EchoMQError as error:
                # Also a server that forbids this user the lease keys: admission guards against a shared id by itself.
                _log.warning("no node id leased (%s); minting with a random one until the server answers", error)
                leased = None
            self._held = leased
            self._node = secrets.randbelow(NODES) if leased is None else leased
            self._fresh_until = now + self._lease / (3 if leased is not None else 12)
            return self._node
