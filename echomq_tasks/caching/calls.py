"""The functions that answer the calls of a cached function. A hit goes through nothing but their first lines.

There is one for each shape, because each comparison that can be left out is a part of what a hit costs. A single
argument that is a ``str`` or an ``int`` is its own fast key, so the maker need not be asked for it.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from echomq_tasks.cache import fastkeys

if TYPE_CHECKING:
    from echomq_tasks.caching.core import Way

_NONE: Final = object()


def call_of(way: Way) -> Callable[..., Any]:
    """The function that answers the calls of one shape."""
    if way.fast is fastkeys.of_one and way.shape == "function":
        return _async_single(way) if way.is_async else _single(way)
    if way.fast is fastkeys.of_one and way.shape == "method":
        return _async_single_method(way) if way.is_async else _single_method(way)
    return _async_any(way) if way.is_async else _any(way)


def _single(way: Way) -> Callable[..., Any]:
    get, fast, slow = way.aliases.get, way.fast, way.slow

    def call(first: Any = _NONE, /, *args: Any, **kwargs: Any) -> Any:
        if (type(first) is str or type(first) is int) and not args and not kwargs:
            row = get(first)
            if row is not None and row.fresh_until > monotonic():
                row.hits += 1
                return row.value
            return slow(first, (first,), kwargs)
        if first is not _NONE:
            args = (first, *args)
        name = fast(args, kwargs)
        row = get(name)
        if row is not None and row.fresh_until > monotonic():
            row.hits += 1
            return row.value
        return slow(name, args, kwargs)

    return call


def _async_single(way: Way) -> Callable[..., Any]:
    get, fast, slow = way.aliases.get, way.fast, way.aslow

    async def call(first: Any = _NONE, /, *args: Any, **kwargs: Any) -> Any:
        if (type(first) is str or type(first) is int) and not args and not kwargs:
            row = get(first)
            if row is not None and row.fresh_until > monotonic():
                row.hits += 1
                return row.value
            return await slow(first, (first,), kwargs)
        if first is not _NONE:
            args = (first, *args)
        name = fast(args, kwargs)
        row = get(name)
        if row is not None and row.fresh_until > monotonic():
            row.hits += 1
            return row.value
        return await slow(name, args, kwargs)

    return call


def _single_method(way: Way) -> Callable[..., Any]:
    get, fast, slow = way.aliases.get, way.fast, way.slow

    def call(self: Any, first: Any = _NONE, /, *args: Any, **kwargs: Any) -> Any:
        if (type(first) is str or type(first) is int) and not args and not kwargs:
            row = get(first)
            if row is not None and row.fresh_until > monotonic():
                row.hits += 1
                return row.value
            return slow(first, (self, first), kwargs)
        if first is not _NONE:
            args = (first, *args)
        name = fast(args, kwargs)
        row = get(name)
        if row is not None and row.fresh_until > monotonic():
            row.hits += 1
            return row.value
        return slow(name, (self, *args), kwargs)

    return call


def _async_single_method(way: Way) -> Callable[..., Any]:
    get, fast, slow = way.aliases.get, way.fast, way.aslow

    async def call(self: Any, first: Any = _NONE, /, *args: Any, **kwargs: Any) -> Any:
        if (type(first) is str or type(first) is int) and not args and not kwargs:
            row = get(first)
            if row is not None and row.fresh_until > monotonic():
                row.hits += 1
                return row.value
            return await slow(first, (self, first), kwargs)
        if first is not _NONE:
            args = (first, *args)
        name = fast(args, kwargs)
        row = get(name)
        if row is not None and row.fresh_until > monotonic():
            row.hits += 1
            return row.value
        return await slow(name, (self, *args), kwargs)

    return call


def _any(way: Way) -> Callable[..., Any]:
    get, fast, slow, counting = way.aliases.get, way.fast, way.slow, way.counting
    # What most calls need of `fastkeys.of_many`, without calling it.
    are_plain = fastkeys.PLAIN.issuperset if fast is fastkeys.of_many else _never

    if way.counts_all:

        def call(*args: Any, **kwargs: Any) -> Any:
            name = args if not kwargs and are_plain(map(type, args)) else fast(args, kwargs)
            row = get(name)
            if row is not None and row.fresh_until > monotonic():
                row.hits += 1
                return row.value
            return slow(name, args, kwargs)

        return call

    def call_of_part(*args: Any, **kwargs: Any) -> Any:
        name = fast(counting(args), kwargs)
        row = get(name)
        if row is not None and row.fresh_until > monotonic():
            row.hits += 1
            return row.value
        return slow(name, args, kwargs)

    return call_of_part


def _never(types: object) -> bool:
    return False


def _async_any(way: Way) -> Callable[..., Any]:
    get, fast, slow, counting = way.aliases.get, way.fast, way.aslow, way.counting

    async def call(*args: Any, **kwargs: Any) -> Any:
        name = fast(counting(args), kwargs)
        row = get(name)
        if row is not None and row.fresh_until > monotonic():
            row.hits += 1
            return row.value
        return await slow(name, args, kwargs)

    return call
