"""``echomq demo``: the main example of the checkout."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EXAMPLES = Path(__file__).parents[2] / "examples"


def add(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "demo",
        help="index the Python standard library with two workers, one of which is killed midway",
        description="Index the Python standard library's sources with two worker processes on an embedded server, "
        "kill one of them midway, and check the result against a plain count. "
        "All arguments go to the example: try `echomq demo --limit 200`, or `-- --help`.",
    )
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the example")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the example; answers its exit code."""
    if not (_EXAMPLES / "stdlib_index" / "run.py").is_file():
        print(
            "echomq: the examples are not part of the installed package: get the source distribution or a checkout of "
            "the project, and run ./scripts/demo in it",
            file=sys.stderr,
        )
        return 1
    sys.path.insert(0, str(_EXAMPLES))
    example = importlib.import_module("stdlib_index.run")
    arguments = options.arguments[1:] if options.arguments[:1] == ["--"] else options.arguments
    return int(example.main(arguments))
