"""From threads to an event loop: a task waits for a future that a thread completes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


def waker() -> tuple[Callable[[], None], asyncio.Future[None]]:
    """For a task: what wakes it, called by any thread and as often as one likes, and what it waits for meanwhile.

    To call it raises RuntimeError when the loop is closed: nobody waits there any more.
    """
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()

    def set_() -> None:
        if not woken.done():
            woken.set_result(None)

    def wake() -> None:
        loop.call_soon_threadsafe(set_)

    return wake, woken


async def settled(future: Future[Any], seconds: float | None = None) -> bool:
    """Wait until the future is done; what it holds is not looked at.

    ``asyncio.wrap_future`` would hand the error of a future on, and complain about it when nobody took it there.

    Parameters:
      future: completed by any thread.
      seconds: how long; None is for ever.

    Returns:
      Whether it is done.
    """
    if future.done():
        return True
    wake, woken = waker()

    def done(_: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):
            wake()

    future.add_done_callback(done)
    if seconds is None:
        await woken
    else:
        await asyncio.wait({woken}, timeout=seconds)
    return future.done()
