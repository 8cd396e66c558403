"""Cached functions, as the decorator leaves them in a function's place."""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine
from functools import WRAPPER_ASSIGNMENTS, partial, update_wrapper
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, overload

from echomq_tasks.cache import Key
from echomq_tasks.cache.hands import elsewhere
from echomq_tasks.cache.table import Table
from echomq_tasks.caching.core import Core, Way
from echomq_tasks.caching.info import CacheInfo

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
D = TypeVar("D")
B = TypeVar("B", bound="_Cached[Any, Any]")

_new: Final[Any] = partial.__new__

#: What a bound method has of its function.
_OF_THE_FUNCTION: Final = frozenset({*WRAPPER_ASSIGNMENTS, "__wrapped__"})


class _Cached(partial[R], Generic[P, R]):
    """A function whose results are cached.

    It is a :class:`functools.partial` of the function that looks into the cache, for that is the kind of object that
    costs least to call. A bound method is another one, whose first argument is the object.
    """

    if TYPE_CHECKING:
        __name__: str
        __qualname__: str
        #: The function itself, which caches nothing.
        __wrapped__: Callable[P, R]

    _way: Way
    #: Whether this is a method of an object, and not what stands in the function's place.
    _is_bound: ClassVar[bool] = False
    #: Whether an object that it is looked up in is the first argument, and there is nothing else to know.
    _is_method = False

    def __new__(cls, core: Core) -> Self:
        """What stands in the function's place."""
        way = core.way()
        self: Self = _new(cls, _undecided(core) if core.place is None else way.call)
        self._way = way
        core.stands = self
        update_wrapper(self, core.function)
        return self

    def __set_name__(self, owner: type, name: str) -> None:
        core = self._core
        if core.place is None:
            # It stands in a class, and nothing is around it.
            core.decide("method")
            self._way = core.way()
            self._is_method = True

    def _bind(self, way: Way, to: object) -> Any:
        raise NotImplementedError

    def _looked_up(self, obj: object, owner: type | None) -> Any:
        """This, looked up in a class or in an object of it."""
        core = self._core
        if self._is_bound or core.place == "static":
            return self
        if core.place == "classmethod":
            return self._bind(core.way(), owner if owner is not None else type(obj))
        if obj is None:
            return self
        # `classmethod` around it asks with the class itself.
        return self._bind(core.way("classmethod" if obj is owner else "method"), obj)

    @property
    def _core(self) -> Core:
        return self._way.core

    if not TYPE_CHECKING:
        # Else any name would be one that it has.

        def __getattr__(self, name):
            # Only asked for what is not there: of a bound method, the name and the like.
            if name not in _OF_THE_FUNCTION or not self._is_bound:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            if name == "__wrapped__":
                # A method in its turn, or its signature would begin with `self`.
                return types.MethodType(self._core.function, self.args[0])
            return getattr(self._core.function, name)

    def __repr__(self) -> str:
        return f"<cached {'method' if self._is_bound else 'function'} {self._core.function.__qualname__}>"

    def __reduce__(self) -> Any:
        # As a function: by its name. A bound one is made again of its object.
        if not self._is_bound:
            return self._core.function.__qualname__
        return getattr, (self.args[0], self._core.function.__name__)

    # Looking.

    @property
    def table(self) -> Table:
        """The table that holds the values."""
        return self._core.table

    def key_for(self, *args: P.args, **kwargs: P.kwargs) -> Key:
        """The key of a call in :attr:`table`, for the verbs of :class:`~echomq_tasks.cache.table.Table`.

        Raises:
          UnstableKey: when an argument has no form that another process would know.
          TypeError: when the function cannot be called so.
        """
        return self._way.key(self.args + args, kwargs)

    def cache_info(self) -> CacheInfo:
        """What was counted in this process, as of :func:`functools.lru_cache`; ``.stats`` has the rest."""
        return self._core.info()

    def cache_parameters(self) -> dict[str, Any]:
        """The most rows in L1, and that types count: ``maxsize`` and ``typed``, as of :func:`functools.lru_cache`."""
        return self._core.parameters()

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Key:
        return self._way.key(self.args + args, kwargs)

    def _tags(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, ...]:
        return tuple(self._way.tags(self.args + args, kwargs))

    def _load(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Key, Callable[[], Any], tuple[str, ...]]:
        call, key = self.args + args, self._key(args, kwargs)
        return key, self._way.loader(call, kwargs, key.id), self._tags(args, kwargs)

    def _invalidate(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return self._core.table.invalidate(self._key(args, kwargs))

    def _peek(self, args: tuple[Any, ...], kwargs: dict[str, Any], default: Any = None) -> Any:
        return self._core.table.peek(self._key(args, kwargs), default, tags=self._tags(args, kwargs))

    def _put(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if not args:
            raise self._misput("")
        *given, value = args
        call = tuple(given)
        try:
            key = self._key(call, kwargs)
        except TypeError as error:
            raise self._misput(f"; {error}") from error
        return self._core.table.put(key, value, tags=self._tags(call, kwargs))

    def _misput(self, why: str) -> TypeError:
        name = self._core.function.__qualname__
        return TypeError(
            f"{name}.put() takes the arguments of a call, and last of all the value, by position: put('a', value) puts "
            f"that of {name}('a'){why}"
        )


class CachedFunction(_Cached[P, R]):
    """A cached function; :func:`~echomq_tasks.caching.cached` makes it. It is called as the function is.

    Attributes:
      __wrapped__: the function itself, which caches nothing.
    """

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

        # Methods, class methods and static methods are told apart by their first argument: type checkers take the
        # other two decorators away before they look at this one. They find out what it is of a callable only.

        @overload
        def __get__(  # type: ignore[misc]
            self: Callable[Concatenate[type[S], Q], T], obj: S | None, owner: type[S]
        ) -> CachedFunction[Q, T]: ...

        @overload
        def __get__(self, obj: None, owner: type | None = None) -> Self: ...

        @overload
        def __get__(
            self: Callable[Concatenate[S, Q], T], obj: S, owner: type | None = None
        ) -> CachedFunction[Q, T]: ...

        @overload
        def __get__(self, obj: object, owner: type | None = None) -> Self: ...

        def __get__(self, obj: Any, owner: type | None = None) -> Any: ...

    else:

        def __get__(self, obj, owner=None):
            if obj is None or not self._is_method:
                return self._looked_up(obj, owner)
            # As `_bind` does, without a call more.
            way = self._way
            bound = _new(_BoundFunction, way.call, obj)
            bound._way = way  # noqa: SLF001 - it is one of us
            return bound

    def _bind(self, way: Way, to: object) -> _BoundFunction[Any, Any]:
        return _bound(_BoundFunction, way, to)

    def refresh(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function now, whatever is cached, and let all caches have the result.

        Raises: what the function raises; what is cached stays then.
        """
        key, loader, tags = self._load(args, kwargs)
        return self._core.table.refresh(key, loader, tags=tags)  # type: ignore[no-any-return]

    def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Drop the result of a call everywhere: no call that begins after this gets it, or what was loaded before.

        Returns:
          False when the server is away: the other caches are told when it is back.
        """
        return self._invalidate(args, kwargs)

    def peek(self, *args: P.args, **kwargs: P.kwargs) -> R | None:
        """What is cached for a call, fresh or stale; None when nothing is. The function is not called."""
        return self._peek(args, kwargs)  # type: ignore[no-any-return]

    def peek_or(self, default: D, /, *args: P.args, **kwargs: P.kwargs) -> R | D:
        """As :meth:`peek`, but ``default`` when nothing is cached: ``peek_or(missing, "a")`` tells that from None."""
        return self._peek(args, kwargs, default)  # type: ignore[no-any-return]

    def put(self, *args: Any, **kwargs: Any) -> bool:
        """Let a value be the result of a call: ``put("a", value)`` that of ``f("a")``.

        Python has no type for the arguments of a function and a value behind them, so type checkers check neither.

        Parameters:
          *args: the arguments of the call, and last of all the value.
          **kwargs: further arguments of the call.

        Returns: as :meth:`invalidate`.

        Raises:
          Unencodable: when the value has no bytes that would give it back; nothing was changed.
        """
        return self._put(args, kwargs)

    def invalidate_tags(self, *tags: str) -> bool:
        """Drop all results that were cached with one of these tags.

        Returns: as :meth:`invalidate`.
        """
        return self._core.table.invalidate_tags(*tags)

    def cache_clear(self) -> bool:
        """Drop all results, everywhere, and begin to count anew.

        Returns: as :meth:`invalidate`.
        """
        return self._core.clear()


class AsyncCachedFunction(_Cached[P, Coroutine[Any, Any, R]]):
    """A cached async function; :func:`~echomq_tasks.caching.cached` makes it. What asks the server is to be awaited.

    The verbs are those of :class:`CachedFunction`. From where nothing can be awaited, use those of :attr:`table`, as in
    ``f.table.invalidate(f.key_for("a"))``.
    """

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...

        # Methods, class methods and static methods are told apart by their first argument: type checkers take the
        # other two decorators away before they look at this one. They find out what it is of a callable only.

        @overload
        def __get__(  # type: ignore[misc]
            self: Callable[Concatenate[type[S], Q], Coroutine[Any, Any, T]], obj: S | None, owner: type[S]
        ) -> AsyncCachedFunction[Q, T]: ...

        @overload
        def __get__(self, obj: None, owner: type | None = None) -> Self: ...

        @overload
        def __get__(
            self: Callable[Concatenate[S, Q], Coroutine[Any, Any, T]], obj: S, owner: type | None = None
        ) -> AsyncCachedFunction[Q, T]: ...

        @overload
        def __get__(self, obj: object, owner: type | None = None) -> Self: ...

        def __get__(self, obj: Any, owner: type | None = None) -> Any: ...

    else:

        def __get__(self, obj, owner=None):
            if obj is None or not self._is_method:
                return self._looked_up(obj, owner)
            # As `_bind` does, without a call more.
            way = self._way
            bound = _new(_BoundAsyncFunction, way.call, obj)
            bound._way = way  # noqa: SLF001 - it is one of us
            return bound

    def _bind(self, way: Way, to: object) -> _BoundAsyncFunction[Any, Any]:
        return _bound(_BoundAsyncFunction, way, to)

    async def refresh(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """As :meth:`CachedFunction.refresh`."""
        key, loader, tags = self._load(args, kwargs)
        return await self._core.table.arefresh(key, loader, tags=tags)

    async def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """As :meth:`CachedFunction.invalidate`."""
        return await elsewhere(self._invalidate, args, kwargs)

    async def peek(self, *args: P.args, **kwargs: P.kwargs) -> R | None:
        """As :meth:`CachedFunction.peek`."""
        return await elsewhere(self._peek, args, kwargs)

    async def peek_or(self, default: D, /, *args: P.args, **kwargs: P.kwargs) -> R | D:
        """As :meth:`CachedFunction.peek_or`."""
        return await elsewhere(self._peek, args, kwargs, default)

    async def put(self, *args: Any, **kwargs: Any) -> bool:
        """As :meth:`CachedFunction.put`."""
        return await elsewhere(self._put, args, kwargs)

    async def invalidate_tags(self, *tags: str) -> bool:
        """As :meth:`CachedFunction.invalidate_tags`."""
        return await elsewhere(self._core.table.invalidate_tags, *tags)

    async def cache_clear(self) -> bool:
        """As :meth:`CachedFunction.cache_clear`."""
        return await elsewhere(self._core.clear)


class _Bound:
    """What bound methods have more, or other, than what stands in the function's place."""

    __slots__ = ()

    _is_bound = True
    if not TYPE_CHECKING:

        def __eq__(self, other):
            # As methods compare: the objects themselves are not asked.
            if not isinstance(other, _Bound):
                return NotImplemented
            return self._way is other._way and self.args[0] is other.args[0]

        def __hash__(self):
            return hash((id(self._way), id(self.args[0])))


class _BoundFunction(_Bound, CachedFunction[P, R]):
    # Half of what binding costs would be a dict for it.
    __slots__ = ("_way",)
    if not TYPE_CHECKING:
        __doc__ = property(lambda self: self._core.function.__doc__)


class _BoundAsyncFunction(_Bound, AsyncCachedFunction[P, R]):
    __slots__ = ("_way",)
    if not TYPE_CHECKING:
        __doc__ = property(lambda self: self._core.function.__doc__)


def _bound(kind: type[B], way: Way, to: object) -> B:
    bound: B = _new(kind, way.call, to)
    bound._way = way  # noqa: SLF001 - it is one of us
    return bound


def _undecided(core: Core) -> Callable[..., Any]:
    """Answers a function in the body of a class: called there it is none of its methods, and later it may be one."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return core.way().call(*args, **kwargs)

    async def acall(*args: Any, **kwargs: Any) -> Any:
        return await core.way().call(*args, **kwargs)

    return acall if core.is_async else call
