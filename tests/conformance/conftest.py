"""A queue on every engine, and its raw keys."""

from __future__ import annotations

import pytest
from conformance.families import Family
from conformance.scenarios import ByHand, ByVerbs, Start
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


@pytest.fixture(params=[ByHand, ByVerbs], ids=["raw", "api"])
def start(request: pytest.FixtureRequest, queue: Queue, wire: Wire) -> Start:
    """Where a scenario begins, once written with plain commands and once with our verbs."""
    begin: Start = request.param(queue, wire)
    return begin


@pytest.fixture(params=[True, False], ids=["raw", "api"])
def family(request: pytest.FixtureRequest, queue: Queue, wire: Wire, connection: Connection) -> Family:
    """Flows in this queue and in another one, laid out with plain commands and with our verb."""
    name = f"{queue.name}.parents"  # in a cluster, of another slot
    return Family(request.param, queue, wire, Queue(name, connection), Wire(connection, name))
