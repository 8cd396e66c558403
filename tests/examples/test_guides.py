"""The Python in README and the guides runs as written, block after block."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import dramatiq
import pytest
from support.servers import ServerProcess
from support.workers import WORKERS

from echomq_tasks import Queue, connect, signals
from echomq_tasks.bus import handlers
from echomq_tasks.cache import reach

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#:]+)\)")


#: Every page, in an order that is the same everywhere.
ALL = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in (ROOT, ROOT / "docs", ROOT / "examples")
    for path in folder.glob("*.md")
)


def blocks(guide: str) -> list[str]:
    return _BLOCK.findall((ROOT / guide).read_text())


@pytest.fixture
def namespace(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    server.flush()
    monkeypatch.setenv("EMQ_URL", server.url)
    before = dramatiq.broker.global_broker
    dramatiq.broker.global_broker = None
    # As in a process of the guide's own, which no cached function has made connect yet.
    caches = reach.Shared()
    monkeypatch.setattr(reach, "_DEFAULT", caches)
    # What the guides look for: a job that failed for good.
    with connect(server.url) as connection:
        queue = Queue("default", connection)
        queue.enqueue('{"actor_name": "nobody"}', group="lost and found")
        queue.retry(queue.claim().jobs[0], "ActorNotFound: nobody", max_retries=0)
    # Actors look up the module they are defined in.
    names: dict[str, object] = {"__name__": "guide"}
    # What a guide registers is run by workers, and hears signals, for as long as it is referred to.
    monkeypatch.setattr(handlers, "_registered", weakref.WeakKeyDictionary())
    yield names
    for signal in signals.namespace.values():
        signal._clear_state()  # noqa: SLF001 - what blinker has for tests
    made = dramatiq.broker.global_broker
    dramatiq.broker.global_broker = before
    if made is not None:
        made.close()
    caches.close()
    if caches.config() is None:
        caches.connection(None).close()


GUIDES = [
    "README.md",
    "docs/dramatiq.md",
    "docs/queue.md",
    "docs/lanes.md",
    "docs/limits.md",
    "docs/results.md",
    "docs/repeats.md",
    "docs/flows.md",
    "docs/unique.md",
    "docs/cancel.md",
    "docs/dead.md",
    "docs/coming-from.md",
    "docs/batches.md",
    "docs/bus.md",
    "docs/cache.md",
    "docs/worker.md",
]
#: What those print which start Dramatiq's worker, they print with ours in its place.
WITH_WORKERS = [guide for guide in GUIDES if "Worker(" in "".join(blocks(guide)) and guide != "docs/worker.md"]


@pytest.mark.parametrize(
    ("worker_kind", "guide"),
    [*(("dramatiq", guide) for guide in GUIDES), *(("own", guide) for guide in WITH_WORKERS)],
)
def test_a_guide_runs_as_written(
    guide: str,
    worker_kind: str,
    namespace: dict[str, object],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dramatiq, "Worker", WORKERS[worker_kind])
    found = blocks(guide)
    assert found
    for block in found:
        exec(compile(block, guide, "exec", dont_inherit=True), namespace)  # the guide is our own text
    printed = capsys.readouterr().out
    if guide == "README.md":
        assert "ActorNotFound: nobody" in printed
    if guide == "docs/dramatiq.md":
        assert "hello Ada" in printed
        assert "hello Grace" in printed
        assert "(0, 0, 1)" in printed
        assert "ActorNotFound: nobody" in printed
    if guide == "docs/worker.md":
        assert sorted(printed.splitlines()) == [
            "1", "30 at once", "closed", "got /index", "interrupted: Shutdown", "resized logo.png",
        ]  # fmt: skip
    if guide == "docs/batches.md":
        assert printed.splitlines() == ["3: ada, grace, barbara", "parsed 3, 1 bad", "parsed 1, 1 bad", "(0, 0, 1)"]
    if guide == "docs/bus.md":
        assert printed.splitlines() == [
            "completed ship 1",
            "failed ValueError no such order",
            "signal: completed ship",
            "done: True",
            "['paid', 'packed', 'shipped']",
            "['packed', 'shipped']",
            "mailed paid",
            "mailed packed",
            "mailed shipped",
            "mailing: 0 0",
        ]
    if guide == "docs/cache.md":
        assert printed.splitlines() == [
            "loading a",
            "19.80",
            "CacheInfo(hits=1, misses=1, maxsize=10000, currsize=1)",
            "8.50 None",
            "nothing",
            "loading a",
            "9.90",
            "1.08",
            "1.08 1",
            "loading user 7",
            "{'number': 7, 'orders': 3}",
            "refused",
            "a in Paphos | a in Limassol | Shop: 8 to 17",
            "asking for invoice 12",
            "asking for invoice 12",
            "True range(0, 31)",
            "['order 1'] 99.00",
            "None None True",
            "customer 7 gets tea",
            "None",
            "USR0KHTOWnGLuC {'name': 'Ada'}",
            'b\'{"name":"Ada"}\'',
            "loading b",
            "cache_load price None",
            "cache_hit price l1",
        ]
    if guide == "docs/coming-from.md":
        assert printed.splitlines() == [
            "later: 5",
            "total: 8",
            "status: dead",
            "1 FileNotFoundError: [Errno 2] No such file or directory: 'no-such-file'",
            "again: 1",
            "refused: True",
            "[b'INTRO', b'LEFT', b'LEFT+RIGHT', b'RIGHT']",
        ]
    if guide == "docs/flows.md":
        *lines, _ = printed.split("\n")
        assert lines[:2] == ["may: 10 orders, 0 shops did not answer", "june: 5 orders, 1 shops did not answer"]
        assert lines[2].endswith("LookupError: nobody there")
        assert lines[3:] == ["awaiting_children", "1", "[b'2.5 kg', b'shelf 7']"]
    if guide == "docs/unique.md":
        assert printed.splitlines() == [
            "True True", "synced paphos", "False", "True", "True", "False", "True True",
        ]  # fmt: skip
    if guide == "docs/cancel.md":
        assert printed.splitlines() == ["page 0", "requested", "absent", "1"]
    if guide == "docs/dead.md":
        lines = printed.splitlines()
        assert [line.endswith("the bank is closed") or "ConnectionError" in line for line in lines].count(True) >= 3
        assert sorted(line for line in lines if line.startswith("charged")) == [f"charged {each}" for each in range(3)]
        left = [line for line in lines if line in ("True", "gone") or line.isdigit()]
        assert left == ["4", "True", "1", "1", "1", "gone", "0"]
    if guide == "docs/repeats.md":
        assert printed.split("\n")[:2] == ["False", "True"]
        assert printed.split("\n")[-3:] == ["True", "1 fired", ""]
        assert "30 2 * * *" in printed
    if guide == "docs/results.md":
        assert printed.split("\n")[:5] == ["3", "ValueError: not today", "[0, 1, 4]", "16", "b'done'"]
    if guide == "docs/lanes.md":
        assert "['soon', 'other', 'slow']" in printed
        assert "acme 0 1 None 1 False" in printed
        assert "only what waits can be moved" in printed
    if guide == "docs/limits.md":
        assert printed.startswith("0\n5\n")
        assert "not paused: pause it first" in printed
        assert printed.endswith("0 False\n")
    if guide == "docs/queue.md":
        assert "enqueued" in printed
        assert "True" in printed


TASKS = """
import dramatiq
from echomq_tasks import actor
from echomq_tasks.brokers.dramatiq import EchoMQBroker

broker = EchoMQBroker()
dramatiq.set_broker(broker)


@actor(max_retries=0)
def resize(name):
    if name == "broken.png":
        raise ValueError("no picture")
    print(f"resized {name}")
"""
# The second time, it must not find the first.
MORE_TESTS = """

@__import__("pytest").mark.parametrize("time", [1, 2])
def test_a_broken_picture(worker, time):
    resize.send("broken.png")
    broker.join("default", timeout=5_000)
    (dead,) = broker.queue("default").dead()
    assert dead.last_error.startswith("ValueError: no picture")


def test_the_server_is_of_this_run():
    assert broker.connection.config.directory is None
"""


def test_the_fixture_that_the_page_of_the_worker_offers_works_under_pytest(tmp_path: Path) -> None:
    found = re.findall(r"^```py\n# (\S+)\n(.*?)^```$", (ROOT / "docs/worker.md").read_text(), re.DOTALL | re.MULTILINE)
    assert [name for name, _ in found] == ["conftest.py", "test_tasks.py"]
    for name, text in found:
        (tmp_path / name).write_text(text + (MORE_TESTS if name == "test_tasks.py" else ""))
    (tmp_path / "myapp").mkdir()
    (tmp_path / "myapp" / "tasks.py").write_text(TASKS)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "4 passed" in ran.stdout, ran.stdout + ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("guide", ["docs/queue.md", "docs/lanes.md", "docs/limits.md", "docs/cache.md"])
def test_what_a_guide_shows_passes_a_strict_type_check(tmp_path: Path, guide: str) -> None:
    (tmp_path / "guide.py").write_text("\n".join(blocks(guide)))
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", str(tmp_path / "guide.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("guide", ALL)
def test_links_between_files_lead_somewhere(guide: str) -> None:
    for link in _LINK.findall((ROOT / guide).read_text()):
        assert ((ROOT / guide).parent / link).exists(), link
