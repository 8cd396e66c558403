"""Event loops and threads: async handlers run on the one while what blocks is in the other."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from echomq_tasks.errors import InvalidArgument
from echomq_tasks.scripts.arguments import shown

T = TypeVar("T")


class LoopThread:
    """One event loop; started here, ended by :meth:`close`. Its thread owns the loop, any thread may :meth:`start`."""

    def __init__(self, name: str) -> None:
        #: The loop.
        self.loop = asyncio.new_event_loop()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine; answers what will be its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self, timeout: float | None = None) -> bool:
        """Cancel what still runs, and end the thread; False when that takes longer than ``timeout`` seconds."""
        if not self._closing:
            # Once: a second stop would cut short what the thread does at its end.
            self._closing = True
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
        finally:
            self.loop.close()


async def in_thread(work: Callable[[], None], stop: Callable[[bool], None], name: str) -> None:
    """Run ``work`` in a thread of its own, in the caller's context, and wait for its end.

    Parameters:
      stop: called at each cancellation, with whether it is another one. It has to make ``work`` end, and only then the
        CancelledError goes on.
      name: the thread's.
    """
    context, cancelled = contextvars.copy_context(), None
    thread = ThreadPoolExecutor(1, thread_name_prefix=name)
    try:
        end = asyncio.get_running_loop().run_in_executor(thread, context.run, work)
        while not end.done():
            try:
                await asyncio.wait([end])
            except asyncio.CancelledError as error:
                stop(cancelled is not None)
                cancelled = error
    finally:
        thread.shutdown(wait=False)
    end.result()
    if cancelled is not None:
        raise cancelled


def check_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Check a loop that somebody wants handlers to run on.

    Raises:
      InvalidArgument: when it is none, closed, or this thread's own, which waits for the handlers.
    """
    if not isinstance(loop, asyncio.AbstractEventLoop) or loop.is_closed():
        raise InvalidArgument(f"loop is an event loop that runs in another thread, not {shown(loop)}")
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return
    if running is loop:
        raise InvalidArgument("run() would block the loop that its handlers run on: use await consumer.arun() there")
