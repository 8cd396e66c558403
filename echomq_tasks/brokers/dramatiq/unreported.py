"""The end of a run that lost its lease: its thread is cleaned up after, and its outcome is told to nobody."""

from __future__ import annotations

from typing import Any

from dramatiq import Broker
from dramatiq import middleware as stock
from dramatiq.results import Results

#: Middleware whose after_process_message tells the world how a run ended: that is for the job's other run to tell.
_REPORTERS = (Results, stock.Callbacks, stock.Pipelines, stock.GroupCallbacks, stock.Retries)


def emit_unreported(broker: Broker, *args: Any, **kwargs: Any) -> None:
    """Call the after_process_message hooks of all middleware but those that report."""
    for middleware in reversed([each for each in broker.middleware if not isinstance(each, _REPORTERS)]):
        try:
            middleware.after_process_message(broker, *args, **kwargs)
        except Exception:
            broker.logger.critical("Unexpected failure in after_process_message of %r.", middleware, exc_info=True)
