"""The Dramatiq adapter: swap the broker of an existing app and run it on the emq: wire."""

from __future__ import annotations

from echomq_tasks.brokers.dramatiq.broker import EchoMQBroker
from echomq_tasks.brokers.dramatiq.consumer import EchoMQConsumer
from echomq_tasks.brokers.dramatiq.delivery import Delivery, job_id

__all__ = ["Delivery", "EchoMQBroker", "EchoMQConsumer", "job_id"]
