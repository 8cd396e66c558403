"""The types of actors, as mypy sees them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import echomq_tasks

ROOT = Path(echomq_tasks.__file__).parent.parent
SIGNATURES = Path(__file__).with_name("actor_signatures.py")


def mypy(path: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """Check one file strictly, without the project's own configuration."""
    # --config-file= reads none; following imports silently reports what is wrong in this file only.
    options = ["--config-file=", "--strict", "--follow-imports=silent", f"--cache-dir={cache}"]
    return subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(path)], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_actors_keep_the_signature_of_their_functions(tmp_path: Path) -> None:
    checked = mypy(SIGNATURES, tmp_path / "cache")
    assert checked.returncode == 0, checked.stdout + checked.stderr

    # The same check finds a wrong claim: had the types become Any, each assert_type and ignore above would be an error.
    wrong = tmp_path / "wrong.py"
    wrong.write_text(SIGNATURES.read_text() + "\nassert_type(plain.send(1), Message[int])\nplain.send([])\n")
    checked = mypy(wrong, tmp_path / "cache")
    assert checked.returncode == 1
    assert "[assert-type]" in checked.stdout
    assert "[arg-type]" in checked.stdout
    assert "Found 2 errors" in checked.stdout
