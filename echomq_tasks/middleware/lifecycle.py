"""Lifecycle events of jobs, workers and queues on the Bus."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from dramatiq import Actor, Broker, Middleware, Worker
from dramatiq.middleware import MiddlewareError

from echomq_tasks.bus import Log
from echomq_tasks.errors import ConfigError, EchoMQError, InvalidArgument, ServerUnavailable
from echomq_tasks.events import Announcing, chosen_events
from echomq_tasks.keyspace import stream_key
from echomq_tasks.scripts.arguments import seconds_to_ms, whole

_log = logging.getLogger(__name__)

#: In whose name the bounds of its log stand.
_OWNER = "lifecycle"
#: How many queues one log line names.
_MOST_NAMES = 5


class _WrongBroker(ConfigError, MiddlewareError):
    """Of a kind that Dramatiq lets out of a hook: it would log any other error, and go on."""


class Lifecycle(Middleware):
    """Announces what happens to jobs, workers and queues, in the same round trip as it happens.

    Examples:

      >>> from echomq_tasks.brokers.dramatiq import EchoMQBroker
      >>> broker = EchoMQBroker("valkey://127.0.0.1:6379/0")
      >>> broker.add_middleware(Lifecycle({"failed", "retried"}))

    An event is sent by the script of its transition, after its verdict: what is refused announces nothing. An actor may
    choose for itself, with ``events=`` of the same form.

    Parameters:
      events: ``"all"``, the names (:data:`echomq_tasks.events.EVENTS`), or None for none. Progress is announced live in
        any case, and without this middleware so is what a hand does to a queue or a job.
      log: also keep them in this log of each queue, for readers that come later (``bus.log(queue, log)``). From a
        worker's first boot on, so do all who name no log of their own: producers, ``echomq``, plain queues.
      maxlen: how many records that log keeps, about; None for any number. Bounds set with ``retain()`` win.
      older_than: seconds after which its records go; None keeps them.
      sharded: send live events by ``SPUBLISH``, which in a cluster reaches only the node of the queue instead of all.
        Other runtimes, and subscriptions by pattern, do not hear those.

    Raises:
      InvalidArgument, InvalidName: when an event or the log's name is wrong.
    """

    def __init__(
        self,
        events: Collection[str] | str | bool | None = "all",
        *,
        log: str | None = None,
        maxlen: int | None = 100_000,
        older_than: float | None = None,
        sharded: bool = False,
    ) -> None:
        self.events = chosen_events(events)
        if log is not None:
            stream_key("any", log)
        if maxlen is not None:
            whole(maxlen, "maxlen", 1)
        if older_than is not None and not seconds_to_ms(older_than, "older_than"):
            raise InvalidArgument("older_than is a number of seconds above 0, or None to keep its records")
        self.log = log
        self.maxlen = maxlen
        self.older_than = older_than
        self.sharded = sharded
        # The monotonic second at which the server began to be away, as far as it is known here.
        self._away_since: float | None = None

    @property
    def actor_options(self) -> set[str]:
        """``events``: an actor's own choice."""
        return {"events"}

    def configure(self, announcing: Announcing) -> None:
        """Make the choice hold for all queues that share ``announcing``; the broker calls it when it is added."""
        announcing.choose(self.events, log=self.log, sharded=self.sharded)

    def before_declare_actor(self, broker: Broker, actor: Actor[..., Any]) -> None:
        """Refuse a broker that would announce nothing."""
        _announcing(broker)

    def after_declare_actor(self, broker: Broker, actor: Actor[..., Any]) -> None:
        """Note an actor's own choice."""
        own = actor.options.get("events", "as the others")
        _announcing(broker).choose_for(actor.actor_name, None if own == "as the others" else chosen_events(own))

    def before_worker_boot(self, broker: Broker, worker: Worker) -> None:
        """Bound the log, and announce ``worker_started`` on each queue that it serves: before its first job starts."""
        _announcing(broker)
        if self.log is not None:
            prepare = partial(self._prepare, broker)
            self._for_each(_served(broker, worker), prepare, f"The log {self.log!r} is not prepared")
        self._tell(broker, worker, "worker_started")

    def before_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        """Announce ``worker_stopping``."""
        self._tell(broker, worker, "worker_stopping")

    def after_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        """Announce ``worker_stopped``."""
        self._tell(broker, worker, "worker_stopped")

    def _prepare(self, broker: Any, queue_name: str) -> None:
        log = Log(queue_name, str(self.log), broker.connection)
        if not log.retain_for(_OWNER, self.maxlen, older_than=self.older_than):
            _log.info("The log %r of queue %r keeps the bounds that retain() gave it.", self.log, queue_name)
        broker.queue(queue_name).keep_events(self.log)

    def _tell(self, broker: Any, worker: Worker, event: str) -> None:
        about = worker_fields(worker)

        def tell(queue_name: str) -> None:
            broker.queue(queue_name).publish_event(event, about=about)

        self._for_each(_served(broker, worker), tell, f"{event} is not announced")

    def _for_each(self, queue_names: Collection[str], do: Callable[[str], None], lament: str) -> None:
        """Do it for each queue; what fails for many of them, or again and again, is told once."""
        failures: dict[tuple[bool, str], list[str]] = {}
        for queue_name in queue_names:
            try:
                do(queue_name)
            except EchoMQError as error:
                failures.setdefault((isinstance(error, ServerUnavailable), str(error)), []).append(queue_name)
        for (away, reason), failed in failures.items():
            known = away and self._away_since is not None
            if away and self._away_since is None:
                self._away_since = time.monotonic()
            _log.log(logging.DEBUG if known else logging.WARNING, "%s on %s: %s", lament, _listed(failed), reason)
        if queue_names and self._away_since is not None and not any(away for away, _ in failures):
            _log.info("The events of workers are announced again, after %.1f s.", time.monotonic() - self._away_since)
            self._away_since = None


def _listed(queue_names: Sequence[str]) -> str:
    """The queues in words."""
    if len(queue_names) == 1:
        return f"queue {queue_names[0]!r}"
    more = ", ..." if len(queue_names) > _MOST_NAMES else ""
    return f"{len(queue_names)} queues ({', '.join(map(repr, queue_names[:_MOST_NAMES]))}{more})"


def worker_fields(worker: Worker) -> dict[str, str]:
    """What the events of a worker tell of it."""
    return {"worker": f"{socket.gethostname()}:{os.getpid()}", "threads": str(worker.worker_threads)}


def _served(broker: Broker, worker: Worker) -> list[str]:
    wanted = worker.consumer_whitelist
    return sorted(name for name in broker.get_declared_queues() if not wanted or name in wanted)


def _announcing(broker: Any) -> Announcing:
    announcing = getattr(broker, "announcing", None)
    if not isinstance(announcing, Announcing):
        raise _WrongBroker(
            f"Lifecycle announces what an EchoMQBroker does, not a {type(broker).__name__}: add it to an EchoMQBroker"
        )
    return announcing
