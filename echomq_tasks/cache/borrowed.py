"""An L1 in a mapping that the user brings, such as one of cachetools."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from echomq_tasks.cache.l1 import L1
from echomq_tasks.cache.row import Row

_log = logging.getLogger(__name__)

#: So many rows that the mapping has let go of may still be known here.
_SLACK = 64


class BorrowedL1(L1):
    """An L1 whose rows stand in a mapping of the user's own, which bounds and evicts them.

    Such a mapping changes when it is read, so each read takes the lock. Its values are
    :class:`~echomq_tasks.cache.row.Row` objects, whose ``size`` a ``getsizeof`` may ask for. What it raises reaches no
    caller: the row in question is not held, and the first error is logged.

    Parameters:
      rows: the mapping; it is emptied, and nobody else may use it.
    """

    def __init__(self, rows: MutableMapping[str, Row]) -> None:
        rows.clear()
        self._mapping = rows
        self._told = False
        super().__init__()

    def _after_fork(self) -> None:
        torn = self._lock.locked()
        super()._after_fork()
        if torn:
            with self._survived():
                self._mapping.clear()

    def get(self, id: str) -> Row | None:
        """The row under ``id``, in whatever state it is."""
        with self._lock:
            try:
                row = self._mapping.get(id)
            except Exception as error:
                self._failed(error)
                return None
            # One that it would not let go of stands there as before.
            return row if row is not None and row.there else None

    def alias(self, table: dict[Any, Row], name: Hashable, row: Row) -> None:
        """Nothing: the mapping has to see each hit."""

    def _insert(self, row: Row) -> bool:
        try:
            self._mapping[row.id] = row
        except ValueError:
            return False  # so cachetools says that this one alone is too big
        except Exception as error:
            self._failed(error)
            return False
        if not self._has(row.id):
            return False  # it has expired already, says the mapping
        # What is here is known beside the mapping, which does not tell what it lets go of.
        self._rows[row.id] = row
        self._queue.append(row)
        self._arrived(row)
        with self._survived():
            if len(self._rows) > 2 * len(self._mapping) + _SLACK:
                self._sweep()
        return True

    def _drop(self, row: Row) -> None:
        with self._survived():
            self._mapping.pop(row.id, None)
        super()._drop(row)

    def _sweep(self) -> None:
        # Each of its rows is known here: as many there as here means that it has let go of none.
        with self._survived():
            if len(self._mapping) == len(self._rows):
                return
        for row in list(self._rows.values()):
            if not self._has(row.id):
                super()._drop(row)
                self._evictions += 1

    def _has(self, id: str) -> bool:
        try:
            return id in self._mapping
        except Exception as error:
            self._failed(error)
            return False

    @contextmanager
    def _survived(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        if not self._told:
            self._told = True
            _log.error(
                "The mapping given as l1= fails, and what it fails at is not held in this process: %r",
                error,
                exc_info=error,
            )
