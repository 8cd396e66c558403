"""Tells of code that holds up the event loop: what it is, and where."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from dramatiq.asyncio import EventLoopThread
from dramatiq.logging import get_logger

from echomq_tasks.worker import run as runs
from echomq_tasks.worker.loop import LoopThread

#: Seconds between two looks while coroutines run, and for which the loop may let one wait before that is told.
_BEAT = 0.5
_PATIENCE = 1.0
#: The most frames that are told.
_FRAMES = 12
#: Where the loop's own frames end and those of what it runs begin.
_RUNNERS = (os.path.join("asyncio", "events.py"), runs.__file__)


class LoopWatch(threading.Thread):
    """Asks the event loop for an answer again and again, and logs a warning for each time that none comes.

    C code that holds the interpreter holds this thread, too, and is not seen.

    Parameters:
      watched: the thread of the loop that is to answer; None while nothing runs there.
      name_of: what a task is called; None stands for a callback.
    """

    def __init__(
        self,
        watched: Callable[[], LoopThread | EventLoopThread | None],
        name_of: Callable[[asyncio.Task[Any] | None], str],
    ) -> None:
        super().__init__(daemon=True, name="echomq-loop-watch")
        self.logger = get_logger(__name__, type(self))
        self._watched = watched
        self._name_of = name_of
        self._asked = threading.Event()
        self._ended = threading.Event()

    def ask(self) -> None:
        """Have it look, for as long as there is something to watch."""
        self._asked.set()

    def end(self) -> None:
        """Have it end; join it then."""
        self._ended.set()
        self._asked.set()

    def run(self) -> None:
        """Work until :meth:`end`."""
        while self._asked.wait() and not self._ended.is_set():
            self._asked.clear()
            while (thread := self._watched()) is not None and not self._ended.wait(_BEAT):
                try:
                    self._look(thread)
                except Exception:
                    self.logger.exception("The event loop is not watched for a moment.")

    def _look(self, thread: LoopThread | EventLoopThread) -> None:
        asked, answer = time.monotonic(), threading.Event()
        try:
            thread.loop.call_soon_threadsafe(answer.set)
        except RuntimeError:
            # It is closed.
            return
        # In two parts: a process that was stopped and goes on is late for the first one, whoever runs.
        if answer.wait(_PATIENCE / 2):
            return
        before = asyncio.current_task(thread.loop)
        if answer.wait(_PATIENCE / 2) or not self._is_on(thread):
            return
        task = asyncio.current_task(thread.loop)
        name, place = self._name_of(task), _place(thread)
        if answer.is_set():
            # This may be another's name and place.
            return
        self.logger.warning(
            "%s the event loop, for %.1f s by now: no other coroutine goes on, and no time limit, cancel or stop is "
            "heeded. What blocks belongs into a thread: await asyncio.to_thread(...). It is at\n%s",
            f"{name} holds up" if task is before else f"One after another, and now {name}, holds up",
            time.monotonic() - asked,
            place,
        )
        while self._is_on(thread):
            if answer.wait(_BEAT):
                held = time.monotonic() - asked
                self.logger.info("The event loop goes on, which was held up for at least %.1f s.", held)
                return

    def _is_on(self, thread: LoopThread | EventLoopThread) -> bool:
        """Whether an answer is still to be expected."""
        return thread.is_alive() and thread.loop.is_running() and not self._ended.is_set()


def _place(thread: threading.Thread) -> str:
    """Where a thread is: the frames of what the loop runs, as in a traceback."""
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - there is no other way to another's frames
    stack = [*traceback.StackSummary.extract(traceback.walk_stack(frame))] if frame is not None else []
    # The innermost comes first.
    own = next((at for at, each in enumerate(stack) if each.filename.endswith(_RUNNERS)), len(stack)) or len(stack)
    return "".join(traceback.format_list(stack[: min(own, _FRAMES)][::-1])).rstrip()
