"""The standard library example: right when all goes well, when workers die, and able to tell when it is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
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
    assert "equal to a plain count" in ran.stdout
    assert "\x1b" not in ran.stdout


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
