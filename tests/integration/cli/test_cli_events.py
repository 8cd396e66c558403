"""``echomq events``: what the log has and what is live, filtered, in a terminal and in a pipe, over faults."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.eventually import eventually
from support.servers import ServerProcess
from support.shell import Said, Shell, message
from support.terminals import CTRL_C, on_terminal

from echomq_tasks.bus import Bus, Log
from echomq_tasks.connection import Connection, connect
from echomq_tasks.events import EVENTS, Announcing
from echomq_tasks.queue import Queue

ROOT = Path(__file__).parents[3]
PATIENCE = 40.0


def logged(connection: Connection, name: str, log: str | None = "lifecycle") -> Queue:
    """A queue whose events are announced, and kept in a log too."""
    announcing = Announcing(EVENTS)
    announcing.choose(EVENTS, log=log)
    return Queue(name, connection, announcing=announcing)


def live(queue: Queue, some: int) -> list[str]:
    """Jobs that come and go: three events each."""
    ids = []
    for number in range(some):
        ids.append(queue.enqueue(message("send", number)).id)
        queue.complete(queue.claim().jobs[0])
    return ids


def told(said: Said) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said.lines]


class Following:
    """The command with its output in pipes."""

    def __init__(self, url: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "echomq_tasks", "events", *arguments, "--url", url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self._lines: list[str] = []
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line.rstrip("\n"))

    def lines(self) -> list[str]:
        return list(self._lines)

    def events(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.lines()]

    def end(self, how: signal.Signals = signal.SIGINT) -> tuple[int, str]:
        """End it; answers its exit code and what it said on standard error."""
        self.process.send_signal(how)
        assert self.process.stderr is not None
        errors = self.process.stderr.read()
        code = self.process.wait(PATIENCE)
        self.close()
        return code, errors

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reading.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


@contextmanager
def following(url: str, *arguments: str) -> Iterator[Following]:
    command = Following(url, *arguments)
    try:
        yield command
    finally:
        command.close()


def is_heard(connection: Connection, queue: str) -> Callable[[], bool]:
    """Whether somebody listens to a queue, which is then told so."""
    bus = Bus(connection)
    return lambda: bus.publish(queue, "hello") > 0


@pytest.mark.parametrize(
    "words",
    ["--no-follow", "mail/x", "mail.*/x", "--event=", "--event failed,", "--job x", "--since soon",
     "--since 2026-13-01", "--since 2100-01-01", "--log a/b", "--actor="],
)  # fmt: skip
def test_what_makes_no_sense_is_a_usage_error(capsys: pytest.CaptureFixture[str], words: str) -> None:
    said = Shell("valkey://127.0.0.1:1", capsys)("events", *words.split(" "))
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("echomq events: ")


def test_a_server_that_is_away_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    said = Shell("valkey://127.0.0.1:1?connect_timeout=0.5", capsys)("events")
    assert (said.code, said.out) == (1, "")
    assert re.fullmatch(r"echomq: .*\n", said.err)


def test_the_past_is_printed_from_the_logs_of_all_queues_in_the_order_of_time(
    echomq: Shell, connection: Connection, queue_name: str
) -> None:
    queues = [logged(connection, f"{queue_name}.{letter}") for letter in "abc"]
    jobs = [job for _ in range(3) for queue in queues for job in live(queue, 1)]
    logged(connection, "other").pause()
    said = echomq("events", f"{queue_name}.*", "--since", "10m", "--no-follow", "--json")
    assert (said.code, said.err) == (0, "")
    events = told(said)
    assert [event["job"] for event in events if event["event"] == "completed"] == jobs
    assert len(events) == 27
    # Each as it stands in its log.
    for queue in queues:
        records = [record.fields | {"id": record.id} for record in Log(queue.name, "lifecycle", connection).read()]
        assert [event for event in events if event["queue"] == queue.name] == records
    everything = told(echomq("events", "--since", "10m", "--no-follow", "--json"))
    assert len(everything) == 28
    some = told(echomq("events", queues[0].name, "other", "--since", "10m", "--no-follow", "--json"))
    assert {event["queue"] for event in some} == {queues[0].name, "other"}
    assert echomq("events", "--since", "0", "--no-follow").lines == []
    assert len(echomq("events", "--since", "2026-01-01T00:00", "--no-follow").lines) == 28


def test_filters_narrow_what_is_shown(shell: Shell, standalone: Connection) -> None:
    queue = logged(standalone, "mail")
    jobs = live(queue, 2)
    other = queue.enqueue(message("build", 1)).id
    queue.retry(queue.claim().jobs[0], "ValueError: no", max_retries=0)
    queue.pause()

    def names(*words: str) -> list[str]:
        said = shell("events", "mail", "--since", "1h", "--no-follow", *words)
        assert said.code == 0
        return [line.split()[2] for line in said.lines]

    assert names("--job", jobs[1]) == ["enqueued", "started", "completed"]
    assert names("--job", jobs[0], "--job", other, "--event", "started") == ["started", "started"]
    assert names("--actor", "build") == ["enqueued", "started", "failed"]
    assert names("--actor", "build", "--actor", "send", "--event", "failed,completed") == ["completed"] * 2 + ["failed"]
    assert names("--event", "paused", "--event", "failed") == ["failed", "paused"]
    assert names("--actor", "nobody") == []


def test_an_event_that_the_library_does_not_have_is_told_with_the_nearest(shell: Shell, standalone: Connection) -> None:
    logged(standalone, "mail").pause()
    said = shell("events", "--since", "1h", "--no-follow", "--event", "faild")
    assert (said.code, said.out) == (0, "")
    assert "no event 'faild' (did you mean 'failed'?)" in said.err


def test_without_a_log_there_is_no_past_and_it_says_what_keeps_one(shell: Shell, standalone: Connection) -> None:
    live(logged(standalone, "mail", log=None), 1)
    for words, whose in (("mail", "none of these queues"), ("", "no queue")):
        said = shell("events", *words.split(), "--since", "1h", "--no-follow")
        assert (said.code, said.out) == (1, "")
        assert f"{whose} has a log 'lifecycle'" in said.err
        assert 'Lifecycle(log="lifecycle")' in said.err
    said = shell("events", "mial", "--since", "1h", "--no-follow")
    assert "there is no queue 'mial'" in said.err
    assert "did you mean 'mail'?" in said.err


def test_a_queue_that_was_named_and_has_no_such_log_is_told(
    shell: Shell, server: ServerProcess, standalone: Connection
) -> None:
    live(logged(standalone, "mail"), 1)
    live(logged(standalone, "orders", log=None), 1)
    said = shell("events", "mail", "orders", "gone", "--since", "1h", "--no-follow")
    assert (said.code, len(said.lines)) == (0, 3)
    nothing, no_log = said.err.splitlines()
    assert "there is no queue 'gone'" in nothing
    assert "the queue 'orders' has no log 'lifecycle'" in no_log
    assert 'Lifecycle(log="lifecycle")' in no_log
    said = shell("events", "mail", "--log", "lifecycel", "--since", "1h", "--no-follow")
    assert (said.code, said.out) == (1, "")
    assert said.err.endswith("none of these queues has a log 'lifecycel': did you mean 'lifecycle'?\n")
    # Also when it is only to fill gaps.
    for words, says in (
        ("mail orders --log lifecycle", "the queue 'orders' has no log"),
        ("o* --log audit", "none of these queues has a log 'audit'"),
    ):
        with following(server.url, *words.split()) as command:
            eventually(is_heard(standalone, "orders"), PATIENCE)
            eventually(command.lines, PATIENCE)
            code, errors = command.end()
            assert code == 130
            assert says in errors
            assert len(errors.splitlines()) == 1


def test_a_log_that_does_not_reach_back_so_far_is_told_first(shell: Shell, standalone: Connection) -> None:
    queue = logged(standalone, "mail", log="audit")
    live(queue, 20)
    Log("mail", "audit", standalone).trim(maxlen=6, exact=True)
    words = ("events", "--log", "audit", "--since", "1h", "--no-follow")
    assert [line.split()[2] for line in shell(*words).lines] == ["gap", *["enqueued", "started", "completed"] * 2]
    gap, first, *_ = told(shell(*words, "--json"))
    assert (gap["event"], gap["reason"], gap["queues"]) == ("gap", "trimmed", "mail")
    # From its first record on it is whole.
    assert len(told(shell(*words[:3], "--since", "0", "--no-follow", "--json"))) == 0
    assert first["event"] == "enqueued"


def test_a_key_that_is_no_log_and_records_that_are_no_events_are_dealt_with(
    shell: Shell, standalone: Connection
) -> None:
    standalone.client.set("emq:{odd}:stream:lifecycle", "x")
    standalone.client.xadd("emq:{mail}:stream:lifecycle", {"greeting": "hello"})
    standalone.client.xadd("emq:{mail}:stream:lifecycle", {"event": "\x1b[2J", "job": b"\xff", "at": "soon"})
    said = shell("events", "--since", "1h", "--no-follow")
    assert (said.code, said.err) == (0, "")
    (line,) = said.lines
    assert line.split()[2:] == ["\\x1b[2J", "mail", "-", "\\xff", "-"]
    said = shell("events", "odd", "--since", "1h", "--no-follow")
    assert (said.code, said.out) == (1, "")
    assert len(said.err.splitlines()) == 1


def test_past_and_live_meet_without_doubles_or_loss(server: ServerProcess, standalone: Connection) -> None:
    queue = logged(standalone, "mail")
    live(queue, 300)
    stop = threading.Event()

    def work() -> None:
        with connect(server.url) as connection:
            busy = logged(connection, "mail")
            while not stop.is_set():
                live(busy, 5)

    worker = threading.Thread(target=work)
    with following(server.url, "m*l", "--since", "1h", "--json") as command:
        worker.start()
        try:
            eventually(lambda: len(command.lines()) > 900, PATIENCE)
            before = Log("mail", "lifecycle", standalone).length()
            eventually(lambda: len(command.lines()) > before + 150, PATIENCE)
        finally:
            stop.set()
            worker.join()
        log = [record.id for record in Log("mail", "lifecycle", standalone).read()]
        eventually(lambda: len(command.lines()) >= len(log), PATIENCE)
        assert [event["id"] for event in command.events()] == log
        assert command.end() == (130, "")


def test_a_server_that_goes_and_comes_back_is_a_gap_or_is_filled_from_the_log(own_server: ServerProcess) -> None:
    with connect(own_server.url) as connection:
        queue = logged(connection, "mail")
        live(queue, 1)
    with (
        connect(own_server.url) as connection,
        following(own_server.url, "mail", "--json", "--event", "completed") as bare,
        following(own_server.url, "mail", "--json", "--log", "lifecycle", "--event", "completed") as filled,
    ):
        queue = logged(connection, "mail")
        eventually(lambda: Bus(connection).publish("mail", "hello") > 1, PATIENCE)
        first = live(queue, 1)
        eventually(lambda: len(bare.lines()) == 1, PATIENCE)
        own_server.restart()
        # Whether it is heard or not: a log has it.
        second = live(queue, 1)
        eventually(lambda: any(event["event"] == "gap" for event in bare.events()), PATIENCE)
        third = live(queue, 1)
        eventually(lambda: bare.events()[-1].get("job") == third[0], PATIENCE)
        gap = next(event for event in bare.events() if event["event"] == "gap")
        assert (gap["reason"], gap["queues"]) == ("reconnected", "mail")

        eventually(lambda: len(filled.lines()) >= 3, PATIENCE)
        assert [event.get("job") for event in filled.events()] == [*first, *second, *third]
        for command in (bare, filled):
            code, errors = command.end()
            assert code == 130
            # Told only when it was away for long enough to look.
            assert all(re.search("lost: waiting for it$|is back$", line) for line in errors.splitlines())


def test_a_server_that_goes_away_is_told_at_once_and_that_it_is_back(own_server: ServerProcess) -> None:
    with connect(own_server.url) as connection, following(own_server.url, "--json") as command:
        assert command.process.stderr is not None
        eventually(is_heard(connection, "mail"), PATIENCE)
        own_server.kill()
        assert command.process.stderr.readline() == (
            f"echomq: the connection to {own_server.url}/0 is lost: waiting for it\n"
        )
        own_server.start()
        assert command.process.stderr.readline() == f"echomq: {own_server.url}/0 is back\n"
        eventually(lambda: any(event["event"] == "gap" for event in command.events()), PATIENCE)
        assert command.end() == (130, "")


def test_a_log_that_is_begun_anew_does_not_silence_what_is_live(server: ServerProcess, standalone: Connection) -> None:
    queue = logged(standalone, "mail")
    key = "emq:{mail}:stream:lifecycle"
    live(queue, 1)
    # By a writer whose clock is an hour ahead.
    ahead = int(queue.now().timestamp() * 1000) + 3_600_000
    standalone.client.xadd(key, {"event": "fast"}, id=f"{ahead}-1")
    with following(server.url, "mail", "--since", "1h", "--json") as command:
        eventually(lambda: len(command.lines()) == 4, PATIENCE)
        standalone.client.delete(key)
        (job,) = live(queue, 1)
        eventually(lambda: [event.get("job") for event in command.events()[5:]] == [job] * 3, PATIENCE)
        assert command.events()[4]["reason"] == "trimmed"
        assert command.end() == (130, "")


def test_a_reader_that_leaves_ends_it_quietly_although_nothing_happens(
    server: ServerProcess, standalone: Connection
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "echomq_tasks", "events", "mail", "--url", server.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    eventually(is_heard(standalone, "mail"), PATIENCE)
    assert process.stdout.readline().split()[2:4] == [b"hello", b"mail"]
    process.stdout.close()
    errors = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(PATIENCE) == 0
    # The queue has no key: events are all there is of it.
    assert re.fullmatch(r"echomq: there is no queue 'mail' .*; listening to it all the same\n", errors)


@pytest.mark.parametrize("columns", [80, 120])
def test_on_a_terminal_events_are_coloured_and_fit_it_and_cannot_drive_it(
    server: ServerProcess, standalone: Connection, columns: int
) -> None:
    queue = logged(standalone, "reports.nightly")
    live(queue, 1)
    queue.enqueue(message("build_the_quarterly_report", 1), delay=3600)
    queue.enqueue(message("send\x1b[31m", 1))
    queue.retry(queue.claim().jobs[0], "ValueError: \x1b]0;title\x07\x9b2J " + "why " * 50, max_retries=0)
    evil = {"event": "failed", "job": "\x1b[2J\x9b31m", "message": "a\rb\u202e", "worker": "\x1bc", "at": "1e300"}
    standalone.client.xadd("emq:{reports.nightly}:stream:lifecycle", evil)
    ended = on_terminal(
        ["-m", "echomq_tasks", "events", "--since", "1h", "--url", server.url],
        prompt="\\x1b[2J",
        answers=[CTRL_C],
        columns=columns,
        environ={"PYTHONPATH": str(ROOT), "TERM": "xterm", "PYTHONUTF8": "1"},
    )
    assert ended.code == 130
    listening, *lines = ended.screen.rstrip("\n").removesuffix("^C").splitlines()
    assert listening == f"echomq: listening to all events of all queues on {server.url}/0"
    assert re.findall(r"\x1b\[([0-9]+)m(\w+)\x1b\[0m", ended.screen) == [
        ("2", "enqueued"), ("32", "completed"), ("2", "scheduled"), ("2", "enqueued"), ("31", "failed"),
        ("31", "failed"),
    ]  # fmt: skip
    plain = [re.sub(r"\x1b\[[0-9]+m", "", line) for line in lines]
    assert [line for line in plain if not line.isprintable()] == []
    assert max(map(len, plain)) <= columns
    # Once all names have been seen, what stands below each other stays there.
    assert len({line.index("JOB") for line in [line for line in plain if "JOB" in line][3:]}) == 1
