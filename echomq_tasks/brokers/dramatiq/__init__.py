"""The Dramatiq adapter: swap the broker of an existing app and run it on the emq: wire."""

from __future__ import annotations

from echomq_tasks.brokers.dramatiq.batch_actor import BatchActor
from echomq_tasks.brokers.dramatiq.broker import EchoMQBroker
from echomq_tasks.brokers.dramatiq.consumer import EchoMQConsumer
from echomq_tasks.brokers.dramatiq.delivery import Delivery, job_id
from echomq_tasks.brokers.dramatiq.flows import flow, run_flows
from echomq_tasks.brokers.dramatiq.job_actor import JobActor
from echomq_tasks.brokers.dramatiq.sent import SentMessage

__all__ = [
    "BatchActor",
    "Delivery",
    "EchoMQBroker",
    "EchoMQConsumer",
    "JobActor",
    "SentMessage",
    "flow",
    "job_id",
    "run_flows",
]
