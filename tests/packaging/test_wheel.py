"""What pip installs: every module and script of the checkout, and a command that works without the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy, so that the build leaves nothing in the checkout."""
    copy, out = tmp_path_factory.mktemp("copy") / "checkout", tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(ROOT, copy, ignore=ignored)
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(copy)],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return next(out.glob("*.whl"))


def test_the_wheel_holds_every_module_script_and_marker(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if name.startswith("echomq_tasks/")}
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "echomq_tasks").rglob("*.py")}
    scripts = {f"echomq_tasks/lua/{path.name}" for path in (ROOT / "lua").iterdir() if path.is_file()}
    example = {
        f"echomq_tasks/examples/stdlib_index/{path.name}" for path in (ROOT / "examples/stdlib_index").glob("*.py")
    }
    assert found == modules | scripts | example | {"echomq_tasks/py.typed"}


def test_what_was_installed_works_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}
    where = subprocess.run(
        [sys.executable, "-c", "import echomq_tasks; print(echomq_tasks.__file__)"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert where.stdout.strip() == str(tmp_path / "echomq_tasks" / "__init__.py")
    demo = subprocess.run(
        [sys.executable, "-m", "echomq_tasks", "demo", "--limit", "20", "--no-kill"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "equal to a plain count" in demo.stdout
