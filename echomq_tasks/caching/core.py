"""What a cached function is behind its call: its table, its keys, and the way of a call that L1 does not answer."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping
from functools import partial
from time import monotonic
from typing import Any, Literal, NoReturn

from echomq_tasks import signals
from echomq_tasks.cache import Key, KeyMaker
from echomq_tasks.cache.frames import tag_id, tag_texts
from echomq_tasks.cache.modules import module_of
from echomq_tasks.cache.row import Row
from echomq_tasks.cache.table import Table
from echomq_tasks.caching.binding import bound_to
from echomq_tasks.caching.calls import call_of
from echomq_tasks.caching.info import CacheInfo
from echomq_tasks.caching.lane import Lane
from echomq_tasks.caching.warned import warn_of_method
from echomq_tasks.caching.watching import Watched, hits_are_watched, is_watched, told_aload, told_load, watch
from echomq_tasks.errors import InvalidArgument, Undecodable

Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]
#: How the arguments of a call begin: with one that counts like the others, with ``self``, or with a class.
Shape = Literal["function", "method", "classmethod"]
#: The same of a function, which may be a static method too.
Place = Literal["function", "method", "classmethod", "static"]


#: The functions whose rows other runtimes share, by table, kind and connection.
_sharing: weakref.WeakValueDictionary[Hashable, Core] = weakref.WeakValueDictionary()


class Core:
    """One cached function.

    Parameters:
      function: as it was decorated.
      table: where its values are.
      place: what the function is; None as long as the body of its class has not ended, which decides it.
      lane: its coherence lane, when it has one.
      ignore: the parameters that do not count.
      key: what identifies a call, in place of its arguments.
      tags: the texts by which its rows can be dropped together, or what answers them for a call.
      maxsize: the most rows in L1; None for any number.
      shared_as: the table, its kind and its connection, when the kind is one that other runtimes may know.

    Raises:
      InvalidArgument: when an option is wrong, or another function has the same rows.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        table: Table,
        place: Place | None,
        *,
        lane: Lane | None,
        ignore: Iterable[str],
        key: Callable[..., Any] | None,
        tags: Iterable[str] | Callable[..., Iterable[str]],
        maxsize: int | None,
        shared_as: tuple[str, str, object] | None,
    ) -> None:
        self.function = function
        self.table = table
        self.place = place
        self.lane = lane
        self.ignore = ignore
        self.identify = bound_to(function, "key", key) if callable(key) else key
        self.tags = bound_to(function, "tags", tags) if callable(tags) else check_tags(tags)
        self.is_async = inspect.iscoroutinefunction(function)
        self._maxsize = maxsize
        self._shared_as = shared_as
        #: Whether it was given a kind: then what should be an id of that kind is nothing else.
        self.names_kind = shared_as is not None
        self._ways: dict[Shape, Way] = {}
        #: What stands in the function's place: the sender of its signals.
        self.stands: object = None
        #: What was counted when ``cache_clear()`` was called.
        self._since = (0, 0)
        # Also of a function that will be a method: most of what can be wrong with its options is found now.
        self.way()
        if place is not None:
            self.decide(place)

    def decide(self, place: Place) -> None:
        """Note what the function is.

        Raises:
          InvalidArgument: when another function has the same rows.
        """
        self.place = place
        if place == "method" and self.identify is None and self.way().counts_nothing:
            warn_of_method(self.function)
        if not self.shares():
            return
        assert self._shared_as is not None
        other = _sharing.setdefault(self._shared_as, self)
        if other is self:
            return
        mine, theirs = self.function, other.function
        if (module_of(mine), mine.__qualname__) != (module_of(theirs), theirs.__qualname__):
            raise InvalidArgument(
                f"{mine.__qualname__}() and {theirs.__qualname__}() would have the same rows, those of the ids of the "
                f"kind {self._shared_as[1]} in the table {self._shared_as[0]}: give one of them another name="
            )
        # Defined again, as by a reload.
        _sharing[self._shared_as] = self

    def shares(self) -> bool:
        """Whether other runtimes share its rows."""
        return self._shared_as is not None and self.way().shares

    def way(self, place: Place | None = None) -> Way:
        """The calls of one shape; of the function's own by default."""
        wanted = place or self.place
        bound: Shape = wanted if wanted == "method" or wanted == "classmethod" else "function"
        found = self._ways.get(bound)
        if found is None:
            # Setdefault, so that two threads that bind the first method do not get aliases of their own each.
            found = self._ways.setdefault(bound, Way(self, bound))
        return found

    def used(self) -> Table:
        """The table, about to be used."""
        if self.lane is not None:
            self.lane.start()
        return self.table

    def info(self) -> CacheInfo:
        """What was counted since the last :meth:`clear`."""
        return CacheInfo.of(self.table.stats(), self._since, self._maxsize)

    def parameters(self) -> dict[str, Any]:
        """What :func:`functools.lru_cache` tells of itself."""
        return {"maxsize": self._maxsize, "typed": True}

    def clear(self) -> bool:
        """Drop all rows, and begin to count anew; False when the server is away."""
        told = self.table.clear()
        stats = self.table.stats()
        self._since = stats.hits, stats.misses
        return told


class Way:
    """The calls of one shape of a cached function.

    Attributes:
      aliases: rows by the fast keys of this way's own maker.
      fast: that maker's.
      shares: whether rows may be shared with other runtimes.
    """

    def __init__(self, core: Core, shape: Shape) -> None:
        self.core = core
        self.shape = shape
        self.is_async = core.is_async
        ignore = core.ignore
        if shape == "method" and ignore:
            # To ignore `self` is what a method does anyway.
            first = next(iter(inspect.signature(core.function).parameters), None)
            ignore = tuple(name for name in ignore if name != first)
        self._maker = KeyMaker(
            core.function,
            core.table.kind,
            ignore=ignore,
            key=core.identify,
            bound=shape == "method",
            ids_only=core.names_kind,
        )
        self.aliases: dict[Any, Row] = {}
        self.fast = self._maker.fast
        self.shares = self._maker.shares
        #: Whether all calls are one.
        self.counts_nothing = self._maker.counts_nothing
        #: Whether the fast key is made of all the arguments.
        self.counts_all = core.identify is not None or shape == "function"
        self.call = call_of(self)
        watch(self)

    def counting(self, args: Args) -> Args:
        """The arguments that the key is made of."""
        if self.counts_all:
            return args
        if self.shape == "method":
            return args[1:]
        return (_class_name(args[0]), *args[1:]) if args else args

    def key(self, args: Args, kwargs: Kwargs) -> Key:
        """The key of a call.

        Raises:
          UnstableKey: when an argument has no form that another process would know.
          TypeError: when the function cannot be called so.
        """
        return self._maker.key(self.counting(args), kwargs)

    def tags(self, args: Args, kwargs: Kwargs) -> Iterable[str]:
        """The tags of a call's row.

        Raises:
          InvalidName: when they are not several texts.
        """
        tags = self.core.tags
        return tag_texts(tags(*args, **kwargs)) if callable(tags) else tags

    def loader(self, args: Args, kwargs: Kwargs, id: str) -> Callable[[], Any]:
        """What loads the value of a call, whose row is ``id``."""
        return partial(self.load, args, kwargs, id)

    def load(self, args: Args, kwargs: Kwargs, id: str) -> Any:
        """Load the value of a call, whose row is ``id``. No frame more than needed: functions may call themselves."""
        function, core = self.core.function, self.core
        if signals.cache_load.receivers:
            told = told_aload if core.is_async else told_load
            return told(core, id, partial(self._checked, args, kwargs))()
        value = function(*args, **kwargs)
        return value if core.is_async or not inspect.iscoroutine(value) else self._refused(value)

    def _checked(self, args: Args, kwargs: Kwargs) -> Any:
        value = self.core.function(*args, **kwargs)
        return value if self.core.is_async or not inspect.iscoroutine(value) else self._refused(value)

    def _refused(self, coroutine: Coroutine[Any, Any, Any]) -> NoReturn:
        # As of a plain wrapper around an async function: it can be awaited once, by one caller.
        coroutine.close()
        name = self.core.function.__qualname__
        raise TypeError(
            f"{name}() returned a coroutine, and is no `async def`: cache the function that is, below what wraps it, "
            "or make the wrapper an `async def` too"
        )

    def slow(self, name: Hashable | None, args: Args, kwargs: Kwargs) -> Any:
        """Answer a call that its fast key ``name`` did not; None when it has none."""
        if (row := self.aliases.get(name)) is not None and row.open_until > monotonic():
            try:
                return self.core.table.again(row)
            except Undecodable:
                pass
        name, key = self._known(name, args, kwargs)
        table = self.core.used()
        # What loads is made when it is needed: most calls that come by find a row on the server.
        loader, tags = partial(self.load, args, kwargs, key.id), self.tags(args, kwargs)
        if is_watched():
            with Watched(self.core, key.id, table.holds(key)):
                value = table.fetch(key, loader, tags=tags)
        else:
            value = table.fetch(key, loader, tags=tags)
        self._alias(name, key)
        return value

    async def aslow(self, name: Hashable | None, args: Args, kwargs: Kwargs) -> Any:
        """As :meth:`slow`, of an async function."""
        if (row := self.aliases.get(name)) is not None and row.open_until > monotonic():
            try:
                return self.core.table.again(row)
            except Undecodable:
                pass
        name, key = self._known(name, args, kwargs)
        table = self.core.used()
        loader, tags = partial(self.load, args, kwargs, key.id), self.tags(args, kwargs)
        if is_watched():
            with Watched(self.core, key.id, table.holds(key)):
                value = await table.afetch(key, loader, tags=tags)
        else:
            value = await table.afetch(key, loader, tags=tags)
        self._alias(name, key)
        return value

    def _alias(self, name: Hashable | None, key: Key) -> None:
        if name is None or hits_are_watched():
            return
        self.core.table.alias(self.aliases, name, key)
        if hits_are_watched():
            # Since then, and whoever asked for it has not seen this alias.
            self.aliases.clear()

    def _known(self, name: Hashable | None, args: Args, kwargs: Kwargs) -> tuple[Hashable | None, Key]:
        """The key of a call; and its fast key, if that is of the same arguments for certain."""
        # A row that is not to be used as it is tells the key all the same, without a digest.
        row = None if name is None else self.aliases.get(name)
        if row is not None:
            return name, Key(row.id, row.rest)
        key = self.key(args, kwargs)
        # Another thread may have changed a list, say, after the one key was made of it and before the other was.
        if type(name) is tuple and name is not args and name != self.fast(self.counting(args), kwargs):
            name = None
        return name, key


#: Of classes whose methods were called, for a hit is not to find it out again. By identity: a metaclass may leave its
#: classes without a hash, or hold two for equal.
_class_names: dict[int, tuple[weakref.ref[type], str]] = {}


def _class_name(kind: type) -> str:
    """What a class is known by in every process."""
    place = id(kind)
    known = _class_names.get(place)
    if known is not None and known[0]() is kind:
        return known[1]
    name = f"{module_of(kind)}:{kind.__qualname__}"
    _class_names[place] = weakref.ref(kind, lambda gone: _forget_class(place, gone)), name
    return name


def _forget_class(place: int, gone: weakref.ref[type]) -> None:
    known = _class_names.get(place)
    if known is not None and known[0] is gone:
        _class_names.pop(place, None)


def check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags as they were given, each a text.

    Raises:
      InvalidName: when they are none.
    """
    texts = tag_texts(tags)
    for text in texts:
        tag_id(text)
    return texts
