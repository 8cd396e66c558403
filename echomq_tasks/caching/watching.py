"""The signals of cached functions: ``cache_hit``, ``cache_miss`` and ``cache_load``."""

from __future__ import annotations

import time
import weakref
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any

from echomq_tasks import signals
from echomq_tasks.events import CacheEvent

if TYPE_CHECKING:
    from echomq_tasks.caching.core import Core, Way

#: The ways whose hits nobody is told of, because their aliases answer them. A plain dict: threads may add some while it
#: is copied.
_ways: dict[int, weakref.ref[Way]] = {}
#: The call that is watched; also in the tasks that it starts.
_watched: ContextVar[Watched | None] = ContextVar("watched", default=None)


def watch(way: Way) -> None:
    """Let a way's hits be told of from when somebody receives them."""
    place = id(way)
    _ways[place] = weakref.ref(way, lambda gone: _ways.pop(place, None) if _ways.get(place) is gone else None)


def is_watched() -> bool:
    """Whether somebody receives hits or misses."""
    return bool(signals.cache_hit.receivers or signals.cache_miss.receivers)


def hits_are_watched() -> bool:
    """Whether somebody receives hits, which then must not be answered by an alias."""
    return bool(signals.cache_hit.receivers)


def _connected(signal: Any, **about: Any) -> None:
    for known in list(_ways.values()):
        if (way := known()) is not None:
            way.aliases.clear()


signals.cache_hit.receiver_connected.connect(_connected)


class Watched:
    """One call, of which is told whether it was a hit.

    Parameters:
      core: the function's.
      id: the row.
      held: whether L1 has a value, fresh or stale: what is loaded then is loaded in the background.
    """

    def __init__(self, core: Core, id: str, held: bool) -> None:
        self._core = core
        self._id = id
        self._held = held
        self._told = False

    def __enter__(self) -> None:
        self._core.table.observe(_observed)
        self._token = _watched.set(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _watched.reset(self._token)
        if error is None and not self._told:
            self._tell("cache_hit", "l1")

    def observed(self, what: str, id: str) -> None:
        """The table has counted something in this call, or in another one that it makes."""
        if id != self._id or self._told or (self._held and what != "stale"):
            return
        if what in ("l2_hits", "stale"):
            self._tell("cache_hit", "stale" if what == "stale" else "l2")
        elif what in ("loads", "coalesced"):
            self._tell("cache_miss", None)

    def _tell(self, event: str, layer: str | None) -> None:
        self._told = True
        signal = signals.namespace[event]
        if signal.receivers:
            about = CacheEvent(event, self._core.table.name, self._id, time.time(), layer)
            signals.send(signal, self._core.stands, about)


def _observed(what: str, id: str) -> None:
    watched = _watched.get()
    if watched is not None:
        watched.observed(what, id)


def told_load(core: Core, id: str, loader: Callable[[], Any]) -> Callable[[], Any]:
    """A loader that tells of each of its loads."""

    def load() -> Any:
        begun = time.monotonic()
        try:
            value = loader()
        except BaseException as error:
            _loaded(core, id, begun, error)
            raise
        _loaded(core, id, begun, None)
        return value

    return load


def told_aload(core: Core, id: str, loader: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    """As :func:`told_load`, of an async one."""

    async def load() -> Any:
        begun = time.monotonic()
        try:
            value = await loader()
        except BaseException as error:
            _loaded(core, id, begun, error)
            raise
        _loaded(core, id, begun, None)
        return value

    return load


def _loaded(core: Core, id: str, begun: float, error: BaseException | None) -> None:
    duration = time.monotonic() - begun
    about = CacheEvent("cache_load", core.table.name, id, time.time(), None, duration, error)
    signals.send(signals.cache_load, core.stands, about)
