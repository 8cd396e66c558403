"""A log's consumer groups, as anybody may look at and delete them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from echomq_tasks.bus.log import Log
from echomq_tasks.errors import InvalidName
from echomq_tasks.keyspace import queue_key
from echomq_tasks.scripts import Scripts
from echomq_tasks.scripts.arguments import shown

#: What is behind a log's name in that of its dead log.
DEAD = ".dead"
_LONGEST = 128
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """How a consumer group stands.

    Attributes:
      name: its name.
      lag: records that are kept and that it was not given yet; None when the server cannot tell: the group was made in
        the middle of the log by a runtime that did not say how many lie before, or somebody deleted single entries.
      pending: records that were delivered and are not finished.
      consumers: how many consumers the server knows of it.
      last: the stream id of the last record it was given, ``"0-0"`` when none was.
      behind: records that were trimmed before it was given them; None when the server cannot tell. Its next read passes
        over that gap: then the consumer that reads is told (:class:`~echomq_tasks.bus.Consumer`), and this is 0 again.
    """

    name: str
    lag: int | None
    pending: int
    consumers: int
    last: str
    behind: int | None


def check_group(name: str, what: str = "group") -> str:
    """Return ``name`` when it may name a group or a consumer.

    Raises:
      InvalidName: when it is not 1 to 128 of ``A-Z a-z 0-9 . _ -``.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidName(
            f"the {what} {shown(name)} is not allowed: use 1 to {_LONGEST} letters, digits, dots, underscores or dashes"
        )
    # A member of a `str` enum passes by its value, but would go over the wire as its name.
    return str.__str__(name)


def dead_log(name: str) -> str:
    """The name of the log that takes what consumers of the log ``name`` give up.

    Raises:
      InvalidName: when that would be too long.
    """
    if len(name) + len(DEAD) > _LONGEST:
        raise InvalidName(
            f"a log with consumer groups has a name of {_LONGEST - len(DEAD)} characters at most, because its dead log "
            f"adds {DEAD!r}, not {len(name)}"
        )
    return name + DEAD


def read_groups(log: Log) -> list[GroupInfo]:
    """The groups of a log by name, those that other runtimes made too; none when there is no such log.

    Raises:
      ServerError: when the server cannot be asked.
    """
    rows: list[Any] = Scripts.of(log.connection).call("group_info", queue_key(log.queue), [log.name])
    return [
        GroupInfo(
            name.decode(errors="backslashreplace"), _known(lag), pending, consumers, last.decode(), _known(behind)
        )
        for name, lag, pending, consumers, last, behind in rows
    ]


def delete_group(log: Log, name: str) -> bool:
    """Delete a group with all that it holds pending; the log stays. A consumer at work makes it again from its start.

    Returns:
      False when there is no such group.

    Raises:
      InvalidName: when the name is none of ours.
      ServerError: when the server cannot be asked.
    """
    args = [log.name, check_group(name)]
    return bool(Scripts.of(log.connection).call("group_delete", queue_key(log.queue), args))


def _known(number: int) -> int | None:
    return None if number < 0 else number
