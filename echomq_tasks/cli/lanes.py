"""``echomq lanes`` and ``lane``: the lanes of a queue, and the settings of one."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from echomq_tasks.cli.arguments import add_asking, add_command, add_server, lane_limit, lane_name, queue_name, weight
from echomq_tasks.cli.queues import exists, missing
from echomq_tasks.cli.terminal import (
    agreed,
    cannot_ask,
    clean,
    jobs,
    note,
    print_facts,
    print_json,
    print_table,
    stopped,
)
from echomq_tasks.connection import connect
from echomq_tasks.queue import Lane, LaneInfo, Queue

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_HEADS = ("name", "depth", "active", "limit", "weight", "paused")


def add(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    lanes = add_command(
        commands,
        "lanes",
        run_lanes,
        summary="list the lanes of a queue",
        description="List the lanes of a queue that have a waiting or running job or a setting: how many jobs wait "
        "(depth) and run (active), how many may run at once (limit), how many are served in a turn (weight).",
    )
    lanes.add_argument("queue", metavar="QUEUE", type=queue_name, help="the queue")
    add_server(lanes, json=True)
    lane = add_command(
        commands,
        "lane",
        run_lane,
        summary="show, limit, weigh, pause or drain one lane",
        description="Show one lane, or change its settings and show it then.",
    )
    lane.add_argument("queue", metavar="QUEUE", type=queue_name, help="the queue")
    lane.add_argument("name", metavar="NAME", type=lane_name, help="the group that its jobs are sent with, or its id")
    lane.add_argument(
        "--limit",
        metavar="N",
        type=lane_limit,
        default=argparse.SUPPRESS,
        help="jobs of it that run at once; none for no limit; auto for the one that its jobs bring (group_limit=)",
    )
    lane.add_argument(
        "--weight", metavar="N", type=weight, default=argparse.SUPPRESS, help="jobs served in a turn; none is 1"
    )
    switch = lane.add_mutually_exclusive_group()
    switch.add_argument("--pause", action="store_true", help="stop handing out its jobs")
    switch.add_argument("--resume", action="store_true", help="hand out its jobs again")
    lane.add_argument("--drain", action="store_true", help="drop the jobs that wait in it, after a question")
    add_asking(lane)
    add_server(lane, json=True)


def run_lanes(options: argparse.Namespace) -> int:
    """Print the lanes; answers the exit code."""
    with connect(options.url) as connection:
        queue = Queue(options.queue, connection)
        lanes = queue.lanes()
        if not lanes and (problem := missing(queue)):
            note(problem)
            return 1
    if options.json:
        print_json([dataclasses.asdict(lane) for lane in lanes])
    elif lanes:
        print_table(_HEADS, [_row(lane) for lane in lanes], flexible=(0,), absent="none")
    else:
        print(f"{queue.name}: no lane has a job or a setting now; a job sent with group= opens one")
    return 0


def _row(lane: LaneInfo) -> tuple[object, ...]:
    return lane.name, lane.depth, lane.active, lane.limit, lane.weight, lane.paused


def run_lane(options: argparse.Namespace) -> int:
    """Change a lane, if asked to, and print it; answers the exit code."""
    settings = [hasattr(options, "limit"), hasattr(options, "weight"), options.pause, options.resume]
    if (options.dry_run or options.yes) and not options.drain:
        options.parser.error("--dry-run and --yes are for --drain: the other options change nothing that is lost")
    if options.drain and any(settings):
        options.parser.error("--drain goes alone: change the lane's settings before or after it")
    if options.drain and options.json:
        options.parser.error("--drain prints no data: leave --json out")
    if options.drain and cannot_ask(options):
        return 2
    with connect(options.url) as connection:
        queue = Queue(options.queue, connection)
        there = exists(queue)
        lane = queue.lane(options.name)
        if options.drain:
            if not there and (problem := missing(queue)):
                note(problem)
                return 1
            return _drain(options, queue, lane)
        if not there:
            note(f"{queue.name} has no jobs yet")
        if hasattr(options, "limit"):
            lane.limit(options.limit)
        if hasattr(options, "weight"):
            lane.weight(options.weight)
        if options.pause:
            lane.pause()
        if options.resume:
            lane.resume()
        # A lane without jobs or settings has no name on the server.
        info = lane.info()
        plain = info == LaneInfo(info.name, info.group, 0, 0, None, 1, paused=False)
        # That there is no limit may be a setting, too: only the list tells.
        if there and plain and not any(settings) and all(each.group != info.group for each in queue.lanes()):
            note(f"no job is in this lane, and it has no setting: `echomq lanes {queue.name}` lists those that do")
        info = dataclasses.replace(info, name=lane.name) if info.name == info.group else info
    if options.json:
        print_json({"queue": queue.name, **dataclasses.asdict(info)})
    else:
        facts = dict(zip(_HEADS, _row(info), strict=True))
        facts["limit"] = "none" if info.limit is None else info.limit
        print_facts([("name", info.name), ("group", info.group), *list(facts.items())[1:]])
    return 0


def _drain(options: argparse.Namespace, queue: Queue, lane: Lane) -> int:
    depth = lane.depth()
    title = f"the lane {clean(lane.name)!r} of {queue.name}"
    if not depth:
        print(f"No job waits in {title}.")
        return 0
    print(f"This drops {jobs(depth, 'waiting')} from {title}.")
    print("What runs or is scheduled stays.")
    if not agreed(options):
        return stopped(options)
    print(f"Dropped {jobs(lane.drain())}.")
    return 0
