"""Reaching the server: one factory for every topology, the version fence, the server floor, the embedded server."""

from __future__ import annotations

from echomq_tasks.connection.client import Connection, connect
from echomq_tasks.connection.fence import Server

__all__ = ["Connection", "Server", "connect"]
