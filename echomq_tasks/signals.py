"""Lifecycle events as blinker signals, for whoever listens in the same process.

Each is sent by the process in which it becomes known: ``enqueued`` where a message is sent, ``completed`` where the
worker settles the job. The sender is the :class:`~dramatiq.Actor`; None where it is not known, as for a job that is
removed by its id; the worker for ``worker_started`` and its like. A receiver is called as
``receiver(sender, event=...)`` with an :class:`~echomq_tasks.events.Event`, in the thread to which it happens, and
should be quick. Without receivers a signal costs one look at an empty dict.

Signals of one job come from the threads that learn of it: with a backoff of almost nothing, another thread may tell of
its next ``started`` before the first has told of ``retried``. A completion that had to be sent again because its answer
was lost is not told: that the job is gone by then does not say who completed it.

Of the cache are ``cache_hit``, ``cache_miss`` and ``cache_load``, with a :class:`~echomq_tasks.events.CacheEvent` and
the cached function as the sender. Without receivers of ``cache_hit`` a hit costs nothing for it; with one, each hit
takes a longer way.
"""

from __future__ import annotations

import inspect
import logging
from asyncio import CancelledError
from typing import Any

from blinker import NamedSignal, Namespace

from echomq_tasks.events import CACHE_EVENTS, EVENTS, CacheEvent, Event

_log = logging.getLogger(__name__)

#: The signals by name.
namespace = Namespace()

enqueued = namespace.signal("enqueued")
scheduled = namespace.signal("scheduled")
started = namespace.signal("started")
progress = namespace.signal("progress")
completed = namespace.signal("completed")
retried = namespace.signal("retried")
failed = namespace.signal("failed")
stalled = namespace.signal("stalled")
cancelled = namespace.signal("cancelled")
removed = namespace.signal("removed")
lease_lost = namespace.signal("lease_lost")
worker_started = namespace.signal("worker_started")
worker_stopping = namespace.signal("worker_stopping")
worker_stopped = namespace.signal("worker_stopped")
paused = namespace.signal("paused")
resumed = namespace.signal("resumed")
drained = namespace.signal("drained")
cache_hit = namespace.signal("cache_hit")
cache_miss = namespace.signal("cache_miss")
cache_load = namespace.signal("cache_load")

__all__ = [*sorted((*EVENTS, *CACHE_EVENTS)), "namespace"]


def send(signal: NamedSignal, sender: Any, event: Event | CacheEvent) -> None:
    """Call the receivers of a signal; one that raises is logged, and the others are called all the same."""
    if signal.is_muted:
        return
    for receiver in list(signal.receivers_for(sender)):
        try:
            answer = receiver(sender, event=event)
            if inspect.iscoroutine(answer):
                answer.close()
                raise TypeError("a receiver is a plain function: for an async one use bus.on()")
        except (Exception, CancelledError, SystemExit, GeneratorExit):
            # The last three are no errors of the job either, and would end the worker's thread without a word.
            _log.exception("A receiver of the signal %r failed: %r", signal.name, receiver)
