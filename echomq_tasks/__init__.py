"""Background jobs and caching on Valkey: actors, queues, events, cached functions and a Dramatiq broker."""

from __future__ import annotations

from echomq_tasks.actor import actor
from echomq_tasks.brokers.dramatiq import flow
from echomq_tasks.bus import Bus
from echomq_tasks.caching import cached
from echomq_tasks.connection import Connection, connect
from echomq_tasks.current import current_job
from echomq_tasks.errors import EchoMQError, JobCancelled
from echomq_tasks.queue import NewJob, Queue
from echomq_tasks.worker import Worker

__all__ = [
    "Bus",
    "Connection",
    "EchoMQError",
    "JobCancelled",
    "NewJob",
    "Queue",
    "Worker",
    "__version__",
    "actor",
    "cached",
    "connect",
    "current_job",
    "flow",
]

__version__ = "0.1.0"
