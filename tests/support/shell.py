"""The ``echomq`` command in this process, and a queue that has some of everything to use it on."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from echomq_tasks.cli.main import main
from echomq_tasks.queue import Flow, NewJob, Queue


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines of standard output."""
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        """Standard output, which has to be one JSON value."""
        return json.loads(self.out)


@dataclass
class Shell:
    """Runs commands against one server."""

    url: str
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> Said:
        """Run ``echomq ARGUMENTS``; a usage error is an exit code, too."""
        self.capsys.readouterr()
        try:
            code = main([*arguments, "--url", self.url])
        except SystemExit as ended:
            code = int(ended.code or 0)
        captured = self.capsys.readouterr()
        return Said(code, captured.out, captured.err)


def message(actor: str, *args: Any, **options: Any) -> str:
    """An actor's message."""
    fields = {"queue_name": "any", "actor_name": actor, "args": args, "kwargs": {}, "options": options}
    return json.dumps({**fields, "message_id": "m", "message_timestamp": 1})


@dataclass
class Stock:
    """The ids of the jobs that :func:`stock` put into a queue."""

    dead: list[str] = field(default_factory=list)
    active: str = ""
    waiting: list[str] = field(default_factory=list)
    in_lane: list[str] = field(default_factory=list)
    scheduled: str = ""
    parent: str = ""
    children: list[str] = field(default_factory=list)


def bury(queue: Queue, payload: str | bytes, error: str) -> str:
    """One dead job; nothing else may wait in the queue."""
    (sent,) = queue.enqueue_many([payload])
    (job,) = queue.claim().jobs
    assert job.id == sent.id
    queue.retry(job, error, max_retries=0)
    return sent.id


def stock(queue: Queue) -> Stock:
    """3 dead, 1 active, 2 waiting, 2 in a lane, 1 scheduled, a flow of a parent and 2 children; a repeat, a result."""
    had = Stock()
    for number, (actor, error) in enumerate((("mail", "TimeoutError: slow"), ("mail", "KeyError: 'x'"), ("pdf", "E"))):
        had.dead.append(bury(queue, message(actor, number, retries=3, traceback="T"), error))
    had.active = queue.enqueue("runs").id
    assert [job.id for job in queue.claim(lease=3600).jobs] == [had.active]
    had.waiting = [sent.id for sent in queue.enqueue_many(["one", "two"])]
    had.in_lane = [queue.enqueue(text, group="acme").id for text in ("three", "four")]
    had.scheduled = queue.enqueue("later", delay=3600).id
    flow = queue.add_flow(Flow(NewJob("parent"), [NewJob("child 1"), NewJob("child 2")]))
    had.parent, had.children = flow.id, [child.id for child in flow.children]
    queue.repeat("nightly", "p", cron="0 3 * * *")
    queue.store_result(had.active, '{"a": 1}')
    queue.add_log(had.active, "a line")
    return had
