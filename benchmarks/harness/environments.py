"""An environment for each queue, made once and kept: its pins are in `peers/NAME.txt`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parent.parent
#: The queue that needs no other environment than that of the harness.
OURS = "echomq"


def default_folder() -> Path:
    """Where environments are kept unless told otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "echomq-benchmarks"


def names() -> list[str]:
    """All queues that can be measured; ours first."""
    return [OURS, *sorted(pins.stem for pins in (BENCHMARKS / "peers").glob("*.txt"))]


def python_of(peer: str, folder: Path) -> Path:
    """The interpreter of a queue's environment, which is made when it is not there or its pins have changed.

    Raises:
      RuntimeError: it cannot be made; says why.
    """
    if peer == OURS:
        return Path(sys.executable)
    pins = (BENCHMARKS / "peers" / f"{peer}.txt").read_text()
    home = folder / peer
    made, python = home / "pins.txt", home / "bin" / "python"
    if made.is_file() and made.read_text() == pins:
        return python
    print(f"making the environment of {peer} in {home}", file=sys.stderr, flush=True)
    home.parent.mkdir(parents=True, exist_ok=True)
    _run(sys.executable, "-m", "venv", "--clear", str(home))
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run(*install, "-r", str(BENCHMARKS / "peers" / f"{peer}.txt"))
    # Last, so that what was interrupted is made anew.
    made.write_text(pins)
    return python


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise RuntimeError(f"its environment could not be made: {last}")
