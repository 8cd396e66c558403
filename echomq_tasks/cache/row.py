"""One cached value as a process holds it."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any, Final

#: What a row costs beside the bytes of its value: the object, its id, version and times, and its place in the tables.
OVERHEAD: Final = 500
#: So many ways to write one call lead to its row at once; further ones go by the id.
_MOST_ALIASES: Final = 8


class Row:
    """A value with its version and times, all on the monotonic clock.

    ``fresh_until`` is for who looks a call up, who then needs one comparison: until then :attr:`value` may be returned
    as it is, without asking anything else. It is 0 for a row that is gone, that is to be checked before it is used, or
    whose value must be decoded anew for each reader: that one may be until ``open_until``.

    Attributes:
      value: the value; None when :attr:`payload` has it.
      payload: the encoded value, of one that a reader could change.
      early: from then on it may be refreshed in the background.
      until: from then on it is stale.
      expires: from then on it is not to be used at all.
      hits: how often it was used; raised without a lock, so a few may be lost among threads.
      suspect: it is to be checked before it is used: it may be older than what a message said that was missed, or than
        one that was heard, when there is a :attr:`doubt`.
      doubt: made for the last message that could not be put in an order with it; None when there was none.
      anchored: the server gave its version, and gives each later write a newer one as long as it knows of it. Other
        versions stand in no order with what is heard. In a table without a server, there is no other order than that of
        the clocks.
    """

    __slots__ = (
        "aliases", "anchored", "counted", "doubt", "early", "expires", "failures", "fresh_until", "hits", "id",
        "open_until", "payload", "rest", "retry_at", "seen", "size", "suspect", "tags", "there", "until", "value",
        "version",
    )  # fmt: skip

    def __init__(
        self,
        id: str,
        rest: bytes,
        version: str,
        value: Any,
        payload: bytes | None,
        *,
        size: int,
        early: float,
        until: float,
        expires: float,
        tags: tuple[str, ...] = (),
        anchored: bool = True,
    ) -> None:
        self.fresh_until = self.open_until = 0.0
        self.value = value
        self.hits = 0
        self.id = id
        self.rest = rest
        self.version = version
        self.payload = payload
        self.size = size
        self.early = early
        self.until = until
        self.expires = expires
        self.tags = tags
        self.anchored = anchored
        self.suspect = False
        self.doubt: object | None = None
        #: Whether L1 has it, the hits when the eviction last came by, and those that L1 has in its own count.
        self.there = False
        self.seen = 0
        self.counted = 0
        #: How often in a row its refresh failed, and when to try again.
        self.failures = 0
        self.retry_at = 0.0
        #: Tables and names in turn, which is smaller than pairs of them.
        self.aliases: tuple[Any, ...] = ()

    @property
    def kept(self) -> bool:
        """Whether any layer was to keep it."""
        return self.until != math.inf

    def open(self) -> None:
        """Let readers have it by :attr:`fresh_until` or ``open_until`` alone, where that is allowed."""
        self.open_until = min(self.early, self.until) if self.there and not self.suspect else 0.0
        self.fresh_until = self.open_until if self.payload is None else 0.0

    def alias(self, table: dict[Any, Row], name: Hashable) -> None:
        """Let ``table[name]`` lead here, unless enough do."""
        if len(self.aliases) < 2 * _MOST_ALIASES:
            table[name] = self
            self.aliases = (*self.aliases, table, name)

    def leave(self) -> None:
        """L1 lets it go: nobody who looks it up from now on may use it."""
        self.fresh_until = self.open_until = 0.0
        self.there = False
        parts = iter(self.aliases)
        for table, name in zip(parts, parts, strict=True):
            if table.get(name) is self:
                # Whoever it belongs to may be clearing it.
                table.pop(name, None)
        self.aliases = ()
