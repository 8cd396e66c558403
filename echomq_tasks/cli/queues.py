"""Find queues: all of them, or whether the one that was named is there."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Sequence

from echomq_tasks.cli.terminal import note
from echomq_tasks.connection import Connection, connect
from echomq_tasks.connection.failures import typed_errors
from echomq_tasks.errors import InvalidName
from echomq_tasks.keyspace import QUEUE_KEYS, check_queue, queue_key
from echomq_tasks.queue import Queue

_QUEUE_OF = re.compile(rb"emq:\{([A-Za-z0-9._-]{1,128})\}:")
#: What a worker leaves behind that only looked for jobs.
_TRACES = frozenset({"wake", "replies", "limiter"})
#: A channel and the prefix itself are no keys.
_NO_KEYS = frozenset({"events", "base"})


def find_queues(connection: Connection) -> list[str]:
    """The names of all queues that have a key."""
    # The wire keeps no list of queues. SCAN visits every key but never holds the server up, as KEYS would.
    found = set()
    with typed_errors(connection.config):
        for key in connection.client.scan_iter(match="emq:{*}:*", count=1000):
            if matched := _QUEUE_OF.match(key):
                found.add(matched[1].decode())
    return sorted(name for name in found if _is_queue(name))


def _is_queue(name: str) -> bool:
    try:
        return bool(check_queue(name))
    except InvalidName:
        return False


def exists(queue: Queue) -> bool:
    """Whether a queue has ever had a job or a setting, as far as its keys tell."""
    with typed_errors(queue.connection.config):
        if queue.connection.client.exists(*(queue_key(queue.name, name) for name in QUEUE_KEYS - _TRACES - _NO_KEYS)):
            return True
    traces = {name.encode() for name in _TRACES}
    return any(suffix not in traces for suffix in queue.key_suffixes())


def missing(queue: Queue) -> str | None:
    """What to say when a queue is not there; None when it is."""
    if exists(queue):
        return None
    others = [name for name in find_queues(queue.connection) if name != queue.name]
    near = difflib.get_close_matches(queue.name, others, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "`echomq info` lists those that are there"
    return f"there is no queue {queue.name!r} on {queue.connection.config.address}: {hint}"


def on_queue(options: argparse.Namespace, act: Callable[[argparse.Namespace, Queue], int]) -> int:
    """Do something to the queue that was named, and answer the exit code: 1 when it is not there."""
    with connect(options.url) as connection:
        queue = Queue(options.queue, connection)
        if problem := missing(queue):
            note(problem)
            return 1
        return act(options, queue)


def note_missing(connection: Connection, names: Sequence[str]) -> list[str]:
    """Say which of the queues that were named are not there; answers those that are, each once."""
    found = []
    for name in dict.fromkeys(names):
        if problem := missing(Queue(name, connection)):
            note(problem)
        else:
            found.append(name)
    return found


def jobs_in_no_set(queue: Queue) -> int:
    """How many jobs have a row that no set holds: parents that wait for their children, of a runtime without a set."""
    # As a set: a scan may name a key twice. The row's key ends with the id; those beside it go on behind it.
    rows = {key for key in queue.key_suffixes(b"job:" + b"?" * 14) if key.count(b":") == 1}
    counts = queue.counts()
    return max(0, len(rows) - counts.unfinished - counts.dead)
