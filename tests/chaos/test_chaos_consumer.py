"""Consumers die without a word in the middle of their work: every entry is handled, and doubles are explained."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chaos.crew import PATIENCE, ROOT, TESTS
from support.eventually import eventually
from support.servers import ServerProcess

from echomq_tasks.bus import Log
from echomq_tasks.connection import connect

pytestmark = pytest.mark.chaos

ENTRIES, KILLS = 20_000, 5
#: Seconds. Long enough that a busy machine does not make a living consumer look dead.
MIN_IDLE = 2.0
#: More than what a consumer reads at once, and what it has finished and not told yet, can hardly be.
MOST_IN_HAND = 1500


class Listeners:
    """Consumer processes; those that are left are killed at the end."""

    def __init__(self, url: str, queue: str, folder: Path) -> None:
        self._environ = {
            **os.environ,
            "EMQ_URL": url,
            "CHAOS_QUEUE": queue,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(TESTS)]),
        }
        self._folder = folder
        self.started: list[subprocess.Popen[bytes]] = []

    def hire(self) -> subprocess.Popen[bytes]:
        """A process that is ready, and waits for :meth:`go`."""
        path = self._folder / str(len(self.started))
        process = subprocess.Popen(
            [sys.executable, "-m", "chaos.listener", str(path), str(MIN_IDLE)],
            env=self._environ, stdin=subprocess.PIPE, cwd=TESTS, start_new_session=True,
        )  # fmt: skip
        self.started.append(process)
        return process

    @staticmethod
    def go(process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()

    def handled(self, process: subprocess.Popen[bytes]) -> list[int]:
        """What a process has noted, in order."""
        path = self._folder / str(self.started.index(process))
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()


@pytest.fixture
def listeners(server: ServerProcess, queue_name: str, tmp_path: Path) -> Iterator[Listeners]:
    server.flush()
    crew = Listeners(server.url, queue_name, tmp_path)
    yield crew
    crew.close()


@pytest.mark.slow
def test_consumers_that_are_killed_lose_nothing_and_explain_every_double(
    listeners: Listeners, server: ServerProcess, queue_name: str
) -> None:
    chance = random.Random(20261129)
    peers = [listeners.hire(), listeners.hire()]
    victims = [listeners.hire() for _ in range(KILLS)]
    with connect(server.url) as connection:
        log = Log(queue_name, "audit", connection)
        log.append_many([{"n": str(number)} for number in range(ENTRIES)])
        for process in peers:
            listeners.go(process)
        for victim in victims:
            listeners.go(victim)
            least = chance.randrange(1, 900)
            eventually(lambda victim=victim, least=least: len(listeners.handled(victim)) >= least, PATIENCE)
            victim.kill()
            victim.wait(PATIENCE)
        client: Any = connection.client

        def left() -> Any:
            (group,) = client.xinfo_groups(log.key)
            return group["lag"] or group["pending"]

        eventually(lambda: left() == 0, PATIENCE, "everything handled")
        for process in peers:
            process.communicate(timeout=PATIENCE)
            assert process.returncode == 0
        assert log.length() == ENTRIES
        assert not client.exists(log.key + b".dead")

    counts = Counter(number for process in listeners.started for number in listeners.handled(process))
    assert counts.keys() == set(range(ENTRIES))
    killed = set().union(*(listeners.handled(victim) for victim in victims))
    doubles = {number for number, count in counts.items() if count > 1}
    assert doubles, "the kills hit nobody at work"
    assert doubles <= killed
    # A kill explains what its process had in hand, once. Nobody handles an entry twice, and no two survivors one entry.
    assert sum(counts.values()) - ENTRIES <= KILLS * MOST_IN_HAND
    for process in listeners.started:
        handled = listeners.handled(process)
        assert len(set(handled)) == len(handled)
    first, second = peers
    assert not set(listeners.handled(first)) & set(listeners.handled(second))
