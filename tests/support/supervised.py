"""``echomq worker`` as a program: start it on an app, read its log, signal it, and have it end with the test."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import echomq_tasks
from echomq_tasks.queue import Queue
from support.eventually import eventually

ROOT = Path(echomq_tasks.__file__).parent.parent
#: Seconds within which a busy machine must have done anything that a test waits for.
PATIENCE = 30.0

#: An app whose actors tell by lines in a file what they do; ``VERSION`` is there to be replaced.
APP = """
import os
import time
from pathlib import Path

from echomq_tasks import actor

VERSION = 1
HERE = Path(os.environ["TEST_FOLDER"])
QUEUE = os.environ["TEST_QUEUE"]
kept = []


def write(*words):
    with open(HERE / "notes", "a") as file:
        file.write(" ".join(map(str, words)) + "\\n")


@actor(queue_name=QUEUE)
def note(word):
    write(word, VERSION, os.getpid())


@actor(queue_name=QUEUE, max_retries=0, time_limit=60_000)
def hold(word):
    write(word, "start", os.getpid())
    deadline = time.monotonic() + 30
    while not (HERE / f"{word}.gate").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    write(word, "end", os.getpid())


@actor(queue_name=QUEUE)
def fill(mebibytes):
    kept.append(b"x" * (mebibytes << 20))
    write("filled", os.getpid())
"""


class Supervised:
    """The command in a session of its own.

    Parameters:
      folder: where the app, its notes and the log are.
      url: the server.
      queue: the queue of its actors.
    """

    def __init__(self, folder: Path, url: str, queue: Queue) -> None:
        self.folder = folder
        self.queue = queue
        #: Of the server.
        self.port = int(url.rsplit(":", 1)[1].partition("/")[0])
        self._groups: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._environ = {
            **os.environ,
            "EMQ_URL": url,
            "TEST_FOLDER": str(folder),
            "TEST_QUEUE": queue.name,
            # A module rewritten within one second must not be taken from its bytecode.
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        self.write("app.py", APP)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The main process."""
        assert self._process is not None
        return self._process

    def write(self, name: str, text: str) -> None:
        """Write a file of the app."""
        (self.folder / name).write_text(text)

    def start(self, *arguments: str, terminal: int = subprocess.DEVNULL) -> None:
        """Start ``echomq worker ARGUMENTS`` in the folder, its standard input a terminal if there is one."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "echomq_tasks", "worker", *arguments],
                cwd=self.folder,
                env=self._environ,
                stdin=terminal,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._groups.append(self._process.pid)

    def boot(self, *arguments: str, terminal: int = subprocess.DEVNULL) -> list[int]:
        """Start it and wait until it works; answers the ids of its processes."""
        self.start(*arguments, terminal=terminal)
        return numbers(self.said(r"works on .* \(PIDs? ([\d, ]+)\)")[1])

    @property
    def log(self) -> str:
        """All that it has printed and logged."""
        return (self.folder / "log").read_text()

    def said(self, pattern: str) -> re.Match[str]:
        """Wait until the log has this."""
        return eventually(lambda: re.search(pattern, self.log, re.MULTILINE), PATIENCE, f"{pattern!r} in\n{self.log}")

    def send(self, actor: str, *arguments: Any) -> None:
        """Enqueue a message."""
        self.queue.enqueue(json.dumps({"actor_name": actor, "args": arguments}))

    def notes(self, *beginning: Any) -> list[list[str]]:
        """The words of each line that the actors have written which begins with these."""
        with contextlib.suppress(FileNotFoundError):
            lines = [line.split() for line in (self.folder / "notes").read_text().splitlines()]
            return [line for line in lines if line[: len(beginning)] == [str(each) for each in beginning]]
        return []

    def noted(self, *beginning: Any) -> list[str]:
        """Wait for a line that begins with these words; the last of such lines."""
        return eventually(lambda: self.notes(*beginning), PATIENCE, f"{beginning} is noted; the log:\n{self.log}")[-1]

    def open(self, word: str) -> None:
        """Let a job that holds finish."""
        (self.folder / f"{word}.gate").touch()

    def wait(self) -> int:
        """Wait until the main process has ended; answers its exit code."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.log}") from None

    def stop(self) -> int:
        """End it by SIGTERM; answers its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def forget(self) -> None:
        """Begin the log anew."""
        (self.folder / "log").unlink()

    def close(self) -> None:
        """End whatever is left of it."""
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError):
                # A session holds the processes that were started in it, and nothing else.
                os.killpg(group, signal.SIGKILL)
        if self._process is not None:
            self._process.wait(10)


def numbers(text: str) -> list[int]:
    """The whole numbers in a text."""
    return [int(each) for each in re.findall(r"\d+", text)]


def is_there(pid: int) -> bool:
    """Whether a process is there, and not only waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
