"""An event loop in a thread of its own, on which async handlers run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

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
