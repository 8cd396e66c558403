"""A cache table: values under ids of one kind, in this process and on the server, where newer wins."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Hashable, Iterable, MutableMapping
from inspect import iscoroutinefunction
from typing import Any, Final, Literal, TypeVar

from echomq_tasks.cache.borrowed import BorrowedL1
from echomq_tasks.cache.call import Call
from echomq_tasks.cache.coherence import Coherence
from echomq_tasks.cache.drive import TaskDrive, ThreadDrive, run
from echomq_tasks.cache.frames import tag_id, tag_texts
from echomq_tasks.cache.freshness import Freshness, Ttl, seconds
from echomq_tasks.cache.hands import elsewhere
from echomq_tasks.cache.keys import Key
from echomq_tasks.cache.l1 import L1
from echomq_tasks.cache.parts import Parts
from echomq_tasks.cache.reach import Away, Reach
from echomq_tasks.cache.reader import Reader
from echomq_tasks.cache.reports import Reporter
from echomq_tasks.cache.row import Row
from echomq_tasks.cache.siblings import Siblings
from echomq_tasks.cache.stats import TableStats
from echomq_tasks.cache.values import Codec, TypedCodec
from echomq_tasks.cache.weighing import weight
from echomq_tasks.connection import Connection
from echomq_tasks.errors import InvalidArgument, InvalidId, Undecodable
from echomq_tasks.forks import after_fork
from echomq_tasks.identity import brand, check_id
from echomq_tasks.keyspace import check_table, coherence_queue
from echomq_tasks.scripts.arguments import shown, whole

T = TypeVar("T")

_THREAD: Final = ThreadDrive()
#: The most bytes of an alias.
_LARGEST_NAME: Final = 1024
#: The most rows in L1 when nothing else is said.
_MANY: Final = 10_000


class _Tables:
    """All that there are in this process."""

    def __init__(self) -> None:
        self._all: weakref.WeakSet[Table] = weakref.WeakSet()
        self._after_fork()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()

    def add(self, table: Table) -> None:
        with self._lock:
            self._all.add(table)

    def all(self) -> list[Table]:
        with self._lock:
            return list(self._all)


_TABLES: Final = _Tables()


def tables() -> list[Table]:
    """The tables of this process, by name."""
    return sorted(_TABLES.all(), key=lambda table: table.name)


class Table:
    """Values under branded ids of one kind: in this process (L1) and on the server (L2), loaded once for all who ask.

    Making one does no I/O: the server is connected to when it is first needed. While it is away nothing is raised for
    that: what the process holds serves on, loads are still shared in the process, and what was dropped here is told
    to the server when it is back. Safe to share between threads and event loops, and across a fork.

    Parameters:
      name: 1 to 128 of ``A-Z a-z 0-9 . _ -``; with the lane up to 120.
      kind: three letters A-Z that all ids begin with; not ``TAG``.
      connection: the server; by default where :func:`echomq_tasks.connect` without arguments leads, shared by all
        tables of the process that were given none.
      ttl: seconds that a value is fresh, or called with a value to answer them; 0 is not kept.
      jitter: L1 lets a value be fresh for ``ttl`` ± this part of it, so that processes do not all come back at once.
      codec: how values are written; :class:`~echomq_tasks.cache.values.TypedCodec` by default.
      max_entries: at most so many rows in L1; 0 for no L1.
      max_bytes: at most so many bytes in L1, about; None for any number. What is shared by all readers counts as what
        it takes in memory, what each gets a copy of as its bytes.
      lease: seconds after which a process that died with a load is replaced.
      wait: seconds that a caller waits for somebody else's load, before it raises LoadTimeout; None for ever. One that
        is itself inside of a loader waits for another process for one ``lease`` at most, and then loads the value
        itself: that process may wait for it in turn.
      stale: seconds past the ``ttl`` that a value serves on, while one caller's refresh runs or when loading fails.
      refresh_ahead: the part of the ``ttl``, such as 0.8, after which a value that is used is refreshed in the
        background.
      loader_timeout: ``(soft, hard)`` in seconds, or the hard one alone. Where a stale value is at hand, callers wait
        for a fresh one up to ``soft``; nobody waits for a loader longer than ``hard``, which raises LoadTimeout. A
        loader that is a thread runs on then, an async one is cancelled, and what they return is dropped.
      coherence: how other processes learn of newer values: ``"broadcast"``, at most once, or ``"lane"``, at least once
        besides.
      lane: with the lane: called with each message of 29 bytes, to send it as a job to the queue
        ``ecc.coh.<name>``, whose consumers call :meth:`apply`.
      l1: a mapping of your own to hold the rows, as of cachetools, which bounds them in place of ``max_entries`` and
        ``max_bytes``.
      l2: False for a table of this process alone, without a server.
      alone: True for one that is not told at once what others of its name in this process drop.

    Raises:
      InvalidName, InvalidId, InvalidArgument: when one of them is wrong.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        connection: Connection | None = None,
        *,
        ttl: Ttl = 60.0,
        jitter: float = 0.1,
        codec: Codec | None = None,
        max_entries: int = _MANY,
        max_bytes: int | None = None,
        lease: float = 5.0,
        wait: float | None = 60.0,
        stale: float = 0.0,
        refresh_ahead: float | None = None,
        loader_timeout: float | tuple[float | None, float | None] | None = None,
        coherence: Literal["broadcast", "lane"] = "broadcast",
        lane: Callable[[bytes], object] | None = None,
        l1: MutableMapping[str, Row] | None = None,
        l2: bool = True,
        alone: bool = False,
    ) -> None:
        self.name = check_table(name)
        self.kind = _kind(kind)
        soft, hard = _limits(loader_timeout)
        freshness = Freshness(ttl, jitter, stale, refresh_ahead, soft, hard)
        if coherence not in ("broadcast", "lane") or (coherence == "lane") != (lane is not None):
            raise InvalidArgument('coherence is "broadcast", or "lane" together with lane=, which sends a message')
        if lane is not None:
            coherence_queue(name)
        if connection is not None and not isinstance(connection, Connection):
            raise InvalidArgument(f"connection= is what echomq_tasks.connect(url) answers, not {shown(connection)}")
        siblings = Siblings() if alone else Siblings.of(connection, self.name, l2=l2)
        heard = self._coherence = Coherence(lane, siblings)
        self._parts = Parts(
            self.name,
            self.kind,
            TypedCodec() if codec is None else codec,
            freshness,
            seconds(lease, "lease", least=0.05),
            None if wait is None else seconds(wait, "wait"),
            _l1(l1, max_entries, max_bytes),
            Reach(
                self.name, self.kind, connection, on_message=heard.heard, on_lost=heard.lost, on_back=heard.back,
                owed=siblings.owed(self.kind),
            ) if l2 else None,
        )  # fmt: skip
        heard.of(self._parts)
        if self._parts.reach is not None:
            self._parts.reach.reporter = Reporter(self._parts)
        self._reader = Reader(self._parts)
        self._l1 = self._parts.l1
        _TABLES.add(self)

    def __repr__(self) -> str:
        return f"Table({self.name!r}, {self.kind!r})"

    # Reading.

    def fetch(self, key: str | Key, loader: Callable[[], T], *, ttl: Ttl | None = None, tags: Iterable[str] = ()) -> T:
        """The value under a key: from L1, from the server, or from ``loader()``, which runs once for all who ask.

        Parameters:
          key: an id of the table's kind, or the key of a call.
          loader: called without arguments when nobody has the value.
          ttl: seconds that the value is fresh, or called with it to answer them; the table's by default.
          tags: texts by which :meth:`invalidate_tags` drops the row.

        Raises:
          InvalidId: when the id is not of the table's kind; neither layer was touched.
          LoadTimeout: when the value was not loaded in time.
          LoadFailed: when the loader raised in another process what cannot be raised here.
          Exception: whatever the loader raised, in this process or another one.
        """
        id, rest = _split(key)
        row = self._l1.get(id)
        if row is not None and row.fresh_until > time.monotonic() and row.rest == rest:
            row.hits += 1
            return row.value  # type: ignore[no-any-return]
        _refuse_async(loader, "fetch")
        return self._reader.fetch(self._call(id, rest, loader, ttl, tags), _THREAD)  # type: ignore[no-any-return]

    async def afetch(
        self, key: str | Key, loader: Callable[[], Awaitable[T]], *, ttl: Ttl | None = None, tags: Iterable[str] = ()
    ) -> T:
        """As :meth:`fetch`, with an async loader, for the tasks of an event loop, which is never blocked.

        The loader runs in a task of its own. It is cancelled when all who wait for it are.
        """
        id, rest = _split(key)
        row = self._l1.get(id)
        if row is not None and row.fresh_until > time.monotonic() and row.rest == rest:
            row.hits += 1
            return row.value  # type: ignore[no-any-return]
        call = self._call(id, rest, loader, ttl, tags)
        return await self._reader.value(call, TaskDrive())  # type: ignore[no-any-return]

    def peek(self, key: str | Key, default: Any = None, *, tags: Iterable[str] = ()) -> Any:
        """The value that is kept under a key, fresh or stale; ``default`` when there is none. Nothing is loaded.

        Parameters:
          key: as in :meth:`fetch`.
          default: returned when neither layer has a value.
          tags: those that the row was loaded with. The server looks at these alone: without them it answers a row
            although its tag was dropped.

        Raises:
          InvalidId: when the id is not of the table's kind.
        """
        id, rest = self._gated(key)
        row = self._reader.at_hand(id, rest)
        try:
            if row is not None:
                return self._parts.value(row)
            if self._parts.reach is not None:
                given = _texts(tags)
                hit = self._parts.reach.ask(lambda store: store.peek(id, given))
                if hit is not None and hit.value[: len(rest)] == rest:
                    return self._parts.decoded(id, rest, hit.value[len(rest) :])
        except (Away, Undecodable):
            pass
        return default

    def refresh(
        self, key: str | Key, loader: Callable[[], T], *, ttl: Ttl | None = None, tags: Iterable[str] = ()
    ) -> T:
        """Load a value anew, whatever is kept, and tell the other caches; the parameters are those of :meth:`fetch`.

        The load begins now: one that is on its way is not waited for, and will not be kept.

        Raises: as :meth:`fetch`. When the loader raises, what is kept stays.
        """
        id, rest = _split(key)
        _refuse_async(loader, "refresh")
        row, value = run(self._reader.refresh(self._call(id, rest, loader, ttl, tags), _THREAD))
        self._refreshed(row)
        return value  # type: ignore[no-any-return]

    async def arefresh(
        self, key: str | Key, loader: Callable[[], Awaitable[T]], *, ttl: Ttl | None = None, tags: Iterable[str] = ()
    ) -> T:
        """As :meth:`refresh`, with an async loader."""
        id, rest = _split(key)
        drive = TaskDrive()
        row, value = await self._reader.refresh(self._call(id, rest, loader, ttl, tags), drive)
        await elsewhere(self._refreshed, row)
        return value  # type: ignore[no-any-return]

    # Writing.

    def put(self, key: str | Key, value: Any, *, ttl: Ttl | None = None, tags: Iterable[str] = ()) -> bool:
        """Put a value in place of whatever there is, everywhere; a load that is on its way will not overwrite it.

        Parameters: as in :meth:`fetch`.

        Returns:
          False when the server is away: the value serves here until it is back. Then all caches, this one too, are told
          to drop what they have, and load anew.

        Raises:
          InvalidId: when the id is not of the table's kind.
          Unencodable: when the codec has no bytes for the value; nothing was changed.
        """
        id, rest = self._gated(key)
        return self._coherence.put(id, rest, value, ttl, _texts(tags))

    def invalidate(self, key: str | Key) -> bool:
        """Drop a value everywhere: no call that begins after this one gets it, or what was loaded before.

        Returns:
          False when the server is away: the other caches are told when it is back.

        Raises:
          InvalidId: when the id is not of the table's kind.
        """
        return self._coherence.drop(self._gated(key)[0])

    def invalidate_tags(self, *tags: str) -> bool:
        """Drop all values that were loaded or put with one of these tags.

        Returns: as :meth:`invalidate`.

        Raises:
          InvalidName: when a tag is not a non-empty text; nothing was dropped.
        """
        texts = _texts(tags)
        for tag in texts:
            tag_id(tag)
        told = [self._coherence.drop_tag(tag) for tag in texts]
        return all(told)

    def clear(self) -> bool:
        """Drop all values, everywhere.

        Returns: as :meth:`invalidate`.
        """
        return self._coherence.clear()

    def apply(self, message: bytes) -> bool:
        """Do what a coherence message says that came as a job: drop what is older, here and on the server.

        Parameters:
          message: ``<id>:<version>``, 29 bytes.

        Returns:
          False when the server is away, and is told when it is back.

        Raises:
          InvalidArgument: when it is no message for this table.
        """
        return self._coherence.apply(message)

    def resend(self) -> bool:
        """Send the messages that the lane did not take; they also go out with the next one.

        Returns:
          Whether it has taken all of them now.
        """
        return self._coherence.resend()

    # Looking.

    def alias(self, aliases: dict[Any, Row], name: Hashable, key: str | Key) -> None:
        """Let ``aliases[name]`` lead to the row of a key, for as long as L1 has it; unless the name is large.

        Whoever finds it may return its ``value`` while ``row.fresh_until > time.monotonic()``, and counts that by
        ``row.hits += 1``. That is all that a hit costs.
        """
        id, rest = _split(key)
        row = self._l1.get(id)
        # Of large names each would cost more than all that is counted of its row; those go by the key.
        if row is not None and row.rest == rest and weight(name, _LARGEST_NAME) <= _LARGEST_NAME:
            self._l1.alias(aliases, name, row)

    def again(self, row: Row) -> Any:
        """The value of a row that an alias led to, while ``row.open_until > time.monotonic()``.

        Raises:
          Undecodable: when the codec cannot read what it wrote.
        """
        value = self._parts.value(row)
        row.hits += 1
        return value

    def holds(self, key: str | Key) -> bool:
        """Whether L1 has a value that may be given, fresh or stale. Asks nobody."""
        return self._reader.at_hand(*_split(key)) is not None

    def stats(self) -> TableStats:
        """What was counted in this process."""
        entries, size, hits, evictions = self._l1.figures()
        reach = self._parts.reach
        return TableStats(
            hits=hits,
            evictions=evictions,
            entries=entries,
            bytes=size,
            away=reach is not None and reach.away,
            **self._parts.counters.read(),
        )

    def observe(self, observer: Callable[[str, str], None] | None) -> None:
        """Call ``observer(what, id)`` for each thing that is counted, but for hits of L1; None for nobody.

        Parameters:
          observer: called with the name of a counter of :class:`TableStats`, and the row's id, in the thread to which
            it happens.
        """
        self._parts.counters.observer = observer

    def close(self) -> None:
        """Hear no more of the other caches. A later use begins anew, and trusts no row before it was checked."""
        if self._parts.reach is not None:
            self._parts.reach.close()
            self._l1.suspect()

    def _call(self, id: str, rest: bytes, loader: Callable[[], Any], ttl: Ttl | None, tags: Iterable[str]) -> Call:
        check_id(id, self.kind)
        if not callable(loader):
            raise InvalidArgument(f"a loader is a function without arguments, not {shown(loader)}")
        if ttl is not None and not callable(ttl):
            seconds(ttl, "ttl")
        texts = _texts(tags)
        return Call(id, rest, loader, ttl, texts, tuple([tag_id(tag) for tag in texts]) if texts else ())

    def _gated(self, key: str | Key) -> tuple[str, bytes]:
        id, rest = _split(key)
        return check_id(id, self.kind), rest

    def _refreshed(self, row: Row) -> None:
        if not row.kept:
            # What is not kept must not leave the old value in its place.
            self._coherence.drop(row.id)
        else:
            self._coherence.announce(row)


def _split(key: object) -> tuple[str, bytes]:
    if isinstance(key, Key):
        return key
    if not isinstance(key, str):
        raise InvalidId(f"a key is a branded id of the table's kind, or what a KeyMaker made, not {shown(key)}")
    return key, b""


def _refuse_async(loader: object, verb: str) -> None:
    if iscoroutinefunction(loader):
        raise InvalidArgument(f"{verb}() takes a plain loader, and this one is async: await a{verb}() in its place")


def _texts(tags: Iterable[str]) -> tuple[str, ...]:
    return tag_texts(tags) if tags != () else ()


def _kind(kind: str) -> str:
    if kind == "TAG":
        raise InvalidId("a table's kind is three letters A-Z other than TAG, which tags have")
    return brand(kind, 0)[:3]


def _limits(loader_timeout: object) -> tuple[float | None, float | None]:
    if isinstance(loader_timeout, tuple):
        if len(loader_timeout) != 2:
            raise InvalidArgument(f"loader_timeout is (soft, hard) in seconds, not {shown(loader_timeout)}")
        return loader_timeout
    return None, loader_timeout  # type: ignore[return-value]  # Freshness looks at it


def _l1(rows: MutableMapping[str, Row] | None, max_entries: int, max_bytes: int | None) -> L1:
    if rows is not None:
        if not isinstance(rows, MutableMapping):
            raise InvalidArgument(f"l1 is a mapping that holds rows, as cachetools.TTLCache(...), not {shown(rows)}")
        if max_entries != _MANY or max_bytes is not None:
            raise InvalidArgument(
                "l1= is a mapping that sets its own bounds: give it those that max_entries= or max_bytes= were to set, "
                "as in l1=LRUCache(1000), and leave these out"
            )
        return BorrowedL1(rows)
    most = None if max_bytes is None else whole(max_bytes, "max_bytes", 0)
    return L1(whole(max_entries, "max_entries", 0), most)
