"""Our queue against every other: one server, an environment each, interleaved rounds, medians with their spread."""

# Not `queue.py`: that would hide a module of the standard library from all scripts in this folder.

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from harness.contest import Scale
from harness.environments import default_folder, names
from harness.records import Record
from harness.run import ALL, MEASURES, Plan, run
from harness.tables import document

from echomq_tasks.connection.embedded import find_binary

QUICK = Scale(jobs=3_000, seconds=0.4, pickups=10, idle=5.0, depths=(1_000, 10_000), long=20_000)
FULL = Scale(depths=(1_000, 10_000, 100_000, 1_000_000), long=1_000_000)
#: What a quick run measures unless told what.
BRIEF = (*MEASURES, "idle", "ceilings")


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, help="3, or 1 with --quick")
    parser.add_argument("--jobs", type=int, help="at most so many jobs a measurement; slow queues get fewer")
    parser.add_argument("--only", type=_names(ALL), metavar="MEASURE,...", help=", ".join(ALL))
    peers = names()
    parser.add_argument("--peers", type=_names(peers), default=peers, metavar="NAME,...", help=", ".join(peers))
    parser.add_argument("--variants", type=lambda words: words.split(","), help="only these: default, tuned, ...")
    parser.add_argument("--quick", action="store_true", help="one round of little, to see that everything runs")
    parser.add_argument("--full", action="store_true", help="a million jobs waiting, a million through a process")
    parser.add_argument("--envs", type=Path, default=default_folder(), help="where the environments are kept")
    parser.add_argument("--json", type=Path, help="keep the figures here, for report.py")
    parser.add_argument("--server", type=Path, help="a server to measure on instead of the embedded extra's")
    parser.add_argument("--other-server", type=Path, help="one more, for queues that the first cannot serve")
    parser.add_argument("--aof", action="store_true", help="let the server keep an append-only file")
    return parser.parse_args()


def main() -> None:
    """Run, and print the table."""
    chosen = options()
    scale = QUICK if chosen.quick else FULL if chosen.full else Scale()
    if chosen.jobs:
        scale = replace(scale, jobs=chosen.jobs)
    plan = Plan(
        peers=chosen.peers,
        variants=chosen.variants,
        only=chosen.only or (BRIEF if chosen.quick else ALL),
        rounds=chosen.rounds or (1 if chosen.quick else 3),
        scale=scale,
        environments=chosen.envs,
        binary=chosen.server or find_binary(),
        other_binary=chosen.other_server,
        append_only=chosen.aof,
    )

    def save(record: Record) -> None:
        if chosen.json:
            record.save(chosen.json)

    sys.stdout.write(document(run(plan, save)))


def _names(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(words: str) -> list[str]:
        chosen = words.split(",")
        if unknown := [word for word in chosen if word not in allowed]:
            raise argparse.ArgumentTypeError(f"there is no {', '.join(unknown)}: choose from {', '.join(allowed)}")
        return chosen

    return parse


if __name__ == "__main__":
    main()
