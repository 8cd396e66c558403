"""The outbox (wire §7): what children that have ended owe to parents in other queues, and its delivery."""

from __future__ import annotations

import logging
from typing import Any

from echomq_tasks.errors import EchoMQError, ServerUnavailable
from echomq_tasks.identity import check_id
from echomq_tasks.keyspace import check_queue, queue_key
from echomq_tasks.queue.arguments import whole
from echomq_tasks.queue.handle import Handle
from echomq_tasks.scripts import Call

_log = logging.getLogger(__name__)

#: So many bytes of outbox are read, and told to parents, in one round trip.
_BYTES_A_TRIP = 8 << 20
#: How many entries for queues that cannot be reached one call reads past.
_MOST_STUCK = 1_000

#: What flow_deliver takes: the parent's id, what became of the child, its id, and its result or error.
_Fact = tuple[bytes, bytes, bytes, bytes]


class Outbox(Handle):
    """Telling parents in other queues."""

    def deliver(self, limit: int = 100) -> int:
        """Tell parents in other queues what became of their children here; answers how many facts were delivered.

        A worker is told by its claim when there is something to deliver (:class:`~echomq_tasks.queue.Claimed`). A fact
        is taken off this queue's outbox only after it was delivered, and a second delivery changes nothing.

        Raises:
          ServerUnavailable: when a parent's queue cannot be reached; what could not be delivered stays.
        """
        left = whole(limit, "limit", 1, 10_000)
        failures: dict[str, EchoMQError] = {}
        delivered = passed = 0
        stuck: list[bytes] = []
        while left > 0 and passed < _MOST_STUCK:
            entries: list[bytes] = self.run("outbox_read", passed, left, _BYTES_A_TRIP)
            by_queue, done = self._read_entries(entries)
            # A queue that fails is not tried twice, and what it is owed does not keep others waiting.
            queues = [queue for queue in by_queue if queue not in failures]
            calls = [
                Call(
                    "flow_deliver",
                    queue_key(queue),
                    [arg for _, fact in by_queue[queue] for arg in fact],
                    self.event_args(),
                )
                for queue in queues
            ]
            for queue, reply in zip(queues, self._attempt_each(calls), strict=True):
                if isinstance(reply, EchoMQError):
                    failures[queue] = reply
                else:
                    delivered += len(by_queue[queue])
                    done += [entry for entry, _ in by_queue[queue]]
            if done:
                self.run("outbox_trim", *done)
            kept = set(entries).difference(done)
            stuck += [entry for entry in entries if entry in kept]
            passed += len(entries) - len(done)
            if len(entries) < left and sum(map(len, entries)) < _BYTES_A_TRIP:
                break
            left -= len(done)
        if passed >= _MOST_STUCK:
            # Behind the others, or each call would meet these first, and those behind them never.
            self.run("outbox_defer", *stuck)
        for failure in failures.values():
            raise failure
        return delivered

    def _read_entries(self, entries: list[bytes]) -> tuple[dict[str, list[tuple[bytes, _Fact]]], list[bytes]]:
        """Entries with the facts in them, by the queue to be told, and those that cannot be read."""
        by_queue: dict[str, list[tuple[bytes, _Fact]]] = {}
        broken: list[bytes] = []
        for entry in entries:
            read = _read_entry(entry)
            if read is None:
                # No runtime could ever deliver it, and those behind it must get through.
                _log.error("Queue %r: an outbox entry that cannot be read is dropped: %r", self.name, entry[:500])
                broken.append(entry)
            else:
                by_queue.setdefault(read[0], []).append((entry, read[1]))
        return by_queue, broken

    def _attempt_each(self, calls: list[Call]) -> list[Any]:
        """The replies; in a cluster, a node that is away must not keep the others from being told."""
        try:
            return self.scripts.attempt(calls) if calls else []
        except ServerUnavailable:
            if not self.connection.is_cluster:
                raise
        replies: list[Any] = []
        for call in calls:
            try:
                replies += self.scripts.attempt([call])
            except ServerUnavailable as error:
                replies.append(error)
        return replies


def _read_entry(entry: bytes) -> tuple[str, _Fact] | None:
    """An outbox entry (wire §7) as the parent's queue and (parent, kind, child, value); None when it is malformed."""
    if entry.startswith(b"\0fail\0"):
        parts = entry.split(b"\0", 6)
        if len(parts) != 7:
            return None
        _, _, queue, parent, child, policy, value = parts
        kind = policy if policy in (b"fp", b"id") else b""
    else:
        parts = entry.split(b"\0", 3)
        if len(parts) != 4:
            return None
        queue, parent, child, value = parts
        kind = b"done"
    try:
        name = check_queue(queue.decode())
        ids = [check_id(each.decode(), "JOB").encode() for each in (parent, child)]
    except (EchoMQError, UnicodeDecodeError):
        return None
    return (name, (ids[0], kind, ids[1], value)) if kind else None
