"""An L1 in a mapping that the user brings, such as one of cachetools."""

from __future__ import annotations

from collections.abc import Hashable, MutableMapping
from typing import Any

from echomq_tasks.cache.l1 import L1
from echomq_tasks.cache.row import Row

#: So many rows that the mapping has let go of may still be known here.
_SLACK = 64


class BorrowedL1(L1):
    """An L1 whose rows stand in a mapping of the user's own, which bounds and evicts them.

    Such a mapping changes when it is read, so each read takes the lock. Its values are
    :class:`~echomq_tasks.cache.row.Row` objects, whose ``size`` a ``getsizeof`` may ask for.

    Parameters:
      rows: the mapping; it is emptied, and nobody else may use it.
    """

    def __init__(self, rows: MutableMapping[str, Row]) -> None:
        rows.clear()
        self._mapping = rows
        super().__init__()

    def _after_fork(self) -> None:
        torn = self._lock.locked()
        super()._after_fork()
        if torn:
            self._mapping.clear()

    def get(self, id: str) -> Row | None:
        """The row under ``id``, in whatever state it is."""
        with self._lock:
            return self._mapping.get(id)

    def alias(self, table: dict[Any, Row], name: Hashable, row: Row) -> None:
        """Nothing: the mapping has to see each hit."""

    def _insert(self, row: Row) -> bool:
        try:
            self._mapping[row.id] = row
        except ValueError:
            return False  # so cachetools says that this one alone is too big
        if row.id not in self._mapping:
            return False  # it has expired already, says the mapping
        # What is here is known beside the mapping, which does not tell what it lets go of.
        self._rows[row.id] = row
        self._queue.append(row)
        self._arrived(row)
        if len(self._rows) > 2 * len(self._mapping) + _SLACK:
            self._sweep()
        return True

    def _drop(self, row: Row) -> None:
        self._mapping.pop(row.id, None)
        super()._drop(row)

    def _sweep(self) -> None:
        # Each of its rows is known here: as many there as here means that it has let go of none.
        if len(self._mapping) == len(self._rows):
            return
        for row in list(self._rows.values()):
            if row.id not in self._mapping:
                super()._drop(row)
                self._evictions += 1
