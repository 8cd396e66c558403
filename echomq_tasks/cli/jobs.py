"""``echomq job``, ``remove``, ``cancel`` and ``reprocess``: look at one job, or do something to some by their ids."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from echomq_tasks.brokers.dramatiq.delivery import fresh_payload
from echomq_tasks.cli.arguments import add_command, add_server, job_id, job_or_message_id, queue_name
from echomq_tasks.cli.queues import missing, on_queue
from echomq_tasks.cli.showing import Beside, beside_json, bytes_json, job_json, print_beside, print_job
from echomq_tasks.cli.terminal import clean, note, print_facts, print_json
from echomq_tasks.connection import connect
from echomq_tasks.errors import Held, WrongState
from echomq_tasks.identity import is_branded
from echomq_tasks.queue import Cancellation, Queue, State, Verdict
from echomq_tasks.queue.dead import actor_name
from echomq_tasks.results import result_id

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_GONE = "no such job: it was completed or removed, or was never in this queue"
#: Whether it was done, and what to say of it.
_Outcome = tuple[bool, str]


def add(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    job = add_command(
        commands,
        "job",
        run_job,
        summary="show one job: state, payload, error, progress, log",
        description="Show all there is of one job: where it is, its payload, last error, progress, log, result and "
        "what it knows of its children. An actor's result is kept under its message's id: name that to see it.",
    )
    job.add_argument("queue", metavar="QUEUE", type=queue_name, help="its queue")
    job.add_argument(
        "job", metavar="JOB", type=job_or_message_id, help="its JOB id; or a message's id, for the result alone"
    )
    add_server(job, json=True)
    for name, run, summary, description in (
        (
            "reprocess",
            run_reprocess,
            "let dead jobs run again, with all retries back",
            "Let dead jobs run again: their failures are forgotten, and an actor's message gets all of its retries "
            "back. `echomq dead QUEUE --retry` does it to many.",
        ),
        (
            "cancel",
            run_cancel,
            "remove jobs that wait, and ask those that run to stop",
            "Cancel jobs: one that waits is removed; one that runs is asked to stop, which the code sees by "
            "current_job(), and does not run again. A flow parent that waits for it learns that it failed.",
        ),
        (
            "remove",
            run_remove,
            "remove jobs that do not run, with all that is kept of them",
            "Remove jobs that wait, are scheduled or dead, with their payload, error and log. It does not ask: the "
            "jobs are named one by one. A flow parent that waits for one learns that it failed.",
        ),
    ):
        command = add_command(commands, name, run, summary=summary, description=description)
        command.add_argument("queue", metavar="QUEUE", type=queue_name, help="their queue")
        command.add_argument("jobs", metavar="JOB", nargs="+", type=job_id, help="a JOB id")
        add_server(command)


def run_job(options: argparse.Namespace) -> int:
    """Print a job; answers the exit code."""
    with connect(options.url) as connection:
        queue = Queue(options.queue, connection)
        if not is_branded(options.job, "JOB"):
            return _show_result(options, queue)
        job = queue.get(options.job)
        lane = queue.lanes_of([job.group])[0].name if job is not None and job.group is not None else None
        beside = Beside(queue.logs(options.job), _result(queue, options.job), queue.children(options.job), lane)
        if job is None and beside.result is None:
            note(missing(queue) or f"{options.job}: {_GONE}")
            return 1
    if options.json:
        row = {"id": options.job, "state": State.ABSENT.value} if job is None else job_json(job)
        print_json({"queue": queue.name, **row, **beside_json(beside)})
    elif job is None:
        print(f"{options.job} is no longer in {queue.name}; its result is kept")
        print_beside(beside)
    else:
        print_job(job, queue.name, beside)
    return 0


def _show_result(options: argparse.Namespace, queue: Queue) -> int:
    """Print the result of a message, all that its id leads to; answers the exit code."""
    result = _result(queue, result_id(options.job))
    if result is None:
        note(
            missing(queue)
            or f"no result is kept for a message {clean(options.job)!r} in {queue.name}; what else there is of its job "
            "is under the message's job_id"
        )
        return 1
    if options.json:
        print_json({"queue": queue.name, "message_id": options.job, **bytes_json("result", result)})
    else:
        print_facts([("message", options.job), ("queue", queue.name)])
        print_beside(Beside([], result, None))
    return 0


def _result(queue: Queue, job: str) -> bytes | None:
    try:
        return queue.result(job)
    except WrongState as error:
        note(str(error))
        return None


def run_remove(options: argparse.Namespace) -> int:
    """Remove jobs; answers the exit code."""

    def remove(queue: Queue, job: str) -> _Outcome:
        try:
            done = queue.remove(job) is Verdict.OK
        except Held:
            return False, f"a worker runs it: `echomq cancel {queue.name} {job}` asks it to stop, for good"
        return done, "removed" if done else _GONE

    return _each(options, remove)


def run_cancel(options: argparse.Namespace) -> int:
    """Cancel jobs; answers the exit code."""

    def cancel(queue: Queue, job: str) -> _Outcome:
        match queue.cancel(job):
            case Cancellation.REMOVED:
                return True, "removed: it had not started"
            case Cancellation.REQUESTED:
                return True, "it runs, was asked to stop, and will not run again"
            case Cancellation.ENDED:
                return False, f"it is dead already: `echomq remove {queue.name} {job}` drops it"
            case Cancellation.GONE:
                return False, _GONE

    return _each(options, cancel)


def run_reprocess(options: argparse.Namespace) -> int:
    """Let dead jobs run again; answers the exit code."""

    def reprocess(queue: Queue, job: str) -> _Outcome:
        info = queue.get(job)
        if info is None:
            return False, _GONE
        try:
            done = queue.reprocess(job, payload=with_all_retries(info.payload)) is Verdict.OK
        except WrongState as error:
            if queue.state(job) is State.DEAD:
                # The server says what keeps it there.
                return False, str(error)
            return False, f"it is {queue.state(job).value.replace('_', ' ')}, not dead: nothing to reprocess"
        return done, "runs again" if done else _GONE

    return _each(options, reprocess)


def with_all_retries(payload: bytes) -> bytes | None:
    """The payload with which an actor's message gets all of its retries back; None for any other job."""
    # Somebody else's JSON may have `options` with `retries`, too, and that is none of ours.
    return None if actor_name(payload) is None else fresh_payload(payload)


def _each(options: argparse.Namespace, verb: Callable[[Queue, str], _Outcome]) -> int:
    """Do something to each job and say what came of it; one that is refused does not keep the others from it."""

    def each(options: argparse.Namespace, queue: Queue) -> int:
        code = 0
        for job in dict.fromkeys(options.jobs):
            done, outcome = verb(queue, job)
            if done:
                print(f"{job}: {outcome}")
            else:
                note(f"{job}: {outcome}")
                code = 1
        return code

    return on_queue(options, each)
