"""How much memory a process takes."""

from __future__ import annotations

import os
import subprocess

_PAGE = os.sysconf("SC_PAGE_SIZE")
_MIB = 1024 * 1024


def resident_mib(pid: int) -> float | None:
    """The resident memory of a process in MiB; None when it is gone, or the system does not tell."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE / _MIB
    except FileNotFoundError:
        return None if os.path.isdir("/proc/self") else _asked(pid)
    except (OSError, IndexError, ValueError):
        return None


def _asked(pid: int) -> float | None:
    """What ``ps`` says, where there is no ``/proc``; in KiB."""
    try:
        said = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, check=False, timeout=5)
        return int(said.stdout) / 1024
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
