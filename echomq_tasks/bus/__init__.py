"""The Bus: what happened, live to whoever listens, and kept in logs for whoever comes later (wire §8)."""

from __future__ import annotations

from echomq_tasks.bus.asubscription import AsyncSubscription
from echomq_tasks.bus.bus import Bus
from echomq_tasks.bus.consumer import Consumer
from echomq_tasks.bus.delivery import Delivery
from echomq_tasks.bus.gap import Gap
from echomq_tasks.bus.groups import GroupInfo
from echomq_tasks.bus.handlers import buses_with_handlers
from echomq_tasks.bus.log import Log
from echomq_tasks.bus.records import Codec, JsonCodec, Record
from echomq_tasks.bus.retention import Retention, keep_retention
from echomq_tasks.bus.runner import Runner
from echomq_tasks.bus.subscription import Subscription
from echomq_tasks.bus.tail import AsyncTail, Tail
from echomq_tasks.events import Event

__all__ = [
    "AsyncSubscription",
    "AsyncTail",
    "Bus",
    "Codec",
    "Consumer",
    "Delivery",
    "Event",
    "Gap",
    "GroupInfo",
    "JsonCodec",
    "Log",
    "Record",
    "Retention",
    "Runner",
    "Subscription",
    "Tail",
    "buses_with_handlers",
    "keep_retention",
]
