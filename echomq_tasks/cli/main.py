"""Parse the command line and run one command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from echomq_tasks import __version__
from echomq_tasks.cli import demo, info, worker
from echomq_tasks.errors import EchoMQError

_DESCRIPTION = """\
Background jobs on Valkey.

  echomq demo                    watch real work done on the embedded server
  echomq worker myapp.tasks      run the actors that a module declares
  echomq info                    see the server and its queues
"""

_EPILOG = """\
The server is the one that --url or the variable EMQ_URL names:
  valkey://host:6379/0             one server (redis:// is the same; rediss:// with TLS)
  unix:///run/valkey.sock          a socket
  valkey+cluster://host:6379       a cluster
  valkey+sentinel://host:26379/main   the master that Sentinels know as "main"
  embedded:///var/lib/myapp        an embedded server, shared by all who name this directory
Without either, the embedded server in your data directory is used, and started when needed.
"""


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    root = argparse.ArgumentParser(
        prog="echomq",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"echomq_tasks {__version__}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (demo, worker, info):
        command.add(commands)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ``echomq`` command; answers its exit code.

    Parameters:
      argv: the arguments after the command's name; those of this process by default.
    """
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
        print(f"echomq: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of a pipe, as `head`, has seen enough. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
