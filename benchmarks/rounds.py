"""What the benchmarks share: measurements in fresh processes, what they use up, and their medians with spread."""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

HERE = Path(__file__).parent
Figures = dict[str, float]
#: Takes the names of variants, a server's URL and an amount; answers the figures of each variant.
Measure = Callable[[list[str], str, int], dict[str, Figures]]
#: In so many turns a process measures variants that it measures together.
TURNS = 5


def run(script: str, measure: str, variant: str, url: str, amount: int) -> Any:
    """One measurement in a process of its own; answers its figures by name."""
    command = [sys.executable, str(HERE / script), measure, variant, url, str(amount)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        sys.exit(f"{measure} with {variant} failed:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def answer_for(measures: Mapping[str, Measure]) -> None:
    """Do what the command line of :func:`run` says, print the figures for it, and end this process."""
    measure, variants, url, amount = sys.argv[1:]
    print(json.dumps(measures[measure](variants.split(","), url, int(amount))))
    sys.stdout.flush()
    # Some workers leave threads behind that would delay the exit.
    os._exit(0)


def one_by_one(measure: Callable[[str, str, int], Figures]) -> Measure:
    """A measure of one variant, as one of many that are measured one after the other."""
    return lambda variants, url, amount: {variant: measure(variant, url, amount) for variant in variants}


def in_turn(names: list[str], step: Callable[[str], None], turns: int = TURNS) -> None:
    """Let each variant have its turns, for the machine changes from second to second by more than they differ; each
    begins in turn, so that none always follows the same one."""
    for turn in range(turns):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            # Or those before would leave theirs to this one.
            gc.collect()
            step(name)


def middle(values: list[float]) -> str:
    """The median with the lowest and the highest."""
    return f"{statistics.median(values):12,.2f}  ({min(values):,.2f} to {max(values):,.2f})"


class Meter:
    """Times what happens in its ``with`` blocks; ``what`` is one of what they make."""

    def __init__(self, url: str, what: str) -> None:
        self._client = redis.Redis.from_url(url)
        self._what = what
        self._taken: list[tuple[float, ...]] = []

    @contextmanager
    def measuring(self, amount: int) -> Iterator[None]:
        """Note the time and the CPU that making so many takes."""
        begin = self._clocks()
        yield
        self._taken.append(tuple((end - start) / amount for start, end in zip(begin, self._clocks(), strict=True)))

    def figures(self) -> Figures:
        """The rate, and the CPU that each took in this process and in the server: the medians of all blocks."""
        if not self._taken:
            return {}
        seconds, own, server = (statistics.median(values) for values in zip(*self._taken, strict=True))
        return {
            f"{self._what}s/s": 1 / seconds,
            f"own us/{self._what}": own * 1e6,
            f"server us/{self._what}": server * 1e6,
        }

    def _clocks(self) -> tuple[float, float, float]:
        used = self._client.info("cpu")
        server = float(used["used_cpu_sys"]) + float(used["used_cpu_user"])
        return time.perf_counter(), time.process_time(), server


def percentiles(name: str, seconds: list[float]) -> Figures:
    """The median and the 99th percentile, in milliseconds."""
    waits = sorted(wait * 1000 for wait in seconds)
    return {f"{name} p50 ms": statistics.median(waits), f"{name} p99 ms": waits[int(len(waits) * 0.99) - 1]}
