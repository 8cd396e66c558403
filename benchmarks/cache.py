"""`@cached` against other caches: one server, interleaved rounds, medians, spread and ratios."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from typing import NamedTuple

from cache_peers import GUARDED, LOCAL, REMOTE, missing
from rounds import middle, run

from echomq_tasks import connect


class Measure(NamedTuple):
    """What is compared.

    Attributes:
      script: measures it, in a process for each variant.
      variants: who takes part.
      floor: whom all are compared with.
      amount: how much of it makes a round; of `local`, its time says that.
      rounds: at most so many, of what hardly varies or takes long.
    """

    script: str
    variants: list[str]
    floor: str
    amount: int
    rounds: int = 1000


PLAN = {
    "local": Measure("cache_hits.py", list(LOCAL), "floor", 1),
    "rows": Measure("cache_hits.py", list(LOCAL), "floor", 10_000, rounds=1),
    "remote": Measure("cache_hits.py", list(REMOTE), "redis-py", 1600),
    "herd": Measure("cache_herd.py", list(GUARDED), "cached", 3),
    # Whoever lets one caller after the other try takes very long.
    "errors": Measure("cache_herd.py", list(GUARDED), "cached", 1, rounds=1),
}
Results = dict[str, dict[str, list[float]]]


def rows(name: str, figure: str, results: Results) -> list[str]:
    """Lines of the table: one a variant, with its ratio to the floor, round by round."""
    lines, floor = [], PLAN[name].floor
    for variant, figures in results.items():
        if figure not in figures:
            continue
        line = f"{name:7} {figure:20} {variant:13} {middle(figures[figure])}"
        if variant != floor and ", of " not in figure:
            pairs = zip(figures[figure], results[floor][figure], strict=True)
            ratios = [mine / its for mine, its in pairs if its]
            line += f"   {middle(ratios).strip()} of {floor}" if ratios else ""
        lines.append(line)
    return lines


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
    away = sorted({variant for measure in PLAN.values() for variant in measure.variants if missing(variant)})
    if away:
        print(f"not installed, and left out: {', '.join(away)}; see benchmarks/README.md")
    with tempfile.TemporaryDirectory() as folder, connect(options.url or f"embedded://{folder}/server") as connection:
        # A URL of redis-py's.
        url = options.url or f"unix://{connection.client.connection_pool.connection_kwargs['path']}"
        for name in options.only:
            measure = PLAN[name]
            variants = [variant for variant in measure.variants if variant not in away]
            results: Results = {variant: defaultdict(list) for variant in variants}
            for turn in range(min(options.rounds, measure.rounds)):
                # Back and forth, so that a machine that gets slower meanwhile does not favour who comes first.
                for variant in variants if turn % 2 == 0 else reversed(variants):
                    connection.client.flushall()
                    amount = max(int(measure.amount * options.scale), 1)
                    for figure, value in run(measure.script, name, variant, url, amount)[variant].items():
                        results[variant][figure].append(value)
            for figure in dict.fromkeys(figure for figures in results.values() for figure in figures):
                print("\n".join(rows(name, figure, results)), flush=True)
    print(f"{time.monotonic() - begin:.0f} seconds")


if __name__ == "__main__":
    main()
