"""What the main process tells a person."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

from echomq_tasks import __version__
from echomq_tasks.worker.process import Process
from echomq_tasks.worker.settings import Settings

#: Names of queues, or of actors, that fit a line.
_FEW = 8


def capital(process: Process | str) -> str:
    """A process, or its name, at the beginning of a sentence."""
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
    if process.ready is None:
        return f"ended while it booted ({ending(code)})"
    # After 1 it has told why itself, most likely; what else is there comes from below the interpreter's own end.
    hint = ", as when a job calls os._exit" if code > 1 else ""
    return f"ended unasked ({ending(code)}){hint}"


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
    what = f"the queue{'' if len(queues) == 1 else 's'} {_few(queues)}" if queues else "no queue"
    where = ready["server"] + ("" if ready["there"] else ", which is not there yet")
    places = f" and {_count(settings.concurrency, 'async place')}" if ready["coroutines"] else ""
    return (
        f"echomq_tasks {__version__} works on {what} at {where}: {_count(settings.processes, 'process')} "
        f"({pids(numbers)}), {_count(settings.threads, 'thread')}{places} each. Ctrl-C stops it."
    )


def warnings(ready: dict[str, Any], settings: Settings) -> list[str]:
    """What is odd about what was started."""
    found = [f"No actor has the queue {name!r}: it is not served." for name in ready["unknown"]]
    if (wanted := ready["wanted_server"]) is not None:
        found.append(f"--url is {wanted}, and the broker of these actors has a server of its own: {ready['server']}.")
    return found + others(ready["others"])


def nothing_to_serve(modules: Sequence[str], wanted: Sequence[str], declared: Sequence[str]) -> str:
    """Why there is nothing to run."""
    if not declared:
        return f"no actors in {', '.join(modules)}: there is nothing to run"
    names = " nor ".join(map(repr, wanted))
    return f"no actor has the queue {names}: there is nothing to serve. The actors have {_few(declared)}"


def others(brokers: Sequence[tuple[str | None, bool, Sequence[str]]]) -> list[str]:
    """A sentence for each other broker with actors: where it is, whether it is for this worker, and its actors."""
    found = []
    for name, is_ours, actors in brokers:
        which = "a broker that is in no module" if name is None else f"another broker, {name}"
        advice = "" if name is None else f": run `{'echomq worker' if is_ours else 'dramatiq'} {name}` for them"
        subject = f"The actor {actors[0]} is" if len(actors) == 1 else f"The actors {_few(actors)} are"
        found.append(f"{subject} of {which}, and not served here{advice}.")
    return found


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:_FEW]) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 'es' if what.endswith('s') else 's'}"
