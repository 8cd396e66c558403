"""``echomq worker``: run actors, with Dramatiq's worker and its process supervision."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from dramatiq import cli as dramatiq_cli

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "worker",
        help="run the actors that modules declare",
        description="Run the actors that modules declare, in several processes with several threads each. "
        "SIGTERM finishes what runs and gives the rest back; SIGHUP restarts with fresh code.",
    )
    command.add_argument(
        "broker",
        metavar="MODULE[:BROKER]",
        help="a module to import, and the broker in it unless it is the global one",
    )
    command.add_argument("modules", metavar="MODULE", nargs="*", help="more modules that declare actors")
    command.add_argument("--url", help="the server of actors that set no broker (default: EMQ_URL)")
    command.add_argument("--queues", "-Q", nargs="+", metavar="QUEUE", help="only these queues (default: all declared)")
    command.add_argument(
        "--processes", "-p", type=_positive, default=os.cpu_count() or 1, help="worker processes (default: %(default)s)"
    )
    command.add_argument("--threads", "-t", type=_positive, default=8, help="threads a process (default: %(default)s)")
    command.add_argument("--path", "-P", action="append", default=["."], help="import from here too (default: .)")
    command.add_argument("--watch", metavar="DIR", help="restart when a source file in this directory changes")
    command.add_argument("--verbose", "-v", action="count", default=0, help="log more")
    command.set_defaults(run=run)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {number}")
    return number


def run(options: argparse.Namespace) -> int:
    """Run workers until a signal stops them; answers the exit code."""
    if options.url:
        # The worker processes are forked from here and make their own connections.
        os.environ["EMQ_URL"] = options.url
    arguments = [options.broker, *options.modules]
    arguments += ["--processes", str(options.processes), "--threads", str(options.threads)]
    for path in options.path:
        arguments += ["--path", path]
    if options.queues:
        arguments += ["--queues", *options.queues]
    if options.watch:
        arguments += ["--watch", options.watch]
    arguments += ["--verbose"] * options.verbose
    # On SIGHUP Dramatiq executes sys.argv again, and a module run with `python -m` is no program.
    sys.argv[:1] = [sys.executable, "-m", "echomq_tasks"]
    return int(dramatiq_cli.main(dramatiq_cli.make_argument_parser().parse_args(arguments)) or 0)
