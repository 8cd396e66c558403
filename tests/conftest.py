"""Shared fixtures: real servers, a connection per engine, and an environment that cannot leak in or out."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from chaos.crew import App, Record, hiring
from hypothesis import settings
from support.clusters import ClusterProcess
from support.proxy import DroppingProxy
from support.servers import ServerProcess

if TYPE_CHECKING:
    from echomq_tasks.connection import Connection


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """A test that logs or shows text which is no Unicode must not end the worker process that reports on it."""
    return _encodable((yield))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {key: _encodable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_encodable, value))
    return value


# An example that a busy machine holds up is no failure.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(scope="session", autouse=True)
def _sealed_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No variable of the caller chooses a server, and no test writes to the user's data directory."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("EMQ_")]:
            patch.delenv(name)
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data-home")))
        yield


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The server most tests share: never kill, pause or configure it, take ``own_server`` for that."""
    with ServerProcess(tmp_path_factory.mktemp("server")) as process:
        yield process


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """The cluster of three masters that the tests share; a test that asks for it is marked ``cluster``."""
    with ClusterProcess(tmp_path_factory.mktemp("cluster")) as process:
        yield process


@pytest.fixture
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A private server that keeps every write (append-only file), for tests that kill, pause or configure it."""
    with ServerProcess(tmp_path_factory.mktemp("own-server"), appendonly=True) as process:
        yield process


@pytest.fixture(params=["resp2", "resp3", pytest.param("cluster", marks=pytest.mark.cluster)])
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A connection to an empty server, once per engine: RESP2, RESP3, and a cluster."""
    engine: str = request.param
    target: ServerProcess | ClusterProcess = request.getfixturevalue("cluster" if engine == "cluster" else "server")
    target.flush()
    with _connect(target.url, protocol=3 if engine == "resp3" else 2) as opened:
        yield opened


@pytest.fixture
def standalone(server: ServerProcess) -> Iterator[Connection]:
    """A RESP2 connection to the shared server, emptied, for tests where the engine does not matter."""
    server.flush()
    with _connect(server.url, protocol=2) as opened:
        yield opened


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[DroppingProxy]:
    """A proxy with faults in front of the shared server, emptied."""
    server.flush()
    with DroppingProxy(server.port) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _same_server() -> Iterator[None]:
    """Forget the server that a command, run in this process, was given: it is set for processes that it starts."""
    before = os.environ.get("EMQ_URL")
    yield
    if before is None:
        os.environ.pop("EMQ_URL", None)
    else:
        os.environ["EMQ_URL"] = before


@pytest.fixture
def queue_name() -> str:
    """A queue name no other test uses."""
    return f"q-{secrets.token_hex(4)}"


def _connect(url: str, *, protocol: int) -> Connection:
    # Imported here, so that the tests of the harness itself do not depend on the package.
    from echomq_tasks.connection import connect

    return connect(url, protocol=protocol)


@pytest.fixture
def record() -> Record:
    """What ran."""
    return Record()


@pytest.fixture
def worker_kind() -> str:
    """Which worker runs jobs; a test that holds for both is run twice (:func:`support.workers.choose`)."""
    return "dramatiq"


@pytest.fixture
def make_app(queue_name: str, worker_kind: str) -> Iterator[Callable[..., App]]:
    """Make an app on a server: ``make_app(url, body, **options of the broker)``."""
    with hiring(queue_name, worker_kind) as make:
        yield make


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Jobs wait here; open at the end, whatever happened."""
    event = threading.Event()
    yield event
    event.set()
