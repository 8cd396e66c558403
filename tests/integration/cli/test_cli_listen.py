"""``echomq listen``: runs what modules register, says what that is, and ends as a signal says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.eventually import eventually
from support.servers import ServerProcess
from support.shell import Said, Shell

from echomq_tasks.bus import Bus, Log
from echomq_tasks.connection import Connection, connect

ROOT = Path(__file__).parents[3]
PATIENCE = 40.0

APP = """
import time
from functools import partial
from pathlib import Path

from echomq_tasks.bus import Bus

bus = Bus()
here = Path(__file__).parent


def note(text):
    with (here / "seen").open("a") as file:
        file.write(text + "\\n")


@bus.on("greeted", "waved", queues=["mail"])
def greeted(event):
    note(f"{event.event} {event.more['who']}")


@bus.on("slow")
async def slow(event):
    note("slow began")
    while not (here / "gate").exists():
        time.sleep(0.01)
    note("slow ended")


@bus.consumer("mail", "orders", group="billing", start="head")
def bill(delivery):
    note("billed " + delivery.fields["order"])
"""


class Listening:
    """The command, running a module of its own directory."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        (folder / "shop.py").write_text(APP)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "echomq_tasks", "listen", "shop", "--path", str(folder), "--url", url],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def seen(self) -> list[str]:
        notes = self.folder / "seen"
        return notes.read_text().splitlines() if notes.exists() else []

    def ended(self) -> Said:
        out, _ = self.process.communicate(timeout=PATIENCE)
        return Said(self.process.returncode, out, "")


@pytest.fixture
def listening(server: ServerProcess, standalone: Connection, tmp_path: Path) -> Iterator[Listening]:
    command = Listening(tmp_path, server.url)
    yield command
    close(command)


def close(command: Listening) -> None:
    if command.process.poll() is None:
        command.process.kill()
    command.process.communicate()


def test_it_runs_all_that_is_registered_and_finishes_what_is_in_hand(
    listening: Listening, standalone: Connection
) -> None:
    bus = Bus(standalone)
    Log("mail", "orders", standalone).append_many([{"order": "1"}, {"order": "2"}])
    eventually(lambda: bus.publish("mail", "greeted", who="Ada") >= 2, PATIENCE)
    bus.publish("mail", "waved", who="Bob")
    bus.publish("other", "waved", who="nobody here")
    bus.publish("other", "slow")
    eventually(lambda: {"billed 1", "billed 2", "waved Bob", "slow began"} <= set(listening.seen()), PATIENCE)
    assert set(listening.seen()) == {"billed 1", "billed 2", "greeted Ada", "waved Bob", "slow began"}
    listening.process.send_signal(signal.SIGTERM)
    assert listening.process.stdout is not None
    shown = [listening.process.stdout.readline().rstrip() for _ in range(4)]
    assert shown == [
        f"on {standalone.config.address}:",
        "  shop.greeted: greeted, waved of mail",
        "  shop.slow: slow of all queues",
        "  shop.bill: group billing of the log mail/orders",
    ]
    assert "stopping as soon as what is in hand is finished" in listening.process.stdout.readline()
    assert "slow ended" not in listening.seen()
    (listening.folder / "gate").touch()
    ended = listening.ended()
    assert (ended.code, ended.out) == (0, "")
    assert listening.seen()[-1] == "slow ended"


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_it_at_once(listening: Listening, standalone: Connection, second: signal.Signals) -> None:
    eventually(lambda: Bus(standalone).publish("other", "slow") >= 1, PATIENCE)
    eventually(lambda: listening.seen() == ["slow began"], PATIENCE)
    listening.process.send_signal(signal.SIGINT)
    assert listening.process.stdout is not None
    eventually(lambda: "stopping" in listening.process.stdout.readline(), PATIENCE)
    listening.process.send_signal(second)
    ended = listening.ended()
    assert ended.code == 128 + second
    assert "Traceback" not in ended.out
    assert listening.seen() == ["slow began"]


def test_a_server_that_is_away_is_waited_for_and_one_that_restarts_is_found_again(
    own_server: ServerProcess, tmp_path: Path
) -> None:
    own_server.stop()
    command = Listening(tmp_path, own_server.url)
    try:
        assert command.process.stdout is not None
        assert "; waiting for it" in command.process.stdout.readline()
        for who in ("Ada", "Bob"):
            own_server.restart()
            with connect(own_server.url) as connection:
                eventually(lambda who=who: Bus(connection).publish("mail", "greeted", who=who) >= 2, PATIENCE)
                Log("mail", "orders", connection).append({"order": who})
                eventually(lambda who=who: {f"greeted {who}", f"billed {who}"} <= set(command.seen()), PATIENCE)
        command.process.send_signal(signal.SIGINT)
        ended = command.ended()
        assert ended.code == 0
        assert "Traceback" not in ended.out
    finally:
        close(command)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "echomq_tasks", "listen", *arguments, "--url", "valkey://127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_modules_with_nothing_registered_are_an_error_that_says_what_to_name(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from echomq_tasks.bus import Bus\nbus = Bus()\n")
    ended = run(tmp_path, "shop")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("echomq: nothing is registered in shop: ")
    assert len(ended.stderr.splitlines()) == 1


def test_a_module_that_fails_shows_its_own_traceback_alone(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import no_such_library\n")
    ended = run(tmp_path, "shop")
    assert ended.returncode == 2
    first, second, *_, error, last = ended.stderr.splitlines()
    assert first == "Traceback (most recent call last):"
    assert "shop.py" in second
    assert error == "ModuleNotFoundError: No module named 'no_such_library'"
    assert last == "echomq: the module 'shop' cannot be imported"


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("shpo", "did you mean 'shop'?"),
        ("shop.py", "write `shop`"),
        ("shop:bus", "write `shop`"),
        ("shop.handlers", "is 'shop.handlers' spelled as for import?"),
        ("json.nothing", "is 'json.nothing' spelled as for import?"),
    ],
)
def test_a_module_that_is_not_there_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, advice: str
) -> None:
    (tmp_path / "shop.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("EMQ_URL", "")
    said = Shell("valkey://127.0.0.1:1", capsys)("listen", name)
    sys.modules.pop("shop", None)
    assert (said.code, said.out) == (2, "")
    (line,) = said.err.splitlines()
    assert advice in line


def test_a_wrong_url_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    said = Shell("gopher://x", capsys)("listen", "json")
    assert (said.code, said.out) == (2, "")
    assert len(said.err.splitlines()) == 1
    assert "gopher" in said.err
