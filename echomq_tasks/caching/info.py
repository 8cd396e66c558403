"""What ``cache_info()`` answers."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from echomq_tasks.cache.stats import TableStats


class _CacheInfo(NamedTuple):
    hits: int
    misses: int
    maxsize: int | None
    currsize: int


class CacheInfo(_CacheInfo):
    """The four numbers that :func:`functools.lru_cache` has, and more beside them.

    Attributes:
      hits: calls that L1 answered, since the last ``cache_clear()``.
      misses: those for which it had no value.
      maxsize: the most rows in L1; None for any number.
      currsize: rows in L1.
      stats: all that the table has counted in this process, see :class:`~echomq_tasks.cache.stats.TableStats`.
    """

    stats: TableStats

    @classmethod
    def of(cls, stats: TableStats, since: tuple[int, int], maxsize: int | None) -> CacheInfo:
        """What a table has counted.

        Parameters:
          stats: now.
          since: the hits and misses that were counted before.
          maxsize: the most rows.
        """
        found = cls(max(stats.hits - since[0], 0), max(stats.misses - since[1], 0), maxsize, stats.entries)
        found.stats = stats
        return found

    def _replace(self, **numbers: Any) -> Self:
        """Another one, of which some of the four numbers are others."""
        made = super()._replace(**numbers)
        made.stats = self.stats
        return made

    __replace__ = _replace
