"""The command against a server of each kind, a queue that it is used on, and the raw keys of both."""

from __future__ import annotations

import pytest
from support.servers import ServerProcess
from support.shell import Shell
from wire.handwriting import Wire

from echomq_tasks.connection import Connection
from echomq_tasks.queue import Queue


@pytest.fixture
def url(connection: Connection, request: pytest.FixtureRequest) -> str:
    """Where ``connection`` leads."""
    return str(request.getfixturevalue("cluster" if connection.is_cluster else "server").url)


@pytest.fixture
def queue(connection: Connection, queue_name: str) -> Queue:
    """The queue under test."""
    return Queue(queue_name, connection)


@pytest.fixture
def wire(connection: Connection, queue_name: str) -> Wire:
    """The raw keys of the queue under test."""
    return Wire(connection, queue_name)


@pytest.fixture
def echomq(url: str, capsys: pytest.CaptureFixture[str]) -> Shell:
    """The command."""
    return Shell(url, capsys)


@pytest.fixture
def shell(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> Shell:
    """The command against the server of ``standalone``."""
    return Shell(server.url, capsys)
