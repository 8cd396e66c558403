"""What destroys asks first: the question on a real terminal, its answers, and what happens without a terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.eventually import eventually
from support.servers import ServerProcess
from support.shell import Shell, Stock, message, stock
from support.terminals import CTRL_C, Ended, on_terminal
from wire.handwriting import Wire

from echomq_tasks.connection import Connection
from echomq_tasks.queue import Queue

ROOT = Path(__file__).parents[3]
PROMPT = "Go on? yes or no: "
#: Every command that destroys, on a queue that is paused; what it leaves is for other tests.
DESTROYING = [
    "drain {queue}",
    "drain {queue} --scheduled --dead",
    "obliterate {queue} --force",
    "dead {queue} --purge",
    "dead {queue} --retry --actor mail",
    "lane {queue} acme --drain",
]


@pytest.fixture
def had(queue: Queue) -> Stock:
    had = stock(queue)
    queue.pause()
    return had


@pytest.fixture
def asked(server: ServerProcess, standalone: Connection, queue_name: str) -> Callable[..., Ended]:
    """Run a command on a terminal and type answers; the queue is stocked."""

    def ask(command: str, *answers: bytes) -> Ended:
        return on_terminal(
            ["-m", "echomq_tasks", *command.format(queue=queue_name).split(), "--url", server.url],
            prompt=PROMPT,
            answers=answers,
            environ={"PYTHONPATH": str(ROOT), "TERM": "dumb"},
        )

    return ask


def alone(standalone: Connection, queue_name: str) -> tuple[Queue, Wire, Stock]:
    queue = Queue(queue_name, standalone)
    had = stock(queue)
    queue.pause()
    return queue, Wire(standalone, queue_name), had


@pytest.mark.parametrize("command", DESTROYING)
@pytest.mark.parametrize("answer", [b"no\n", b"N\n", b"\n", b"\x04"], ids=["no", "N", "enter", "end of file"])
def test_no_changes_nothing(
    asked: Callable[..., Ended], standalone: Connection, queue_name: str, command: str, answer: bytes
) -> None:
    _, wire, _ = alone(standalone, queue_name)
    before = wire.dumps()
    ended = asked(command, answer)
    assert ended.code == 1
    assert ended.screen.endswith("\nNothing was changed.\n")
    assert wire.dumps() == before


@pytest.mark.parametrize("command", DESTROYING)
def test_ctrl_c_changes_nothing_and_shows_no_traceback(
    asked: Callable[..., Ended], standalone: Connection, queue_name: str, command: str
) -> None:
    _, wire, _ = alone(standalone, queue_name)
    before = wire.dumps()
    ended = asked(command, CTRL_C)
    assert ended.code == 130
    assert ended.screen.endswith("\nNothing was changed.\n")
    assert "Traceback" not in ended.screen
    assert wire.dumps() == before


@pytest.mark.parametrize("command", DESTROYING)
def test_yes_does_what_was_said(
    asked: Callable[..., Ended], standalone: Connection, queue_name: str, command: str
) -> None:
    _, wire, _ = alone(standalone, queue_name)
    before = wire.dumps()
    ended = asked(command, b"maybe\n", b"y es\n", b"Yes\n")
    assert ended.code == 0, ended.screen
    # As many as it said first.
    said, _, done = ended.screen.partition(PROMPT)
    (number,) = {int(found) for found in re.findall(r"(\d+) (?:dead |waiting )?jobs?", said)}
    assert re.search(rf"(?<!\d){number} (dead )?jobs?(?! had)", done.splitlines()[-1])
    assert wire.dumps() != before


def test_the_question_fits_a_terminal_of_80_columns(
    asked: Callable[..., Ended], standalone: Connection, queue_name: str
) -> None:
    alone(standalone, queue_name)
    for command in DESTROYING:
        assert max(map(len, asked(command, b"no\n").screen.splitlines())) <= 80, command


@pytest.mark.parametrize("command", DESTROYING)
def test_without_a_terminal_it_needs_a_yes(echomq: Shell, had: Stock, queue: Queue, wire: Wire, command: str) -> None:
    before = wire.dumps()
    said = echomq(*command.format(queue=queue.name).split())
    assert (said.code, said.out) == (2, "")
    (line,) = said.err.splitlines()
    assert "--yes" in line
    assert "--dry-run" in line
    assert wire.dumps() == before


def test_a_question_that_would_go_into_a_pipe_is_not_asked(
    echomq: Shell, had: Stock, queue: Queue, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    before = wire.dumps()
    assert echomq("drain", queue.name).code == 2
    assert wire.dumps() == before


@pytest.mark.parametrize("command", DESTROYING)
@pytest.mark.parametrize("extra", [[], ["--yes"]], ids=["alone", "with --yes"])
def test_a_dry_run_says_the_same_and_changes_nothing(
    echomq: Shell, had: Stock, queue: Queue, wire: Wire, command: str, extra: list[str]
) -> None:
    before = wire.dumps()
    said = echomq(*command.format(queue=queue.name).split(), "--dry-run", *extra)
    assert (said.code, said.err) == (0, "")
    assert said.lines[-1] == "Nothing was changed: this was a dry run."
    assert wire.dumps() == before
    done = echomq(*command.format(queue=queue.name).split(), "--yes")
    assert done.code == 0
    assert done.lines[:-1] == said.lines[:-1]


def test_every_command_that_only_looks_changes_nothing(echomq: Shell, had: Stock, queue: Queue, wire: Wire) -> None:
    before = wire.dumps()
    for command in ("info", "counts {q}", "metrics {q}", "metrics", "dead {q}", "lanes {q}", "lane {q} acme",
                    "repeats {q}", "limits {q}", f"job {{q}} {had.active}", f"job {{q}} {had.parent}"):  # fmt: skip
        words = command.format(q=queue.name).split()
        assert echomq(*words).code == 0
        assert echomq(*words, "--json").json is not None
    assert echomq("metrics", "--prometheus").code == 0
    assert wire.dumps() == before


@pytest.mark.parametrize("command", ["dead {q}", "dead {q} --json", "lanes {q}"])
def test_the_reader_of_a_long_list_may_leave_early(
    server: ServerProcess, standalone: Connection, queue_name: str, command: str
) -> None:
    queue = Queue(queue_name, standalone)
    queue.enqueue_many([message("mail", number) for number in range(1000)])
    while claimed := queue.claim(500):
        for job in claimed:
            queue.retry(job, "E" * 200, max_retries=0)
    for number in range(3000):
        queue.lane(f"customer {number} {'x' * 60}").limit(1)
    process = subprocess.Popen(
        [sys.executable, "-m", "echomq_tasks", *command.format(q=queue_name).split(), "--url", server.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read().decode()
    eventually(lambda: process.poll() is not None, 30.0)
    process.stderr.close()
    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize("command", ["info", "counts q", "metrics", "metrics q", "dead q", "lanes q", "lane q acme",
                                     "repeats q", "limits q", "job q {dead}"])  # fmt: skip
def test_what_is_shown_on_a_terminal_of_80_columns_fits_it(
    server: ServerProcess, standalone: Connection, command: str
) -> None:
    queue = Queue("q", standalone)
    had = stock(queue)
    queue.lane("a customer with quite a long name, Ltd. & 子会社 " + "x" * 60).limit(5)
    queue.repeat("a-report-with-quite-a-long-name-" + "x" * 60, "p", cron="0 8 * * MON-FRI", tz="Europe/Athens")
    ended = on_terminal(
        ["-m", "echomq_tasks", *command.format(dead=had.dead[0]).split(), "--url", server.url],
        environ={"PYTHONPATH": str(ROOT), "TERM": "dumb", "PYTHONUTF8": "1"},
    )
    assert ended.code == 0
    # A wide letter takes two columns.
    lines = ended.screen.splitlines()
    assert [line for line in lines if len(line) + sum(each > "\u2fff" for each in line) > 80] == []


def test_a_terminal_that_lacks_a_letter_shows_its_number(
    server: ServerProcess, standalone: Connection, queue_name: str
) -> None:
    queue = Queue(queue_name, standalone)
    queue.enqueue("p", group="Zoë 日本")
    ended = on_terminal(
        ["-m", "echomq_tasks", "lanes", queue_name, "--url", server.url],
        environ={"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"},
    )
    assert ended.code == 0
    assert "Zo\\xeb \\u65e5\\u672c" in ended.screen
