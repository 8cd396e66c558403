"""``echomq dead``: list dead jobs, let them run again, or drop them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from echomq_tasks.cli.arguments import (
    add_asking,
    add_command,
    add_server,
    count,
    duration,
    queue_name,
    text_to_find,
)
from echomq_tasks.cli.jobs import with_all_retries
from echomq_tasks.cli.queues import on_queue
from echomq_tasks.cli.showing import first_line, job_json
from echomq_tasks.cli.terminal import (
    agreed,
    cannot_ask,
    clean,
    columns,
    for_how_long,
    jobs,
    print_json_list,
    print_lines,
    print_table,
    stopped,
)
from echomq_tasks.queue import JobInfo, Queue
from echomq_tasks.queue.dead import actor_name

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = add_command(
        commands,
        "dead",
        run,
        summary="list dead jobs, let them run again, or drop them",
        description="List the jobs that failed for good, newest first. With --retry those that are listed run again, "
        "an actor's message with all of its retries; with --purge they are dropped. Both ask first.",
        epilog="Example: `echomq dead mail --actor send_receipt --error Timeout --older-than 2d --retry`.",
    )
    command.add_argument("queue", metavar="QUEUE", type=queue_name, help="the queue")
    command.add_argument("--actor", metavar="A", type=text_to_find, help="only messages to this actor")
    command.add_argument("--error", metavar="TEXT", type=text_to_find, help="only if the error contains this text")
    command.add_argument("--older-than", metavar="AGE", type=duration, help="only if dead for longer, as 90, 10m, 2d")
    command.add_argument("--limit", metavar="N", type=count, help="only the newest N of them")
    acts = command.add_mutually_exclusive_group()
    acts.add_argument("--retry", action="store_true", help="let them run again")
    acts.add_argument("--purge", action="store_true", help="drop them with all that is kept of them")
    add_asking(command)
    add_server(command, json=True)


def run(options: argparse.Namespace) -> int:
    """List dead jobs or act on them; answers the exit code."""
    acts = options.retry or options.purge
    if acts and options.json:
        options.parser.error("--retry and --purge print no data: leave --json out")
    if (options.dry_run or options.yes) and not acts:
        options.parser.error("--dry-run and --yes go with --retry or --purge: without them nothing is changed")
    if acts and cannot_ask(options):
        return 2
    return on_queue(options, _run)


def _run(options: argparse.Namespace, queue: Queue) -> int:
    chosen = islice(queue.dead(older_than=options.older_than, actor=options.actor, error=options.error), options.limit)
    if options.retry or options.purge:
        return _act(options, queue, chosen)
    if options.json:
        print_json_list(job_json(job) for job in chosen)
    else:
        _list(options, queue, chosen)
    return 0


def _list(options: argparse.Namespace, queue: Queue, chosen: Iterator[JobInfo]) -> None:
    now = queue.now()
    first = next(chosen, None)
    if first is None:
        print(f"{queue.name}: no dead job{' is meant by this' if _is_narrowed(options) else 's'}")
        return

    def rows() -> Iterator[tuple[Any, ...]]:
        yield _row(first, now)
        for job in chosen:
            yield _row(job, now)

    total = print_table(("job", "dead for", "actor", "error"), rows(), flexible=(3, 2))
    # For people only: a program counts lines.
    if columns() is not None:
        print(f"\n{jobs(total, 'dead')}. `echomq job {queue.name} JOB` shows one;")
        print("--retry lets all that are listed run again, --purge drops them.")


def _row(job: JobInfo, now: datetime) -> tuple[Any, ...]:
    age = for_how_long(max(0.0, (now - (job.died or job.minted)).total_seconds()))
    return job.id, age, actor_name(job.payload), first_line(job.last_error)


def _is_narrowed(options: argparse.Namespace) -> bool:
    return any(value is not None for value in (options.older_than, options.actor, options.error))


def _act(options: argparse.Namespace, queue: Queue, chosen: Iterator[JobInfo]) -> int:
    """Act on just the jobs that the question was about: others that die meanwhile are left alone."""
    ids: list[str] = []
    actors: dict[str, int] = {}
    for job in chosen:
        ids.append(job.id)
        name = actor_name(job.payload) or "without an actor's name"
        actors[name] = actors.get(name, 0) + 1
    if not ids:
        print(f"{queue.name}: no dead job{' is meant by this' if _is_narrowed(options) else 's'}, nothing to do.")
        return 0
    what = f"{jobs(len(ids), 'dead')} of {queue.name}"
    print(f"This lets {what} run again:" if options.retry else f"This drops {what}:")
    print_lines(f"{number:,} {clean(name)}" for name, number in sorted(actors.items(), key=lambda pair: -pair[1]))
    if not agreed(options):
        return stopped(options)
    if options.retry:
        done = queue.retry_dead(only=ids, payload=lambda job: with_all_retries(job.payload))
        print(f"{jobs(done)} run{'s' if done == 1 else ''} again.{_left(len(ids) - done)}")
    else:
        done = queue.purge_dead(only=ids)
        print(f"Dropped {jobs(done, 'dead')}.{_left(len(ids) - done)}")
    return 0


def _left(number: int) -> str:
    return f" {jobs(number)} had been dealt with meanwhile." if number else ""
