"""``@cached``: a function's results kept in the process and on the server, for all who call it."""

from __future__ import annotations

from echomq_tasks.caching.decorator import CachedDecorator, cached
from echomq_tasks.caching.function import AsyncCachedFunction, CachedFunction
from echomq_tasks.caching.info import CacheInfo
from echomq_tasks.caching.warned import CacheWarning

__all__ = ["AsyncCachedFunction", "CacheInfo", "CacheWarning", "CachedDecorator", "CachedFunction", "cached"]
