"""Middleware, one hook class per file."""

from __future__ import annotations

from echomq_tasks.middleware.lifecycle import Lifecycle
from echomq_tasks.middleware.retries import Retries

__all__ = ["Lifecycle", "Retries"]
