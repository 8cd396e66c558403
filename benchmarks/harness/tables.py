"""The figures of a run as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.goals import goals
from harness.records import Record


@dataclass(frozen=True)
class Column:
    """A figure, by a name that a reader understands."""

    title: str
    measure: str
    figure: str


RATES = (
    Column("enqueue one by one", "enqueue", "one jobs/s"),
    Column("enqueue in bulk", "enqueue", "bulk jobs/s"),
    Column("drain, 1 process", "drain", "jobs/s"),
    Column("drain, 2 processes", "drain 2", "jobs/s"),
    Column("drain, I/O of 1 ms, concurrency 64", "io", "jobs/s"),
    Column("drain, one in a hundred takes 50 ms", "mixed", "jobs/s"),
)
WAITS = (
    Column("pickup p50, ms", "pickup", "p50 ms"),
    Column("pickup p99, ms", "pickup", "p99 ms"),
    Column("second queue, all busy, p50, ms", "aside", "p50 ms"),
    Column("second queue, p99, ms", "aside", "p99 ms"),
    Column("idle, commands/s", "idle", "commands/s"),
    Column("idle, CPU %", "idle", "CPU %"),
)
COSTS = (
    Column("server bytes a waiting job", "enqueue", "bytes"),
    Column("server us to enqueue", "enqueue", "one server us"),
    Column("server us to drain", "drain", "server us"),
    Column("server commands to drain", "drain", "server commands"),
    Column("client us to enqueue", "enqueue", "one client us"),
    Column("worker us to drain", "drain", "worker us"),
)
MEMORY = (
    Column("short name", "memory", "short by default"),
    Column("short name, as advised", "memory", "short as advised"),
    Column("longer name", "memory", "long by default"),
    Column("longer name, as advised", "memory", "long as advised"),
)


def document(record: Record) -> str:
    """All tables of a run, one after the other."""
    parts = [_head(record)]
    for title, columns in (
        ("Jobs a second", RATES),
        ("Waiting, and waiting for work", WAITS),
        ("What a job costs", COSTS),
        ("Server bytes a waiting job; as advised is `hash-max-listpack-value 1024`", MEMORY),
    ):
        if any(record.figures.get(column.measure) for column in columns):
            parts.append(f"## {title}\n\n{_by_variant(record, columns)}")
    parts += [part for part in (_growth(record), _long(record), _ceilings(record), _goals(record)) if part]
    parts += [_trouble(record), _settings(record)]
    return "\n\n".join(parts) + "\n"


def number(value: float) -> str:
    """Readable, with as many digits as mean something."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def spread(values: Sequence[float]) -> str:
    """The median, with the lowest and the highest when there are more than one."""
    if not values:
        return ""
    middle = number(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({number(min(values))} to {number(max(values))})"


def medians(record: Record) -> str:
    """Of how many rounds the figures are."""
    rounds = record.about["rounds"]
    if record.about.get("joined"):
        return "medians of all rounds of several runs"
    return f"medians of {rounds} rounds" if rounds > 1 else "one round"


def mark(record: Record, name: str) -> str:
    """A sign beside what ran on another server."""
    return "" if record.variants[name]["server"] == record.about["server"] else " †"


def elsewhere(record: Record) -> list[str]:
    """The other servers."""
    return sorted({variant["server"] for variant in record.variants.values()} - {record.about["server"]})


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ordered(record: Record) -> list[str]:
    """The variants: ours first, then the others, the fastest first."""

    def place(name: str) -> tuple[bool, float]:
        ours = record.variants[name]["peer"] == "echomq"
        return not ours, -(record.median("drain", "jobs/s", name) or 0)

    return sorted(record.variants, key=place)


def _head(record: Record) -> str:
    about = record.about
    disk = "with an append-only file" if about["append only"] else "with nothing on disk"
    return (
        "# Beside other queues\n\n"
        f"{about['date']}; {about['machine']}; {about['server']} on the loopback, {disk}. "
        f"{medians(record).capitalize()}, with the lowest and the highest; idle, and very many jobs, of one. "
        f"Concurrency 8 unless it says otherwise. [How it is measured](../benchmarks/README.md)."
    )


def _label(record: Record, name: str) -> str:
    variant = record.variants[name]
    bold = "**" if variant["peer"] == "echomq" else ""
    return f"{bold}{name}{bold}{mark(record, name)}"


def _by_variant(record: Record, columns: Sequence[Column]) -> str:
    rows = []
    for name in ordered(record):
        cells = [spread(record.values(column.measure, column.figure, name)) for column in columns]
        if any(cells):
            rows.append([_label(record, name), *cells])
    return grid(["", *(column.title for column in columns)], rows)


def _growth(record: Record) -> str:
    depths = [measure for measure in record.figures if measure.startswith("growth ")]
    if not depths:
        return ""
    rows = []
    for figure in ("enqueue one jobs/s", "enqueue bulk jobs/s", "drain jobs/s", "drain server us"):
        for name in ordered(record):
            cells = [spread(record.values(depth, figure, name)) for depth in depths]
            if any(cells):
                rows.append([figure, _label(record, name), *cells])
    titles = [f"{int(depth.split()[1]):,} waiting" for depth in depths]
    return "## Growth\n\n" + grid(["", "", *titles], rows)


def _long(record: Record) -> str:
    figures = record.figures.get("long", {})
    if not figures:
        return ""
    names = [name for name in ordered(record) if any(name in values for values in figures.values())]
    rows = [[figure, *(spread(values.get(name, [])) for name in names)] for figure, values in figures.items()]
    return "## Very many jobs through one process\n\n" + grid(["", *names], rows)


def _ceilings(record: Record) -> str:
    if not record.ceilings:
        return ""
    rows = [
        [way, spread(figures.get("enqueue jobs/s", [])), spread(figures.get("drain jobs/s", []))]
        for way, figures in record.ceilings.items()
    ]
    return "## The ceilings: two bare scripts, jobs a second\n\n" + grid(["", "enqueue", "claim and complete"], rows)


def _goals(record: Record) -> str:
    rows = [[goal.what, goal.wanted, goal.found, "yes" if goal.reached else "**no**"] for goal in goals(record)]
    return "## The goals\n\n" + grid(["", "goal", "found", "reached"], rows) if rows else ""


def _trouble(record: Record) -> str:
    lines = [f"- {name} did not run: {reason}" for name, reason in record.missing.items()]
    lines += [f"- {name}: {fault}" for name, faults in record.faults.items() for fault in faults]
    lines += sorted(
        {
            f"- † {variant['peer']} ran on {variant['server']}, as {record.about['server']} refuses its commands"
            for variant in record.variants.values()
            if variant["server"] != record.about["server"]
        }
    )
    return "## What did not go right\n\n" + ("\n".join(lines) or "Nothing: every queue ran each job exactly once.")


def _settings(record: Record) -> str:
    rows = [
        [name, variant["version"], variant["settings"], variant["note"]] for name, variant in record.variants.items()
    ]
    return "## Versions and settings\n\n" + grid(["", "version", "set", "to know"], rows)
