"""Parse the command line and run one command."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Mapping, Sequence

from echomq_tasks import __version__
from echomq_tasks.cli import (
    cache,
    dead,
    demo,
    destroying,
    events,
    info,
    jobs,
    lanes,
    listen,
    metrics,
    pausing,
    repeats,
    worker,
)
from echomq_tasks.cli.arguments import Parser
from echomq_tasks.cli.terminal import advice, note
from echomq_tasks.errors import ConfigError, EchoMQError

#: The commands, under what one wants to do.
GROUPS: Mapping[str, Sequence[str]] = {
    "running": ("demo", "worker", "listen"),
    "looking": ("info", "counts", "metrics", "events", "job", "dead", "lanes", "repeats", "cache"),
    "operating a queue": ("pause", "resume", "limits", "lane", "drain", "obliterate"),
    "operating on jobs": ("cancel", "reprocess", "remove"),
}

_EPILOG = """\
`echomq COMMAND --help` shows the options of a command.

The server is the one that --url or the variable EMQ_URL names:
  valkey://host:6379/0                one server (redis:// too; rediss://: TLS)
  unix:///run/valkey.sock             a socket
  valkey+cluster://host:6379          a cluster
  valkey+sentinel://host:26379/main   the master that Sentinels know as "main"
  embedded:///var/lib/myapp           an embedded server in this directory,
                                      shared by all who name it
Without either, the embedded server in your data directory is used, and started
when needed.
"""


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    root = Parser(
        prog="echomq",
        usage="echomq [--help] [--version] COMMAND ...",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"echomq_tasks {__version__}")
    # Listed by ourselves, in groups; argparse knows one list of commands only.
    commands = root.add_subparsers(
        title="commands", metavar="COMMAND", required=True, help=argparse.SUPPRESS, prog="echomq"
    )
    for family in (demo, worker, listen, info, metrics, events, jobs, dead, lanes, repeats, cache, pausing, destroying):
        family.add(commands)
    lines = ["Background jobs on Valkey."]
    for group, names in GROUPS.items():
        lines += ["", f"{group}:"]
        lines += [f"  {name:13}{commands.choices[name].get_default('summary')}" for name in names]
    root.description = "\n".join(lines)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ``echomq`` command; answers its exit code.

    Parameters:
      argv: the arguments after the command's name; those of this process by default.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name that the terminal's encoding lacks is no reason to fail.
            stream.reconfigure(errors="backslashreplace")
    root = parser()
    options, others = root.parse_known_args(argv)
    if others:
        if options.run is not demo.run:
            options.parser.error(f"unrecognized arguments: {' '.join(others)}")
        # The example has options of its own; argparse holds those before the first plain argument for unknown.
        options.arguments = others + options.arguments
    try:
        code = int(options.run(options))
        # Here, not at exit: a reader that has left is noticed when the text is written.
        sys.stdout.flush()
        return code
    except EchoMQError as error:
        note(advice(error))
        # A URL that is none, or an option of it, is a command line that makes no sense.
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of a pipe, as `head`, has seen enough. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
