"""The parts of the main process, each alone: places, pid file, watched files, job counts, signals, settings."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from dramatiq.brokers.stub import StubBroker
from hypothesis import given
from hypothesis import strategies as st
from support.children import in_child
from support.eventually import eventually

from echomq_tasks.worker import alarm as alarm_module
from echomq_tasks.worker import telling
from echomq_tasks.worker.alarm import Alarm
from echomq_tasks.worker.channel import Channel
from echomq_tasks.worker.memory import resident_mib
from echomq_tasks.worker.pidfile import PidFile, PidFileTaken
from echomq_tasks.worker.process import Process
from echomq_tasks.worker.recycling import JobCount
from echomq_tasks.worker.settings import Settings, Task
from echomq_tasks.worker.slot import STEADY, Slot
from echomq_tasks.worker.watching import Watcher


def lived(seconds: float | None) -> Process:
    """A process that has been ready for so long; None: never."""
    made = SimpleNamespace(lived=lambda: seconds or 0.0)
    return cast(Process, made)


@given(st.lists(st.sampled_from([None, 0.5]), min_size=3, max_size=40))
def test_the_pauses_of_what_keeps_dying_grow_up_to_half_a_minute(lives: list[float | None]) -> None:
    slot = Slot("process 1")
    pauses = [slot.pause_after(lived(each)) for each in lives]
    for place, pause in enumerate(pauses):
        if place == 0 and lives[0]:
            assert pause == 0
        else:
            assert 0.7 * min(30, 2**place) <= pause <= min(30, 2**place)
    # One that has worked for a while has not died of how it was started.
    assert slot.pause_after(lived(STEADY + 1)) == 0
    assert slot.pause_after(lived(None)) <= 1


def test_the_current_process_of_a_place_becomes_one_that_leaves() -> None:
    slot = Slot("process 1")
    one, two = lived(1), lived(1)
    slot.current, slot.coming = one, two
    slot.leave()
    assert list(slot.processes()) == [two, one]
    slot.discard(one)
    slot.discard(two)
    assert list(slot.processes()) == []


def test_a_pid_file_is_locked_as_long_as_its_process_lives(tmp_path: Path) -> None:
    name = str(tmp_path / "pid")
    first = PidFile(name)
    assert Path(name).read_text() == f"{os.getpid()}\n"
    with pytest.raises(PidFileTaken, match=f"process {os.getpid()} runs already"):
        PidFile(name)
    in_child(first.close)
    assert Path(name).exists()
    with pytest.raises(PidFileTaken):
        PidFile(name)
    first.close()
    first.close()
    assert not Path(name).exists()


@pytest.mark.parametrize("left", [b"", b"12345\n"])
def test_a_pid_file_that_is_left_over_is_taken(tmp_path: Path, left: bytes) -> None:
    (tmp_path / "pid").write_bytes(left)
    PidFile(str(tmp_path / "pid")).close()


def test_a_file_that_is_no_pid_file_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("keep me")
    with pytest.raises(PidFileTaken, match="is no pid file"):
        PidFile(str(tmp_path / "notes"))
    assert (tmp_path / "notes").read_text() == "keep me"
    with pytest.raises(PidFileTaken, match="cannot be written"):
        PidFile(str(tmp_path / "missing" / "pid"))


def test_a_pid_file_that_another_has_put_there_stays(tmp_path: Path) -> None:
    file = PidFile(str(tmp_path / "pid"))
    (tmp_path / "other").write_text("7")
    (tmp_path / "other").rename(tmp_path / "pid")
    file.close()
    assert (tmp_path / "pid").read_text() == "7"


def test_a_change_of_a_source_file_is_told_once_the_files_are_at_rest(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "a.py").write_text("1")
    watcher = Watcher(str(tmp_path), ["*.py", "templates/*.html"], ["*_test.py", "generated"])
    assert watcher.settled() is None
    (tmp_path / "app" / "a.py").write_text("12")
    assert watcher.settled() is None
    (tmp_path / "app" / "b.py").write_text("new")
    assert watcher.settled() is None
    assert watcher.settled() == "app/b.py"
    assert watcher.settled() is None
    (tmp_path / "app" / "b.py").unlink()
    assert [watcher.settled(), watcher.settled()] == [None, "app/b.py"]
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "a.html").write_text("")
    assert [watcher.settled(), watcher.settled()] == [None, "templates/a.html"]


def test_a_folder_in_which_something_changes_all_the_time_is_told_of_now_and_then(tmp_path: Path) -> None:
    watcher = Watcher(str(tmp_path), ["*.py"])
    told = []
    for number in range(30):
        (tmp_path / "a.py").write_text("#" * number)
        told.append(watcher.settled())
    assert told.count("a.py") == 3
    assert watcher.settled() is None


def test_files_that_nobody_edits_do_not_count(tmp_path: Path) -> None:
    watcher = Watcher(str(tmp_path), ["*.py"], ["*_test.py", "generated"])
    for folder in (".git", "__pycache__", "node_modules", "generated", "venv/lib"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.py").write_text("")
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    (tmp_path / "a_test.py").write_text("")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert [watcher.settled(), watcher.settled()] == [None, None]


@pytest.mark.parametrize("most", [1, 9, 10, 1000])
def test_the_number_of_jobs_is_told_once_and_never_late(most: int) -> None:
    told: list[int] = []
    begun = 0
    count = JobCount(most, lambda: told.append(begun))
    nothing = cast(Any, None)
    while begun < 2 * most:
        begun += 1
        count.before_process_message(nothing, nothing)
    (at,) = told
    assert most - most // 10 <= at <= most


def test_jobs_are_counted_before_another_hook_can_skip_them() -> None:
    broker = StubBroker()
    count = JobCount(5, lambda: None)
    count.add_to(broker)
    assert broker.middleware[0] is count
    assert len(broker.middleware) > 1
    bare = StubBroker(middleware=[])
    count.add_to(bare)
    assert bare.middleware == [count]


def test_the_memory_of_this_process_is_known_and_that_of_none_is_not() -> None:
    assert 5 < (resident_mib(os.getpid()) or 0) < 100_000
    assert resident_mib(2**30) is None


@pytest.fixture
def alarm() -> Iterator[Alarm]:
    made = Alarm([signal.SIGTERM, signal.SIGHUP])
    yield made
    made.close()


def test_a_signal_and_a_poke_wake_who_waits(alarm: Alarm) -> None:
    os.kill(os.getpid(), signal.SIGHUP)
    assert alarm.wait([], 30.0) == []
    assert alarm.signals() == [signal.SIGHUP]
    assert alarm.signals() == []
    threading.Thread(target=alarm.poke).start()
    assert alarm.wait([], 30.0) == []


def test_a_line_that_has_something_to_read_is_answered_and_so_is_one_that_ended(alarm: Alarm) -> None:
    mine, theirs = Channel.pair()
    theirs.send(word="hello")
    assert alarm.wait([mine], 30.0) == [mine]
    assert mine.receive() == {"word": "hello"}
    assert not mine.waiting()
    theirs.close()
    assert alarm.wait([mine], 30.0) == [mine]
    assert mine.receive() is None
    assert mine.send(word="anybody?") is False
    mine.close()


def test_signals_for_an_end_that_come_together_are_one(alarm: Alarm, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(alarm_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    found = []
    for moment, number in ((100.0, 15), (100.1, 15), (100.25, 15), (100.3, 1), (100.31, 1), (101.0, 15)):
        now[0] = moment
        os.kill(os.getpid(), number)
        eventually(lambda: alarm.wait([], 0.01) == [] and bool(alarm._arrived))  # noqa: SLF001
        found += [(moment, each) for each in alarm.signals()]
    assert found == [(100.0, 15), (100.25, 15), (100.3, 1), (100.31, 1), (101.0, 15)]


def test_the_handlers_of_before_are_back_at_the_end() -> None:
    before = signal.getsignal(signal.SIGTERM)
    made = Alarm([signal.SIGTERM])
    assert signal.getsignal(signal.SIGTERM) != before
    made.close()
    made.close()
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_task_is_the_same_after_the_journey_and_what_is_not_known_is_left_out() -> None:
    settings = Settings("app:broker", ("more",), (".", "src"), ("a", "b"), 2, 3, 4, 0.5, 6, 7.5, ("m:f",), verbose=1)
    task = Task(settings, "process 1", None, "1.0", ["x"])
    assert Task.from_json(task.to_json()) == task
    newer = task.to_json().replace('"broker"', '"flavour": 1, "broker"').replace('"name"', '"colour": 2, "name"')
    assert Task.from_json(newer) == task


READY = {
    "queues": ["mail"],
    "server": "valkey://host:1/0",
    "there": True,
    "unknown": [],
    "wanted_server": None,
    "others": [],
    "coroutines": False,
}


def test_the_line_of_the_start_names_a_few_queues_and_counts_the_others() -> None:
    settings = Settings("app", processes=1, threads=8)
    line = telling.booted(READY | {"queues": [f"q{number}" for number in range(11)]}, settings, [7])
    assert "the queues q0, q1, q2, q3, q4, q5, q6, q7 and 3 more at valkey://host:1/0: 1 process (PID 7), 8 thr" in line
    assert telling.warnings(READY, settings) == []


def test_the_line_of_the_start_names_a_server_that_is_away_and_the_places_of_async_actors() -> None:
    settings = Settings("app", processes=2, threads=1, concurrency=100)
    line = telling.booted(READY | {"there": False, "coroutines": True}, settings, [7, 8])
    assert "works on the queue mail at valkey://host:1/0, which is not there yet: 2 processes (PIDs 7, 8), " in line
    assert "1 thread and 100 async places each" in line


def test_what_is_not_served_is_told_with_how_to_serve_it() -> None:
    brokers = [("app:own", True, ["a"]), ("app:old", False, ["b", "c"]), (None, True, ["d"])]
    assert telling.warnings(READY | {"others": brokers, "wanted_server": "valkey://other:1/0"}, Settings("app")) == [
        "--url is valkey://other:1/0, and the broker of these actors has a server of its own: valkey://host:1/0.",
        "The actor a is of another broker, app:own, and not served here: run `echomq worker app:own` for them.",
        "The actors b, c are of another broker, app:old, and not served here: run `dramatiq app:old` for them.",
        "The actor d is of a broker that is in no module, and not served here.",
    ]


def test_why_there_is_nothing_to_serve_names_what_there_is() -> None:
    assert telling.nothing_to_serve(["app", "more"], [], []) == "no actors in app, more: there is nothing to run"
    assert telling.nothing_to_serve(["app"], ["x", "y"], ["mail"]) == (
        "no actor has the queue 'x' nor 'y': there is nothing to serve. The actors have mail"
    )


@pytest.mark.parametrize(
    ("name", "said"), [("process 1", "Process 1"), ("m:crash", "m:crash"), ("m:crash (PID 7)", "m:crash (PID 7)")]
)
def test_the_name_of_a_function_is_not_altered_at_the_beginning_of_a_sentence(name: str, said: str) -> None:
    assert telling.capital(name) == said


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (-9, "was killed by SIGKILL, as when the system runs out of memory"),
        (-11, "was killed by SIGSEGV"),
        (-77, "was killed by signal 77"),
        (1, "ended while it booted (exit code 1)"),
    ],
)
def test_how_a_process_ended_is_told_in_words(code: int, said: str) -> None:
    mine, theirs = Channel.pair()
    assert telling.end_of(Process(1, "process 1", mine), code) == said
    ready = Process(1, "process 1", mine, ready={}, ready_at=time.monotonic())
    assert telling.end_of(ready, code) == said.replace("ended while it booted", "ended unasked")
    assert telling.end_of(ready, 9) == "ended unasked (exit code 9), as when a job calls os._exit"
    mine.close()
    theirs.close()
