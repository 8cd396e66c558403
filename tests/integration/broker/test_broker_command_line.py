"""The ``dramatiq`` command and ``echomq worker`` on a module with this broker: two real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import dramatiq
import pytest
import redis
from support.eventually import eventually
from support.servers import ServerProcess

import echomq_tasks
from echomq_tasks.brokers.dramatiq import EchoMQBroker

APP = """
import os

import dramatiq
import redis

from echomq_tasks.brokers.dramatiq import EchoMQBroker

broker = EchoMQBroker()
dramatiq.set_broker(broker)
notes = redis.Redis(port=int(os.environ["NOTES_PORT"]))
VERSION = 1


@dramatiq.actor
def note():
    notes.rpush("notes", f"version {VERSION}")


@dramatiq.actor
def slow():
    notes.rpush("notes", "start")
    notes.blpop("gate", 20)
    notes.rpush("notes", "end")
"""

#: What pip makes of a console script's entry point; SIGHUP starts it again by its path.
SCRIPT = f"""#!{sys.executable}
import sys

from MODULE import main

sys.exit(main())
"""

pytestmark = pytest.mark.slow


@pytest.fixture(params=["dramatiq", "echomq", "python -m echomq_tasks"])
def command(
    request: pytest.FixtureRequest, tmp_path: Path, server: ServerProcess, broker: EchoMQBroker
) -> Iterator[subprocess.Popen[bytes]]:
    """The command with two processes of two threads on ``app.py`` in an empty directory."""
    (tmp_path / "app.py").write_text(APP)
    name: str = request.param
    if name.startswith("python"):
        program = [sys.executable, "-m", "echomq_tasks", "worker"]
    else:
        script = tmp_path / f"{name}-command"
        module = {"dramatiq": "dramatiq.cli", "echomq": "echomq_tasks.cli.main"}[name]
        script.write_text(SCRIPT.replace("MODULE", module))
        script.chmod(0o755)
        program = [str(script), *(["worker"] if name == "echomq" else [])]
    root = Path(echomq_tasks.__file__).parent.parent
    environment = {
        **os.environ,
        "EMQ_URL": server.url,
        "NOTES_PORT": str(server.port),
        # A module rewritten within one second must not be taken from its bytecode.
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
    }
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*program, "app", "--processes", "2", "--threads", "2"],
            cwd=tmp_path,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    yield process
    # Its session holds the processes that it forked, and nothing else.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


@pytest.fixture
def notes(server: ServerProcess, command: subprocess.Popen[bytes], tmp_path: Path) -> Callable[[], list[bytes]]:
    """What the actors noted so far."""
    client = redis.Redis(port=server.port)

    def read() -> list[bytes]:
        assert command.poll() is None, (tmp_path / "log").read_text()
        found: list[bytes] = client.lrange("notes", 0, -1)  # type: ignore[assignment]
        return found

    return read


def send(broker: EchoMQBroker, name: str, count: int = 1) -> None:
    for _ in range(count):
        broker.enqueue(dramatiq.Message("default", name, (), {}, {}))


def test_sigterm_finishes_what_runs_gives_the_rest_back_and_exits_with_0(
    broker: EchoMQBroker, command: subprocess.Popen[bytes], notes: Callable[[], list[bytes]], tmp_path: Path
) -> None:
    send(broker, "slow", 8)
    eventually(lambda: notes().count(b"start") == 4, timeout=30, message="both processes run two jobs each")
    command.send_signal(signal.SIGTERM)
    broker.client.rpush("gate", *range(8))
    assert command.wait(30) == 0, (tmp_path / "log").read_text()
    written: list[bytes] = broker.client.lrange("notes", 0, -1)  # type: ignore[assignment]
    ran = written.count(b"end")
    assert written.count(b"start") == ran >= 4
    counts = broker.queue("default").counts()
    assert (counts.completed, counts.pending, counts.active, counts.dead) == (ran, 8 - ran, 0, 0)
    for job in broker.queue("default").get_many(broker.queue("default").browse()):
        assert job is not None
        assert (job.failures, job.stalled) == (0, 0)


def test_sighup_loads_the_code_again(
    broker: EchoMQBroker, command: subprocess.Popen[bytes], notes: Callable[[], list[bytes]], tmp_path: Path
) -> None:
    def version() -> bytes:
        before = len(notes())
        send(broker, "note")
        eventually(lambda: len(notes()) > before, timeout=30, message="the job ran")
        return notes()[-1]

    assert version() == b"version 1"
    (tmp_path / "app.py").write_text(APP.replace("VERSION = 1", "VERSION = 2"))
    command.send_signal(signal.SIGHUP)
    eventually(lambda: version() == b"version 2", timeout=30, message="the new code runs")
    command.send_signal(signal.SIGTERM)
    assert command.wait(30) == 0, (tmp_path / "log").read_text()
    assert broker.queue("default").counts().unfinished == 0
