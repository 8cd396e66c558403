"""One consumer of one group as the server knows it: what its scripts are called with, and what they answer."""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from echomq_tasks.bus.log import Log
from echomq_tasks.identity import EPOCH_MS
from echomq_tasks.keyspace import queue_key
from echomq_tasks.scripts import Call, Scripts
from echomq_tasks.scripts.arguments import seconds_to_ms

#: The idleness in ms that an entry is given back with: more than any other consumer waits for.
LONG_IDLE = 86_400_000
#: Characters of an error that the dead log keeps.
_LONGEST_ERROR = 10_000
#: How many records a dead log keeps, about, when it has no retention of its own.
_MOST_DEAD = 100_000


class Entry(NamedTuple):
    """An entry that was delivered."""

    id: str
    pairs: Sequence[bytes]
    deliveries: int


class Member:
    """Makes script calls for one consumer; holds nothing.

    Parameters:
      log: the log.
      group: the group's name, gated.
      name: the consumer's name, gated.
    """

    def __init__(self, log: Log, group: str, name: str) -> None:
        self.log = log
        self.group = group
        self.name = name
        self.scripts = Scripts.of(log.connection)
        self._base = queue_key(log.queue)

    def create(self, start: str) -> bool:
        """Make the group; False when it is there."""
        return bool(self.scripts.call("group_create", self._base, [self.log.name, self.group, start]))

    def read(self, most: int) -> Call:
        """New entries."""
        return self._call("group_read", most)

    def held(self, behind: str, most: int) -> Call:
        """The ids of what this consumer holds pending, behind an entry."""
        return self._call("group_held", behind, most)

    def own(self, entry_id: str, counts: bool) -> Call:
        """An entry that this consumer holds pending; ``counts`` says whether this is another delivery."""
        return self._call("group_own", entry_id, int(counts))

    def claim(self, min_idle: float, cursor: str) -> Call:
        """One entry of which nobody was heard for ``min_idle`` seconds."""
        return self._call("group_claim", seconds_to_ms(min_idle, "min_idle"), cursor)

    def ack(self, ids: Iterable[str]) -> Call:
        """Finish entries."""
        return Call("group_ack", self._base, (self.log.name, self.group, *ids))

    def release(self, ids: Iterable[str]) -> Call:
        """Give entries back that were not started."""
        return self._call("group_release", LONG_IDLE, *ids)

    def bury(self, entry_id: str, error: str, deliveries: int) -> Call:
        """Move an entry to the dead log."""
        number = self.scripts.mint.snowflake()
        text = error[:_LONGEST_ERROR].encode(errors="backslashreplace")
        minted = ((number >> 22) + EPOCH_MS, number & 0x3FFFFF)
        return self._call("group_bury", entry_id, text, *minted, _MOST_DEAD, deliveries)

    def renew(self, ids: Iterable[str]) -> list[bool]:
        """Tell that entries are still at work; answers for each whether it still is this consumer's."""
        call = self._call("group_renew", *ids)
        return [word == b"ok" for word in self.scripts.call(*call)]

    def tidy(self, idle_ms: int, only: str = "") -> list[str]:
        """Drop consumers that hold nothing and were not heard of for ``idle_ms``; answers their names."""
        dropped: list[bytes] = self.scripts.call("group_tidy", self._base, (self.log.name, self.group, idle_ms, only))
        return [name.decode(errors="backslashreplace") for name in dropped]

    def _call(self, script: str, *args: Any) -> Call:
        return Call(script, self._base, (self.log.name, self.group, self.name, *args))


def entries(rows: Sequence[Sequence[Any]]) -> list[Entry]:
    """The entries in a reply; one without a count was delivered for the first time."""
    return [Entry(row[0].decode(), row[1], row[2] if len(row) > 2 else 1) for row in rows]


def unique_name() -> str:
    """A name that no other consumer has, and that tells a person which machine and process it is."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64] or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"
