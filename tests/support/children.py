"""Forked children: run a function in one, and have what it returned, or the traceback of what it raised."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any


class Child:
    """A forked child that runs ``function`` and then exits, without running anything of pytest's.

    Take its :meth:`result`, which also reaps it. ``pid`` is its process id.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self._reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(self._reading)
                try:
                    answer = (True, function())
                except BaseException:
                    answer = (False, traceback.format_exc())
                with os.fdopen(writing, "wb") as pipe:
                    pickle.dump(answer, pipe)
                code = 0
            finally:
                os._exit(code)
        os.close(writing)

    def result(self, timeout: float = 30.0) -> Any:
        """What the function returned. Raises AssertionError when it raised, died or took over ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        answer = b""
        try:
            while True:
                if not select.select([self._reading], [], [], max(deadline - time.monotonic(), 0.0))[0]:
                    raise AssertionError(f"the child did not end within {timeout:g} s")
                chunk = os.read(self._reading, 65_536)
                if not chunk:
                    break
                answer += chunk
        finally:
            os.close(self._reading)
            # Ours and not reaped yet, so the pid cannot be somebody else's.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        if not answer:
            raise AssertionError("the child died without an answer")
        done, value = pickle.loads(answer)
        if not done:
            raise AssertionError(f"the child raised:\n{value}")
        return value


def in_child(function: Callable[[], Any], timeout: float = 30.0) -> Any:
    """Run ``function`` in a forked child and return what it returned there."""
    return Child(function).result(timeout)
