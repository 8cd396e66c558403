"""Which hooks may be called on an event loop: those of which it is known that they wait for nothing."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from dramatiq import Actor, Middleware
from dramatiq import middleware as stock
from dramatiq.results import Results

from echomq_tasks import signals
from echomq_tasks.brokers.dramatiq.batches import Batch
from echomq_tasks.brokers.dramatiq.delivery import Delivery
from echomq_tasks.middleware import Lifecycle, Retries
from echomq_tasks.worker.recycling import JobCount

if TYPE_CHECKING:
    from echomq_tasks.brokers.dramatiq.broker import EchoMQBroker

#: These wait for nothing, unless one of ``_SENDS`` or ``_STORES`` is set for the message. Of a class derived from one
#: of them nobody knows.
_KNOWN = (
    stock.AgeLimit,
    stock.AsyncIO,
    stock.Callbacks,
    stock.CurrentMessage,
    stock.GroupCallbacks,
    stock.Pipelines,
    stock.Retries,
    stock.ShutdownNotifications,
    stock.TimeLimit,
    JobCount,
    Lifecycle,
    Results,
    Retries,
)
#: Options with which something is sent when a message has succeeded.
_SENDS = ("pipe_target", "on_success", "group_completion_uuid")
_AFTER = ("after_process_message", "before_ack")


class Quick:
    """Tells whether the hooks of a message may be called where nothing may wait.

    Parameters:
      broker: whose hooks.
    """

    def __init__(self, broker: EchoMQBroker) -> None:
        self._broker = broker
        # Replaced as one, because threads look at all of it.
        self._seen: tuple[list[Middleware], bool, bool, list[Results]] = ([], True, True, [])

    def before(self, message: Delivery | Batch) -> bool:
        """Whether those that come before the function are all quick."""
        # The hooks of a batch are called for each of its members.
        return type(message) is Delivery and self._look()[1] and not signals.started.receivers

    def after(self, message: Delivery | Batch, actor: Actor[..., Any]) -> bool:
        """Whether those that come after a function that has returned are all quick."""
        if type(message) is not Delivery or message.failed or message.lost:
            return False
        if time.monotonic() >= message.held_until:
            # The server would be asked whose job it is.
            return False
        _, _, quick, results = self._look()
        if not quick:
            return False
        options, defaults = message.options, actor.options
        for name in _SENDS:
            if options.get(name) or defaults.get(name):
                return False
        for each in results:
            if options.get("store_results", defaults.get("store_results", each.store_results)):
                return False
        return True

    def _look(self) -> tuple[list[Middleware], bool, bool, list[Results]]:
        seen = self._seen
        if seen[0] != self._broker.middleware:
            middleware = self._broker.middleware.copy()
            seen = self._seen = (
                middleware,
                all(map(self._is_known, self._broker.hooking("before_process_message"))),
                all(map(self._is_known, (each for hook in _AFTER for each in self._broker.hooking(hook)))),
                [each for each in middleware if isinstance(each, Results)],
            )
        return seen

    def _is_known(self, middleware: Middleware) -> bool:
        # Importing Prometheus makes a directory for its figures.
        prometheus = sys.modules.get("dramatiq.middleware.prometheus")
        known = type(middleware)
        return known in _KNOWN or (prometheus is not None and known is prometheus.Prometheus)
