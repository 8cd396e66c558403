"""The Python in README and the guides runs as written, block after block."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dramatiq
import pytest
from support.servers import ServerProcess

from echomq_tasks import Queue, connect

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#:]+)\)")


def blocks(guide: str) -> list[str]:
    return _BLOCK.findall((ROOT / guide).read_text())


@pytest.fixture
def namespace(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    server.flush()
    monkeypatch.setenv("EMQ_URL", server.url)
    before = dramatiq.broker.global_broker
    dramatiq.broker.global_broker = None
    # What the guides look for: a job that failed for good.
    with connect(server.url) as connection:
        queue = Queue("default", connection)
        queue.enqueue('{"actor_name": "nobody"}', group="lost and found")
        queue.retry(queue.claim().jobs[0], "ActorNotFound: nobody", max_retries=0)
    # Actors look up the module they are defined in.
    names: dict[str, object] = {"__name__": "guide"}
    yield names
    made = dramatiq.broker.global_broker
    dramatiq.broker.global_broker = before
    if made is not None:
        made.close()


@pytest.mark.parametrize("guide", ["README.md", "docs/dramatiq.md", "docs/queue.md"])
def test_a_guide_runs_as_written(guide: str, namespace: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
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
    if guide == "docs/queue.md":
        assert "enqueued" in printed
        assert "True" in printed


@pytest.mark.slow
def test_what_the_queues_guide_shows_passes_a_strict_type_check(tmp_path: Path) -> None:
    (tmp_path / "guide.py").write_text("\n".join(blocks("docs/queue.md")))
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", str(tmp_path / "guide.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("guide", [path.relative_to(ROOT).as_posix() for path in ROOT.glob("*.md")] + [
    path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")]
])  # fmt: skip
def test_links_between_files_lead_somewhere(guide: str) -> None:
    for link in _LINK.findall((ROOT / guide).read_text()):
        assert ((ROOT / guide).parent / link).exists(), link
