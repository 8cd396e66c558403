"""The retained log (wire §8): records that many writers append, and any reader reads from any point in time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import redis

from echomq_tasks.bus.appending import append_records
from echomq_tasks.bus.failures import log_errors
from echomq_tasks.bus.places import FIRST, Place, Position, behind, upto
from echomq_tasks.bus.records import FIRST_PAGE, Codec, Record, next_page, packed_fields
from echomq_tasks.bus.retention import Retention, bounds
from echomq_tasks.bus.tail import AsyncTail, Tail
from echomq_tasks.connection import Connection
from echomq_tasks.errors import InvalidArgument, ServerUnavailable
from echomq_tasks.keyspace import check_queue, queue_key, stream_key
from echomq_tasks.scripts import Scripts
from echomq_tasks.scripts.arguments import seconds_to_ms, whole

#: A step of a trim that drops fewer records has come to its end: a full one drops nearly ten thousand.
_FULL_STEP = 1000

T = TypeVar("T")


class LogInfo(NamedTuple):
    """What a log holds.

    Attributes:
      length: how many records are there.
      appended: how many ever were; None when the server does not count them (before version 7).
      first: the stream id of the oldest record, None when none is there.
      top: the highest stream id that was ever given, ``0-0`` when none was.
    """

    length: int
    appended: int | None
    first: str | None
    top: str


class Log:
    """One log of one queue; making the object does no I/O. Safe to share between threads and across a fork.

    Parameters:
      queue: the queue's name.
      name: the log's, 1 to 128 of ``A-Z a-z 0-9 . _ -``.
      connection: the server.
      codec: what makes records of values and values of records; without one, values are mappings of str to str.

    Raises:
      InvalidName: when the wire does not allow a name.
    """

    def __init__(self, queue: str, name: str, connection: Connection, codec: Codec | None = None) -> None:
        self.queue = check_queue(queue)
        #: The stream's key.
        self.key = stream_key(queue, name)
        self.base = queue_key(queue)
        self.name = self.key.removeprefix(self.base + b"stream:").decode()
        self.connection = connection
        self.codec = codec
        self.scripts = Scripts.of(connection)

    def __repr__(self) -> str:
        return f"Log({self.queue!r}, {self.name!r}, {self.connection!r})"

    # -- writing ------------------------------------------------------------------------------------------------

    def append(self, value: Any) -> str:
        """Append one record; answers its EVT id. As :meth:`append_many`."""
        return self.append_many([value])[0]

    def append_many(self, values: Iterable[Any]) -> list[str]:
        """Append records in order, each under an id above all that the log ever gave; answers their EVT ids.

        Any number of writers may append at once, whatever their clocks say: none is refused, and each one's records
        stand in its order. Every record is checked before the first byte is sent. When the connection drops, what was
        not answered is sent again, and is not written twice.

        Parameters:
          values: mappings of str to str, with 1 to 1,000 fields, none called ``id``, and 16 MB at most each; or, with a
            codec, whatever it encodes.

        Raises:
          InvalidArgument: when a value is no record; none was appended.
          ServerUnavailable: when the server did not answer: the records behind those in ``admitted`` may or may not be
            in.
          ServerOutOfMemory: when the server's memory is full.
          WrongState: when the key holds something else, or its ids are used up.
        """
        if isinstance(values, (Mapping, str, bytes)):
            raise InvalidArgument("append_many takes an iterable of values: use append() for one")
        records = [packed_fields(value if self.codec is None else self.codec.encode(value)) for value in values]
        return append_records(self.scripts, self.base, self.name, records)

    # -- reading ------------------------------------------------------------------------------------------------

    def read(
        self,
        start: Position | None = None,
        end: Position | None = None,
        count: int | None = None,
        *,
        after: Position | None = None,
        before: Position | None = None,
        reverse: bool = False,
    ) -> Iterator[Record]:
        """The records from ``start`` to ``end``, both included, oldest first; fetched page by page as they are used.

        A place is named by an EVT id, a stream id as ``"1700000000000-5"``, an aware datetime or unix seconds; no such
        record has to be there. Each is checked before anything is sent.

        Parameters:
          start: where to begin; the oldest record by default.
          end: where to end; by default, where the log ends when the last page is fetched.
          count: at most so many records.
          after: instead of ``start``: begin behind this place.
          before: instead of ``end``: end ahead of it.
          reverse: newest first.

        Raises:
          InvalidArgument, InvalidId: when an argument is malformed.
          ServerUnavailable: while iterating, when the server cannot be asked.
          WrongState: while iterating, when the key holds no log.
        """
        first, last = behind(start, after), upto(end, before)
        most = None if count is None else whole(count, "count", 0)
        return self._pages(first, last, most, reverse)

    def _pages(self, first: Place, last: Place, left: int | None, reverse: bool) -> Iterator[Record]:
        page = FIRST_PAGE
        while first < last and left != 0:
            wanted = page if left is None else min(page, left)
            entries = self._page(first, last, wanted, reverse)
            for entry_id, pairs in entries:
                yield Record.of(entry_id, pairs, self.codec)
            if len(entries) < wanted:
                return
            left = None if left is None else left - len(entries)
            edge = Place.of_entry(entries[-1][0])
            first, last = (first, edge.before()) if reverse else (edge, last)
            size = sum(len(name) + len(value) for _, pairs in entries for name, value in pairs.items())
            page = next_page(page, len(entries), size)

    def _page(self, first: Place, last: Place, count: int, reverse: bool) -> list[tuple[bytes, dict[bytes, bytes]]]:
        begin, end = f"({first}", str(last)
        if reverse:
            return self._ask(lambda client: client.xrevrange(self.key, end, begin, count=count))
        return self._ask(lambda client: client.xrange(self.key, begin, end, count=count))

    def tail(
        self,
        start: Position = "new",
        *,
        after: Position | None = None,
        follow: bool = True,
        timeout: float | None = None,
    ) -> Tail:
        """Follow the log: an iterator of the records from ``start`` on, and then of each as it is appended.

        It survives dropped connections and restarts of the server without loss or doubles, for it goes on behind the
        last record. Close it, or use it in a ``with`` statement: it holds a connection of its own.

        Parameters:
          start: ``"new"`` (what is appended after this call returned), ``"head"`` (the oldest record), or a place as
            :meth:`read` takes it, included.
          after: instead of ``start``: begin behind this place.
          follow: False ends at the end of the log.
          timeout: seconds without a record after which it ends; None waits for ever.

        Raises:
          InvalidArgument, InvalidId: when an argument is malformed.
          ServerUnavailable: with ``start="new"``, when the server cannot be asked where the log ends.
        """
        return self._tail(start, after, follow, timeout)()

    def atail(
        self,
        start: Position = "new",
        *,
        after: Position | None = None,
        follow: bool = True,
        timeout: float | None = None,
    ) -> AsyncTail:
        """As :meth:`tail`, for ``async with`` and ``async for``; a thread of its own waits for the server.

        ``"new"`` is what is appended after ``async with`` was entered, or after the first step without one.
        """
        return AsyncTail(self._tail(start, after, follow, timeout))

    def _tail(self, start: Position, after: Position | None, follow: bool, timeout: float | None) -> Callable[[], Tail]:
        patience = None if timeout is None else seconds_to_ms(timeout, "timeout") / 1000

        def make(begin: Place, *, shown: bool = False) -> Tail:
            return Tail(self.connection, self.key, begin, self.codec, follow=follow, timeout=patience, shown=shown)

        if after is not None:
            if start != "new":
                raise InvalidArgument("give start= or after=, not both")
            begin = behind(None, after)
        elif start == "new":
            return lambda: make(Place.of_entry(self.info().top), shown=True)
        else:
            begin = FIRST if start == "head" else behind(start, None)
        return lambda: make(begin)

    def length(self) -> int:
        """How many records the log holds.

        Raises:
          ServerUnavailable: when the server cannot be asked.
          WrongState: when the key holds no log.
        """
        return int(self._ask(lambda client: client.xlen(self.key)))

    def info(self) -> LogInfo:
        """What the log holds, and held.

        Raises: as :meth:`length`.
        """
        found = self._ask(self._stream)
        if found is None:
            return LogInfo(0, 0, None, str(FIRST))
        first = found["first-entry"]
        return LogInfo(
            found["length"],
            found.get("entries-added"),
            first and first[0].decode(),
            found["last-generated-id"].decode(),
        )

    def _stream(self, client: Any) -> Any:
        try:
            return client.xinfo_stream(self.key)
        except redis.ResponseError as error:
            if "no such key" not in str(error):
                raise
            return None

    # -- keeping ------------------------------------------------------------------------------------------------

    def trim(self, maxlen: int | None = None, *, older_than: float | None = None, exact: bool = False) -> int:
        """Drop the oldest records now; answers how many. Works in a full server, too.

        Parameters:
          maxlen: keep the newest so many.
          older_than: drop those that are older than so many seconds, by the server's clock.
          exact: by default whole nodes of the stream are dropped (a hundred records each), which is much cheaper and
            leaves a few too many.

        Raises:
          InvalidArgument: when neither is given, or one is out of range.
          ServerUnavailable: when the connection broke; call it again.
          WrongState: when the key holds no log.
        """
        if maxlen is None and older_than is None:
            raise InvalidArgument("say what to keep: trim(maxlen=1000) or trim(older_than=86400)")
        args = bounds(maxlen, older_than)
        removed = 0
        # In bounded steps, so that the server answers others in between; what is left for the exact one is little.
        while dropped := self.scripts.call("log_trim", self.base, (self.name, *args, 0)):
            removed += dropped
            if dropped < _FULL_STEP:
                break
        if exact:
            removed += self.scripts.call("log_trim", self.base, (self.name, *args, 1))
        return removed

    def retain(self, maxlen: int | None = None, *, older_than: float | None = None) -> None:
        """Set for good what the log keeps: its writers and the queue's workers trim it from now on; nothing removes it.

        Parameters:
          maxlen: keep the newest so many records, and a few more: see ``exact`` of :meth:`trim`.
          older_than: keep them for so many seconds, by the server's clock.

        Raises:
          InvalidArgument: when one is out of range.
          ServerUnavailable: when the connection broke; call it again.
        """
        self.scripts.call("log_retention", self.base, (self.name, Retention(maxlen, older_than).text(), ""))

    def retain_for(self, owner: str, maxlen: int | None = None, *, older_than: float | None = None) -> bool:
        """As :meth:`retain`, in the name of a part of an app, which may change its own bounds and no others.

        Parameters:
          owner: letters and digits.
          maxlen, older_than: as :meth:`retain` has them.

        Returns:
          False when the bounds were set by somebody else; they stay.

        Raises:
          InvalidArgument, ServerUnavailable: as :meth:`retain`.
        """
        if not owner.isalnum() or not owner.isascii():
            raise InvalidArgument(f"an owner is letters and digits, not {owner!r}")
        bounds_text = Retention(maxlen, older_than).text()
        return bool(self.scripts.call("log_retention", self.base, (self.name, bounds_text, owner)) == b"ok")

    def retention(self) -> Retention | None:
        """What the log keeps; None when it keeps all.

        Raises:
          ServerUnavailable: when the server cannot be asked.
        """
        key = queue_key(self.queue, "retention")
        text = self._ask(lambda client: client.hget(key, self.name))
        return None if text is None else Retention.read(text.decode(errors="replace"))

    def _ask(self, question: Callable[[Any], T]) -> T:
        """Put a question to the server, once more when the connection dropped: it changes nothing."""
        try:
            with log_errors(self.connection.config, self.key):
                return question(self.connection.client)
        except ServerUnavailable as error:
            if not isinstance(error.__cause__, redis.ConnectionError):
                raise
        with log_errors(self.connection.config, self.key):
            return question(self.connection.client)
