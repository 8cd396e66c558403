"""``echomq demo``: the main example."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from echomq_tasks.cli.arguments import add_command

if TYPE_CHECKING:
    from argparse import _SubParsersAction

#: Where the example is: beside the package in a checkout, inside of it when it was installed.
_FOLDERS = (Path(__file__).parents[2] / "examples", Path(__file__).parents[1] / "examples")

_INSTALL = (
    "it draws with rich, which the extra `cli` brings: from a checkout, "
    'pip install "/path/to/the/checkout[embedded,cli]"'
)


def add(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = add_command(
        commands,
        "demo",
        run,
        summary="index the standard library with two workers, one of them killed",
        description="Index the standard library with two workers, one of which is killed midway, on an embedded "
        "server of its own unless --url names another. It needs the extras embedded and cli.",
        # All arguments are the example's, --help too: it knows its options.
        add_help=False,
    )
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the example")


def run(options: argparse.Namespace) -> int:
    """Run the example; answers its exit code."""
    sys.path.insert(0, str(next(folder for folder in _FOLDERS if (folder / "stdlib_index").is_dir())))
    try:
        example = importlib.import_module("stdlib_index.run")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "rich":
            raise
        if {"-h", "--help"} & set(options.arguments):
            options.parser.print_help()
            print(f"\nThe other options are the example's, and {_INSTALL}")
            return 0
        print(f"echomq: {_INSTALL}", file=sys.stderr)
        return 1
    arguments = options.arguments[1:] if options.arguments[:1] == ["--"] else options.arguments
    return int(example.main(arguments))
