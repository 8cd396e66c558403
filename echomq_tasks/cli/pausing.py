"""``echomq pause``, ``resume`` and ``limits``: stop a queue, let it go on, and say how fast it may."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from echomq_tasks.cli.arguments import add_command, add_server, ceiling, queue_name, window
from echomq_tasks.cli.queues import exists
from echomq_tasks.cli.terminal import for_how_long, note, print_facts, print_json
from echomq_tasks.connection import connect
from echomq_tasks.queue import Limits, Queue

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    pause = add_command(
        commands,
        "pause",
        run_pause,
        summary="stop handing out jobs; what runs is finished",
        description="Stop handing out the jobs of these queues, to workers in any language, until `echomq resume`. "
        "What runs is finished, and jobs are still admitted. `echomq lane QUEUE NAME --pause` stops one lane only.",
    )
    resume = add_command(
        commands,
        "resume",
        run_resume,
        summary="hand out jobs again",
        description="Hand out the jobs of these queues again.",
    )
    for command in (pause, resume):
        command.add_argument("queues", metavar="QUEUE", nargs="+", type=queue_name, help="a queue")
        add_server(command)
    limits = add_command(
        commands,
        "limits",
        run_limits,
        summary="show or set how fast a queue runs, and how much at once",
        description="Show the ceilings of a queue, or set them. They hold for all workers together.",
        epilog="Example: `echomq limits mail --rate 100 --per 1m --concurrency 20`. With `none` a ceiling is removed.",
    )
    limits.add_argument("queue", metavar="QUEUE", type=queue_name, help="the queue")
    limits.add_argument(
        "--rate", metavar="N", type=ceiling, default=argparse.SUPPRESS, help="claims in a window, at most; or none"
    )
    limits.add_argument("--per", metavar="S", type=window, help="the window: seconds, or as 10m, 2h (default: 1)")
    limits.add_argument(
        "--concurrency", metavar="N", type=ceiling, default=argparse.SUPPRESS, help="jobs that run at once; or none"
    )
    add_server(limits, json=True)


def run_pause(options: argparse.Namespace) -> int:
    """Pause queues; answers the exit code."""
    return _switch(options, "paused", "was paused already", pause=True)


def run_resume(options: argparse.Namespace) -> int:
    """Resume queues; answers the exit code."""
    return _switch(options, "runs again", "was not paused", pause=False)


def _switch(options: argparse.Namespace, done: str, was_so: str, *, pause: bool) -> int:
    with connect(options.url) as connection:
        for name in dict.fromkeys(options.queues):
            queue = Queue(name, connection)
            there = exists(queue)
            changed = queue.pause() if pause else queue.resume()
            print(f"{name}: {done if changed else was_so}{'' if there else ' (it has no jobs yet)'}")
    return 0


def run_limits(options: argparse.Namespace) -> int:
    """Set ceilings, if asked to, and print those that hold; answers the exit code."""
    if options.per is not None and getattr(options, "rate", None) is None:
        options.parser.error("--per goes with --rate N: it is the window in which N jobs may be claimed")
    with connect(options.url) as connection:
        queue = Queue(options.queue, connection)
        if not exists(queue):
            note(f"{queue.name} has no jobs yet")
        if hasattr(options, "rate"):
            queue.limit_rate(options.rate, per=1.0 if options.per is None else options.per)
        if hasattr(options, "concurrency"):
            queue.limit_concurrency(options.concurrency)
        limits = queue.limits()
    if options.json:
        print_json({"queue": queue.name, **dataclasses.asdict(limits)})
    else:
        _print(limits)
    return 0


def _print(limits: Limits) -> None:
    rate = "none" if limits.rate is None else f"{limits.rate:,} in {for_how_long(limits.per)}"
    concurrency = "none" if limits.concurrency is None else f"{limits.concurrency:,} at once"
    print_facts([("rate", rate), ("concurrency", concurrency), ("paused", limits.paused)])
