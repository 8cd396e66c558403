"""How a row is looked for that is likely there: by plain commands, which take half of what a claim does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import hiredis
from redis.exceptions import TimeoutError as RedisTimeoutError

from echomq_tasks.cache.claims import Hit
from echomq_tasks.cache.frames import VERSION_BYTES
from echomq_tasks.errors import ServerUnavailable
from echomq_tasks.identity import MAX_SNOWFLAKE, is_branded, to_base62
from echomq_tasks.scripts import Scripts
from echomq_tasks.scripts.streams import Elsewhere, Streams

#: What is answered of a row that another runtime wrote without an end.
FOREVER_MS: Final = 10 * 365 * 86_400_000
#: What PTTL answers of a row that is not there.
_GONE: Final = -2
#: So many rows in a row have to be there, before the next one likely is: one alone may have been waited for.
_LIKELY: Final = 2
#: The last snowflake of all is no version, for there is none above it.
_LAST: Final = to_base62(MAX_SNOWFLAKE)
#: An id that no table name can hold, in place of the one that is looked for.
_ID: Final = b"\0" * 14
#: How many replies there are to what is sent; the last one answers it.
_REPLIES: Final = 4


class Looking:
    """Looks for the rows of one table, as the script ``cache_get`` does, and finds no row that this does not.

    A transaction answers the row, how long it lives, the version under which it was dropped and those of its tags, all
    of one moment.

    Parameters:
      base: the prefix of the table's keys.
      scripts: runs what is sent.
    """

    def __init__(self, base: bytes, scripts: Scripts) -> None:
        self._base = base
        self._scripts = scripts
        self._streams = Streams.of(scripts.connection)
        #: The packed commands for rows of so many tags, with places for the ids.
        self._forms: dict[int, bytes] = {}
        #: How many rows in a row were there when they were claimed or looked for.
        self._found = 0

    def note(self, found: bool) -> None:
        """A row was claimed or looked for; whether it was there."""
        self._found = self._found + 1 if found else 0

    def look(self, id: str, marks: Sequence[str] = ()) -> Hit | None:
        """The row, if the last ones were there: else None, and nothing is sent.

        Where rows are there, a claim is for nothing; and where they are not, to look first is.

        Parameters:
          id: an id of the table's kind. Nothing is checked here, for most calls that L1 cannot answer come by.
          marks: the ids of its tags.

        Raises:
          ServerError: when the server cannot be asked.
        """
        if self._found < _LIKELY:
            return None
        if self._scripts.connection.is_cluster:
            # Its client asks about each command where it belongs, and knows that of a script.
            reply = self._scripts.call("cache_get", self._base, (id, "row", *marks))
            hit = None if reply is None else found_hit(*reply)
        else:
            hit = _hit(self._scripts.read(self._packed(id, marks), _REPLIES))
        self.note(hit is not None)
        return hit

    async def alook(self, id: str, marks: Sequence[str], elsewhere: Elsewhere) -> Hit | None:
        """As :meth:`look`, for a task, without blocking its event loop.

        Parameters:
          id: as there.
          marks: as there.
          elsewhere: runs what would block.

        Raises:
          ServerUnavailable: when no answer came in time. A connection that breaks says nothing: None, then.
        """
        if self._found < _LIKELY:
            return None
        stream = self._streams.here() or await self._streams.begin(elsewhere)
        if stream is None:
            return cast("Hit | None", await elsewhere(lambda: self.look(id, marks)))
        try:
            hit = _hit(await stream.ask(self._packed(id, marks), _REPLIES))
        except ServerUnavailable as error:
            if isinstance(error.__cause__, RedisTimeoutError):
                raise
            return None
        self.note(hit is not None)
        return hit

    def _packed(self, id: str, marks: Sequence[str]) -> bytes:
        form = self._forms.get(len(marks))
        if form is None:
            form = self._forms[len(marks)] = self._form(len(marks))
        name = id.encode()
        return form % (name, name, name, *[mark.encode() for mark in marks]) if marks else form % (name, name, name)

    def _form(self, tags: int) -> bytes:
        row = self._base + _ID
        commands: list[Any] = [
            ("MULTI",),
            ("PTTL", row),
            ("MGET", row, row + b":dropped", *[self._base + b"tag:" + _ID] * tags),
            ("EXEC",),
        ]
        return b"".join([hiredis.pack_command(command) for command in commands]).replace(_ID, b"%b")


def found_hit(frame: bytes, left: int) -> Hit:
    """A frame that a script found, with the ms that it has left."""
    return Hit(frame[:VERSION_BYTES].decode("ascii"), frame[VERSION_BYTES:], FOREVER_MS if left < 0 else left)


def _hit(replies: Sequence[Any]) -> Hit | None:
    """What the replies say; None when no row is there for certain."""
    answer = replies[-1]
    if type(answer) is not list:
        # As a user without the right to do it is answered.
        return None
    left, found = answer
    if type(found) is not list or type(left) is not int or left == _GONE:
        return None
    frame = found[0]
    if frame is None:
        return None
    version = frame[:VERSION_BYTES].decode("latin-1")
    if version[3:] >= _LAST or not is_branded(version):
        return None
    for dropped in found[1:]:
        if dropped is not None and dropped[3:VERSION_BYTES] > frame[3:VERSION_BYTES]:
            return None
    return Hit(version, frame[VERSION_BYTES:], FOREVER_MS if left < 0 else left)
