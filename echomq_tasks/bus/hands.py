"""Who does the work of a consumer: its own thread, or an event loop with a bounded number of coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from echomq_tasks.bus.delivery import Delivery
from echomq_tasks.bus.holding import Held, Holding
from echomq_tasks.bus.loops import LoopThread

Handler = Callable[[Delivery], Awaitable[None]] | Callable[[Delivery], Any]

#: How much one more measurement changes what is known of a handler's pace.
_WEIGHT = 0.2
#: Seconds between two looks whether somebody's loop is still there.
_LOOK = 1.0


class Hands(Protocol):
    """Runs a handler and notes in the holding how it ended."""

    #: Seconds that one delivery takes, on average; None before the first one.
    pace: float | None

    def running(self) -> int:
        """How many deliveries are at work."""

    def start(self, held: Held) -> None:
        """Work on one; call it only when :meth:`room` says so."""

    def room(self, timeout: float) -> bool:
        """Wait for up to ``timeout`` seconds until one more can be started; answers whether it can."""

    def cancel(self) -> None:
        """Cut short what is at work, as far as that can be; from any thread."""

    def close(self) -> None:
        """Wait for the end of all that is at work."""


class OwnThread:
    """Runs a plain function in the thread that calls."""

    def __init__(self, handler: Callable[[Delivery], Any], holding: Holding) -> None:
        self._handler = handler
        self._holding = holding
        self._running = 0
        self.pace: float | None = None

    def running(self) -> int:
        """One while another thread looks, none between two calls."""
        return self._running

    def start(self, held: Held) -> None:
        """Run the handler, to its end."""
        began = time.monotonic()
        self._running = 1
        try:
            decode(held.delivery)
            self._handler(held.delivery)
        except Exception as error:
            self._holding.finish(held, error)
        except BaseException as error:
            # It ends the run; the entry is not finished, and whoever buries it one day can tell why.
            held.error = error
            raise
        else:
            self._holding.finish(held, None)
        finally:
            self._running = 0
        self.pace = _average(self.pace, time.monotonic() - began)

    def room(self, timeout: float) -> bool:
        """Always."""
        return True

    def cancel(self) -> None:
        """A function cannot be cut short."""

    def close(self) -> None:
        """Nothing is left."""


class OnLoop:
    """Runs an async function on an event loop, so many at once.

    Parameters:
      handler: the function.
      concurrency: most deliveries at work at once.
      holding: where their ends are noted.
      loop: somebody's loop, which runs in another thread; one of its own, which ends with this, by default.
    """

    def __init__(
        self,
        handler: Callable[[Delivery], Awaitable[None]],
        concurrency: int,
        holding: Holding,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._handler = handler
        self._concurrency = concurrency
        self._holding = holding
        self._own = LoopThread("echomq-handlers") if loop is None else None
        self._loop = self._own.loop if self._own is not None else loop
        self._running = 0
        self._tasks: set[asyncio.Task[BaseException | None]] = set()  # of the loop's thread
        self._change = threading.Condition()
        self.pace: float | None = None

    def running(self) -> int:
        """How many coroutines are at work."""
        with self._change:
            return self._running

    def start(self, held: Held) -> None:
        """Start a coroutine."""
        assert self._loop is not None
        with self._change:
            # Fails when somebody has closed their loop under us.
            self._loop.call_soon_threadsafe(self._begin, held)
            self._running += 1

    def room(self, timeout: float) -> bool:
        """Wait until one more can be started."""
        with self._change:
            return self._change.wait_for(lambda: self._running < self._concurrency, timeout)

    def cancel(self) -> None:
        """Cancel all coroutines."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._tasks])

    def close(self) -> None:
        """Wait for all coroutines, and end the loop if it is our own."""
        assert self._loop is not None
        with self._change:
            # What was at work on a loop that somebody has closed never ends.
            while self._running and not self._loop.is_closed():
                self._change.wait(_LOOK)
        if self._own is not None:
            self._own.close()

    def _begin(self, held: Held) -> None:
        task = asyncio.get_running_loop().create_task(self._one(held))
        self._tasks.add(task)
        # Not in the coroutine itself: one that is cancelled before its first step runs no line.
        task.add_done_callback(partial(self._end, held, time.monotonic()))

    async def _one(self, held: Held) -> BaseException | None:
        try:
            decode(held.delivery)
            await self._handler(held.delivery)
        except BaseException as error:
            # SystemExit too, which would end the loop under all the others.
            return error
        return None

    def _end(self, held: Held, began: float, task: asyncio.Task[BaseException | None]) -> None:
        self._tasks.discard(task)
        self._holding.finish(held, asyncio.CancelledError() if task.cancelled() else task.result())
        with self._change:
            self.pace = _average(self.pace, time.monotonic() - began)
            self._running -= 1
            self._change.notify_all()


def is_async(handler: object) -> bool:
    """Whether calling ``handler`` gives a coroutine."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def decode(delivery: Delivery) -> None:
    """Let a record that its log's codec cannot read fail, whatever the handler looks at.

    Raises:
      UndecodableRecord: when the codec cannot read it.
    """
    if delivery.record.codec is not None:
        _ = delivery.record.value


def _average(known: float | None, seconds: float) -> float:
    return seconds if known is None else known + _WEIGHT * (seconds - known)
