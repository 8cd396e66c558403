"""A subscription that an event loop reads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Self

from echomq_tasks.bus.feed import Closed, Feed, More
from echomq_tasks.bus.gap import Gap
from echomq_tasks.bus.places import behind
from echomq_tasks.bus.subscription import RETRY
from echomq_tasks.errors import EchoMQError, ServerUnavailable
from echomq_tasks.events import Event
from echomq_tasks.keyspace import check_queue
from echomq_tasks.scripts.arguments import seconds_to_ms


class AsyncSubscription:
    """Live events for asyncio, as :meth:`echomq_tasks.bus.Bus.asubscribe` makes it.

    ::

        async with bus.asubscribe("orders", events={"failed"}) as events:
            async for event in events:
                ...

    ``async with`` subscribes, and so does ``await``. Iterating yields :class:`~echomq_tasks.events.Event`, and
    :class:`~echomq_tasks.bus.Gap` where some may be missing. Any number of tasks of one event loop may read. Thousands
    of them share the one thread and connection of their bus.
    """

    def __init__(self, feed: Feed, join: Callable[[Feed], None]) -> None:
        self._feed = feed
        self._join = join
        self._loop: asyncio.AbstractEventLoop | None = None
        # Whoever waits, waits alone: the others would be woken for nothing.
        self._turn = asyncio.Lock()
        self._signal = asyncio.Event()
        self._called = False

    async def __aenter__(self) -> Self:
        return await self._start()

    def __await__(self) -> Generator[Any, None, Self]:
        return self._start().__await__()

    async def _start(self) -> Self:
        if self._loop is not None:
            return self
        self._loop = asyncio.get_running_loop()
        self._feed.attach(self._wake)
        try:
            # These may wait for the network.
            await asyncio.to_thread(self._join, self._feed)
            await asyncio.wrap_future(self._feed.started)
            if self._feed.recovers:
                await asyncio.to_thread(self._feed.begin)
        except BaseException:
            # Also when this task is cancelled: the hub may listen for us already.
            self._feed.close()
            raise
        return self

    def _wake(self) -> None:
        """Called in the hub's thread for each event: the loop is called for the first of a burst only."""
        if self._called:
            return
        self._called = True
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._signal.set)
        except RuntimeError:
            # The loop was closed under it: nobody will ever read.
            self._feed.close()

    async def get(self, timeout: float | None = None) -> Event | Gap | None:  # noqa: ASYNC109 - as the one for threads
        """The next event, or a gap; waits for it. Cancelling it loses nothing.

        Parameters:
          timeout: seconds to wait; None waits for ever.

        Returns:
          None when none came in time.

        Raises:
          EchoMQError: when the subscription is closed, or was not started with ``async with`` or ``await``.
          ConfigError, ServerError: when the server does not let it go on, which waiting would not mend.
        """
        if self._loop is None:
            raise EchoMQError("this subscription has not begun: use it in `async with`, or await it")
        if timeout is None:
            return await self._next()
        seconds = seconds_to_ms(timeout, "timeout") / 1000
        try:
            async with asyncio.timeout(seconds):
                return await self._next()
        except TimeoutError:
            return None

    async def _next(self) -> Event | Gap:
        self._feed.check()
        async with self._turn:
            while True:
                # In this order: what comes behind the look calls again.
                self._called = False
                self._signal.clear()
                item = self._feed.take()
                if isinstance(item, More):
                    try:
                        await asyncio.to_thread(self._feed.fill)
                    except ServerUnavailable:
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(self._signal.wait(), RETRY)
                elif item is not None:
                    return item
                else:
                    await self._signal.wait()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event | Gap:
        try:
            item = await self.get()
        except Closed:
            raise StopAsyncIteration from None
        assert item is not None
        return item

    def has_read(self, queue: str, record_id: str) -> None:
        """As :meth:`echomq_tasks.bus.Subscription.has_read`."""
        self._feed.has_read(check_queue(queue), behind(None, record_id))

    @property
    def connected(self) -> bool:
        """As :attr:`echomq_tasks.bus.Subscription.connected`."""
        return self._feed.connected

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self._feed.closed

    async def close(self) -> None:
        """End it, and every iteration over it; what was not read is dropped. Any number of times."""
        if self._feed.close() and self._feed.hub is not None:
            await asyncio.wrap_future(self._feed.ended)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncSubscription to {self._feed}>"
