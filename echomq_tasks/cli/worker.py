"""``echomq worker``: run actors, with Dramatiq's worker and its process supervision."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from dramatiq import cli as dramatiq_cli

from echomq_tasks.cli.arguments import add_command
from echomq_tasks.cli.modules import missing_module
from echomq_tasks.config import Config

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_DESCRIPTION = (
    "Run the actors that modules declare, in several processes with several threads each, until Ctrl-C or SIGTERM, "
    "which lets running jobs finish and gives the rest back; SIGHUP restarts with fresh code."
)
_EPILOG = "`dramatiq MODULE` runs the same modules and has more options: pid file, log file, shutdown timeout, ..."


def add(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = add_command(
        commands,
        "worker",
        run,
        summary="run the actors that modules declare",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    command.add_argument(
        "broker",
        metavar="MODULE[:BROKER]",
        help="a module to import, as in `import MODULE`, and the broker in it unless it is the global one; "
        "one module is enough",
    )
    command.add_argument("modules", metavar="MODULE", nargs="*", help="more modules that declare actors, if any")
    command.add_argument(
        "--url", help="the server of actors that set no broker (default: EMQ_URL, else the embedded server)"
    )
    command.add_argument(
        "--queues", "-Q", nargs="+", metavar="QUEUE", help="only these of the declared queues (default: all)"
    )
    command.add_argument(
        "--processes", "-p", type=_positive, default=os.cpu_count() or 1, help="worker processes (default: %(default)s)"
    )
    command.add_argument("--threads", "-t", type=_positive, default=8, help="threads a process (default: %(default)s)")
    command.add_argument(
        "--path",
        "-P",
        action="append",
        default=["."],
        metavar="DIR",
        help="import from this directory too, beside the current one",
    )
    command.add_argument(
        "--watch",
        metavar="DIR",
        help='restart when a source file in this directory changes; needs `pip install "dramatiq[watch]"`',
    )
    command.add_argument("--verbose", "-v", action="count", default=0, help="log more")


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 up, not {text!r}")
    return number


def run(options: argparse.Namespace) -> int:
    """Run workers until a signal stops them; answers the exit code: 2 when a module cannot be found.

    Raises:
      ConfigError: when ``--url`` is wrong.
    """
    # Both are checked here: found by the worker processes, each of them would fail, with a traceback.
    for name in (options.broker, *options.modules):
        if problem := missing_module(name, options.path):
            print(f"echomq: {problem}", file=sys.stderr)
            return 2
    if options.url is not None:
        Config.parse(options.url)
        # The worker processes are forked from here and make their own connections.
        os.environ["EMQ_URL"] = options.url
    arguments = [options.broker, *options.modules]
    arguments += ["--processes", str(options.processes), "--threads", str(options.threads)]
    # Once, with all of them: Dramatiq keeps the last --path only.
    arguments += ["--path", *options.path]
    if options.queues:
        arguments += ["--queues", *options.queues]
    if options.watch:
        arguments += ["--watch", options.watch]
    arguments += ["--verbose"] * options.verbose
    # On SIGHUP Dramatiq executes sys.argv again, and a module run with `python -m` is no program.
    sys.argv[:1] = [sys.executable, "-m", "echomq_tasks"]
    return int(dramatiq_cli.main(dramatiq_cli.make_argument_parser().parse_args(arguments)) or 0)
