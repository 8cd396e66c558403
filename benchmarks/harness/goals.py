"""What we want to reach, against what a run found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.records import Record

OURS, UNDER_DRAMATIQ = "echomq threads", "echomq dramatiq's worker"
AT_DEFAULT = "echomq asyncio at 100"
REDIS_BROKER, TUNED_REDIS_BROKER = "dramatiq default", "dramatiq tuned"


@dataclass(frozen=True)
class Goal:
    """One of them."""

    what: str
    wanted: str
    found: str
    reached: bool


def goals(record: Record) -> list[Goal]:
    """Those for which the run has the figures."""
    return [*_drains(record), *_enqueues(record), *_waits(record), *_costs(record)]


def _best(record: Record, measure: str, figure: str, *, tuned: bool | None = None) -> tuple[float, str] | None:
    """The highest of the others: of their defaults, of their tuned variants, or of both."""
    found = [
        (value, name)
        for name, variant in record.variants.items()
        if variant["peer"] != "echomq" and (tuned is None or tuned == (variant["variant"] == "tuned"))
        if (value := record.median(measure, figure, name)) is not None
    ]
    return max(found, default=None)


def _at_least(what: str, wanted: float, ours: float | None, other: tuple[float, str] | None) -> Iterator[Goal]:
    if ours is not None and other is not None and other[0]:
        ratio = ours / other[0]
        yield Goal(what, f"≥ {wanted:g} times", f"{ratio:.2f} times ({other[1]})", ratio >= wanted)


def _at_most(what: str, wanted: float, unit: str, ours: float | None) -> Iterator[Goal]:
    if ours is not None:
        yield Goal(what, f"≤ {wanted:g}{unit}", f"{ours:.2f}{unit}", ours <= wanted)


def _named(record: Record, measure: str, figure: str, name: str) -> tuple[float, str] | None:
    value = record.median(measure, figure, name)
    return None if value is None else (value, name)


def _drains(record: Record) -> Iterator[Goal]:
    rate = ("drain", "jobs/s")
    ours, fastest = record.median(*rate, OURS), _best(record, *rate, tuned=False)
    yield from _at_least("drain, of the fastest at its defaults", 2, ours, fastest)
    yield from _at_least("the same, async actors at our default", 2, record.median(*rate, AT_DEFAULT), fastest)
    yield from _at_least("drain, of the fastest when tuned", 1, ours, _best(record, *rate, tuned=True))
    yield from _at_least("drain, of RedisBroker", 5, ours, _named(record, *rate, REDIS_BROKER))
    two = record.median("drain 2", "jobs/s", OURS)
    yield from _at_least("drain by two processes, of one", 1.8, two, _named(record, *rate, OURS))
    under = record.median(*rate, UNDER_DRAMATIQ)
    tuned = _named(record, *rate, TUNED_REDIS_BROKER)
    yield from _at_least("drain under Dramatiq's worker, of RedisBroker tuned", 2, under, tuned)
    depths = [(int(measure.split()[1]), measure) for measure in record.figures if measure.startswith("growth ")]
    if depths:
        (short, least), (long, most) = min(depths), max(depths)
        fewest = _named(record, least, "drain jobs/s", OURS)
        if fewest is not None:
            reference = (fewest[0], f"{short:,} waiting")
            deep = record.median(most, "drain jobs/s", OURS)
            yield from _at_least(f"drain with {long:,} waiting, of {short:,}", 0.9, deep, reference)


def _enqueues(record: Record) -> Iterator[Goal]:
    for what, figure, wanted in (("one by one", "one jobs/s", 1.5), ("in bulk", "bulk jobs/s", 1.2)):
        ours = record.median("enqueue", figure, OURS)
        yield from _at_least(f"enqueue {what}, of the fastest", wanted, ours, _best(record, "enqueue", figure))


def _waits(record: Record) -> Iterator[Goal]:
    for figure, wanted in (("p50 ms", 1), ("p99 ms", 3)):
        ours = record.median("pickup", figure, OURS)
        yield from _at_most(f"pickup {figure.split()[0]}", wanted, " ms", ours)
        others = [
            (value, name)
            for name, variant in record.variants.items()
            if variant["peer"] != "echomq" and (value := record.median("pickup", figure, name)) is not None
        ]
        if ours is not None and others:
            value, name = min(others)
            yield Goal(
                f"pickup {figure.split()[0]}, below all", f"< {value:.2f} ms ({name})", f"{ours:.2f} ms", ours < value
            )
    yield from _at_most("idle, commands", 2, "/s", record.median("idle", "commands/s", OURS))
    yield from _at_most("idle, CPU", 0.5, " %", record.median("idle", "CPU %", OURS))


def _costs(record: Record) -> Iterator[Goal]:
    memory = ("enqueue", "bytes")
    ours, theirs = (record.median(*memory, name) for name in (OURS, REDIS_BROKER))
    yield from _part("server memory a waiting job", 60, ours, theirs)
    ours, theirs = (_server_us(record, name) for name in (OURS, REDIS_BROKER))
    yield from _part("server CPU a job, enqueue to done", 50, ours, theirs)


def _part(what: str, wanted: float, ours: float | None, theirs: float | None) -> Iterator[Goal]:
    if ours is not None and theirs:
        part = ours / theirs * 100
        found = f"{part:.0f} % ({ours:.0f} of {theirs:.0f})"
        yield Goal(f"{what}, of RedisBroker's", f"≤ {wanted:g} %", found, part <= wanted)


def _server_us(record: Record, name: str) -> float | None:
    sent, done = record.median("enqueue", "one server us", name), record.median("drain", "server us", name)
    return None if sent is None or done is None else sent + done
