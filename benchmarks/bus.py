"""The Bus against bare PUBLISH and XADD, and what its events cost jobs: one server, interleaved rounds, medians."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from rounds import Figures, middle, run

from echomq_tasks import connect


class Measure(NamedTuple):
    """What is compared.

    Attributes:
      script: measures it.
      variants: each with the one that it is compared with, "" for none.
      amount: how much of it makes a round.
      apart: whether each variant has a process of its own; else one measures all, in turns.
    """

    script: str
    variants: dict[str, str]
    amount: int
    apart: bool = False


#: Bare commands, over a socket with hiredis or over redis-py. A number is how many go or come at once.
CEILING = {"socket": "", "redis-py": "socket", "socket-100": "", "redis-py-100": "socket-100"}
PLAN = {
    "publish": Measure("bus_live.py", {**CEILING, "bus.publish": "socket", "announce": "socket"}, 5000),
    "jobs": Measure("bus_live.py", {"quiet": "", "announced": "quiet", "logged": "quiet"}, 10_000),
    "append": Measure(
        "bus_log.py", {**CEILING, "append": "socket", "many-100": "socket-100", "many-1000": "socket-100"}, 5000
    ),
    "read": Measure(
        "bus_log.py",
        {"socket-1000": "", "redis-py-1000": "socket-1000", "read": "socket-1000", "tail": "socket-1000"},
        20_000,
    ),
    "group": Measure(
        "bus_log.py",
        {
            f"{who}-{size}": "" if who == "socket" else f"socket-{size}"
            for size in (1, 100)
            for who in ("socket", "redis-py", "consumer")
        },
        2500,
    ),
    "follow": Measure("bus_log.py", {"tail": "", "consumer": "tail"}, 200, apart=True),
    "cost": Measure(
        "bus_jobs.py",
        {"off": ""} | dict.fromkeys(("off-again", "unset", "failed", "all", "all-heard", "all-logged"), "off"),
        3000,
    ),
    "signals": Measure("bus_jobs.py", {"none": "", "received": "none"}, 2000),
    # A number is how many readers there are: of one bus, of a bus each, or of redis-py.
    "fanout": Measure(
        "bus_live.py",
        {
            **{f"redis-py-{number}": "" for number in (1, 10, 100)},
            **{f"bus-{number}": f"redis-py-{number}" for number in (1, 10, 100)},
            **{f"buses-{number}": f"redis-py-{number}" for number in (10, 100)},
            "async-100": "redis-py-100",
        },
        5000,
        apart=True,
    ),
}
Results = dict[str, dict[str, list[float]]]


def rows(name: str, figure: str, results: Results) -> list[str]:
    """Lines of the table: one a variant, with its ratio to the one that it is compared with, round by round."""
    lines = []
    for variant, other in PLAN[name].variants.items():
        values = results[variant][figure]
        line = f"{name:8} {figure:20} {variant:13} {middle(values)}"
        if other:
            ratios = [mine / its for mine, its in zip(values, results[other][figure], strict=True) if its]
            line += f"   {middle(ratios).strip()} of {other}" if ratios else ""
        lines.append(line)
    return lines


def a_round(name: str, url: str, scale: float, flush: Callable[[], Any]) -> Iterator[tuple[str, Figures]]:
    """Measure each variant once."""
    measure = PLAN[name]
    amount = max(int(measure.amount * scale), 100)
    variants = list(measure.variants)
    for together in [[variant] for variant in variants] if measure.apart else [variants]:
        flush()
        yield from run(measure.script, name, ",".join(together), url, amount).items()


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="how much of each measure makes a round")
    parser.add_argument("--only", nargs="+", choices=PLAN, default=list(PLAN))
    parser.add_argument(
        "--url", help="a server of yours without a password, which is FLUSHED; by default one is started"
    )
    options = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, connect(options.url or f"embedded://{folder}/server") as connection:
        # A URL of redis-py's.
        url = options.url or f"unix://{connection.client.connection_pool.connection_kwargs['path']}"
        for name in options.only:
            results: Results = {variant: defaultdict(list) for variant in PLAN[name].variants}
            for _ in range(options.rounds):
                for variant, figures in a_round(name, url, options.scale, connection.client.flushall):
                    for figure, value in figures.items():
                        results[variant][figure].append(value)
            for figure in next(iter(results.values())):
                print("\n".join(rows(name, figure, results)), flush=True)
            print(f"{time.monotonic() - begin:.0f} seconds", flush=True)


if __name__ == "__main__":
    main()
