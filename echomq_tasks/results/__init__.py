"""Results of actors on the emq: wire, for Dramatiq's ``Results`` middleware: whoever waits is woken, nobody polls."""

from __future__ import annotations

from echomq_tasks.results.backend import EchoMQBackend
from echomq_tasks.results.ids import result_id

__all__ = ["EchoMQBackend", "result_id"]
