"""The small examples run as they stand, and print what their readers are told they print."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.servers import ServerProcess

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

LETTERS = """\
Dear Ada, thank you.
Dear Edsger, thank you.
Dear Grace, thank you.
Dear reader, this came a little later.
4 letters posted, 1 at the second try
"""


def run(script: str, *, logged: str = "", **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert logged in done.stderr
    return done.stdout


@pytest.mark.parametrize("script", ["dramatiq_swap/before.py", "dramatiq_swap/after.py"])
def test_the_app_does_the_same_before_and_after_the_swap(script: str, server: ServerProcess) -> None:
    server.flush()
    # The failure that the guide prepares its reader for.
    failure = "ConnectionError: the letter box is full"
    assert run(script, logged=failure, SERVER_URL=server.url.replace("valkey://", "redis://")) == LETTERS


def test_the_swap_is_two_lines() -> None:
    before, after = ((EXAMPLES / "dramatiq_swap" / name).read_text().splitlines() for name in ("before.py", "after.py"))
    changed = [line for line in difflib.ndiff(before, after) if line.startswith(("- ", "+ "))]
    assert len(changed) == 4, changed


def test_the_plain_queue_example_works_through_its_jobs(server: ServerProcess) -> None:
    server.flush()
    lines = run("plain_queue/thumbnails.py", EMQ_URL=server.url).splitlines()
    assert lines[0] == "cover.jpg -> small-cover.jpg"
    assert sorted(lines[1:-1]) == [
        "bird.jpg -> small-bird.jpg",
        "cat.jpg -> small-cat.jpg",
        "dog.jpg -> small-dog.jpg",
        "failed 1 times: not a picture; again",
        "failed 2 times: not a picture; again",
        "failed 3 times: not a picture; given up",
        "sunset.jpg -> small-sunset.jpg",
    ]
    assert lines[-1] == "5 done, 1 dead"


def test_the_plain_queue_example_needs_no_server() -> None:
    assert run("plain_queue/thumbnails.py").endswith("5 done, 1 dead\n")
