"""What a run found: kept as JSON, from which the table and the chart are made."""

from __future__ import annotations

import json
import os
import platform
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Record:
    """A run."""

    #: When, where, with what, and how many rounds.
    about: dict[str, Any] = field(default_factory=dict)
    #: Each variant, in the order of the run: its queue, version, settings, server.
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: By measure, figure and variant: the value of each round.
    figures: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)
    #: By way: what the bare scripts do.
    ceilings: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    #: Variants or whole queues that did not run, and why.
    missing: dict[str, str] = field(default_factory=dict)
    #: What variants did that they must not: jobs run twice, left, not begun.
    faults: dict[str, list[str]] = field(default_factory=dict)

    def add(self, measure: str, variant: str, figures: dict[str, float]) -> None:
        """Note what a variant did in a round."""
        for figure, value in figures.items():
            self.figures.setdefault(measure, {}).setdefault(figure, {}).setdefault(variant, []).append(value)

    def add_ceilings(self, ceilings: dict[str, dict[str, float]]) -> None:
        """Note what the bare scripts did in a round."""
        for way, figures in ceilings.items():
            for figure, value in figures.items():
                self.ceilings.setdefault(way, {}).setdefault(figure, []).append(value)

    def values(self, measure: str, figure: str, variant: str) -> list[float]:
        """The values of all rounds; none when it was not measured."""
        return self.figures.get(measure, {}).get(figure, {}).get(variant, [])

    def median(self, measure: str, figure: str, variant: str) -> float | None:
        """The median of all rounds; None when it was not measured."""
        values = self.values(measure, figure, variant)
        return statistics.median(values) if values else None

    def take_in(self, other: Record) -> None:
        """Let the rounds of another run join those of this one."""
        for name, variant in other.variants.items():
            self.variants.setdefault(name, variant)
        for measure, figures in other.figures.items():
            mine = self.figures.setdefault(measure, {})
            for figure, values in figures.items():
                _join(mine.setdefault(figure, {}), values)
        for way, figures in other.ceilings.items():
            _join(self.ceilings.setdefault(way, {}), figures)
        self.about["joined"] = True
        for name, faults in other.faults.items():
            known = self.faults.setdefault(name, [])
            known.extend(fault for fault in faults if fault not in known)
        self.missing |= other.missing

    def save(self, path: Path) -> None:
        """Write it down."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Record:
        """Read what was written down."""
        return cls(**json.loads(path.read_text()))


def _join(mine: dict[str, list[float]], values: dict[str, list[float]]) -> None:
    for name, rounds in values.items():
        mine.setdefault(name, []).extend(rounds)


def machine() -> str:
    """The processor, how many of it, and the interpreter."""
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    cores = f"{os.cpu_count()} cores of {model or platform.machine()}"
    return f"{cores}, {platform.system()}, Python {platform.python_version()}"
