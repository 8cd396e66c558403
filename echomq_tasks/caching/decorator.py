"""The decorator that caches what a function returns, in the process and on the server."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, MutableMapping
from functools import cached_property
from typing import Any, Final, Literal, ParamSpec, Protocol, TypeVar, overload

from echomq_tasks.cache import Codec
from echomq_tasks.cache.freshness import Ttl
from echomq_tasks.cache.table import Table
from echomq_tasks.caching.codecs import LocalCodec, ReturnCodec, SharingCodec
from echomq_tasks.caching.core import Core, Place
from echomq_tasks.caching.function import AsyncCachedFunction, CachedFunction
from echomq_tasks.caching.lane import Lane
from echomq_tasks.caching.naming import default_name, is_known_elsewhere
from echomq_tasks.caching.options import refuse_unknown
from echomq_tasks.connection import Connection
from echomq_tasks.errors import InvalidArgument
from echomq_tasks.scripts.arguments import shown

P = ParamSpec("P")
R = TypeVar("R")
F_co = TypeVar("F_co", covariant=True)

#: The kind of the rows of functions that name none.
DEFAULT_KIND: Final = "FUN"


class OfClass(Protocol[F_co]):
    """A cached class method or static method: it is called through its class, or an object of it."""

    def __get__(self, obj: Any, owner: type | None = None) -> F_co: ...


class CachedDecorator(Protocol):
    """What ``cached(...)`` with options returns: a decorator that keeps the function's signature."""

    @overload
    def __call__(self, fn: classmethod[Any, P, Coroutine[Any, Any, R]]) -> OfClass[AsyncCachedFunction[P, R]]: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, fn: classmethod[Any, P, R]) -> OfClass[CachedFunction[P, R]]: ...

    @overload
    def __call__(self, fn: staticmethod[P, Coroutine[Any, Any, R]]) -> OfClass[AsyncCachedFunction[P, R]]: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, fn: staticmethod[P, R]) -> OfClass[CachedFunction[P, R]]: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]]) -> AsyncCachedFunction[P, R]: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, fn: Callable[P, R]) -> CachedFunction[P, R]: ...

    def __call__(self, fn: Any) -> Any: ...


@overload
def cached(fn: classmethod[Any, P, Coroutine[Any, Any, R]], /) -> OfClass[AsyncCachedFunction[P, R]]: ...  # type: ignore[overload-overlap]


@overload
def cached(fn: classmethod[Any, P, R], /) -> OfClass[CachedFunction[P, R]]: ...


@overload
def cached(fn: staticmethod[P, Coroutine[Any, Any, R]], /) -> OfClass[AsyncCachedFunction[P, R]]: ...  # type: ignore[overload-overlap]


@overload
def cached(fn: staticmethod[P, R], /) -> OfClass[CachedFunction[P, R]]: ...  # type: ignore[overload-overlap]


@overload
def cached(fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncCachedFunction[P, R]: ...  # type: ignore[overload-overlap]


@overload
def cached(fn: Callable[P, R], /) -> CachedFunction[P, R]: ...


@overload
def cached(
    *,
    ttl: Ttl = 60.0,
    name: str | None = None,
    kind: str | None = None,
    key: Callable[..., Any] | None = None,
    ignore: Iterable[str] = (),
    tags: Iterable[str] | Callable[..., Iterable[str]] = (),
    codec: Codec | None = None,
    isolate: bool = True,
    jitter: float = 0.1,
    stale: float = 0.0,
    refresh_ahead: float | None = None,
    loader_timeout: float | tuple[float | None, float | None] | None = None,
    lease: float = 5.0,
    wait: float | None = 60.0,
    max_entries: int = 10_000,
    max_bytes: int | None = None,
    l1: MutableMapping[Any, Any] | None = None,
    l2: bool | None = None,
    coherence: Literal["broadcast", "lane"] = "broadcast",
    connection: Connection | None = None,
) -> CachedDecorator: ...


def cached(
    fn: Any = None,
    /,
    *,
    ttl: Ttl = 60.0,
    name: str | None = None,
    kind: str | None = None,
    key: Callable[..., Any] | None = None,
    ignore: Iterable[str] = (),
    tags: Iterable[str] | Callable[..., Iterable[str]] = (),
    codec: Codec | None = None,
    isolate: bool = True,
    jitter: float = 0.1,
    stale: float = 0.0,
    refresh_ahead: float | None = None,
    loader_timeout: float | tuple[float | None, float | None] | None = None,
    lease: float = 5.0,
    wait: float | None = 60.0,
    max_entries: int = 10_000,
    max_bytes: int | None = None,
    l1: MutableMapping[Any, Any] | None = None,
    l2: bool | None = None,
    coherence: Literal["broadcast", "lane"] = "broadcast",
    connection: Connection | None = None,
    **unknown: Any,
) -> Any:
    """Cache what a function returns, plain or async: in this process, and on the server for all others.

    Nothing is connected to before the first call that the process has no value for. Without a server everything goes
    on, with what each process has.

    Examples:

      >>> @cached(ttl=60)
      ... def square(x: int) -> int:
      ...     return x * x
      >>> square(3)
      9

    Use it above ``@classmethod`` and ``@staticmethod``, not below.

    Parameters:
      fn: the function, when the decorator is used without options.
      ttl: seconds that a value is fresh, or a function of the value that answers them; 0 is not kept.
      name: the table; the module and the qualified name of the function by default. Functions of one name on one
        connection share it: their tags, and what ``cache_clear()`` drops. Their rows are told apart by module and
        qualified name, so what has the same of both is one function, also in another application on this server.
      kind: the kind of the table's ids, three letters. A function of one branded id of that kind shares its row, as
        plain JSON, with whoever has the id, in any language; it takes no other argument.
      key: called with the arguments of a call, ``self`` and those with a default included, by position as far as the
        signature allows; answers what identifies it.
      ignore: the names of parameters that do not count.
      tags: texts by which ``invalidate_tags()`` drops many rows, or a function that answers them, called as ``key``.
      codec: how values are written, as :class:`~echomq_tasks.cache.PickleCodec`; JSON that gives back the types of the
        return annotation by default.
      isolate: False to give all callers in a process the same object also when they could change it, which is faster;
        with ``l2=False`` it may be one that has no encoded form.
      jitter: L1 lets a value be fresh for the ``ttl`` ± this part of it.
      stale: seconds past the ``ttl`` that a value serves on, while one refresh runs or when loading fails.
      refresh_ahead: the part of the ``ttl``, such as 0.8, after which a value that is used is refreshed.
      loader_timeout: ``(soft, hard)`` in seconds, or the hard one alone, see :class:`~echomq_tasks.cache.table.Table`.
      lease: seconds after which a process that died with a load is replaced.
      wait: seconds that a caller waits for somebody else's load; None for ever.
      max_entries: at most so many rows in L1; 0 for no L1.
      max_bytes: at most so many bytes in L1, about; None for any number.
      l1: a mapping of your own for L1, as of cachetools; it sets its own bounds.
      l2: False for no server. By default also for a function that no other process could know: one that is made inside
        of another function, a lambda, or one of an interactive session, unless it has a ``name``.
      coherence: ``"broadcast"``, at most once, or ``"lane"``, at least once besides: how others hear of newer values.
      connection: the server; where :func:`echomq_tasks.connect` without arguments leads by default.

    Raises:
      InvalidArgument, InvalidName, InvalidId: when an option is wrong.
    """

    if unknown:
        refuse_unknown(unknown, cached.__kwdefaults__ or ())

    if coherence not in ("broadcast", "lane"):
        raise InvalidArgument(
            'coherence= is "broadcast", at most once, or "lane", at least once besides: how other processes hear of '
            f"newer values, not {shown(coherence)}"
        )

    if l2 not in (None, True, False) or isolate not in (True, False):
        raise InvalidArgument(f"l2= and isolate= are True or False, not {shown(l2)} and {shown(isolate)}")
    if not isinstance(ignore, Iterable):
        raise InvalidArgument(f"ignore= has the names of parameters, as in ('session',), not {shown(ignore)}")

    def decorate(given: Any) -> Any:
        function, place = _looked_at(given)
        where = default_name(function) if name is None else name
        returned = ReturnCodec(function)
        written: Codec = returned if codec is None else _checked(codec)
        if not isolate:
            written = SharingCodec(written)
        known = name is not None or is_known_elsewhere(function)
        shared = known if l2 is None else l2
        if coherence == "lane" and not shared:
            raise InvalidArgument(
                f"{function.__qualname__}() has no rows on the server, so no other process has to hear of them by the "
                'lane: give it a name= that it has in all of them, or leave coherence="lane" out'
            )
        lane = Lane(where, connection) if coherence == "lane" else None
        table = Table(
            where,
            DEFAULT_KIND if kind is None else kind,
            connection,
            ttl=ttl,
            jitter=jitter,
            codec=written if shared else LocalCodec(written),
            max_entries=max_entries,
            max_bytes=max_bytes,
            lease=lease,
            wait=wait,
            stale=stale,
            refresh_ahead=refresh_ahead,
            loader_timeout=loader_timeout,
            coherence=coherence,
            lane=lane,
            l1=l1,
            l2=shared,
            # Of a function that is made again and again, each one has its own values.
            alone=not known and not shared,
        )
        if lane is not None:
            lane.of(table)
        core = Core(
            function,
            table,
            place,
            lane=lane,
            ignore=tuple(ignore) if not isinstance(ignore, str) else ignore,
            key=key,
            tags=tags,
            maxsize=max_entries if l1 is None else getattr(l1, "maxsize", None),
            shared_as=None if kind is None else (where, kind, connection),
        )
        returned.plain = core.shares
        return AsyncCachedFunction(core) if core.is_async else CachedFunction(core)

    return decorate if fn is None else decorate(fn)


def _checked(codec: Any) -> Codec:
    if not all(callable(getattr(codec, verb, None)) for verb in ("encode", "decode", "immutable")):
        raise InvalidArgument(
            f"codec= is one of echomq_tasks.cache, as TypedCodec(), or has encode, decode and immutable as they have, "
            f"not {shown(codec)}"
        )
    return codec  # type: ignore[no-any-return]


def _looked_at(given: Any) -> tuple[Callable[..., Any], Place | None]:
    """The function, and what it is where it stands; None when only the end of its class's body tells that."""
    inner = given.__func__ if isinstance(given, (classmethod, staticmethod)) else given
    if isinstance(inner, (CachedFunction, AsyncCachedFunction)):
        raise InvalidArgument(
            f"{inner.__qualname__}() is cached already: give its options to the first @cached, or cache another time "
            "what is below it, with f.__wrapped__ and a name= of its own"
        )
    if isinstance(given, classmethod):
        return given.__func__, "classmethod"
    if isinstance(given, staticmethod):
        return given.__func__, "static"
    if isinstance(given, (property, cached_property)):
        raise InvalidArgument(
            f"put @{type(given).__name__} above @cached, not below it: what is cached is the function, with key= to "
            "tell the objects apart, as key=lambda self: self.id"
        )
    if not callable(given):
        raise InvalidArgument(
            f"cached takes a function, and its options by name, as in @cached(ttl=60), not {shown(given)}"
        )
    if isinstance(given, type) or not isinstance(getattr(given, "__qualname__", None), str):
        raise InvalidArgument(f"cached takes a function or a method, not {shown(given)}: wrap it into a function")
    if inspect.isgeneratorfunction(given) or inspect.isasyncgenfunction(given):
        raise InvalidArgument(f"{given.__qualname__}() is a generator, which can be run once only: return a list")
    outer, dot, _ = given.__qualname__.rpartition(".")
    return given, None if dot and not outer.endswith("<locals>") else "function"
