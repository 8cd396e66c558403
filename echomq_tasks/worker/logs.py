"""Where the processes of a worker log to, and how."""

from __future__ import annotations

import io
import logging
import os
import sys

from echomq_tasks.worker.settings import Settings

_log = logging.getLogger(__name__)

FORMAT = "[%(asctime)s] [PID %(process)d] [%(threadName)s] [%(name)s] [%(levelname)s] %(message)s"


def log_here(settings: Settings, *, main: bool) -> None:
    """Log to standard error, in the main process also with ``--skip-logging``: its lines are all that it says."""
    if main or not settings.skip_logging:
        logging.basicConfig(level=logging.DEBUG if settings.verbose else logging.INFO, format=FORMAT)
    else:
        # A fork has the handlers of the main process.
        logging.root.handlers.clear()
        logging.root.setLevel(logging.WARNING)


def print_line_by_line() -> None:
    """Let what is printed appear at once, wherever it goes, and not get lost when the process is killed."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")


def write_to(file: str) -> None:
    """Let standard output and error go to a file from now on, also of the processes that are started; adds to it.

    Opened anew when it is called again, so a file that was rotated away is left. Touches no buffer, so the handler of a
    signal may call it: a line that is half written goes to the new file as a whole.

    Raises:
      OSError: when it cannot be opened.
    """
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        for standard in (1, 2):
            os.dup2(descriptor, standard)
    finally:
        os.close(descriptor)


def reopen(settings: Settings) -> bool:
    """Have this process open its log file again, if it has one; False when that fails, which the old one is told."""
    if settings.log_file is not None:
        try:
            write_to(settings.log_file)
        except OSError as error:
            _log.error("The log file cannot be opened again: %s", error)
            return False
    return True
