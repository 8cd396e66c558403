"""Append records: mint their ids, pack them into script calls, and send a call again without writing twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from echomq_tasks.bus.places import minted_place
from echomq_tasks.connection import Connection
from echomq_tasks.errors import EchoMQError, WrongState
from echomq_tasks.scripts import Scripts
from echomq_tasks.scripts.callers import Callers

#: One script call takes so many records or bytes at most, so that the server answers others in between.
_RECORDS_A_CALL = 500
_BYTES_A_CALL = 1 << 20


class LogCallers(Callers):
    """The callers of all logs of a connection: the server keeps an answer for each."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()

    def close(self) -> None:
        """Nothing to let go of."""


def append_records(scripts: Scripts, base: bytes, name: str, records: Sequence[list[bytes]]) -> list[str]:
    """Append packed records in order; answers their EVT ids.

    Raises:
      ServerError, WrongState: when not all could be appended; ``admitted`` has the ids of those that were.
    """
    callers = scripts.connection.companion(LogCallers)
    ids: list[str] = []
    try:
        # One call a round trip: of several, the server might lack the script for the first one only, and a cluster
        # might send one of them elsewhere; sent again, its records would stand behind later ones.
        for chunk in _chunks(records):
            args: list[bytes | str | int] = []
            for fields in chunk:
                args += *minted_place(scripts.mint.snowflake()), len(fields), *fields
            caller = callers.take()
            # A caller that is not answered is not given back, for its next call would be taken for this one.
            appended = scripts.call("log_append", base, (caller.id, caller.nonce(), name, *args))
            caller.answered()
            callers.give(caller)
            ids += [evt.decode() for evt in appended]
            if len(appended) < len(chunk):
                raise WrongState(
                    f"the log {name} has an entry of the year 2093, where record ids end: begin another log"
                )
    except EchoMQError as error:
        error.admitted = tuple(ids)
        raise
    return ids


def _chunks(records: Sequence[list[bytes]]) -> Iterator[Sequence[list[bytes]]]:
    first = size = 0
    for at, fields in enumerate(records):
        more = sum(map(len, fields))
        if at > first and (at - first == _RECORDS_A_CALL or size + more > _BYTES_A_CALL):
            yield records[first:at]
            first, size = at, 0
        size += more
    if records:
        yield records[first:]
