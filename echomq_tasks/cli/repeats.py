"""``echomq repeats``: what a queue admits again and again, and when next."""

from __future__ import annotations

import argparse
import dataclasses
from datetime import datetime
from typing import TYPE_CHECKING, Any

from echomq_tasks.cli.arguments import add_command, add_server, queue_name, repeat_name
from echomq_tasks.cli.queues import on_queue
from echomq_tasks.cli.showing import bytes_json
from echomq_tasks.cli.terminal import clean, for_how_long, iso, local_time, note, print_json, print_table
from echomq_tasks.queue import Queue, Repeat

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = add_command(
        commands,
        "repeats",
        run,
        summary="list what a queue repeats, or cancel one",
        description="List what a queue admits again and again, with the next run in local time, or cancel one of them; "
        "jobs that it has admitted stay. An actor with every= or cron= registers it again when its worker starts.",
    )
    command.add_argument("queue", metavar="QUEUE", type=queue_name, help="the queue")
    command.add_argument("--cancel", metavar="NAME", type=repeat_name, help="cancel the repeat of this name")
    add_server(command, json=True)


def run(options: argparse.Namespace) -> int:
    """List repeats or cancel one; answers the exit code."""
    if options.cancel is not None and options.json:
        options.parser.error("--cancel prints no data: leave --json out")
    return on_queue(options, _run)


def _run(options: argparse.Namespace, queue: Queue) -> int:
    if options.cancel is not None:
        return _cancel(queue, options.cancel)
    repeats = queue.repeats()
    if options.json:
        print_json([_json(repeat) for repeat in repeats])
    elif repeats:
        now = queue.now()
        heads = ("name", "next run", "in", "schedule", "fired")
        print_table(heads, [_row(repeat, now) for repeat in repeats], flexible=(0, 3))
    else:
        print(f"{queue.name} repeats nothing")
    return 0


def _cancel(queue: Queue, name: str) -> int:
    if queue.cancel_repeat(name):
        print(f"{name}: cancelled; jobs that it has admitted stay")
        return 0
    names = [clean(repeat.name) for repeat in queue.repeats()]
    there = f"it repeats {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}" if names else "it repeats nothing"
    note(f"{queue.name} has no repeat {name!r}: {there}")
    return 1


def _row(repeat: Repeat, now: datetime) -> tuple[Any, ...]:
    left = (repeat.next_run - now).total_seconds()
    when = for_how_long(left) if left >= 0 else f"{for_how_long(-left)} late"
    fired = f"{repeat.fired:,}" + ("" if repeat.limit is None else f" of {repeat.limit:,}")
    return repeat.name, local_time(repeat.next_run), when, _schedule(repeat), fired


def _schedule(repeat: Repeat) -> str:
    if repeat.cron is not None:
        return f"{repeat.cron} {repeat.tz}"
    return "not readable" if repeat.every is None else f"every {for_how_long(repeat.every)}"


def _json(repeat: Repeat) -> dict[str, Any]:
    return {
        "name": repeat.name,
        "next_run": iso(repeat.next_run),
        "every": repeat.every,
        "cron": repeat.cron,
        "tz": repeat.tz,
        "limit": repeat.limit,
        "fired": repeat.fired,
        "catch_up": repeat.catch_up,
        "priority": repeat.priority,
        "group": repeat.group,
        "group_limit": repeat.group_limit,
        "unique": None if repeat.unique is None else dataclasses.asdict(repeat.unique),
        **bytes_json("payload", repeat.payload),
    }
