"""The tables of one name in this process: each holds its own rows, and all know at once what one of them drops."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from echomq_tasks.cache.owed import Owed
from echomq_tasks.connection import Connection
from echomq_tasks.forks import after_fork

if TYPE_CHECKING:
    from echomq_tasks.cache.coherence import Coherence


class Siblings:
    """Those of one name and one server. They keep it alive, not the other way round.

    What one of them drops, the others let go of before that verb returns: to wait for the broadcast would give a caller
    who has dropped something the old value from a function beside. What the server was not told is owed by all of one
    kind together, for none of them may read there what another one has dropped.
    """

    def __init__(self) -> None:
        # Replaced as a whole, so that whoever goes through it needs no lock.
        self._members: tuple[weakref.ref[Coherence], ...] = ()
        self._owed: dict[str, Owed] = {}
        self._after_fork()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()

    @classmethod
    def of(cls, connection: Connection | None, name: str, *, l2: bool) -> Siblings:
        """Those of a table that is about to be made.

        Parameters:
          connection: the server; None is where ``connect()`` without arguments leads.
          name: the table's.
          l2: False for a table without a server, whose siblings have none either.
        """
        if not l2:
            return _LOCAL.siblings(name)
        return (_DEFAULT if connection is None else connection.companion(_Names)).siblings(name)

    def join(self, one: Coherence) -> None:
        """Let a table be told of what the others drop from now on."""
        with self._lock:
            self._members = (*[each for each in self._members if each() is not None], weakref.ref(one))

    def others(self, one: Coherence) -> Iterator[Coherence]:
        """All but this one."""
        for each in self._members:
            member = each()
            if member is not None and member is not one:
                yield member

    def owed(self, kind: str) -> Owed:
        """What the server is still to be told of the rows of a kind, and of tags, which are of all kinds."""
        with self._lock:
            owed = self._owed.get(kind)
            if owed is None:
                owed = Owed()
                for other in self._owed.values():
                    other.owe_tags_to(owed)
                self._owed[kind] = owed
            return owed

    def owe_tag(self, mark: str, version: str, *, but: Owed) -> None:
        """The rows of a tag were dropped, whatever their kind, and the server was not told; ``but`` knows that."""
        with self._lock:
            for owed in self._owed.values():
                if owed is not but:
                    owed.tag(mark, version)


class _Names:
    """The siblings of each name, on one server.

    Parameters:
      connection: the server; not kept.
    """

    def __init__(self, connection: Connection | None = None) -> None:
        self._all: weakref.WeakValueDictionary[str, Siblings] = weakref.WeakValueDictionary()
        self._after_fork()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()

    def siblings(self, name: str) -> Siblings:
        """Those of a name."""
        with self._lock:
            found = self._all.get(name)
            if found is None:
                found = self._all[name] = Siblings()
            return found

    def close(self) -> None:
        """Nothing is held of the connection's."""


_DEFAULT: Final = _Names()
_LOCAL: Final = _Names()
