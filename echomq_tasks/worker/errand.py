"""A process that runs one function beside the workers, as the metrics server of a middleware."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading
from types import FrameType

from echomq_tasks.worker.alarm import HELD_BACK
from echomq_tasks.worker.channel import Channel
from echomq_tasks.worker.loading import LoadingFailed, extend_path, function_named
from echomq_tasks.worker.logs import log_here, print_line_by_line, reopen
from echomq_tasks.worker.settings import Task

_log = logging.getLogger(__name__)

#: Seconds for a function to end, once it is told to by an exception.
_PATIENCE = 5.0


class Errand:
    """One such process. The function runs in the main thread, and is ended by SystemExit raised there.

    Parameters:
      task: what to do.
      channel: the line to the main process.
    """

    def __init__(self, task: Task, channel: Channel) -> None:
        self._task = task
        self._channel = channel

    def run(self) -> int:
        """Do it; answers the exit code. Signals that were blocked until here are let through."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, lambda number, frame: None)
        signal.signal(signal.SIGUSR1, lambda number, frame: self._reopen())
        signal.signal(signal.SIGTERM, self._end)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
        threading.Thread(target=self._hear, name="echomq-orders", daemon=True).start()
        random.seed()
        print_line_by_line()
        log_here(self._task.settings, main=False)
        extend_path(self._task.settings.path)
        try:
            function = function_named(str(self._task.function))
        except LoadingFailed as failure:
            self._channel.send(failed=failure.text, code=failure.code)
            return failure.code
        self._channel.send(ready=True)
        answer = function()
        return answer if isinstance(answer, int) else 0

    def _end(self, number: int, frame: FrameType | None) -> None:
        sys.exit(0)

    def _reopen(self) -> None:
        reopen(self._task.settings)

    def _hear(self) -> None:
        # Any other order means the end, and so does the end of the main process.
        while (order := self._channel.receive()) is not None and order.get("order") == "reopen":
            self._reopen()
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(_PATIENCE)
        os._exit(1)
