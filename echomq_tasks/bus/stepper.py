"""A thread for the blocking steps of one asyncio object, which keeps no interpreter from ending."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

#: What to call, and the future that tells its end; None ends the thread.
_Steps = SimpleQueue[tuple[Callable[[], Any], "Future[Any]"] | None]


class Stepper:
    """Calls functions in one thread of its own, one after the other; the thread starts with the first.

    Unlike the threads of an executor, it is not waited for when the interpreter ends, however long its step takes.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._steps: _Steps = SimpleQueue()
        self._thread: threading.Thread | None = None
        # Whoever forgets to end it leaves no thread behind.
        self._end = weakref.finalize(self, self._steps.put, None)
        self._end.atexit = False

    async def run(self, step: Callable[[], T]) -> T:
        """Call ``step`` in the thread. A step that has begun goes on when this is cancelled, and others wait for it."""
        if self._thread is None:
            thread = threading.Thread(target=_work, args=(self._steps,), name=self._name, daemon=True)
            thread.start()
            self._thread = thread
        future: Future[T] = Future()
        self._steps.put((step, future))
        return await asyncio.wrap_future(future)

    def end(self) -> None:
        """End the thread behind its step; does not wait for that."""
        self._end()


def _work(steps: _Steps) -> None:
    while (entry := steps.get()) is not None:
        step, future = entry
        # Cancelled while it waited for its turn.
        if not future.set_running_or_notify_cancel():
            continue
        try:
            result = step()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        # Nothing is kept alive by a thread that waits.
        del entry, step, future
