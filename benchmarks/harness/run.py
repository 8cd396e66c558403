"""A run: who takes part, in which order they are measured, and what is noted."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from peers.tally import Tally

from harness.ceilings import ceilings
from harness.contest import Contestant, Figures, PeerDied, Scale
from harness.draining import drain, mixed
from harness.environments import python_of
from harness.growing import growth
from harness.idling import idle
from harness.lasting import long_lived
from harness.processes import about
from harness.records import Record, machine
from harness.sending import enqueue, memory
from harness.servers import Server
from harness.waiting import aside, pickup

#: What is measured in each round, of every variant.
MEASURES: dict[str, Callable[[Contestant], Figures]] = {
    "enqueue": enqueue,
    "memory": memory,
    "drain": lambda contestant: drain(contestant, "nothing", 1, 8),
    "drain 2": lambda contestant: drain(contestant, "nothing", 2, 8),
    "io": lambda contestant: drain(contestant, "wait", 1, 64),
    "mixed": mixed,
    "pickup": pickup,
    "aside": aside,
}
#: Of what is sent, so that it is the same whoever works: measured of the variants that send in a way of their own.
OF_SENDERS = ("enqueue", "memory")
#: Measured in another way: of all at once, of the server, of ours and of the fastest others only.
ALL = (*MEASURES, "idle", "ceilings", "growth", "long")
#: So many of the others take part in the growth measure.
FASTEST = 2
#: After so many measurements without a figure a variant is left alone.
GIVE_UP = 3


@dataclass
class Plan:
    """What a run is to do."""

    peers: Sequence[str]
    only: Sequence[str]
    rounds: int
    scale: Scale
    environments: Path
    binary: Path
    other_binary: Path | None = None
    variants: Sequence[str] | None = None
    append_only: bool = False


def run(plan: Plan, save: Callable[[Record], None]) -> Record:
    """Do it; what is known is saved after each measure."""
    record, begin = Record(), time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = []
        for number, binary in enumerate((plan.binary, plan.other_binary)):
            if binary is not None:
                server = Server(binary, folder / f"server{number}", append_only=plan.append_only)
                stack.callback(server.stop)
                servers.append(server)
        tally = Tally.create(folder / "tally")
        record.about = {
            "date": time.strftime("%-d %B %Y"),
            "machine": machine(),
            "server": servers[0].version,
            "append only": plan.append_only,
            "rounds": plan.rounds,
            "jobs": plan.scale.jobs,
            "seconds": plan.scale.seconds,
        }
        contestants = []
        for peer in plan.peers:
            contestants += _enter(plan, record, peer, servers, tally, folder / "tally")
        for number in range(plan.rounds):
            for measure in plan.only:
                if measure in MEASURES:
                    # Another begins in each round, so that none always has the machine as the first one left it.
                    first = number * len(contestants) // plan.rounds
                    for contestant in contestants[first:] + contestants[:first]:
                        if _can(contestant, measure):
                            _measure(record, contestant, measure, MEASURES[measure])
                save(record)
            if "ceilings" in plan.only:
                found, missing = ceilings(servers[0], plan.scale.jobs)
                record.add_ceilings(found)
                record.missing |= {line.partition(":")[0]: line.partition(":")[2].strip() for line in missing}
            save(record)
        if "idle" in plan.only:
            _idle(plan, record, contestants, folder)
        _of_some(plan, record, contestants)
        record.about["minutes"] = round((time.monotonic() - begin) / 60, 1)
        save(record)
    return record


def _enter(
    plan: Plan, record: Record, peer: str, servers: list[Server], tally: Tally, tally_path: Path
) -> list[Contestant]:
    try:
        python = python_of(peer, plan.environments)
        found = about(python, peer)
    except (RuntimeError, PeerDied) as failure:
        record.missing[peer] = str(failure)
        _say(f"{peer} does not run: {failure}")
        return []
    lacking = [server.lacks(found["probes"]) for server in servers]
    if None not in lacking:
        record.missing[peer] = f"{servers[0].version} refuses {lacking[0]}"
        _say(f"{peer} does not run: {record.missing[peer]}")
        return []
    server = servers[lacking.index(None)]
    contestants = []
    for variant, settings in found["variants"]:
        if plan.variants is not None and variant not in plan.variants:
            continue
        contestant = Contestant(peer, variant, python, found, server, tally, tally_path, plan.scale)
        record.variants[contestant.name] = {
            "peer": peer,
            "variant": variant,
            "version": found["version"],
            "settings": settings,
            "note": found["note"],
            "server": server.version,
        }
        record.faults[contestant.name] = contestant.faults
        contestants.append(contestant)
    return contestants


def _can(contestant: Contestant, measure: str) -> bool:
    if measure == "aside":
        return bool(contestant.about["two_queues"])
    return measure not in OF_SENDERS or contestant.variant in contestant.about["senders"]


def _measure(record: Record, contestant: Contestant, measure: str, take: Callable[[Contestant], Figures]) -> None:
    if contestant.failed >= GIVE_UP:
        return
    try:
        figures = take(contestant)
    except PeerDied as death:
        contestant.fault(f"ended while measured ({measure}): {death}")
        figures = {}
    if not figures:
        contestant.failed += 1
        _say(f"{contestant.name:28} {measure:10} failed: {contestant.faults[-1]}")
        return
    _note(record, contestant.name, measure, figures)


def _idle(plan: Plan, record: Record, contestants: list[Contestant], folder: Path) -> None:
    def start(contestant: Contestant, home: Path) -> Server:
        return Server(contestant.server.binary, home, append_only=plan.append_only)

    for name, figures in idle([one for one in contestants if one.failed < GIVE_UP], start, folder).items():
        _note(record, name, "idle", figures)


def _note(record: Record, name: str, measure: str, figures: Figures) -> None:
    record.add(measure, name, figures)
    _say(f"{name:28} {measure:10} " + "  ".join(f"{figure} {value:,.2f}" for figure, value in figures.items()))


def _of_some(plan: Plan, record: Record, contestants: list[Contestant]) -> None:
    fastest: dict[str, Contestant] = {}
    for other in sorted(contestants, key=lambda one: record.median("drain", "jobs/s", one.name) or 0, reverse=True):
        if not other.ours:
            # Of each queue the faster variant.
            fastest.setdefault(other.peer, other)
    ours = [contestant for contestant in contestants if contestant.ours]
    if "growth" in plan.only:
        for depth in list(plan.scale.depths) * plan.rounds:
            # A queue without a bulk call would take minutes to fill.
            able = [other for other in fastest.values() if other.about["bulk"] or depth <= 10_000]
            for contestant in ours + able[:FASTEST]:
                _measure(record, contestant, f"growth {depth}", lambda one, depth=depth: growth(one, depth))  # type: ignore[misc]
    if "long" in plan.only:
        for contestant in ours:
            _measure(record, contestant, "long", lambda one: long_lived(one, plan.scale.long))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
