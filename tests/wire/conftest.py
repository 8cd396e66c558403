"""A queue on every engine, and its raw keys."""

from __future__ import annotations

import pytest
from wire.handwriting import Wire

from echomq_tasks.connection import Connection
from echomq_tasks.queue import Queue


@pytest.fixture
def queue(connection: Connection, queue_name: str) -> Queue:
    """The queue under test."""
    return Queue(queue_name, connection)


@pytest.fixture
def wire(connection: Connection, queue_name: str) -> Wire:
    """The raw keys of the same queue."""
    return Wire(connection, queue_name)
