"""The standard library example: right when all goes well, when workers die, and able to tell when it is wrong."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.eventually import eventually
from support.servers import ServerProcess

EXAMPLES = Path(__file__).parents[2] / "examples"

# A worker that is killed after it has stored the last file of a package, before it sends the merge; then a good one.
DIES_BEFORE_SENDING = """
import os, signal, sys
from dramatiq import Worker
from stdlib_index import jobs

jobs.merge_package.send = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
worker = Worker(jobs.broker, worker_threads=1)
worker.start()
signal.pause()
"""

SURVIVES = """
import sys, time
from dramatiq import Worker
from stdlib_index import jobs
from stdlib_index.index import index_source, merge

files = ["keyword.py", "token.py", "this.py"]
run = "run"
if sys.argv[1] == "send":
    for file in files:
        jobs.index_file.send(run, "p", file, len(files), 1)
else:
    assert not jobs.load(run, "packages")
    worker = Worker(jobs.broker, worker_threads=2)
    worker.start()
    deadline = time.monotonic() + 30
    while not jobs.load(run, "report"):
        assert time.monotonic() < deadline, "the run stalled"
        time.sleep(0.05)
    jobs.broker.join(jobs.QUEUE, timeout=20_000)
    worker.stop()

    def state():
        return {key: jobs.client().hgetall(jobs.table(run, key)) for key in ("package p", "packages", "report")}

    before = state()
    assert merge(jobs.load(run, "report")) == merge(map(index_source, files))
    for file in files:
        jobs.index_file(run, "p", file, len(files), 1)
    jobs.merge_package(run, "p", 1)
    jobs.write_report(run)
    assert state() == before
jobs.broker.close()
"""


# A run of five jobs of which two are done; then the killed worker holds one, and nothing waits.
WAITS_FOR_THE_LEASE = """
import sys, time
from stdlib_index import jobs
from stdlib_index.run import watch

def finish(*names, pid):
    for name in names:
        jobs.client().hsetnx(jobs.table("run", "finished"), name, pid)

class View:
    total, shown = 5, None
    def say(self, text):
        print(text)
        if text.startswith("waiting"):
            finish("c", "d", "e", pid=12)
    def show(self, done, seconds, workers, killed):
        if workers != self.shown:
            print(done, workers, killed)
        self.shown = dict(workers)

class Workers:
    running = {11: None}
    def kill(self): return 11
    def start(self): return 12
    def dead(self): return []

finish("a", "b", pid=11)
jobs.broker.queue(jobs.QUEUE).enqueue("{}")
assert jobs.broker.queue(jobs.QUEUE).claim(1, lease=60.0)
print(watch(View(), Workers(), "run", time.monotonic(), kill=True))
finish("a", pid=12)
print(jobs.client().hget(jobs.table("run", "finished"), "a"))
jobs.broker.close()
"""


def python(*argv: str, url: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(EXAMPLES), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": path, "EMQ_URL": url}
    return subprocess.run([sys.executable, *argv], env=env, capture_output=True, text=True, timeout=100)


@pytest.fixture
def url(server: ServerProcess) -> str:
    server.flush()
    return server.url


@pytest.mark.chaos
@pytest.mark.slow
def test_the_example_survives_a_killed_worker_and_equals_a_plain_count(url: str) -> None:
    ran = python("-m", "stdlib_index.run", "--limit", "150", "--url", url, url="")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "(SIGKILL)" in ran.stdout
    assert "in its place" in ran.stdout
    killed = re.search(r"killed worker (\d+)", ran.stdout)
    assert killed
    # Its count stays what it was, marked, to the end.
    counts = re.findall(rf"worker {killed[1]} \(killed\): (\d+)", ran.stdout)
    assert counts
    assert len(set(counts)) == 1
    assert "equal to a plain count" in ran.stdout
    assert "\x1b" not in ran.stdout


def test_the_run_says_when_it_waits_for_the_lease_of_the_killed_worker(url: str) -> None:
    ran = python("-c", WAITS_FOR_THE_LEASE, url=url)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "killed worker 11 (SIGKILL), in the middle of its jobs",
        "started worker 12 in its place",
        "2 {11: 2, 12: 0} {11}",
        "waiting for the killed worker's jobs: their lease is 2 s",
        "5 {11: 2, 12: 3} {11}",
        "True",
        "b'11'",
    ]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.chaos
def test_ctrl_c_while_workers_start_ends_the_run_without_a_traceback(url: str) -> None:
    path = os.pathsep.join([str(EXAMPLES), *filter(None, sys.path)])
    process = subprocess.Popen(
        [sys.executable, "-m", "stdlib_index.run", "--limit", "300", "--url", url],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        eventually(lambda: len(children.read_text().split()) == 2, 30.0)
        workers = [int(pid) for pid in children.read_text().split()]
        # As a terminal does it: to everybody in the process group.
        os.killpg(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert (process.returncode, errors) == (1, "")
    assert out.endswith("stopped: interrupted\n")
    assert "Traceback" not in out
    eventually(lambda: not any(map(alive, workers)), 30.0)


def test_what_workers_write_to_standard_error_is_said_with_their_pid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from stdlib_index.workers import Workers

    said: list[str] = []
    workers = Workers(1, said.append)
    workers.command = [sys.executable, "-c", "import sys; print('ouch', file=sys.stderr); sys.stdin.read(); 1 / 0"]
    pid = workers.start()
    try:
        eventually(lambda: said == [f"worker {pid}: ouch"], 30.0)
        assert os.getsid(pid) == pid
        assert workers.dead() == []
    finally:
        workers.stop()
    assert said[-1] == f"worker {pid}: ZeroDivisionError: division by zero"

    workers = Workers(1, said.append)
    workers.command = [sys.executable, "-c", "import sys; sys.exit('cannot go on')"]
    pid = workers.start()
    eventually(lambda: workers.dead() == [pid], 30.0)
    # Who speaks of its end may point to what it said.
    assert said[-1] == f"worker {pid}: cannot go on"
    workers.stop()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_go_above_the_bars_and_the_killed_workers_bar_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    from stdlib_index.view import View

    with View(total=9) as view:
        view.show(3, 1.0, {11: 2, 12: 1}, {11})
        view.progress.refresh()
        drawn = len(terminal.getvalue())
        view.say("worker 12: ouch")
        view.progress.refresh()
    text, later = terminal.getvalue(), terminal.getvalue()[drawn:]
    assert re.search(r"worker 11 .*2, killed", text)
    assert not re.search(r"worker 12 .*killed", text)
    # The three bars are taken away, then comes the line, then the bars again.
    before, _, after = later.partition("worker 12: ouch")
    assert before.count("\x1b[2K") >= 3
    assert "all jobs" in after


def test_numbers_and_causes_are_said_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from stdlib_index.index import Index
    from stdlib_index.run import repeats, skipped
    from stdlib_index.view import numbered

    assert [numbered(n, "job") for n in (0, 1, 2, 1234)] == ["0 jobs", "1 job", "2 jobs", "1,234 jobs"]
    assert repeats(0, True) == repeats(0, False) == "no run was a repeat"
    assert repeats(1, True) == "1 run was a repeat: jobs the killed worker had begun, and what these sent again"
    assert repeats(2, False) == "2 runs were repeats: jobs whose lease had run out"
    assert skipped(Index()) == "none skipped"
    assert skipped(Index(skipped=3)) == "3 skipped as not valid Python"


def test_a_worker_killed_between_storing_and_sending_does_not_stall_the_run(url: str) -> None:
    assert python("-c", SURVIVES, "send", url=url).returncode == 0
    assert python("-c", DIES_BEFORE_SENDING, url=url).returncode == -9
    ran = python("-c", SURVIVES, "finish", url=url)
    assert ran.returncode == 0, ran.stderr


def test_a_wrong_result_is_told_from_a_right_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from stdlib_index.index import index_source
    from stdlib_index.run import check
    from stdlib_index.view import View

    packages, right = {"p": ["keyword.py"]}, index_source("keyword.py")
    assert check(View(total=1), right, packages)
    right.counts["kwlist"] += 1
    assert not check(View(total=1), right, packages)
    assert "kwlist: " in capsys.readouterr().out


def test_keywords_are_not_counted_and_what_is_not_python_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from stdlib_index import index

    monkeypatch.setattr(index, "STDLIB", tmp_path)
    (tmp_path / "good.py").write_text("def f(x):\n    return x\n")
    (tmp_path / "bad.py").write_bytes(b"# coding: no-such-encoding\n")
    (tmp_path / "cut.py").write_text("x = (")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "site.py").write_text("f\n")
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "other.py").write_text("y\n")
    found = index.sources()
    assert found == {"(modules)": ["bad.py", "cut.py", "good.py"], "pkg": ["pkg/site.py"]}
    total = index.merge(index.index_source(file) for files in found.values() for file in files)
    assert total == index.Index(counts=index.Counter({"f": 2, "x": 2}), files=2, skipped=2)
    assert index.Index.load(total.dump()) == total
