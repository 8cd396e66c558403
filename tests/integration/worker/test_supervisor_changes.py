"""``echomq worker``: new code, recycled processes, functions beside them, and the files it writes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from support.eventually import eventually
from support.supervised import APP, PATIENCE, ROOT, Supervised, is_there, numbers

from echomq_tasks.worker.channel import Channel
from echomq_tasks.worker.settings import Settings, Task

FORKS = """
import os, time
from dramatiq import Middleware
from app import *
import dramatiq


def beside():
    write("beside", os.getpid())
    while True:
        time.sleep(60)


def another():
    write("another", os.getpid())
    while True:
        time.sleep(60)


def once():
    write("once")


class Booted(Middleware):
    @property
    def forks(self):
        return [beside]

    def after_process_boot(self, broker):
        write("booted", os.getpid())

    def after_worker_shutdown(self, broker, worker):
        write("down", os.getpid())


dramatiq.get_broker().add_middleware(Booted())
"""


def test_sighup_replaces_each_process_once_its_successor_is_ready(command: Supervised) -> None:
    old = command.boot("app", "-p", "2", "-t", "1")
    command.send("hold", "one")
    holder = int(command.noted("one", "start")[2])
    command.write("app.py", "raise ValueError('half an edit')")
    command.process.send_signal(signal.SIGHUP)
    command.said("The reload is broken off.*: the processes with the old code go on")
    assert "ValueError: half an edit" in command.log
    assert all(map(is_there, old))
    command.send("note", "two")
    assert command.noted("two")[1] == "1"

    command.write("app.py", APP.replace("VERSION = 1", "VERSION = 2"))
    command.process.send_signal(signal.SIGHUP)
    new = numbers(command.said(r"Reloaded: PIDs ([\d, ]+)")[1])
    assert not set(new) & set(old)
    # What ran when it was told to leave is finished by the old code.
    assert is_there(holder)
    # The other one may still be hearing that it is to leave.
    eventually(lambda: not any(map(is_there, {*old} - {holder})), PATIENCE)
    command.send("note", "three")
    line = command.noted("three")
    assert (line[1], int(line[2]) in new) == ("2", True)
    command.open("one")
    assert int(command.noted("one", "end")[2]) == holder
    eventually(lambda: not any(map(is_there, old)), PATIENCE)
    assert command.stop() == 0, command.log
    assert command.queue.counts().completed == 3


def test_watch_loads_the_code_again_when_a_source_file_changes(command: Supervised) -> None:
    old = command.boot("app", "-p", "2", "-t", "1", "--watch", ".")
    command.write("README.md", "no source")
    command.write("app.py", APP.replace("VERSION = 1", "VERSION = 2"))
    new = numbers(command.said(r"Reloaded: PIDs ([\d, ]+)")[1])
    command.said("app.py has changed: the code is loaded again")
    command.send("note", "one")
    assert command.noted("one")[1] == "2"
    eventually(lambda: not any(map(is_there, old)), PATIENCE)
    assert all(map(is_there, new))
    assert command.stop() == 0, command.log


def test_max_jobs_replaces_a_process_and_loses_no_job(command: Supervised) -> None:
    for number in range(30):
        command.send("note", f"job{number}")
    command.boot("app", "-p", "1", "-t", "1", "--max-jobs", "5")
    eventually(lambda: command.queue.counts().completed == 30, PATIENCE, command.log)
    lines = command.notes()
    assert sorted(line[0] for line in lines) == sorted(f"job{number}" for number in range(30))
    # With one thread, none is claimed beside the last.
    assert max(Counter(line[2] for line in lines).values()) <= 5
    command.said(r"Process 1 \(PID \d+\) has begun its --max-jobs \(5\): PID \d+ takes its place")
    assert command.stop() == 0, command.log


def test_max_jobs_counts_those_that_run_side_by_side(command: Supervised) -> None:
    (pid,) = command.boot("app", "-p", "1", "-t", "2", "--max-jobs", "2")
    for word in ("one", "two", "three"):
        command.send("hold", word)
    # It has begun two, and does not wait for their ends before another takes over.
    eventually(lambda: len(command.notes()) == 3, PATIENCE, command.log)
    runs_in = {word: int(command.noted(word, "start")[2]) for word in ("one", "two", "three")}
    first = [word for word in runs_in if runs_in[word] == pid]
    assert len(first) == 2
    for word in runs_in:
        command.open(word)
    eventually(lambda: command.queue.counts().completed == 3, PATIENCE, command.log)
    assert all(int(command.noted(word, "end")[2]) == runs_in[word] for word in runs_in)
    assert command.stop() == 0, command.log


def test_max_memory_replaces_a_process_that_has_grown_and_finishes_what_runs_in_it(command: Supervised) -> None:
    (pid,) = command.boot("app", "-p", "1", "-t", "2", "--max-memory", "200")
    command.send("hold", "one")
    command.noted("one", "start")
    command.send("fill", 200)
    said = command.said(rf"Process 1 \(PID {pid}\) has (\d+) MiB \(--max-memory 200\): PID (\d+) takes its place")
    assert int(said[1]) > 200
    command.send("note", "two")
    assert command.noted("two")[2] == said[2]
    assert is_there(pid)
    command.open("one")
    eventually(lambda: not is_there(pid), PATIENCE)
    assert command.notes("one", "end")
    assert command.stop() == 0, command.log
    assert command.queue.counts().completed == 3


def test_a_max_memory_that_no_process_could_keep_to_is_refused(command: Supervised) -> None:
    command.start("app", "-p", "1", "--max-memory", "2")
    assert command.wait() == 2
    assert re.search(r"echomq: --max-memory 2 is too little: before its first job a process has \d+ MiB", command.log)


def test_functions_beside_the_workers_run_until_the_last_of_those_has_ended(command: Supervised) -> None:
    command.write("beside.py", FORKS)
    command.boot("beside", "-p", "2", "-t", "1", "-f", "beside:another", "-f", "beside:once")
    pid = int(command.noted("beside")[1])
    command.noted("another")
    assert len(command.notes("booted")) == 2
    # Once, however many processes ask for it.
    assert len(command.notes("beside")) == 1
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: len(command.notes("beside")) == 2, PATIENCE, command.log)
    # One that is done is not run again, unless by new code.
    command.said(r"beside:once \(PID \d+\) has ended")
    assert len(command.notes("once")) == 1
    command.write("beside.py", FORKS.replace('"another"', '"renewed"').replace("[beside]", "[]"))
    command.process.send_signal(signal.SIGHUP)
    command.noted("renewed")
    old = [int(line[1]) for line in (*command.notes("beside"), *command.notes("another"))]
    eventually(lambda: not any(map(is_there, old)), PATIENCE, command.log)
    command.said("Reloaded")
    new = [int(line[1]) for line in command.notes("renewed")]
    assert command.stop() == 0, command.log
    assert not any(map(is_there, new))
    assert (len(command.notes("beside")), len(command.notes("renewed"))) == (2, 1)
    assert len(command.notes("down")) == 4


def test_a_process_of_another_version_than_the_main_process_does_not_boot() -> None:
    mine, theirs = Channel.pair()
    os.set_inheritable(theirs.fileno(), True)
    arguments = [sys.executable, "-m", "echomq_tasks.worker.spawned", str(theirs.fileno())]
    process = subprocess.Popen(arguments, pass_fds=[theirs.fileno()], env={**os.environ, "PYTHONPATH": str(ROOT)})
    theirs.close()
    mine.send(task=Task(Settings("app"), "process 1", None, "0.0.1", sys.path).to_json())
    said = mine.receive()
    assert said is not None
    assert said["code"] == process.wait(PATIENCE) == 2
    assert "is installed now, and the main process runs 0.0.1: restart it" in said["failed"]
    mine.close()


def test_a_pid_file_is_of_one_main_process_and_a_log_file_may_be_rotated(command: Supervised, tmp_path: Path) -> None:
    options = ("app", "-p", "1", "-t", "1", "--pid-file", "pid", "--log-file", "own.log")
    own = tmp_path / "own.log"
    command.start(*options)
    eventually(lambda: own.exists() and "works on" in own.read_text(), PATIENCE)
    assert int((tmp_path / "pid").read_text()) == command.process.pid
    first, main = own.read_text(), command.process
    command.start(*options)
    assert command.wait() == 4
    assert command.log == f"echomq: process {main.pid} runs already, as pid says: stop it, or name another --pid-file\n"
    assert own.read_text() == first
    own.rename(tmp_path / "old.log")
    main.send_signal(signal.SIGHUP)
    eventually(lambda: own.exists() and "Reloaded" in own.read_text(), PATIENCE)
    # The processes that were started before write where they did.
    main.send_signal(signal.SIGTERM)
    assert main.wait(PATIENCE) == 0
    assert not (tmp_path / "pid").exists()
    assert (tmp_path / "old.log").read_text().startswith(first)


#: Each of its processes prints, once a gate is open; its import has such a gate, too.
PRINTS = """
from app import *


def wait_for(word):
    write(word, "waits")
    while not (HERE / f"{word}.gate").exists():
        time.sleep(0.01)
    print(f"printed by {word}")


@actor(queue_name=QUEUE)
def say(word):
    wait_for(word)


def beside():
    wait_for("beside")
    time.sleep(60)


wait_for("import")
"""


def test_sigusr1_opens_the_log_file_again_everywhere_and_does_nothing_else(command: Supervised, tmp_path: Path) -> None:
    own = tmp_path / "own.log"

    def rotate(name: str) -> None:
        own.rename(tmp_path / name)
        command.process.send_signal(signal.SIGUSR1)
        eventually(lambda: own.exists() and "SIGUSR1: the log file is opened again." in own.read_text(), PATIENCE)

    command.write("prints.py", PRINTS)
    command.start("prints", "-p", "1", "-t", "1", "--log-file", "own.log", "-f", "prints:beside")
    command.noted("import", "waits")
    rotate("importing.log")
    command.open("import")
    eventually(lambda: "works on" in own.read_text(), PATIENCE)
    assert "printed by import" in own.read_text()
    assert (tmp_path / "importing.log").read_text() == ""
    (pid,) = numbers(re.search(r"\((PID \d+)\)", own.read_text())[1])  # type: ignore[index]
    command.send("say", "job")
    command.noted("job", "waits")
    # That of a single process is not the end of it, either.
    os.kill(pid, signal.SIGUSR1)
    command.noted("beside", "waits")
    rotate("running.log")
    for word in ("job", "beside"):
        command.open(word)
        eventually(lambda word=word: f"printed by {word}" in own.read_text(), PATIENCE)  # type: ignore[misc]
    eventually(lambda: command.queue.counts().completed == 1, PATIENCE)
    assert is_there(pid)
    assert command.stop() == 0
    assert "the code is loaded again" not in own.read_text()
    assert "printed by job" not in (tmp_path / "running.log").read_text()


def test_sigusr1_without_a_log_file_is_answered_with_a_line(command: Supervised) -> None:
    (pid,) = command.boot("app", "-p", "1", "-t", "1")
    command.process.send_signal(signal.SIGUSR1)
    command.said("SIGUSR1: there is no --log-file to open again")
    assert is_there(pid)
    assert command.stop() == 0


def test_a_function_that_is_not_there_is_refused_at_the_start(command: Supervised) -> None:
    command.write("late.py", "def f():\n    pass\n")
    command.start("app", "-p", "1", "-t", "1", "-f", "late:nope")
    assert command.wait() == 2, command.log
    assert "echomq: the module 'late' has no 'nope'" in command.log.splitlines()
    assert "started again" not in command.log
    command.forget()
    # In a module of the app it is seen before anything runs.
    command.start("app", "-p", "1", "-t", "1", "-f", "app:nope")
    assert command.wait() == 2, command.log
    assert command.log == "echomq: the module 'app' has no 'nope'\n"


def test_a_function_that_new_code_has_lost_is_tried_again_and_again(command: Supervised) -> None:
    command.write("late.py", "import time\ndef f():\n    time.sleep(60)\n")
    command.boot("app", "-p", "1", "-t", "1", "-f", "late:f")
    command.said(r"late:f \(PID \d+\) runs")
    command.write("late.py", "")
    command.process.send_signal(signal.SIGHUP)
    command.said(r"late:f \(PID \d+\) cannot boot: started again in")
    command.write("late.py", "def f():\n    1 / 0\n")
    command.said("late:f ends by an error")
    command.stop()
