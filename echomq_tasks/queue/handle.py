"""What every part of the queue object stands on: the name, the connection, and the scripts on one key prefix."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from redis.cluster import RedisCluster

from echomq_tasks import signals
from echomq_tasks.connection import Connection, connect
from echomq_tasks.connection.failures import typed_errors
from echomq_tasks.events import Announcing, Event, event_text
from echomq_tasks.keyspace import check_queue, queue_key
from echomq_tasks.scripts import Scripts
from echomq_tasks.scripts.callers import Callers


class Handle:
    """A queue's name on a connection; :class:`~echomq_tasks.queue.Queue` is made of parts that share one.

    Parameters:
      name: 1 to 128 of ``A-Z a-z 0-9 . _ -``, not ``emq``.
      connection: the server; :func:`echomq_tasks.connect` without arguments by default.
      announcing: what its transitions announce on the Bus; what a hand does to it by default.

    Raises:
      InvalidName: when the wire does not allow the name.
    """

    def __init__(
        self, name: str, connection: Connection | None = None, *, announcing: Announcing | None = None
    ) -> None:
        self.name = check_queue(name)
        self.connection = connection if connection is not None else connect()
        self.scripts = Scripts.of(self.connection)
        #: The prefix of all of its keys, ``emq:{name}:``: the one key that its scripts declare.
        self.base = queue_key(name)
        self.announcing = announcing if announcing is not None else Announcing()
        self._callers = Callers()

    def __repr__(self) -> str:
        return f"Queue({self.name!r}, {self.connection!r})"

    def run(self, script: str, *args: bytes | str | int, texts: Sequence[str] = (), repeat: bool = True) -> Any:
        """Run one script on this queue.

        Parameters:
          script: its name.
          *args: its arguments.
          texts: what it is to announce of them, see :meth:`event_args`.
          repeat: whether it may be sent again when the connection drops.
        """
        return self.scripts.call(script, self.base, args, self.event_args(texts), repeat=repeat)

    def run_once(self, script: str, *args: bytes | str | int, texts: Sequence[str] = ()) -> Any:
        """As :meth:`run`, of a script that keeps its answer: sent again after a lost reply, it is answered the same."""
        caller = self._callers.take()
        reply = self.run(script, caller.id, caller.nonce(), *args, texts=texts)
        # Given back only now: under the id of a call that was not answered, the next one would be taken for it.
        caller.answered()
        self._callers.give(caller)
        return reply

    def event_args(self, texts: Sequence[str] = ()) -> tuple[bytes | str | int, ...]:
        """What a script call of this queue is to announce; ``texts`` has one of :func:`event_text` for each entry."""
        return self.announcing.arguments(self.scripts.mint, texts)

    def publish_event(self, event: str, job_id: str = "", *, about: Mapping[str, str]) -> None:
        """Announce what no transition tells, if it is wanted.

        Parameters:
          event: its name.
          job_id: the job that it is about, if any.
          about: more fields; see :class:`echomq_tasks.events.Event`.

        Raises:
          ServerError: when the server could not be told.
        """
        if self.announcing.announces:
            rest = {name: value for name, value in about.items() if name != "actor"}
            self.run_once("event_send", event, job_id, event_text(about.get("actor"), rest))

    def send_signal(self, event: str, job_id: str | None = None, **more: str) -> None:
        """Send the signal of what a hand has done here, to the queue or to one job, whose actor is not known."""
        signal = signals.namespace[event]
        if signal.receivers:
            signals.send(signal, None, Event(event, self.name, job=job_id, at=time.time(), more=more))

    def key_suffixes(self, pattern: bytes = b"*") -> Iterator[bytes]:
        """What stands behind the base in the names of the queue's keys, found by a scan, which may name one twice.

        Parameters:
          pattern: only suffixes that match, as SCAN matches.

        Raises:
          ServerError: when the server cannot be asked.
        """
        client: Any = self.connection.client
        # A queue is one slot, so one node of a cluster has all of it.
        cluster = isinstance(client, RedisCluster)
        where = {"target_nodes": client.get_node_from_key(self.base.decode())} if cluster else {}
        with typed_errors(self.connection.config):
            # No queue name holds a character that is special to MATCH.
            for key in client.scan_iter(match=self.base + pattern, count=1000, **where):
                yield key.removeprefix(self.base)
