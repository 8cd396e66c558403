"""One flight: a load on its way, and what becomes of those who wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import math
import os
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from echomq_tasks.cache.bridge import waker
from echomq_tasks.cache.row import Row
from echomq_tasks.forks import after_fork

if TYPE_CHECKING:
    from echomq_tasks.cache.flights import Flights

#: Seconds after which who waits for a flight looks whether its leader's event loop still runs.
_LOOK: Final = 1.0


class _Process:
    """What the flights of all tables share."""

    def __init__(self) -> None:
        self._after_fork()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        #: Guards how flights end, and which wait for which.
        self.lock = threading.RLock()
        #: Of this process; to ask the system each time is a part of what a flight costs.
        self.pid = os.getpid()


#: Guards the flights of this process, and knows it.
PROCESS: Final = _Process()


class Abandoned(Exception):
    """A flight ended without a row and without an error of the loader: whoever waits for it asks again."""


class Late(Exception):
    """Whoever waits for a flight has waited long enough."""


class Flight:
    """One load on its way, or who has joined one; see :meth:`Flights.join`.

    Attributes:
      id: the row that it is to load.
      rest: the rest of its key.
      tags: the tags of the row.
      version: that of the row to come, given by the server; None as long as it gave none.
      detached: what it loads was dropped meanwhile: it goes to those who wait already, and is not kept.
      doubted: something was heard meanwhile that says of itself to be older.
      done: whether it has ended.
      loop: the event loop whose task leads it; None when a thread does.
      task: that task.
      handed: whether not the one who has made it leads it, but a task or a thread of its own.
      wanted: whether it is to go on when nobody waits for it, as one in the background.
      cause: what ended it that concerns the leader alone.
      home: where it is known; None when it is not.
      abroad: whether it waits for a flight of another process just now.
      owner: under which it is led on the server; None as long as it is not.
      epoch: that of L1 when the value was asked for.
      over: the row that L1 had when it began, which is older whatever the clocks say.
    """

    __slots__ = (
        "_error", "_joined", "_missed", "_row", "_waiting", "_wakers", "abroad", "cause", "detached", "done",
        "doubted", "epoch", "first", "handed", "home", "id", "loop", "over", "owner", "pid", "rest", "tags", "task",
        "version", "waits_for", "wanted",
    )  # fmt: skip

    def __init__(self, id: str, rest: bytes, tags: tuple[str, ...] = ()) -> None:
        self.id = id
        self.rest = rest
        self.tags = tags
        #: None is itself: a reference would be a cycle, of which each call that L1 cannot answer would leave one.
        self._joined: Flight | None = None
        self.version: str | None = None
        self.owner: str | None = None
        self.abroad = False
        self.detached = self.doubted = False
        self.done = False
        self._row: Row | None = None
        self._error: BaseException | None = None
        self.home: Flights | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.task: asyncio.Task[Any] | None = None
        self.handed = False
        self.wanted = False
        self.cause: BaseException | None = None
        self.epoch = 0
        self.over: Row | None = None
        self.pid = PROCESS.pid
        #: Whether its maker waits for it, who else does, and what wakes them. Nothing is counted, so that to come and
        #: to go can be done twice: any of it may be interrupted by what is thrown into the thread.
        self._missed = True
        self._waiting: set[Flight] | None = None
        self._wakers: set[Callable[[], object]] | None = None
        #: The flights that its loader waits for.
        self.waits_for: set[Flight] = set()
        #: What the loader returned, for the leader alone: all others have a value of their own.
        self.first: list[Any] = []

    @property
    def mine(self) -> bool:
        """Whether it is a flight of this process, and not one that a fork has copied."""
        return self.pid == PROCESS.pid

    @property
    def joined(self) -> Flight:
        """The flight that it has joined: itself when it was the first."""
        return self if self._joined is None else self._joined

    @property
    def waiters(self) -> int:
        """How many would miss it, the leader among them."""
        return self._missed if self._waiting is None else len(self._waiting) + self._missed

    @property
    def lost(self) -> bool:
        """Whether its leader's event loop does not run, and may never again."""
        return self.loop is not None and not self.done and not self.loop.is_running()

    @property
    def landed(self) -> bool:
        """Whether it has a row, and all who waited know."""
        return self._row is not None and not self._wakers

    # Who leads and who follows; called by Flights, under its lock.

    def follow(self, flight: Flight) -> None:
        """Its maker waits for another one."""
        self._joined, self._missed = flight, False
        flight._wait_for_it().add(self)

    def _wait_for_it(self) -> set[Flight]:
        if self._waiting is None:
            self._waiting = set()
        return self._waiting

    def unfollow(self) -> None:
        """Its maker waits no more."""
        self._missed = False
        if self._joined is not None:
            self._joined._wait_for_it().discard(self)  # noqa: SLF001 - it is one of us

    # Its end.

    def land(self, row: Row) -> None:
        """Give the row to all who wait."""
        self._end(row, None)

    def fail(self, error: BaseException) -> None:
        """Give the error to all who wait."""
        self._end(None, error)

    def abandon(self, cause: BaseException) -> None:
        """It ends without a row: all who wait ask again, but for the leader, whom ``cause`` concerns."""
        if not self.done:
            self.cause = cause
        self._end(None, Abandoned())

    def _end(self, row: Row | None, error: BaseException | None) -> None:
        with PROCESS.lock:
            if not self.done:
                self._row, self._error, self.done = row, error, True
        if self._wakers:
            self._wake(self._wakers)

    def _wake(self, wakers: set[Callable[[], object]]) -> None:
        with PROCESS.lock:
            these = list(wakers)
        for wake in these:
            # Woken already, or its loop is closed.
            with contextlib.suppress(RuntimeError):
                wake()
        wakers.difference_update(these)

    @contextlib.contextmanager
    def handed_over(self, *, wanted: bool) -> Iterator[None]:
        """Let somebody else lead it, who is found inside of the block; ``wanted``: also when nobody waits for it."""
        self.handed, self.wanted = True, wanted
        try:
            yield
        except BaseException:
            self.handed = self.wanted = False
            raise

    def close(self) -> None:
        """Its leader has left: who waits asks again, unless it has ended."""
        if self.home is not None:
            self.home.end(self)
        # Also of one that has ended: the leader may have been interrupted while it told the others.
        self.abandon(Abandoned())
        self.forget()

    def forsake(self) -> None:
        """Its event loop does not run: close it, and what its task has left open, when that cannot go on."""
        task, loop = self.task, self.loop
        self.close()
        if task is None or loop is None or not loop.is_closed():
            return
        # So that it gives up its lease on the server; it may be waiting for what never comes.
        close_left(task)

    def forget(self) -> None:
        """Let go of the error, whose frames refer to this, once nobody will ask for it any more."""
        if self.done and not self.waiters and not self.wanted:
            self._error = self.cause = self.task = None

    # What came of it.

    @property
    def error(self) -> BaseException | None:
        """What it has failed with."""
        return self._error

    def result(self) -> Row:
        """The row of a flight that has ended, for its leader.

        Raises:
          Abandoned: when nobody loads it any more.
          Exception: what the loader raised.
        """
        if self._row is not None:
            return self._row
        raise self._error or Abandoned()

    def _given(self) -> Row:
        """The same, for who follows: an error is one of his own, as far as that can be made."""
        if self._row is not None:
            return self._row
        raise Abandoned() if self._error is None else own(self._error)

    def wait(self, seconds: float | None) -> Row:
        """The row, for a thread.

        Raises:
          Late: when ``seconds`` have passed.
          Abandoned: when nobody loads it any more.
          Exception: what the loader raised.
        """
        for spell in self._spells(seconds):
            gate = threading.Lock()
            gate.acquire()
            try:
                if not self._call(gate.release):
                    break
                gate.acquire(timeout=spell)
            finally:
                self._uncall(gate.release)
        return self._given()

    async def await_(self, seconds: float | None) -> Row:
        """As :meth:`wait`, for a task."""
        for spell in self._spells(seconds):
            wake, woken = waker()
            try:
                if not self._call(wake):
                    break
                await asyncio.wait({woken}, timeout=spell)
            finally:
                self._uncall(wake)
        return self._given()

    async def settled(self) -> None:
        """Wait, as a task, until it has ended."""
        wake, woken = waker()
        try:
            if self._call(wake):
                await woken
        finally:
            self._uncall(wake)

    def _spells(self, seconds: float | None) -> Iterator[float]:
        """The waits until it has ended, between which it is looked whether its leader can still end it."""
        left = math.inf if seconds is None else seconds
        while not self.done:
            if self.lost:
                raise Abandoned
            yield max(min(left, _LOOK), 0.0)
            left -= _LOOK
            if left <= 0 and not self.done:
                raise Late

    def _call(self, wake: Callable[[], object]) -> bool:
        """Have ``wake`` called when it ends; False when it has."""
        with PROCESS.lock:
            if self.done:
                return False
            if self._wakers is None:
                self._wakers = set()
            self._wakers.add(wake)
            return True

    def _uncall(self, wake: Callable[[], object]) -> None:
        if self._wakers is not None:
            self._wakers.discard(wake)


def close_left(task: asyncio.Task[Any]) -> None:
    """Close what a task of a closed loop has left open. Nobody can do anything else about it any more."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
    coroutine: Any = task.get_coro()
    with contextlib.suppress(Exception):
        coroutine.close()


def own(error: BaseException) -> BaseException:
    """Another exception that says the same, without the frames of the first: one that many threads raise would grow a
    traceback of them all. The exception itself when it cannot be copied."""
    try:
        found = copy.copy(error)
        if type(found) is type(error) and str(found) == str(error):
            found.__cause__, found.__context__ = error.__cause__, error.__context__
            found.__suppress_context__ = error.__suppress_context__
            return found
    except Exception:
        pass
    return error.with_traceback(None)
