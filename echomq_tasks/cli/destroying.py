"""``echomq drain`` and ``obliterate``: drop the jobs of a queue, or the whole queue."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from echomq_tasks.cli.arguments import add_asking, add_command, add_server, queue_name
from echomq_tasks.cli.queues import jobs_in_no_set, on_queue
from echomq_tasks.cli.terminal import agreed, cannot_ask, jobs, note, print_lines, stopped
from echomq_tasks.queue import Counts, Queue

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    drain = add_command(
        commands,
        "drain",
        run_drain,
        summary="drop the jobs that wait, after a question",
        description="Drop the jobs of a queue that wait, in lanes too, with all that is kept of them. What runs stays, "
        "and so do repeats and settings. A flow parent that waits for a dropped job learns that it failed.",
    )
    drain.add_argument("queue", metavar="QUEUE", type=queue_name, help="the queue")
    drain.add_argument("--scheduled", action="store_true", help="drop also what is scheduled, retries among it")
    drain.add_argument("--dead", action="store_true", help="drop also what is dead; see `echomq dead --purge`, too")
    obliterate = add_command(
        commands,
        "obliterate",
        run_obliterate,
        summary="destroy a paused queue with all that it has, after a question",
        description="Destroy a paused queue: its jobs of every state, results, logs, repeats, counters and settings, "
        "until not one key is left; the pause goes with it. Stop its producers first: a job that is sent meanwhile is "
        "destroyed too, or is the first of a new queue. When it is interrupted, the same command goes on.",
    )
    obliterate.add_argument("queue", metavar="QUEUE", type=queue_name, help="the queue")
    obliterate.add_argument("--force", action="store_true", help="even while jobs run; their workers find them gone")
    for command in (drain, obliterate):
        add_asking(command)
        add_server(command)


def _states(counts: Counts, *, scheduled: bool, dead: bool, active: bool = False, parents: int = 0) -> list[str]:
    """What is meant, as in ``12 waiting (4 in lanes)``; states without jobs are left out."""
    in_lanes = f" ({counts.in_lanes:,} in lanes)" if counts.in_lanes else ""
    found = [
        (counts.waiting, f"waiting{in_lanes}"),
        (counts.active if active else 0, "active"),
        (counts.scheduled if scheduled else 0, "scheduled"),
        (counts.dead if dead else 0, "dead"),
        (parents, "awaiting their children"),
    ]
    return [f"{count:,} {what}" for count, what in found if count]


def run_drain(options: argparse.Namespace) -> int:
    """Drop jobs; answers the exit code."""
    return 2 if cannot_ask(options) else on_queue(options, _drain)


def _drain(options: argparse.Namespace, queue: Queue) -> int:
    counts = queue.counts()
    states = _states(counts, scheduled=options.scheduled, dead=options.dead)
    kept = _kept(counts, options)
    if not states:
        print(f"{queue.name}: there is nothing to drop.")
        _print_kept(kept)
        return 0
    total = counts.waiting + options.scheduled * counts.scheduled + options.dead * counts.dead
    print(f"This drops {jobs(total)} from {queue.name}:")
    print_lines(states)
    _print_kept(kept)
    if not agreed(options):
        return stopped(options)
    # The dead first, and apart: a flow parent that dies of what is dropped here was not agreed upon.
    dropped = queue.drain("dead") if options.dead else 0
    dropped += queue.drain("pending", "lanes", *(["scheduled"] if options.scheduled else []))
    print(f"Dropped {jobs(dropped)}.")
    return 0


def _kept(counts: Counts, options: argparse.Namespace) -> list[str]:
    found = [
        (counts.active, "active"),
        (0 if options.scheduled else counts.scheduled, "scheduled (dropped with --scheduled)"),
        (0 if options.dead else counts.dead, "dead (dropped with --dead)"),
    ]
    return [f"{count:,} {what}" for count, what in found if count]


def _print_kept(kept: list[str]) -> None:
    if kept:
        print("What stays:")
        print_lines(kept)


def run_obliterate(options: argparse.Namespace) -> int:
    """Destroy a queue; answers the exit code."""
    return 2 if cannot_ask(options) else on_queue(options, _obliterate)


def _obliterate(options: argparse.Namespace, queue: Queue) -> int:
    counts = queue.counts()
    if not counts.paused:
        note(f"{queue.name} is not paused: `echomq pause {queue.name}` first, and stop its producers")
        return 1
    if counts.active and not options.force:
        note(
            f"{queue.name} has {jobs(counts.active, 'active')}: wait until there is none (`echomq counts "
            f"{queue.name}`), or say --force to destroy them too"
        )
        return 1
    others = jobs_in_no_set(queue)
    states = _states(counts, scheduled=True, dead=True, active=True, parents=counts.awaiting + others)
    total = counts.unfinished + counts.dead + others
    print(f"This destroys the queue {queue.name}, with its results, logs, repeats, counters")
    print(f"and settings, and {jobs(total)}{':' if states else '.'}")
    print_lines(states)
    if not agreed(options):
        return stopped(options)
    print(f"Destroyed {queue.name} with {jobs(queue.obliterate(force=options.force))}.")
    return 0
