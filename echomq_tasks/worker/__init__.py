"""The worker: claims what it has room for, runs it in threads, and settles what is done."""

from __future__ import annotations

from echomq_tasks.worker.worker import Worker

__all__ = ["Worker"]
