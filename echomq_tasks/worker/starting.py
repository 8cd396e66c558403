"""Start a process: by a fork where that is safe, else with an interpreter of its own."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable

from echomq_tasks.worker import telling
from echomq_tasks.worker.alarm import HELD_BACK, ignore_from_now_on
from echomq_tasks.worker.channel import Channel
from echomq_tasks.worker.process import Process
from echomq_tasks.worker.settings import Task

_log = logging.getLogger(__name__)


def can_fork() -> bool:
    """Whether a fork is safe here: not on macOS, whose libraries forbid it, and not beside other threads."""
    return hasattr(os, "fork") and sys.platform != "darwin" and threading.active_count() == 1


def start(task: Task, *, fork: bool, in_child: Callable[[], None]) -> Process:
    """Start a process for ``task``.

    Parameters:
      task: what it is for.
      fork: fork, if that is safe; the new process leaves through SystemExit, and never returns from here.
      in_child: called first thing in a fork, to close what only the main process may hold.

    Raises:
      OSError: when the system has no process left to give.
    """
    mine, theirs = Channel.pair()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    try:
        if fork and can_fork():
            # What is there already stays in pages that all processes share, as far as it can.
            gc.collect()
            gc.freeze()
            pid = os.fork()
            if pid == 0:
                mine.close()
                in_child()
                sys.exit(carry_out(task, theirs))
        else:
            pid = _spawn(theirs)
            mine.send(task=task.to_json())
    except OSError:
        mine.close()
        raise
    finally:
        theirs.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return Process(pid, task.name, mine)


def _spawn(channel: Channel) -> int:
    os.set_inheritable(channel.fileno(), True)
    arguments = [sys.executable, *_interpreter_options(), "-m", "echomq_tasks.worker.spawned", str(channel.fileno())]
    return os.posix_spawn(sys.executable, arguments, os.environ)


def _interpreter_options() -> list[str]:
    """The options of this interpreter; what the environment says is inherited."""
    options = [f"-W{each}" for each in sys.warnoptions]
    options += [f"-X{name}" if value is True else f"-X{name}={value}" for name, value in sys._xoptions.items()]  # noqa: SLF001
    options += ["-O"] * sys.flags.optimize
    options += ["-E"] if sys.flags.ignore_environment else []
    options += ["-I"] if sys.flags.isolated else []
    options += ["-s"] if sys.flags.no_user_site else []
    return options


def carry_out(task: Task, channel: Channel) -> int:
    """Do what a process was started for, in that process; answers its exit code."""
    # Imported here: the main process shall not hold more than it needs, and a new interpreter loads it afresh.
    if task.function is not None:
        from echomq_tasks.worker.errand import Errand

        run = Errand(task, channel).run
    else:
        from echomq_tasks.worker.child import Child

        run = Child(task, channel).run
    try:
        return run()
    except Exception:
        _log.exception("%s ends by an error.", telling.capital(task.name))
        return 1
    finally:
        ignore_from_now_on()
