"""The two ways to run a flight: in a thread, where everything blocks, and in a task, where nothing may.

What a flight does is written once, as a coroutine over a :class:`Drive`. In a thread none of its awaits ever suspends,
so :func:`run` gets from its start to its end in one step.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextvars import Context, copy_context
from typing import Any, Final, Protocol, TypeVar

from echomq_tasks.cache.bridge import settled
from echomq_tasks.cache.flight import Flight, close_left
from echomq_tasks.cache.hands import HANDS, REQUESTS, NoHand
from echomq_tasks.cache.inside import outside
from echomq_tasks.cache.reach import Away
from echomq_tasks.cache.row import Row
from echomq_tasks.errors import LoadTimeout
from echomq_tasks.forks import after_fork

_log = logging.getLogger(__name__)

T = TypeVar("T")
#: Seconds that a loader has to end in order, past its hard time limit, before its caller is told.
_TIDY: Final = 0.05
#: Takes a load that nobody waits for any more.
Leave = Callable[[Future[Any]], None]
#: Flies a flight with the drive that it is given.
Flying = Callable[["Drive"], Coroutine[Any, Any, None]]


class Stopped(RuntimeError):
    """A loader has raised StopIteration, which no coroutine may.

    Parameters:
      error: what it has raised.
    """

    def __init__(self, error: StopIteration) -> None:
        super().__init__(error)
        self.error = error

    def __str__(self) -> str:
        return "the loader raised StopIteration"


class Drive(Protocol):
    """How a flight waits.

    Attributes:
      blocks: whether it may ask the server without :meth:`ask`.
      loop: the event loop that has to go on for it; None in a thread.
    """

    blocks: bool

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None: ...

    async def ask(self, function: Callable[[], T]) -> T:
        """What ``function()`` answers, which may wait for the server.

        Raises:
          Away: when there is no thread to ask it.
        """

    async def wait(self, future: Future[Any], seconds: float) -> None:
        """Return when the future is done, or ``seconds`` have passed."""

    async def load(self, loader: Callable[[], Any], hard: float | None, leave: Leave) -> Any:
        """What the loader returns.

        Parameters:
          loader: called once.
          hard: seconds that it may take; None for any number.
          leave: is given what goes on after that.

        Raises:
          LoadTimeout: when it has not returned within ``hard`` seconds.
          Stopped: when it raised StopIteration in a thread.
        """

    def give_up(self, function: Callable[[], Any]) -> None:
        """Run ``function()``, which asks the server, without waiting, once nothing else is under way there."""

    async def lead(self, flight: Flight, flying: Flying) -> None:
        """Fly a flight: its end is in the flight.

        Raises:
          BaseException: what ended the leader, and not the load.
        """

    def spawn(self, flight: Flight, flying: Flying) -> None:
        """Fly a flight in the background.

        Raises:
          NoHand: when there is no thread for it.
        """

    def can_follow(self, flight: Flight) -> bool:
        """Whether the flight goes on while this one waits for it."""

    async def follow(self, flight: Flight, seconds: float | None) -> Row:
        """The row of a flight that another one leads.

        Raises: as :meth:`Flight.wait`.
        """


def run(flight: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine whose awaits never suspend.

    Raises:
      StopIteration: when a loader did.
    """
    try:
        flight.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    except Stopped as stopped:
        raise stopped.error from None
    flight.close()
    raise RuntimeError("a flight that a thread leads must not wait for an event loop")


def _late(hard: float | None) -> LoadTimeout:
    return LoadTimeout(f"the loader has not returned within {hard:g} seconds, the hard loader_timeout of its table")


class ThreadDrive:
    """Blocks the thread."""

    blocks = True
    loop = None

    async def ask(self, function: Callable[[], T]) -> T:
        return function()

    async def wait(self, future: Future[Any], seconds: float) -> None:
        try:
            future.exception(seconds)
        except NotYet:
            pass

    async def load(self, loader: Callable[[], Any], hard: float | None, leave: Leave) -> Any:
        try:
            if hard is None:
                return loader()
            # A thread cannot be stopped: it is left to itself, and what it returns is dropped.
            try:
                loading = HANDS.submit(copy_context().run, loader)
            except NoHand:
                # Late is better than not at all.
                return loader()
            await self.wait(loading, hard)
            if not loading.done():
                leave(loading)
                raise _late(hard)
            return loading.result()
        except StopIteration as error:
            raise Stopped(error) from error

    def give_up(self, function: Callable[[], Any]) -> None:
        REQUESTS.later(function)

    async def lead(self, flight: Flight, flying: Flying) -> None:
        await flying(self)

    def spawn(self, flight: Flight, flying: Flying) -> None:
        HANDS.submit(outside().run, lambda: run(flying(self)))

    def can_follow(self, flight: Flight) -> bool:
        if flight.loop is None:
            return True
        try:
            # While this thread waits, the loop that it runs does nothing.
            return asyncio.get_running_loop() is not flight.loop
        except RuntimeError:
            return True

    async def follow(self, flight: Flight, seconds: float | None) -> Row:
        return flight.wait(seconds)


class TaskDrive:
    """Suspends the task; what blocks is done by a thread besides. Of one flight only."""

    blocks = False

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._asked: Future[Any] | None = None

    async def ask(self, function: Callable[[], T]) -> T:
        try:
            asked = self._asked = REQUESTS.submit(function)
        except NoHand as error:
            raise Away from error
        await settled(asked)
        return asked.result()  # type: ignore[no-any-return]

    async def wait(self, future: Future[Any], seconds: float) -> None:
        await settled(future, seconds)

    async def load(self, loader: Callable[[], Any], hard: float | None, leave: Leave) -> Any:
        if hard is None:
            return await _called(loader)
        # A task of its own: one that is cancelled need not end for that, or not soon.
        loading = self.loop.create_task(_called(loader))
        try:
            await asyncio.wait({loading}, timeout=hard)
            if loading.done():
                return loading.result()
            await _ended(loading)
            raise _late(hard)
        except asyncio.CancelledError:
            if not loading.done():
                await _ended(loading)
            raise
        finally:
            if not loading.done():
                _left.add(loading)

    def give_up(self, function: Callable[[], Any]) -> None:
        def then(_: Future[Any]) -> None:
            REQUESTS.later(function)

        # A claim that nobody waits for any more may still be answered, and must be ended then.
        if self._asked is None:
            REQUESTS.later(function)
        else:
            self._asked.add_done_callback(then)

    async def lead(self, flight: Flight, flying: Flying) -> None:
        # A task of its own, so that it goes on when its first caller is cancelled and others wait.
        with flight.handed_over(wanted=False):
            _start(flight, flying(self), copy_context())
        await flight.settled()
        if flight.cause is not None:
            raise flight.cause

    def spawn(self, flight: Flight, flying: Flying) -> None:
        _start(flight, flying(TaskDrive()), outside())

    def can_follow(self, flight: Flight) -> bool:
        return True

    async def follow(self, flight: Flight, seconds: float | None) -> Row:
        return await flight.await_(seconds)


async def _ended(loading: asyncio.Task[Any]) -> None:
    """Cancel a load, and give it a moment to end in order."""
    if not loading.cancelling():
        # A second time would end what it does to end in order.
        loading.cancel()
    await asyncio.wait({loading}, timeout=_TIDY)


class _Left:
    """Loads of tasks that nobody waits for any more: loops hold their tasks weakly."""

    def __init__(self) -> None:
        self._all: set[asyncio.Task[Any]] = set()

    def add(self, loading: asyncio.Task[Any]) -> None:
        """Let a load end by itself, and drop what it returns or raises."""
        if loading.get_loop().is_closed():
            # It goes on no more.
            close_left(loading)
            return
        if not loading.cancelling():
            loading.cancel()
        self._all.add(loading)
        loading.add_done_callback(self._over)

    def _over(self, loading: asyncio.Task[Any]) -> None:
        self._all.discard(loading)
        if not loading.cancelled() and loading.exception() is not None:
            _log.debug("A loader failed after its hard time limit: %r", loading.exception())


_left: Final = _Left()


async def _called(loader: Callable[[], Any]) -> Any:
    value = loader()
    return await value if inspect.isawaitable(value) else value


class _Tasks:
    """The tasks that lead flights, by event loop: those hold their tasks weakly."""

    def __init__(self) -> None:
        self._after_fork()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[asyncio.AbstractEventLoop, dict[asyncio.Task[None], Flight]] = {}

    def add(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[None], flight: Flight) -> None:
        """Hold a task until it has ended. Those that closed loops have left behind are let go of."""
        left: list[Flight] = []
        with self._lock:
            tasks = self._all.get(loop)
            if tasks is None:
                for closed in [each for each in self._all if each.is_closed()]:
                    left += self._all.pop(closed).values()
                tasks = self._all[loop] = {}
            tasks[task] = flight
        for each in left:
            each.forsake()

    def ended(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
        """A task has ended."""
        with self._lock:
            tasks = self._all.get(loop, {})
            tasks.pop(task, None)
            if not tasks:
                self._all.pop(loop, None)


_tasks: Final = _Tasks()


def _start(flight: Flight, flying: Coroutine[Any, Any, None], context: Context) -> None:
    loop = asyncio.get_running_loop()

    def ended(task: asyncio.Task[None]) -> None:
        _tasks.ended(loop, task)
        # One that was cancelled before it began has done nothing, and ended nothing.
        flying.close()
        flight.wanted = False
        flight.close()

    task = loop.create_task(_quietly(flying), context=context)
    flight.loop, flight.task = loop, task
    _tasks.add(loop, task, flight)
    task.add_done_callback(ended)


async def _quietly(flying: Coroutine[Any, Any, None]) -> None:
    # What ends the leader stands in the flight; nobody takes it from the task.
    with contextlib.suppress(Exception):
        await flying
