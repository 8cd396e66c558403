"""Processes of a queue, and what they use up."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Any

from harness.environments import BENCHMARKS

#: Seconds that an order may take.
PATIENCE = 600
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class PeerDied(Exception):
    """A process of a queue ended, with the last that it printed."""


class PeerProcess:
    """One process of a queue: a client that takes orders, or a worker that waits for the word."""

    def __init__(self, python: Path, **place: Any) -> None:
        self._errors: IO[str] = tempfile.TemporaryFile("w+")
        environment = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(_paths(place["peer"]))}
        self._process = subprocess.Popen(
            [str(python), str(BENCHMARKS / "peer.py"), json.dumps(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def answer(self) -> dict[str, Any]:
        """The next line that it says."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait(10)
            raise PeerDied(self.last_words())
        found: dict[str, Any] = json.loads(line)
        return found

    def order(self, **order: Any) -> dict[str, Any]:
        """Have a client do something, and wait until it has."""
        self.tell(order)
        return self.answer()

    def tell(self, order: Any) -> None:
        """Say something, and wait for nothing."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerDied(self.last_words()) from None

    def check(self) -> None:
        """Raise :class:`PeerDied` when it has ended."""
        if self._process.poll() is not None:
            raise PeerDied(self.last_words())

    def last_words(self) -> str:
        """The end of what it printed."""
        self._errors.seek(0)
        lines = [line for line in self._errors.read().splitlines() if line.strip()]
        return " / ".join(lines[-3:])[-500:] or f"it ended with {self._process.returncode}"

    def close(self) -> None:
        """End it: it does so by itself once its input is closed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()


def about(python: Path, peer: str) -> dict[str, Any]:
    """What the adapter tells about its queue; raises PeerDied when it cannot be imported."""
    with PeerProcess(python, peer=peer, role="about") as process:
        return process.answer()


def cpu(pid: int) -> float:
    """Seconds of CPU that a process and all its children have used."""
    return sum(_ticks(found) for found in _family(pid)) / _TICK


def status(pid: int) -> dict[str, float]:
    """The MiB of memory and the threads that a process has now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return {"RSS MiB": pages * _PAGE / 2**20, "threads": float(len(os.listdir(f"/proc/{pid}/task")))}


def _family(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        try:
            for task in os.listdir(f"/proc/{parent}/task"):
                found.extend(int(child) for child in Path(f"/proc/{parent}/task/{task}/children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    # utime, stime, and those of the children that have ended.
    return sum(int(value) for value in fields[11:15])


def _paths(peer: str) -> list[str]:
    # Ours may be run from a checkout that nobody installed.
    return [str(BENCHMARKS.parent)] if peer == "echomq" else []
