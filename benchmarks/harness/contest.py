"""What a measure is given: one variant of one queue, on one server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers.tally import Tally

from harness.processes import PeerDied, PeerProcess, cpu
from harness.servers import Server

Figures = dict[str, float]


@dataclass
class Scale:
    """How much is measured."""

    #: At most so many jobs a drain or an enqueue, and for about so many seconds.
    jobs: int = 20_000
    seconds: float = 1.0
    #: Jobs of the latency measure, and seconds of the idle one.
    pickups: int = 40
    idle: float = 12.0
    #: How many wait, in the growth measure.
    depths: tuple[int, ...] = (1_000, 10_000, 100_000)
    #: Jobs through one process, in the long measure.
    long: int = 100_000


@dataclass
class Contestant:
    """A variant of a queue, where it runs, and what went wrong with it."""

    peer: str
    variant: str
    python: Path
    about: dict[str, Any]
    server: Server
    tally: Tally
    tally_path: Path
    scale: Scale
    faults: list[str] = field(default_factory=list)
    #: How many measurements have come to nothing.
    failed: int = 0

    @property
    def name(self) -> str:
        return f"{self.peer} {self.variant}"

    @property
    def ours(self) -> bool:
        return self.peer == "echomq"

    def jobs(self, pace: str, seconds: float | None = None) -> int:
        """So many jobs as take it about the seconds of the scale."""
        wanted = int(self.about[pace] * (seconds or self.scale.seconds))
        return max(min(wanted, self.scale.jobs), 40)

    def fault(self, words: str) -> None:
        """Note something that must not be."""
        if words not in self.faults:
            self.faults.append(words)

    @contextmanager
    def client(self, *, two_queues: bool = False) -> Iterator[PeerProcess]:
        """A process that sends."""
        with self._process("client", 8, 0, two_queues) as process:
            yield process

    @contextmanager
    def workers(self, processes: int, concurrency: int, *, two_queues: bool = False) -> Iterator[Workers]:
        """Processes that work, ready to be told to go."""
        self.tally.clear()
        with ExitStack() as stack:
            contexts = [self._process("worker", concurrency, slot, two_queues) for slot in range(processes)]
            yield Workers(self, [stack.enter_context(context) for context in contexts])

    @contextmanager
    def _process(self, role: str, concurrency: int, slot: int, two_queues: bool) -> Iterator[PeerProcess]:
        place = {
            "url": self.server.url,
            "concurrency": concurrency,
            "tally": str(self.tally_path),
            "slot": slot,
            "two_queues": two_queues,
        }
        with PeerProcess(self.python, peer=self.peer, variant=self.variant, role=role, **place) as process:
            process.answer()
            yield process


class Workers:
    """Worker processes that were started together."""

    def __init__(self, contestant: Contestant, processes: list[PeerProcess]) -> None:
        self._contestant = contestant
        self.processes = processes

    def go(self) -> None:
        """Let them begin."""
        for process in self.processes:
            process.tell("go")

    def cpu(self) -> float:
        """Seconds of CPU that they have used."""
        return sum(cpu(process.pid) for process in self.processes)

    def ran(self) -> int:
        """How many jobs they have run."""
        return sum(self._contestant.tally.ran())

    def wait(self, until: Callable[[], bool], *, patience: float = 10) -> bool:
        """Look every millisecond; give up, and answer False, when for so many seconds no job was run."""
        ran, moved = self.ran(), time.monotonic()
        while not until():
            if ran != (now := self.ran()):
                ran, moved = now, time.monotonic()
            elif time.monotonic() - moved > patience:
                return False
            for process in self.processes:
                process.check()
            time.sleep(0.001)
        return True

    def finish(self, expected: int) -> None:
        """Wait until the server has nothing left, and note when another number of jobs was run than was sent."""
        contestant = self._contestant
        keys = contestant.about["left"]
        if not self.wait(lambda: contestant.server.left(keys) == 0):
            contestant.fault(f"left {contestant.server.left(keys)} of {expected} jobs on the server")

    def check(self, expected: int) -> None:
        """Note when another number of jobs was run than was sent; give the superfluous a moment to show."""
        time.sleep(0.2)
        if (ran := self.ran()) != expected:
            more = "more" if ran > expected else "less"
            self._contestant.fault(f"ran {abs(ran - expected)} {more} of {expected}")


__all__ = ["Contestant", "Figures", "PeerDied", "Scale", "Workers"]
