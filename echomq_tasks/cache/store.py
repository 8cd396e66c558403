"""The second layer: one table's rows, flights and tags on the server. All of its input and output is here."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from redis.cluster import RedisCluster

from echomq_tasks.cache.claims import Follow, Hit, Lead
from echomq_tasks.cache.frames import EVERYTHING, VERSION_BYTES, tag_id
from echomq_tasks.cache.looking import Looking, found_hit
from echomq_tasks.connection import Connection
from echomq_tasks.connection.failures import typed_errors
from echomq_tasks.errors import InvalidArgument, InvalidId, InvalidName, ServerOutOfMemory
from echomq_tasks.identity import brand, check_id, is_branded, minted_at_ms
from echomq_tasks.keyspace import cache_base, check_table, coherence_channel, wake_channel
from echomq_tasks.scripts import Call, Scripts
from echomq_tasks.scripts.arguments import EXACT, shown, whole
from echomq_tasks.scripts.streams import Elsewhere

#: For ``least_ms``: no row has so much left, so that the claim is for a flight in any case.
ALWAYS: Final = EXACT
#: Ms that the version is kept under which a row was dropped, and that of a flight whose lease has ended: no fill that
#: began before a drop may come later.
DROPPED_MS: Final = 600_000
#: Ms that a tag's version is kept, and that a row with tags lives at most: a tag must be known to all its rows.
TAG_MS: Final = 7 * 86_400_000
#: After so many ms a dropped version may soon be forgotten, so that a fill has to show a flight that nobody has ended.
_LATE_MS: Final = DROPPED_MS * 9 // 10
#: Rows that one script drops.
_STEP: Final = 500
#: A value travels as one bulk string with its version, whose default limit on the server is 512 MB.
_MAX_VALUE: Final = (512 << 20) - VERSION_BYTES

_OWNER = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Store:
    """The rows of one table on the server; safe to share between threads and across a fork.

    Every verb is one script, and harmless to send again: it is, once, when the connection drops. A value is bytes and
    nothing of it is looked at. A short or damaged row is no row. Nobody has to claim a row in order to read, put or
    drop it.

    Parameters:
      table: 1 to 128 of ``A-Z a-z 0-9 . _ -``.
      kind: three letters A-Z, which all ids of the table begin with; not ``TAG``.
      connection: the server.

    Raises:
      InvalidName: when the wire does not allow the table's name.
      InvalidId: when the kind is none, or ``TAG``.
    """

    def __init__(self, table: str, kind: str, connection: Connection) -> None:
        self.table = check_table(table)
        if not isinstance(kind, str) or kind == "TAG":
            raise InvalidId(f"a table's kind is three letters A-Z, but for TAG, which tags have, not {shown(kind)}")
        self.kind = brand(kind, 0)[:3]
        self.connection = connection
        self.scripts = Scripts.of(connection)
        #: The prefix of all of its keys, ``ecc:{table}:``.
        self.base = cache_base(self.table)
        self._looking = Looking(self.base, self.scripts)

    def __repr__(self) -> str:
        return f"Store({self.table!r}, {self.kind!r}, {self.connection!r})"

    @property
    def channels(self) -> tuple[bytes, bytes]:
        """Where coherence messages are heard, and where wakes are."""
        return coherence_channel(self.table), wake_channel(self.table)

    def mint(self) -> str:
        """A version for what is known now."""
        return self.scripts.mint.mint(self.kind)

    # Reading.

    def peek(self, row_id: str, tags: Iterable[str] = ()) -> Hit | None:
        """Return a row if it is there and none of its tags was dropped since; nobody is claimed to load it.

        Raises:
          InvalidId: before a byte is sent.
          ServerError: when the server cannot be asked.
        """
        reply = self._run("cache_get", self._id(row_id), "row", *_tags(tags))
        return None if reply is None else found_hit(*reply)

    def version(self, row_id: str, tags: Iterable[str] = ()) -> str | None:
        """Return the version of a row, without its value; None when :meth:`peek` would return None.

        Raises: as :meth:`peek`.
        """
        reply = self._run("cache_get", self._id(row_id), "version", *_tags(tags))
        return None if reply is None else _text(reply)

    def look(self, row_id: str, marks: Sequence[str] = ()) -> Hit | None:
        """As :meth:`peek`, if the row is likely there; see :meth:`Looking.look`."""
        return self._looking.look(row_id, marks)

    async def alook(self, row_id: str, marks: Sequence[str], elsewhere: Elsewhere) -> Hit | None:
        """As :meth:`look`, for a task, without blocking its event loop; see :meth:`Looking.alook`."""
        return await self._looking.alook(row_id, marks, elsewhere)

    # Flights.

    def claim(
        self, row_id: str, owner: str, lease_ms: int, tags: Iterable[str] = (), *, least_ms: int = 0
    ) -> Hit | Lead | Follow:
        """Return the row; or else let one caller load it and the others wait for that.

        Whoever leads has to end its flight with :meth:`fill`, :meth:`fail` or :meth:`release`, and to :meth:`renew`
        it until then. Whoever is to follow must hear the table's wakes before it claims, or it may miss the end.

        Parameters:
          row_id: an id of the table's kind.
          owner: names the flight, 1 to 64 of ``A-Z a-z 0-9 . _ -``; of one flight only. Who claims again under it
            leads again, under the same version.
          lease_ms: how long a flight stands that is not renewed.
          tags: the row is not there when one of these was dropped since.
          least_ms: the row is not there when it has less than this left; :data:`ALWAYS` loads it in any case.

        Raises:
          InvalidArgument, InvalidId, InvalidName: before a byte is sent.
          ServerError: when the server cannot be asked.
        """
        least = whole(least_ms, "the least ms that a row has left", 0)
        id, led, lease, marks = self._id(row_id), _owner(owner), _lease(lease_ms), _tags(tags)
        hit = None if least else self.look(id, marks)
        if hit is not None:
            return hit
        verdict, *found = self._run("cache_claim", id, led, lease, self.mint(), least, DROPPED_MS, TAG_MS, *marks)
        self._looking.note(verdict == b"hit")
        if verdict == b"hit":
            return found_hit(*found)
        if verdict == b"lead":
            return Lead(_text(found[0]))
        return Follow(_text(found[0]), found[1])

    def renew(self, row_id: str, owner: str, lease_ms: int) -> bool:
        """Renew the lease of a flight.

        Returns:
          False when the flight is gone: somebody else leads, or the row was put or dropped, and what it loads is old.

        Raises: as :meth:`claim`.
        """
        return bool(self._run("cache_renew", self._id(row_id), _owner(owner), _lease(lease_ms), DROPPED_MS))

    def fill(
        self,
        row_id: str,
        owner: str,
        version: str,
        value: bytes,
        ttl_ms: int,
        tags: Iterable[str] = (),
        *,
        announce: bool = False,
        led: bool = False,
    ) -> bool:
        """Store what a flight has loaded, end it and wake its followers.

        Parameters:
          row_id: an id of the table's kind.
          owner: the flight's.
          version: that of :class:`Lead`; without one, minted before the load began.
          value: up to 512 MB.
          ttl_ms: how long the row lives, from 1; with tags 7 days at most.
          tags: the row's.
          announce: tell all caches, so that those who hold an older row let go of it; also when this one is not stored.
          led: the flight was claimed, and is to stand still. Whatever is put or dropped ends it, so that when this is
            answered with True, nothing was since the claim, also when the server has forgotten the rest.

        Returns:
          False when it was not stored: a newer row is there, or the row or a tag of it was dropped since.

        Raises:
          InvalidArgument, InvalidId, InvalidName: before a byte is sent.
          ServerOutOfMemory: when the server has no room; the flight is ended all the same.
          ServerError: when the server cannot be asked.
        """
        marks = _tags(tags)
        fixed = self._id(row_id), _owner(owner), _version(version), _bytes(value), _ttl(ttl_ms, marks)
        late = led or time.time() * 1000 - minted_at_ms(version) > _LATE_MS
        try:
            return bool(self._run("cache_fill", *fixed, int(late), int(announce), TAG_MS, *marks))
        except ServerOutOfMemory:
            # Refused before it ran, so the followers still wait.
            self.release(row_id, owner, b"full")
            raise

    def fail(self, row_id: str, owner: str, payload: bytes) -> bool:
        """End a flight whose loader has raised: ``payload`` reaches all who wait for it now.

        Returns:
          False when the flight was gone before.

        Raises: as :meth:`claim`.
        """
        return bool(self._run("cache_release", self._id(row_id), _owner(owner), "failed", _bytes(payload)))

    def release(self, row_id: str, owner: str, payload: bytes = b"") -> bool:
        """End a flight that has nothing to store; those who wait for it are told ``payload``, and claim again.

        Returns:
          False when the flight was gone before.

        Raises: as :meth:`claim`.
        """
        return bool(self._run("cache_release", self._id(row_id), _owner(owner), "released", _bytes(payload)))

    # Coherence.

    def put(self, row_id: str, version: str | None, value: bytes, ttl_ms: int, tags: Iterable[str] = ()) -> str:
        """Put a value in place of whatever there is, and tell all caches; a flight on its way will not overwrite it.

        Parameters:
          row_id: an id of the table's kind.
          version: minted when the value was known; None mints one.
          value: up to 512 MB.
          ttl_ms: how long the row lives, from 1; with tags 7 days at most.
          tags: the row's.

        Returns:
          The version it has, which is newer than all that was there.

        Raises:
          InvalidArgument, InvalidId, InvalidName: before a byte is sent.
          ServerOutOfMemory: when the server has no room; the row that it was to replace is dropped, for it is old.
          ServerError: when the server cannot be asked.
        """
        marks, given = _tags(tags), self.mint() if version is None else _version(version)
        fixed = self._id(row_id), given, _bytes(value), _ttl(ttl_ms, marks)
        try:
            return _text(self._run("cache_put", *fixed, DROPPED_MS, TAG_MS, *marks))
        except ServerOutOfMemory:
            self.drop(row_id, version)
            raise

    def drop(self, row_id: str, version: str | None = None) -> str:
        """Drop a row, and tell all caches; no load that began before will fill it.

        Parameters:
          row_id: an id of the table's kind.
          version: minted when the row was known to be old; None mints one.

        Returns:
          The version under which it is dropped, which is newer than all that was there.

        Raises:
          InvalidId: before a byte is sent.
          ServerError: when the server cannot be asked.
        """
        return self.drop_many([row_id], version)[0]

    def drop_many(self, row_ids: Sequence[str], version: str | None = None) -> list[str]:
        """As :meth:`drop`, of many rows in few round trips; answers a version for each, in order."""
        ids = [self._id(row_id) for row_id in row_ids]
        given = self.mint() if version is None else _version(version)
        versions: list[str] = []
        for start in range(0, len(ids), _STEP):
            reply = self._run("cache_drop", given, DROPPED_MS, *ids[start : start + _STEP])
            versions.extend(_text(each) for each in reply)
        return versions

    def apply(self, row_id: str, version: str) -> bool:
        """Do what a coherence message says that came by the job lane; it is told to nobody else.

        Parameters:
          row_id: an id of the table's kind, the TAG id of a tag, or the one that stands for all rows.
          version: only what is older is dropped.

        Returns:
          Whether a row was dropped.

        Raises: as :meth:`drop`.
        """
        _version(version)
        if row_id == EVERYTHING:
            dropped, ids = 0, list(self._row_ids())
            for start in range(0, len(ids), _STEP):
                calls = [
                    Call("cache_apply", self.base, (each, version, DROPPED_MS)) for each in ids[start : start + _STEP]
                ]
                dropped += sum(self.scripts.batch(calls))
            return dropped > 0
        if is_branded(row_id, "TAG"):
            self._run("cache_tag", row_id, version, "apply", TAG_MS)
            return False
        return bool(self._run("cache_apply", self._id(row_id), version, DROPPED_MS))

    def drop_tag(self, tag: str, version: str | None = None) -> str:
        """Let every row that has a tag be gone, and tell all caches; no load of one that began before will fill it.

        Parameters:
          tag: any text.
          version: minted when the rows were known to be old; None mints one.

        Returns:
          The version under which the tag is dropped, which is newer than all rows with tags.

        Raises:
          InvalidName, InvalidId: before a byte is sent.
          ServerError: when the server cannot be asked.
        """
        return self.drop_mark(tag_id(tag), version)

    def drop_mark(self, mark: str, version: str | None = None) -> str:
        """As :meth:`drop_tag`, of a tag that is given by its id."""
        given = self.mint() if version is None else _version(version)
        return _text(self._run("cache_tag", check_id(mark, "TAG"), given, "drop", TAG_MS))

    def clear(self) -> int:
        """Drop every row of the table, in steps, and have all caches let go of all they hold.

        Returns:
          How many rows and flights there were.

        Raises:
          ServerError: when the server cannot be asked; what was dropped until then stays dropped.
        """
        # A scan may miss a flight that becomes a row meanwhile, but not the row that another scan finds there then.
        dropped = self._drop_all() + self._drop_all()
        # After the rows have gone: who hears this finds no old one here any more.
        self._run("cache_clear", EVERYTHING, self.mint())
        return dropped

    def _drop_all(self) -> int:
        dropped, step = 0, dict[str, None]()
        for row_id in self._row_ids():
            step[row_id] = None
            if len(step) == _STEP:
                dropped += len(self.drop_many(list(step)))
                step.clear()
        return dropped + len(self.drop_many(list(step)))

    def _row_ids(self) -> Iterable[str]:
        """The ids that have a row or a flight, found by a scan, which may name one twice."""
        client: Any = self.connection.client
        # A table is one slot, so one node of a cluster has all of it.
        cluster = isinstance(client, RedisCluster)
        where = {"target_nodes": client.get_node_from_key(self.base.decode())} if cluster else {}
        with typed_errors(self.connection.config):
            # No table name holds a character that is special to MATCH.
            for key in client.scan_iter(match=self.base + self.kind.encode() + b"*", count=1000, **where):
                suffix = key.removeprefix(self.base).decode("ascii", "replace")
                row_id = suffix.removesuffix(":flight")
                if is_branded(row_id, self.kind):
                    yield row_id

    def _run(self, script: str, *args: bytes | str | int) -> Any:
        return self.scripts.call(script, self.base, args)

    def _id(self, row_id: str) -> str:
        return check_id(row_id, self.kind)


def _text(reply: bytes) -> str:
    return reply.decode("ascii")


def _version(version: str) -> str:
    # Of any kind: the last 11 bytes count.
    if not is_branded(version):
        raise InvalidId(f"{shown(version)} is not a version: it is a branded id, as Store.mint() gives one")
    return str.__str__(version)


def _tags(tags: Iterable[str]) -> list[str]:
    if isinstance(tags, (str, bytes)):
        raise InvalidName(f"tags are several texts, as in ({tags!r},), not {tags!r}")
    # In one order and each once: a tag that is there twice says nothing more.
    return sorted({tag_id(tag) for tag in tags}) if tags else []


def _owner(owner: str) -> str:
    if not isinstance(owner, str) or not _OWNER.fullmatch(owner):
        raise InvalidArgument(
            f"an owner is 1 to 64 letters, digits, dots, underscores or dashes, of one flight only, not {shown(owner)}"
        )
    return str.__str__(owner)


def _lease(lease_ms: int) -> int:
    return whole(lease_ms, "the lease in ms", 1)


def _ttl(ttl_ms: int, tags: Sequence[str]) -> int:
    ttl = whole(ttl_ms, "the ttl in ms", 1)
    return min(ttl, TAG_MS) if tags else ttl


def _bytes(value: bytes) -> bytes:
    if not isinstance(value, bytes):
        raise InvalidArgument(f"a value is bytes on the server, not {shown(value)}: encode it first")
    if len(value) > _MAX_VALUE:
        raise InvalidArgument(f"a value has up to 512 MB, not {len(value):,} bytes")
    return value
