"""The shared fixtures hand out what they promise."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.proxy import DroppingProxy
from support.servers import ServerProcess

if TYPE_CHECKING:
    from echomq_tasks.connection import Connection


def test_no_variable_of_the_caller_chooses_a_server_or_the_data_directory(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    # A private embedded server that some test started earlier announces itself in the second one.
    assert [name for name in os.environ if name.startswith("EMQ_")] in ([], ["EMQ_PRIVATE_SERVER"])
    assert Path(os.environ["XDG_DATA_HOME"]).is_relative_to(tmp_path_factory.getbasetemp())


@pytest.mark.parametrize("round_", [1, 2])
def test_every_engine_starts_empty(connection: Connection, queue_name: str, round_: int) -> None:
    key = f"{{{queue_name}}}:k"
    assert connection.client.set("left-behind", round_, nx=True)
    assert connection.client.set(key, b"v")
    assert connection.client.get(key) == b"v"


def test_the_engines_are_what_their_names_say(request: pytest.FixtureRequest, connection: Connection) -> None:
    engine = request.node.callspec.params["connection"]
    assert connection.is_cluster is (engine == "cluster")
    if engine != "cluster":
        assert connection.client.client_info()["resp"] == {"resp2": "2", "resp3": "3"}[engine]


def test_standalone_proxy_and_server_are_one_server(
    standalone: Connection, proxy: DroppingProxy, server: ServerProcess
) -> None:
    standalone.client.set("k", b"v")
    assert server.client().get("k") == b"v"
    assert proxy.url.startswith("valkey://127.0.0.1:")


def test_queue_names_fit_the_wire(queue_name: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,128}", queue_name)
