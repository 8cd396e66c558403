"""Channels: their names on the wire, the patterns over them, and one subscription of the hub to one of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from echomq_tasks.errors import InvalidName
from echomq_tasks.keyspace import check_queue, queue_key

if TYPE_CHECKING:
    from echomq_tasks.bus.feed import Feed
    from echomq_tasks.bus.link import Link

#: The three ways to hear channels: what PUBLISH sends, what SPUBLISH sends, and what PUBLISH sends to all that match.
PLAIN: Final = b"subscribe"
SHARDED: Final = b"ssubscribe"
PATTERN: Final = b"psubscribe"
#: The command that ends each.
ENDS: Final = {PLAIN: b"unsubscribe", SHARDED: b"sunsubscribe", PATTERN: b"punsubscribe"}

_PATTERN = re.compile(r"[A-Za-z0-9._*?-]{1,128}")
_CHANNEL = re.compile(rb"emq:\{([A-Za-z0-9._-]{1,128})\}:events")


def event_channel(queue: str) -> bytes:
    """The channel of a queue's events."""
    return queue_key(queue, "events")


def check_pattern(pattern: str) -> str:
    """Return ``pattern`` when it can match queue names: ``*`` stands for any characters, ``?`` for one.

    Raises:
      InvalidName: when it is not 1 to 128 of ``A-Z a-z 0-9 . _ - * ?``.
    """
    if not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern):
        raise InvalidName(
            f"the pattern {pattern!r} is not allowed: use 1 to 128 letters, digits, dots, underscores or dashes, * for "
            "any characters and ? for one"
        )
    return str.__str__(pattern)


def matcher(pattern: str) -> re.Pattern[str]:
    """An expression that matches the queue names which the server finds for ``pattern``; use its ``fullmatch``."""
    first, *rest = ["".join("." if each == "?" else re.escape(each) for each in part) for part in pattern.split("*")]
    # Between two stars the first place that fits is as good as any: without going back, or a name that does not match
    # would be tried in a great many ways.
    inner = "".join(f"(?>.*?{part})" for part in rest[:-1])
    return re.compile(first + inner + (f".*{rest[-1]}" if rest else ""))


def queue_of(channel: bytes) -> str | None:
    """The queue whose events ``channel`` carries; None when it is another channel."""
    found = _CHANNEL.fullmatch(channel)
    return found[1].decode() if found and found[1] != b"emq" else None


class Channel:
    """One channel or pattern that somebody listens to; owned by the hub's thread.

    Parameters:
      verb: PLAIN, SHARDED or PATTERN.
      topic: the queue, or the pattern.
    """

    __slots__ = ("confirmed", "feeds", "link", "losers", "lost_at", "moved", "name", "topic", "tries", "verb")

    def __init__(self, verb: bytes, topic: str) -> None:
        self.verb = verb
        self.topic = topic
        self.name = f"emq:{{{topic}}}:events".encode() if verb == PATTERN else event_channel(check_queue(topic))
        #: Who listens, in the order in which they came; a dict, for it forgets the order of nobody.
        self.feeds: dict[Feed, None] = {}
        #: Where it is subscribed, or about to be.
        self.link: Link | None = None
        self.confirmed = False
        #: Unix seconds since when events may be missing, None while all is well; and who must be told.
        self.lost_at: float | None = None
        self.losers: set[Feed] = set()
        #: It was lost because its slot moved.
        self.moved = False
        #: How often no node could be reached for it.
        self.tries = 0

    def key(self) -> bytes:
        """What decides the node in a cluster, where every node hears every PUBLISH."""
        if self.verb == PATTERN and self.tries:
            # Any node serves a pattern, so the next try goes to another one.
            return f"emq:{{{self.topic}{self.tries}}}:events".encode()
        return self.name

    def __repr__(self) -> str:
        return f"<{self.verb.decode()} {self.topic}>"
