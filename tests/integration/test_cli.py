"""The ``echomq`` command: what it prints, what it runs, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dramatiq.cli import make_argument_parser
from support.eventually import eventually
from support.servers import ServerProcess, free_port

import echomq_tasks
from echomq_tasks.cli import worker
from echomq_tasks.cli.main import main
from echomq_tasks.connection import connect
from echomq_tasks.queue import Queue
from echomq_tasks.worker.settings import Settings

ROOT = Path(__file__).parents[2]
PATIENCE = 40.0

TASKS = """
import os
import time

import dramatiq

from echomq_tasks.brokers.dramatiq import EchoMQBroker

broker = EchoMQBroker()
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name=os.environ["TEST_QUEUE"])
def write(path, seconds=0.0):
    with open(path, "a") as file:
        file.write("started\\n")
    time.sleep(seconds)
    with open(path, "a") as file:
        file.write("ended\\n")
"""


@pytest.fixture
def queue(server: ServerProcess, queue_name: str) -> Iterator[Queue]:
    server.flush()
    with connect(server.url) as connection:
        yield Queue(queue_name, connection)


def echomq(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "echomq_tasks", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", **environ},
    )


@pytest.mark.parametrize("arguments", [("--help",), ("worker", "--help"), ("info", "--help"), ("demo", "--help")])
def test_help_says_what_a_command_does(arguments: tuple[str, ...]) -> None:
    shown = echomq(*arguments)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "usage: echomq" in shown.stdout


def test_the_general_help_names_every_command_and_every_kind_of_url() -> None:
    text = echomq("--help").stdout
    for word in ("demo", "worker", "info", "EMQ_URL", "valkey://", "unix://", "valkey+cluster://", "embedded://"):
        assert word in text


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"echomq_tasks {echomq_tasks.__version__}\n"


@pytest.mark.parametrize(
    "arguments", [[], ["drink"], ["worker"], ["worker", "tasks", "--threads", "0"], ["info", "--limit", "2"]]
)
def test_a_wrong_command_line_is_refused_in_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    command = " ".join(["echomq", *arguments[:1]]) if len(arguments) > 1 or arguments == ["worker"] else "echomq"
    assert line.startswith(f"{command}: ")
    assert line.endswith(f"(`{command} --help` shows what it takes)")


@pytest.mark.parametrize("command", ["worker tasks", "info"])
def test_an_unknown_option_is_refused_by_its_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--flavour", "sweet"])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"echomq {command.split()[0]}: unrecognized arguments: --flavour")


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ("-Q io json", "name a module, and options after it: `echomq worker myapp.tasks -Q mail`"),
        ("json -p 2 os", "unrecognized arguments: os: name all modules one after the other, before the options"),
    ],
)
def test_a_module_that_an_option_hides_is_told_where_to_go(
    arguments: str, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["worker", *arguments.split()])
    assert capsys.readouterr().err == f"echomq worker: {advice} (`echomq worker --help` shows what it takes)\n"


def test_the_help_of_worker_names_its_defaults_and_its_alternative() -> None:
    text = " ".join(echomq("worker", "--help").stdout.split())
    for words in ("one module is enough", "default: EMQ_URL, else the embedded server", "default: 30"):
        assert words in text
    assert re.search(r"`dramatiq MODULE` runs the same modules with Dramatiq's own worker", text)


def test_the_help_of_demo_shows_the_options_of_the_example() -> None:
    text = echomq("demo", "--help").stdout
    for option in ("--url", "--limit", "--workers", "--threads", "--no-kill"):
        assert option in text


def test_demo_without_rich_says_in_one_line_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text("raise ModuleNotFoundError(\"No module named 'rich'\", name='rich')\n")
    ended = echomq("demo", PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert 'the extra `cli` brings: from a checkout, pip install "/path/to/the/checkout[embedded,cli]"' in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_the_help_of_demo_is_shown_without_rich_too(tmp_path: Path, option: str) -> None:
    (tmp_path / "rich.py").write_text("raise ModuleNotFoundError(\"No module named 'rich'\", name='rich')\n")
    ended = echomq("demo", option, PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("usage: echomq demo")
    assert "Index the standard library" in ended.stdout
    assert 'pip install "/path/to/the/checkout[embedded,cli]"' in ended.stdout


def test_info_counts_the_jobs_of_each_queue(
    server: ServerProcess, queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    queue.enqueue_many([b"1", b"2", b"3"])
    queue.enqueue(b"4", delay=60)
    queue.enqueue(b"5", group="people")
    claimed = queue.claim(2).jobs
    queue.complete(claimed[0])
    queue.retry(claimed[1], "boom", max_retries=0)
    assert main(["info", "--url", server.url, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["fence"] == "echomq:2.4.2"
    assert str(server.port) in report["address"]
    counts: dict[str, Any] = report["queues"][queue.name]
    assert counts["pending"] + counts["in_lanes"] == 2
    assert (counts["scheduled"], counts["dead"], counts["completed"], counts["failed"]) == (1, 1, 1, 1)
    assert counts["paused"] is False

    assert main(["info", "--url", server.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith(queue.name)]
    assert sum(map(int, line.split()[1:])) == 6  # five jobs, of which the dead one is also the failed one


def test_info_about_named_queues_only(server: ServerProcess, queue: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    queue.enqueue(b"1")
    Queue("other", queue.connection).enqueue(b"1")
    assert main(["info", "other", "--url", server.url, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report["queues"]) == ["other"]
    assert report["queues"]["other"]["pending"] == 1


def test_info_about_an_empty_server_says_how_to_go_on(
    server: ServerProcess, queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", "--url", server.url]) == 0
    assert "no queues yet" in capsys.readouterr().out


def test_a_server_that_is_away_is_an_error_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--url", f"valkey://127.0.0.1:{free_port()}"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("echomq: ")
    assert len(captured.err.splitlines()) == 1
    assert "this address is right (--url, or the environment variable EMQ_URL)" in captured.err
    assert "url=" not in captured.err


def test_a_wrong_url_is_an_error_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--url", "amqp://127.0.0.1"]) == 2
    assert capsys.readouterr().err.startswith("echomq: ")


def test_the_reader_of_a_pipe_may_leave_early(server: ServerProcess, queue: Queue) -> None:
    queue.enqueue(b"1")
    process = subprocess.Popen(
        [sys.executable, "-m", "echomq_tasks", "info", "--url", server.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(PATIENCE), errors) == (0, b"")


@pytest.mark.slow
def test_worker_runs_jobs_and_ends_with_0_once_what_runs_has_ended(
    server: ServerProcess, queue: Queue, tmp_path: Path
) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TEST_QUEUE": queue.name}
    process = subprocess.Popen(
        [sys.executable, "-m", "echomq_tasks", "worker", "tasks", "--url", server.url, "-p", "2", "-t", "2"],
        cwd=tmp_path,
        env=environ,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        for number, seconds in enumerate([0.0, 0.0, 2.0]):
            message = {"actor_name": "write", "args": [str(tmp_path / f"out{number}"), seconds]}
            queue.enqueue(json.dumps(message))
        eventually(lambda: queue.counts().completed == 2, PATIENCE)
        eventually((tmp_path / "out2").exists, PATIENCE)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors.decode()
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert [(tmp_path / f"out{number}").read_text() for number in range(3)] == ["started\nended\n"] * 3
    counts = queue.counts()
    assert (counts.completed, counts.unfinished, counts.dead) == (3, 0, 0)


@pytest.mark.parametrize(
    ("modules", "advice"),
    [
        ("recipts", "no module named 'recipts' from here (., {here}): did you mean 'receipts'?"),
        ("recipts.mail:broker", "no module named 'recipts' from here (., {here}): did you mean 'receipts'?"),
        ("receipts xylophone", "no module named 'xylophone' from here (., {here}): go to the directory it is in"),
        ("receipts.py", "'receipts.py' is a file, and a module is named as for import: write `receipts`"),
        ("receipts.py:broker", "'receipts.py' is a file, and a module is named as for import: write `receipts`"),
        ("./shop/receipts.py", "write `shop.receipts`"),
        ("../shop/receipts.py", "write `receipts --path ../shop`"),
    ],
)
def test_worker_says_which_module_it_cannot_find_before_it_starts_one_process(
    modules: str, advice: str, tmp_path: Path
) -> None:
    (tmp_path / "receipts.py").write_text("raise AssertionError('imported')\n")
    ended = echomq("worker", *modules.split(), "--path", str(tmp_path))
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("echomq: ")
    assert advice.format(here=tmp_path) in line


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The settings that processes would be started with, in place of starting them."""
    seen: list[Any] = []
    monkeypatch.setattr(worker, "_supervise", lambda settings: seen.append(settings) or 0)
    monkeypatch.delenv("EMQ_URL", raising=False)
    return seen


def test_worker_looks_into_every_path_and_imports_nothing_itself(started: list[Any], tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"tasks_{name}.py").write_text("raise AssertionError('imported')\n")
    paths = [str(tmp_path / "one"), str(tmp_path / "two")]
    before = list(sys.path)
    assert main(["worker", "tasks_one", "tasks_two", "-P", paths[0], "-P", paths[1], "-Q", "unheard_of"]) == 0
    (settings,) = started
    assert (settings.broker, settings.modules) == ("tasks_one", ("tasks_two",))
    assert settings.path == (".", *paths)
    assert settings.queues == ("unheard_of",)
    assert sys.path == before


def test_worker_hands_on_all_its_options(started: list[Any], tmp_path: Path) -> None:
    line = (
        "worker json -Q a,b c b -p 3 -t 4 --concurrency 5 --grace 1.5m --max-jobs 6 --max-memory 7.5 -v --use-spawn "
        "--pid-file p --log-file l --skip-logging -f os:getpid -f json:dumps -i *.html -x *_test.py -Q d "
        "--url redis://user:secret@host:1/2 --watch"
    )
    assert main([*line.split(), str(tmp_path)]) == 0
    assert started == [
        Settings(
            broker="json",
            server="redis://host:1/2",
            queues=("a", "b", "c", "d"),
            processes=3,
            threads=4,
            concurrency=5,
            grace=90.0,
            max_jobs=6,
            max_memory=7.5,
            functions=("os:getpid", "json:dumps"),
            watch=str(tmp_path),
            watch_include=("*.html",),
            watch_exclude=("*_test.py",),
            pid_file="p",
            log_file=os.path.abspath("l"),
            verbose=1,
            skip_logging=True,
            use_spawn=True,
        )
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-P a b --path c", {"path": (".", "a", "b", "c")}),
        ("--worker-shutdown-timeout 2500", {"grace": 2.5}),
        ("--worker-fork-timeout 30000 --watch-use-polling", {}),
    ],
)
def test_worker_takes_what_dramatiqs_command_takes(started: list[Any], line: str, expected: dict[str, Any]) -> None:
    assert main(["worker", "json", "-p", "1", *line.split()]) == 0
    assert started == [Settings(broker="json", processes=1, **expected)]


def test_worker_has_every_option_of_dramatiqs_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["worker", "--help"])
    ours = set(re.findall(r"(?<!\S)--?[a-zA-Z][\w-]*", capsys.readouterr().out))
    theirs = {text for action in make_argument_parser()._actions for text in action.option_strings}  # noqa: SLF001
    # `echomq --version` has it.
    assert theirs - ours == {"--version"}


@pytest.mark.parametrize("timeout", ["-1", "soon", "nan", "inf"])
def test_worker_refuses_a_timeout_that_is_none(
    started: list[Any], capsys: pytest.CaptureFixture[str], timeout: str
) -> None:
    with pytest.raises(SystemExit):
        main(["worker", "json", f"--worker-shutdown-timeout={timeout}"])
    assert f"must be a number of milliseconds, not '{timeout}'" in capsys.readouterr().err
    assert started == []


def test_worker_has_a_process_for_each_processor_and_leaves_the_rest_to_the_settings(started: list[Any]) -> None:
    assert main(["worker", "json"]) == 0
    assert started == [Settings(broker="json", processes=len(os.sched_getaffinity(0)))]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--watch=/no/such", "'/no/such' is no directory to watch"),
        ("--fork-function=os", "a function is named as MODULE:FUNCTION, not 'os'"),
        ("--fork-function=:f", "a function is named as MODULE:FUNCTION, not ':f'"),
        (
            "--fork-function=osx:f",
            "no module named 'osx' from here (.): go to the directory it is in, or name that directory with --path",
        ),
    ],
)
def test_worker_refuses_what_it_could_not_use(
    started: list[Any], capsys: pytest.CaptureFixture[str], option: str, said: str
) -> None:
    assert main(["worker", "json", option]) == 2
    assert capsys.readouterr().err == f"echomq: {said}\n"
    assert started == []


@pytest.mark.parametrize("name", ["bad name!", "", ",", "a,b c"])
def test_worker_refuses_a_queue_that_cannot_be(
    started: list[Any], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["worker", "json", "-Q", "a", name])
    assert ended.value.code == 2
    assert "is not allowed" in capsys.readouterr().err
    assert started == []


@pytest.mark.parametrize(
    "option", ["--grace=-1", "--grace=x", "--max-jobs=0", "--max-memory=0", "--max-memory=x", "--concurrency=0"]
)
def test_worker_refuses_a_bound_that_is_none(
    started: list[Any], capsys: pytest.CaptureFixture[str], option: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["worker", "json", option])
    assert ended.value.code == 2
    assert option.partition("=")[0] in capsys.readouterr().err
    assert started == []


def test_worker_refuses_a_wrong_url_and_blames_no_variable(
    started: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["worker", "json", "--url", "foo://"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("echomq: unknown URL scheme 'foo'")
    assert "EMQ_URL" not in line
    assert started == []
    assert "EMQ_URL" not in os.environ


@pytest.mark.parametrize("number", ["x", "0", "-1", "1.5"])
def test_a_number_of_processes_is_whole_and_positive(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["worker", "tasks", f"--processes={number}"])
    assert ended.value.code == 2
    assert f"--processes/-p: must be a whole number from 1 up, not '{number}'" in capsys.readouterr().err


@pytest.mark.slow
def test_demo_kills_a_worker_and_comes_to_the_same_result() -> None:
    ended = echomq("demo", "--limit", "120")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "equal to a plain count" in " ".join(ended.stdout.split())
