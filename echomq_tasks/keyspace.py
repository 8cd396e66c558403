"""Every key of the wire (§2) and its hash slot: pure functions over a closed registry, each name and id gated.

One queue is one hash slot, by grammar. Nothing here talks to a server; what is malformed never reaches one.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from typing import Final

from echomq_tasks.errors import InvalidName
from echomq_tasks.identity import check_id, is_branded

#: The fence: the wire version that all runtimes of one server agree on (wire §3).
VERSION_KEY: Final = b"{emq}:version"
WIRE_VERSION: Final = b"echomq:2.4.2"
#: Where node ids are leased, one key each.
NODE_PREFIX: Final = b"{emq}:node:"

#: The keys a queue has one of. `base` is the prefix that scripts take as their one declared key.
QUEUE_KEYS: Final = frozenset(
    {
        "base", "pending", "active", "schedule", "dead", "ring", "paused", "glimit", "gactive", "gweight", "gnames",
        "wake", "meta", "limiter", "metrics:completed", "metrics:failed", "metrics:completed:data",
        "metrics:failed:data", "repeat", "flow:outbox", "flow:parents", "gauto", "events", "replies",
        "retention",
    }
)  # fmt: skip
#: The keys a job has beside its row.
JOB_KEYS: Final = frozenset({"logs", "lock", "dependencies", "processed", "failed", "unsuccessful", "result"})
#: The keys a cached row has beside it: the lease of who loads it, and the version under which it was last dropped.
ROW_KEYS: Final = frozenset({"flight", "dropped"})

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_DEDUP = re.compile(r"[A-Za-z0-9._-]{1,255}")


def _gate(pattern: re.Pattern[str], value: object, what: str, rule: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise InvalidName(f"{what} {value!r} is not allowed: use {rule}")
    # A member of a `str` enum passes by its value, but would print as its name inside a key.
    return str.__str__(value)


def check_queue(queue: str) -> str:
    """Return ``queue`` when the wire allows it as a queue name.

    Raises:
      InvalidName: when it is not 1 to 128 of ``A-Z a-z 0-9 . _ -``, or is the reserved ``emq``.
    """
    name = _gate(_NAME, queue, "the queue name", "1 to 128 letters, digits, dots, underscores or dashes")
    if name == "emq":
        raise InvalidName("the queue name 'emq' is reserved for the wire's own keys: choose another")
    return name


def _registered(name: str, registry: frozenset[str], what: str) -> str:
    if not isinstance(name, str) or name not in registry:
        raise InvalidName(f"the wire has no {what} key {name!r}: it has {', '.join(sorted(registry))}")
    return str.__str__(name)


def queue_key(queue: str, name: str = "base") -> bytes:
    """A key that ``queue`` has one of, as in ``queue_key("mail", "pending") == b"emq:{mail}:pending"``."""
    suffix = _registered(name, QUEUE_KEYS, "queue")
    return f"emq:{{{check_queue(queue)}}}:{'' if suffix == 'base' else suffix}".encode()


def job_key(queue: str, job_id: str, name: str | None = None) -> bytes:
    """The row of a job, or one of the keys beside it (``logs``, ``lock``, ...)."""
    suffix = "" if name is None else ":" + _registered(name, JOB_KEYS, "job")
    return queue_key(queue) + f"job:{check_id(job_id, 'JOB')}{suffix}".encode()


def lane_key(queue: str, group: str) -> bytes:
    """The waiting jobs of one group; ``group`` is its branded id (see :func:`echomq_tasks.identity.group_id`)."""
    if not is_branded(group):
        raise InvalidName(f"the group {group!r} is not a branded id: map a name with identity.group_id() first")
    return queue_key(queue) + b"g:" + group.encode() + b":pending"


def check_dedup(dedup_id: str) -> str:
    """Return ``dedup_id`` when the wire allows it as the name of an idempotency key.

    Raises:
      InvalidName: when it is not 1 to 255 of ``A-Z a-z 0-9 . _ -``.
    """
    return _gate(_DEDUP, dedup_id, "the deduplication id", "1 to 255 letters, digits, dots, underscores or dashes")


def dedup_key(queue: str, dedup_id: str) -> bytes:
    """The job id parked for an idempotency key."""
    return queue_key(queue) + b"de:" + check_dedup(dedup_id).encode()


def repeat_key(queue: str, name: str) -> bytes:
    """The registration of one repeat."""
    _gate(_NAME, name, "the repeat name", "1 to 128 letters, digits, dots, underscores or dashes")
    return queue_key(queue) + b"repeat:" + name.encode()


def stream_key(queue: str, name: str) -> bytes:
    """A retained log of a queue."""
    _gate(_NAME, name, "the log name", "1 to 128 letters, digits, dots, underscores or dashes")
    return queue_key(queue) + b"stream:" + name.encode()


def check_table(table: str) -> str:
    """Return ``table`` when the wire allows it as the name of a cache table.

    Raises:
      InvalidName: when it is not 1 to 128 of ``A-Z a-z 0-9 . _ -``.
    """
    return _gate(_NAME, table, "the cache table", "1 to 128 letters, digits, dots, underscores or dashes")


def cache_base(table: str) -> bytes:
    """The prefix of all keys of a cache table, ``ecc:{table}:``: the one key that its scripts take."""
    return b"ecc:{" + check_table(table).encode() + b"}:"


def cache_key(table: str, row_id: str, name: str | None = None) -> bytes:
    """A cached value, or one of the keys beside it; ``row_id`` is a branded id of the table's kind."""
    base = cache_base(table)
    if not is_branded(row_id):
        raise InvalidName(f"the cache row {row_id!r} is not a branded id")
    suffix = "" if name is None else ":" + _registered(name, ROW_KEYS, "cache")
    return base + f"{str.__str__(row_id)}{suffix}".encode()


def tag_key(table: str, tag: str) -> bytes:
    """The version under which the rows of a tag were last dropped; ``tag`` is its ``TAG`` id."""
    return cache_base(table) + b"tag:" + check_id(tag, "TAG").encode()


def stats_key(table: str) -> bytes:
    """What the processes that use a table have counted."""
    return cache_base(table) + b"stats"


def coherence_channel(table: str) -> bytes:
    """The channel that tells a table's caches of newer versions."""
    return cache_base(table) + b"coh"


def wake_channel(table: str) -> bytes:
    """The channel that tells those who wait for a row of a table how its flight has ended."""
    return cache_base(table) + b"wake"


def coherence_queue(table: str) -> str:
    """The name of the queue that carries a table's coherence messages at least once."""
    name = _gate(_NAME, table, "the cache table", "1 to 120 letters, digits, dots, underscores or dashes")
    return check_queue(f"ecc.coh.{name}")


def node_key(node: int) -> bytes:
    """The lease of one node id, 0 to 1023."""
    if isinstance(node, bool) or not isinstance(node, int) or not 0 <= node < 1024:
        raise InvalidName(f"a node id is a whole number from 0 to 1023, not {node!r}")
    return NODE_PREFIX + str(node).encode()


def slot(key: bytes | str) -> int:
    """The cluster hash slot of a key, 0 to 16383: CRC16/XMODEM of its hash tag, or of all of it.

    The tag is what stands between the first ``{`` and the next ``}``, when that is not empty (Redis cluster
    specification, "Hash tags").
    """
    data = key.encode() if isinstance(key, str) else key
    start = data.find(b"{")
    if start >= 0:
        end = data.find(b"}", start + 1)
        if end > start + 1:
            data = data[start + 1 : end]
    return crc_hqx(data, 0) % 16384
