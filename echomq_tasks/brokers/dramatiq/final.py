"""The end of a run that allows no retry: its hooks are told, and retry middleware is kept from trying again."""

from __future__ import annotations

from typing import Any

from dramatiq import Broker
from dramatiq import middleware as stock

from echomq_tasks.brokers.dramatiq.delivery import Delivery


def emit_final(broker: Broker, delivery: Delivery, *, exception: BaseException, **kwargs: Any) -> None:
    """Call all after_process_message hooks; to Dramatiq's Retries, the exception is one that the actor ``throws``."""
    for middleware in reversed(broker.middleware):
        if isinstance(middleware, stock.Retries):
            delivery.excuse(exception)
        try:
            middleware.after_process_message(broker, delivery, exception=exception, **kwargs)
        except Exception:
            broker.logger.critical("Unexpected failure in after_process_message of %r.", middleware, exc_info=True)
        finally:
            delivery.accuse()
