"""The caches that are compared; each wraps a function of one text."""

from __future__ import annotations

import functools
import importlib.util
import threading
import time
from collections.abc import Callable
from typing import Any

import redis
import redis.asyncio

from echomq_tasks import cached, connect

#: Of one text, or a coroutine function.
Function = Callable[[str], Any]

TTL = 600
#: More rows than any measure has.
MANY = 50_000
#: Variants are called as the packages that they need; these are none of ours.
PACKAGES = {"cachetools", "theine", "cashews", "dogpile", "aiocache"}


def missing(variant: str) -> bool:
    """Whether what a variant needs is not installed."""
    package = variant.partition("-")[0]
    return package in PACKAGES and importlib.util.find_spec(package) is None


def waits(variant: str) -> bool:
    """Whether a variant wraps coroutine functions."""
    return variant.endswith("-async") or variant.partition("-")[0] in ("cashews", "aiocache")


# In the process.


def floor(function: Function) -> Function:
    """The least that a cache with an end can do: a dictionary, a clock, one comparison."""
    rows: dict[str, tuple[float, Any]] = {}
    monotonic = time.monotonic

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        row = rows.get(args[0]) if not kwargs else None
        if row is not None and row[0] > monotonic():
            return row[1]
        value = function(*args, **kwargs)
        rows[args[0]] = (monotonic() + TTL, value)
        return value

    return wrapper


def floor_of_one(function: Function) -> Function:
    """As :func:`floor`, for functions of one argument without a name."""
    rows: dict[str, tuple[float, Any]] = {}
    monotonic = time.monotonic

    @functools.wraps(function)
    def wrapper(argument: str) -> Any:
        row = rows.get(argument)
        if row is not None and row[0] > monotonic():
            return row[1]
        value = function(argument)
        rows[argument] = (monotonic() + TTL, value)
        return value

    return wrapper


def _echomq(function: Function) -> Function:
    return cached(ttl=TTL, max_entries=MANY, l2=False)(function)


def _lru_cache(function: Function) -> Function:
    return functools.lru_cache(MANY)(function)


def _cachetools(function: Function) -> Function:
    import cachetools

    return cachetools.cached(cachetools.TTLCache(MANY, TTL), lock=threading.Lock())(function)


def _theine(function: Function) -> Function:
    import datetime

    import theine

    wrapped = theine.Memoize(MANY, datetime.timedelta(seconds=TTL))(function)
    wrapped.key(lambda argument: argument)
    return wrapped


def _cashews(function: Function) -> Function:
    from cashews import Cache

    cache = Cache()
    cache.setup("mem://", size=MANY)
    return cache(ttl=TTL)(function)


#: A hit of these is in the process; of `-dict` the value is one that the caller could change.
LOCAL: dict[str, Callable[[Function], Function]] = {
    "floor": floor,
    "floor-one": floor_of_one,
    "cached": _echomq,
    "cached-dict": _echomq,
    "cached-async": _echomq,
    "lru_cache": _lru_cache,
    "cachetools": _cachetools,
    "theine": _theine,
    "cashews": _cashews,
}


# On the server.


def _redis_py(url: str, function: Function) -> Function:
    client = redis.Redis.from_url(url)

    def wrapper(argument: str) -> Any:
        value = client.get(argument)
        if value is None:
            value = function(argument)
            client.set(argument, value, ex=TTL)
        return value

    return wrapper


def _echomq_remote(url: str, function: Function) -> Function:
    return cached(ttl=TTL, max_entries=0, name="bench", connection=connect(url))(function)


def _echomq_layered(url: str, function: Function) -> Function:
    return cached(ttl=TTL, name="bench", connection=connect(url))(function)


def _dogpile(url: str, function: Function, **more: Any) -> Function:
    from dogpile.cache import make_region

    region = make_region().configure(
        "dogpile.cache.redis", expiration_time=TTL, arguments={"url": url, "redis_expiration_time": TTL, **more}
    )
    return region.cache_on_arguments()(function)


def _dogpile_locked(url: str, function: Function) -> Function:
    return _dogpile(url, function, distributed_lock=True, thread_local_lock=False)


def _aiocache(url: str, function: Function, **more: Any) -> Function:
    import aiocache
    from aiocache.serializers import PickleSerializer

    kind = aiocache.cached_stampede if more else aiocache.cached
    # It takes no URL, and no path of a socket.
    connections = functools.partial(_connections, url)
    return kind(
        cache=aiocache.Cache.REDIS, connection_pool_class=connections, serializer=PickleSerializer(), ttl=TTL, **more
    )(function)


def _connections(url: str, **_: Any) -> redis.asyncio.ConnectionPool:
    return redis.asyncio.ConnectionPool.from_url(url)


def _aiocache_locked(url: str, function: Function) -> Function:
    return _aiocache(url, function, lease=2)


def _cashews_remote(url: str, function: Function, **more: Any) -> Function:
    from cashews import Cache
    from cashews.backends.redis import Redis
    from cashews.picklers import PicklerType
    from cashews.wrapper.backend_settings import register_backend

    register_backend("unix", Redis, pass_uri=True, pickler=PicklerType.DEFAULT)
    cache = Cache()
    cache.setup(url)
    return cache(ttl=TTL, **more)(function)


def _cashews_locked(url: str, function: Function) -> Function:
    return _cashews_remote(url, function, lock=True)


#: A hit of these asks the server.
REMOTE: dict[str, Callable[[str, Function], Function]] = {
    "redis-py": _redis_py,
    "cached": _echomq_remote,
    "cached-async": _echomq_remote,
    "dogpile": _dogpile,
    "aiocache": _aiocache,
    "cashews": _cashews_remote,
}
#: These let one caller load for others, of the process (`lru_cache` has none of that) or of all processes.
GUARDED: dict[str, Callable[[str, Function], Function]] = {
    "cached": _echomq_layered,
    "cached-async": _echomq_layered,
    "lru_cache": lambda _, function: _lru_cache(function),
    "cachetools": lambda _, function: _cachetools_guarded(function),
    "theine": lambda _, function: _theine(function),
    "dogpile": _dogpile_locked,
    "aiocache": _aiocache_locked,
    "cashews": _cashews_locked,
}


def _cachetools_guarded(function: Function) -> Function:
    import cachetools

    return cachetools.cached(cachetools.TTLCache(MANY, TTL), condition=threading.Condition())(function)
