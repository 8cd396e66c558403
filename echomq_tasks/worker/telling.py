"""What the main process tells a person."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

from echomq_tasks import __version__
from echomq_tasks.worker.process import Process
from echomq_tasks.worker.settings import Settings

#: Names of queues that fit a line.
_FEW = 8


def capital(process: Process) -> str:
    """A process at the beginning of a sentence."""
    text = str(process)
    # Of a function it is the name, which is not to be altered.
    return text if ":" in text.partition(" ")[0] else text[0].upper() + text[1:]


def ending(code: int) -> str:
    """How a process ended, from its exit code; below 0 is a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def end_of(process: Process, code: int) -> str:
    """The same as a part of a sentence, with what is likely behind it."""
    if code < 0:
        hint = ", as when the system runs out of memory" if code == -signal.SIGKILL else ""
        return f"was killed by {ending(code)}{hint}"
    if process.failed is not None:
        return "cannot boot"
    return f"ended unasked ({ending(code)})" if process.ready is not None else f"ended while it booted ({ending(code)})"


def note(text: str) -> str:
    """Lines for standard error as of any other command; what stands before the last is a traceback."""
    head, end, last = text.rpartition("\n")
    return f"{head}{end}echomq: {last}\n"


def reason(process: Process) -> str:
    """What a process said why it cannot boot, as more lines of a message; nothing when it said nothing."""
    return "" if process.failed is None else f"\n{process.failed}"


def pids(numbers: Sequence[int]) -> str:
    """``PID 7``, ``PIDs 7, 8``."""
    return f"PID{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def booted(ready: dict[str, Any], settings: Settings, numbers: Sequence[int]) -> str:
    """The line that says what was started."""
    queues: list[str] = ready["queues"]
    named = ", ".join(queues[:_FEW]) + (f" and {len(queues) - _FEW} more" if len(queues) > _FEW else "")
    what = f"the queue{'' if len(queues) == 1 else 's'} {named}" if queues else "no queue"
    where = ready["server"] or "a server that is not there yet"
    return (
        f"echomq_tasks {__version__} works on {what} at {where}: {_count(settings.processes, 'process')} "
        f"({pids(numbers)}), {_count(settings.threads, 'thread')} each. Ctrl-C stops it."
    )


def warnings(ready: dict[str, Any], settings: Settings) -> list[str]:
    """What is odd about what was started."""
    found = [f"No actor has the queue {name!r}: it is not served." for name in ready["unknown"]]
    if not ready["queues"] and not found:
        found.append(f"No actors in {', '.join((settings.broker, *settings.modules))}: there is nothing to run.")
    return found


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 'es' if what.endswith('s') else 's'}"
