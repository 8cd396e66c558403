"""``echomq info``: the server, the fence, and the queues with their counts."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from echomq_tasks.cli.arguments import add_command, add_server, queue_name
from echomq_tasks.cli.queues import find_queues, note_missing
from echomq_tasks.cli.terminal import print_facts, print_json, print_table
from echomq_tasks.connection import Connection, connect
from echomq_tasks.connection.failures import typed_errors
from echomq_tasks.keyspace import VERSION_KEY
from echomq_tasks.queue import Queue

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_COLUMNS = ("pending", "in_lanes", "active", "scheduled", "dead", "completed", "failed")


def add(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command, and one for those who want the numbers only."""
    command = add_command(
        commands,
        "info",
        run,
        summary="show the server, the fence, and the queues with their counts",
        description="Show the server, the wire version it is fenced to, and how many jobs each queue holds: pending "
        "(to run now, in no lane), in_lanes (to run now, in lanes; both together wait), active (claimed by a worker), "
        "scheduled (for later or for a retry), dead (failed for good), and how many were completed and failed so far.",
    )
    command.add_argument(
        "queues", metavar="QUEUE", nargs="*", type=queue_name, help="only these queues; spares a scan of all keys"
    )
    counts = add_command(
        commands,
        "counts",
        run_counts,
        summary="count the jobs of queues",
        description="Count the jobs of queues by state: the table of `echomq info`.",
    )
    counts.add_argument("queues", metavar="QUEUE", nargs="+", type=queue_name, help="a queue")
    for each in (command, counts):
        add_server(each, json=True)


def run(options: argparse.Namespace) -> int:
    """Print the report; answers the exit code."""
    with connect(options.url) as connection:
        named = note_missing(connection, options.queues)
        code = int(len(named) < len(set(options.queues)))
        report = _report(connection, named if options.queues else find_queues(connection))
    if options.json:
        print_json(report)
        return code
    print_facts((name, report[name]) for name in ("server", "address", "fence"))
    if report["queues"]:
        print()
        _print_table(report["queues"])
    elif not options.queues:
        print("\nno queues yet: send a message to an actor, and its queue is here")
    return code


def run_counts(options: argparse.Namespace) -> int:
    """Print the table alone; answers the exit code."""
    with connect(options.url) as connection:
        queues = _counts(connection, note_missing(connection, options.queues))
    if options.json:
        print_json(queues)
    elif queues:
        _print_table(queues)
    return int(len(queues) < len(set(options.queues)))


def _report(connection: Connection, queues: list[str]) -> dict[str, Any]:
    with typed_errors(connection.config):
        fence = connection.client.get(VERSION_KEY)
    return {
        "server": connection.server.text,
        "address": connection.config.address,
        "fence": fence.decode() if isinstance(fence, bytes) else None,
        "queues": _counts(connection, queues),
    }


def _counts(connection: Connection, queues: list[str]) -> dict[str, dict[str, int]]:
    return {name: dataclasses.asdict(Queue(name, connection).counts()) for name in queues}


def _print_table(queues: dict[str, dict[str, int]]) -> None:
    rows = [
        (name, *(counts[column] for column in _COLUMNS), "paused" if counts["paused"] else "")
        for name, counts in queues.items()
    ]
    print_table(("queue", *_COLUMNS, ""), rows, flexible=(0,))
