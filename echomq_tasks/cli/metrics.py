"""``echomq metrics``: what to watch of queues, for people, for programs, and for Prometheus."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from echomq_tasks.cli.arguments import add_command, add_server, queue_name
from echomq_tasks.cli.queues import find_queues, note_missing
from echomq_tasks.cli.terminal import for_how_long, print_facts, print_json
from echomq_tasks.connection import connect
from echomq_tasks.queue import Metrics, Queue

if TYPE_CHECKING:
    from argparse import _SubParsersAction

#: The attribute of Metrics, the metric's name behind ``echomq_queue_``, its type and its help.
_EXPOSED = (
    ("completed", "completed_total", "counter", "Jobs completed since the queue exists."),
    ("failed", "failed_total", "counter", "Jobs sent to dead since the queue exists."),
    ("waiting", "waiting", "gauge", "Jobs that could be claimed, flat and in lanes."),
    ("in_lanes", "in_lanes", "gauge", "Waiting jobs that are in lanes."),
    ("active", "active", "gauge", "Jobs that a worker has claimed."),
    ("scheduled", "scheduled", "gauge", "Jobs that wait for their time, late ones among them."),
    ("late", "late", "gauge", "Scheduled jobs whose time has come and that no worker has taken up."),
    ("awaiting", "awaiting", "gauge", "Flow parents that wait for their children."),
    ("dead", "dead", "gauge", "Jobs that failed for good and are kept."),
    ("lanes", "lanes", "gauge", "Lanes in which a job waits."),
    ("oldest_waiting", "oldest_waiting_seconds", "gauge", "Age of the oldest waiting job; no sample when none waits."),
    ("oldest_dead", "oldest_dead_seconds", "gauge", "Age of the oldest dead job; no sample when there is none."),
    ("paused", "paused", "gauge", "1 when the whole queue is paused."),
)


def add(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = add_command(
        commands,
        "metrics",
        run,
        summary="measure queues, also as Prometheus text",
        description="Measure queues: how many jobs of each state, how many are late, and how old the oldest is. Ages "
        "count from when a job's id was minted, by its producer's clock.",
        epilog="Example, for the textfile collector of the node exporter: "
        "`echomq metrics --prometheus > echomq.prom.new && mv echomq.prom.new echomq.prom`.",
    )
    command.add_argument(
        "queues", metavar="QUEUE", nargs="*", type=queue_name, help="only these queues; spares a scan of all keys"
    )
    command.add_argument("--prometheus", action="store_true", help="print the Prometheus text format")
    add_server(command, json=True)


def run(options: argparse.Namespace) -> int:
    """Print the metrics; answers the exit code."""
    if options.json and options.prometheus:
        options.parser.error("say --json or --prometheus, not both")
    with connect(options.url) as connection:
        # Each once: a metric that is there twice would be no valid exposition.
        names = note_missing(connection, options.queues) if options.queues else find_queues(connection)
        measured = {name: Queue(name, connection).metrics() for name in names}
    if options.json:
        print_json({name: dataclasses.asdict(metrics) for name, metrics in measured.items()})
    elif options.prometheus:
        print(exposition(measured), end="")
    elif measured:
        for place, (name, metrics) in enumerate(measured.items()):
            print(f"\n{name}" if place else name)
            _print(metrics)
    elif not options.queues:
        print("no queues yet")
    return int(bool(options.queues) and len(measured) < len(set(options.queues)))


def _print(metrics: Metrics) -> None:
    facts: list[tuple[str, object]] = []
    for name, value in dataclasses.asdict(metrics).items():
        shown = for_how_long(value) if isinstance(value, float) else value
        facts.append((f"  {name.replace('_', ' ')}", shown))
    print_facts(facts)


def exposition(measured: Mapping[str, Metrics]) -> str:
    """The Prometheus text format (version 0.0.4) of some queues' metrics."""
    lines: list[str] = []
    for attribute, suffix, kind, meaning in _EXPOSED:
        name = f"echomq_queue_{suffix}"
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
        for queue, metrics in measured.items():
            value = getattr(metrics, attribute)
            if value is not None:
                number = int(value) if isinstance(value, bool) else value
                lines.append(f'{name}{{queue="{escape_label(queue)}"}} {number}')
    return "".join(f"{line}\n" for line in lines)


def escape_label(value: str) -> str:
    """A label's value as it stands between quotes."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
