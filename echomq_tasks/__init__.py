"""Background jobs on Valkey: actors, queues and a Dramatiq broker on the emq: wire."""

from __future__ import annotations

from echomq_tasks.actor import actor
from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import EchoMQError
from echomq_tasks.queue import NewJob, Queue

__all__ = ["Connection", "EchoMQError", "NewJob", "Queue", "__version__", "actor", "connect"]

__version__ = "0.1.0"
