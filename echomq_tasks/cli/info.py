"""``echomq info``: the server, the fence, and the queues with their counts."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any

from echomq_tasks.connection import Connection, connect
from echomq_tasks.keyspace import VERSION_KEY
from echomq_tasks.queue import Queue

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_QUEUE_OF = re.compile(rb"emq:\{([A-Za-z0-9._-]{1,128})\}:")
_COLUMNS = ("pending", "in_lanes", "active", "scheduled", "dead", "completed", "failed")


def add(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "info",
        help="show the server, the fence, and the queues with their counts",
        description="Show the server, the wire version it is fenced to, and how many jobs each queue holds: pending "
        "(to run now), in_lanes (pending, in fair lanes), active (claimed by a worker), scheduled (for later or for a "
        "retry), dead (failed for good), and how many were completed and failed so far.",
    )
    command.add_argument("queues", metavar="QUEUE", nargs="*", help="only these queues; spares a scan of all keys")
    command.add_argument("--url", help="the server (default: EMQ_URL, else the embedded one)")
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.set_defaults(run=run, parser=command)


def run(options: argparse.Namespace) -> int:
    """Print the report; answers the exit code."""
    with connect(options.url) as connection:
        report = _report(connection, options.queues or _find_queues(connection))
    print(json.dumps(report, indent=2) if options.json else _text(report))
    return 0


def _find_queues(connection: Connection) -> list[str]:
    # The wire keeps no list of queues. SCAN visits every key but never holds the server up, as KEYS would.
    found = set()
    for key in connection.client.scan_iter(match="emq:{*}:*", count=1000):
        if matched := _QUEUE_OF.match(key):
            found.add(matched[1].decode())
    return sorted(found)


def _report(connection: Connection, queues: list[str]) -> dict[str, Any]:
    fence = connection.client.get(VERSION_KEY)
    return {
        "server": connection.server.text,
        "address": connection.config.address,
        "fence": fence.decode() if isinstance(fence, bytes) else None,
        "queues": {name: dataclasses.asdict(Queue(name, connection).counts()) for name in queues},
    }


def _text(report: dict[str, Any]) -> str:
    lines = [f"{name:8}{report[name]}" for name in ("server", "address", "fence")]
    lines.append("")
    queues: dict[str, dict[str, int]] = report["queues"]
    if not queues:
        return "\n".join([*lines, "no queues yet: send a message to an actor, and its queue is here"])
    width = max(len("queue"), *(len(name) for name in queues))
    lines.append(f"{'queue':{width}}" + "".join(f"{column:>11}" for column in _COLUMNS))
    for name, counts in queues.items():
        paused = "  paused" if counts["paused"] else ""
        lines.append(f"{name:{width}}" + "".join(f"{counts[column]:>11,}" for column in _COLUMNS) + paused)
    return "\n".join(lines)
