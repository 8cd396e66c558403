"""``echomq worker``: run actors, with Dramatiq's worker and its process supervision."""

from __future__ import annotations

import argparse
import difflib
import os
import pkgutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from dramatiq import cli as dramatiq_cli

from echomq_tasks.cli.arguments import add_command
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
        if problem := _missing(name, options.path):
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


def _missing(name: str, path: Sequence[str]) -> str | None:
    """Say why a module cannot be found from ``path``, None when it can. Nothing is imported.

    A submodule is not looked for: only its package, once imported, knows where its modules are.
    """
    module = name.partition(":")[0]
    top = module.partition(".")[0]
    before, sys.path = sys.path, [*reversed(path), *sys.path]
    try:
        spec = find_spec(top) if top else None
        found = spec is not None
    except ValueError:
        # A module that is imported already and has no spec, as __main__.
        spec, found = None, True
    finally:
        sys.path = before
    if "/" in module or (module.endswith(".py") and (spec is None or spec.submodule_search_locations is None)):
        return f"{module!r} is a file, and a module is named as for import: write `{_module_of(module)}`"
    if found:
        return None
    nearest = difflib.get_close_matches(top, [info.name for info in pkgutil.iter_modules(path)], n=1)
    hint = f"did you mean {nearest[0]!r}? Else go" if nearest else "go"
    return (
        f"no module named {top!r} from here ({', '.join(path)}): {hint} to the directory it is in, "
        "or name that directory with --path"
    )


def _module_of(file: str) -> str:
    """What to write in place of a file's name."""
    path = os.path.normpath(file.removesuffix(".py"))
    if path.startswith(("/", "..")):
        directory, name = os.path.split(path)
        return f"{name} --path {directory}"
    return path.replace("/", ".")
