"""The raw keys of a queue, on every engine."""

from __future__ import annotations

import pytest
from wire.handwriting import Wire

from echomq_tasks.connection import Connection


@pytest.fixture
def wire(connection: Connection, queue_name: str) -> Wire:
    """The raw keys of the queue under test."""
    return Wire(connection, queue_name)
