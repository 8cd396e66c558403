"""The thread of a worker's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from dramatiq.asyncio import get_event_loop_thread, set_event_loop_thread
from dramatiq.logging import get_logger

from echomq_tasks.forks import after_fork

#: Seconds for what jobs have left behind on the loop to end once it is cancelled.
_CLEANUP = 5.0


@contextlib.contextmanager
def undone_on_failure() -> Iterator[None]:
    """End the loop that Dramatiq's ``AsyncIO`` has made within, if that fails: its thread would keep the process."""
    before = get_event_loop_thread()
    try:
        yield
    except BaseException:
        made = get_event_loop_thread()
        if made is not None and made is not before:
            made.stop()
            set_event_loop_thread(before)
        raise


class LoopThread(threading.Thread):
    """Runs an event loop until :meth:`end`, whatever is raised there."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="echomq-loop")
        self.logger = get_logger(__name__, type(self))
        self.loop = asyncio.new_event_loop()
        self._ended = False
        self._forked = False
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._ended = self._forked = True
        if threading.current_thread() is self:
            # A job has forked here. The loop's selector is the parent's, too, and so are the jobs that are due now.
            self.loop.stop()
            with contextlib.suppress(AttributeError):
                self.loop._ready.clear()  # type: ignore[attr-defined]  # noqa: SLF001 - there is no other way

    def end(self) -> None:
        """Have it cancel what is left on the loop, and end; join it then."""
        self._ended = True
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.stop)

    def run(self) -> None:
        """Run the loop."""
        asyncio.set_event_loop(self.loop)
        while not self._ended:
            try:
                self.loop.run_forever()
            except BaseException:
                # The loop lets SystemExit and KeyboardInterrupt of any task through, and goes on where it was.
                if not self._forked:
                    self.logger.critical("A task on the worker's event loop ended it; it goes on.", exc_info=True)
        if not self._forked:
            try:
                self._clean_up()
            except BaseException:
                self.logger.exception("What jobs have left behind on the event loop does not end in order.")
            self.loop.close()

    def _clean_up(self) -> None:
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        if left:
            _, stuck = self.loop.run_until_complete(asyncio.wait(left, timeout=_CLEANUP))
            if stuck:
                self.logger.warning("Tasks that jobs have left behind do not end when cancelled: %d.", len(stuck))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
