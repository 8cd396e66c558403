"""Threads for what is done in the background: refreshes, loads with a time limit, and requests of asyncio's tasks."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from echomq_tasks.cache.bridge import settled
from echomq_tasks.forks import after_fork

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds after which a thread that has nothing to do ends.
_IDLE: Final = 10.0
#: So many requests of tasks are under way at once in a process: more would not be answered sooner.
_REQUESTS: Final = 24


class NoHand(Exception):
    """No thread can be started, as at the end of the interpreter, or where there are too many."""


class Task:
    """Something to do, and what became of it."""

    __slots__ = ("_call", "future")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._call: tuple[Callable[..., Any], tuple[Any, ...]] | None = (function, args)
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()

    def run(self) -> None:
        """Do it, once."""
        assert self._call is not None
        (function, args), self._call = self._call, None
        try:
            result = function(*args)
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class Hands:
    """Daemon threads, so that the interpreter ends although a loader hangs.

    Parameters:
      most: so many at most, and tasks wait for one to be free: only for what never waits for another task here. None
        for as many as there are tasks at once, so that none ever waits for another one to end.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._after_fork()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        # Reentrant: the collector may end a flight amid anything, which then has something to be done.
        self._lock = threading.RLock()
        self._tasks: deque[Task] = deque()
        #: What wakes each thread that waits; the one that has waited for the shortest time is the last.
        self._idle: dict[threading.Lock, None] = {}
        self._threads: set[threading.Thread] = set()

    def __len__(self) -> int:
        """How many threads there are."""
        return sum(thread.is_alive() for thread in list(self._threads))

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run ``function(*args)`` in another thread; its future has what became of it, and is never cancelled.

        Raises:
          NoHand: when there is no thread for it.
        """
        task = Task(function, args)
        with self._lock:
            self._tasks.append(task)
            if self._idle:
                self._idle.popitem()[0].release()
                return task.future
            if self._most is not None and len(self._threads) >= self._most:
                # Some may have been killed before they began.
                self._threads = {thread for thread in self._threads if thread.is_alive()}
                if len(self._threads) >= self._most:
                    return task.future
            thread = threading.Thread(target=self._work, name="echomq-cache", daemon=True)
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError as error:
            with self._lock:
                self._threads.discard(thread)
                # Those that there are see to it, where it may wait for them; or have just done so.
                if task in self._tasks and (self._most is None or not self._threads):
                    self._tasks.remove(task)
                    raise NoHand(str(error)) from error
        return task.future

    def later(self, function: Callable[..., Any], *args: Any) -> None:
        """Run ``function(*args)`` in another thread, if there can be one, and log what it raises."""

        def task() -> None:
            try:
                function(*args)
            except Exception:
                _log.exception("What the cache does in the background failed")

        try:
            self.submit(task)
        except NoHand as error:
            _log.debug("Nothing can be done in the background now: %s", error)

    def _work(self) -> None:
        # Locked, and released by who has something to do. It may have been done by another thread then.
        wake = threading.Lock()
        wake.acquire()
        while True:
            with self._lock:
                task = self._tasks.popleft() if self._tasks else None
                if task is None:
                    self._idle[wake] = None
            if task is not None:
                task.run()
                # Not held while it waits: what it worked on must be free to go.
                del task
            elif not wake.acquire(timeout=_IDLE):
                with self._lock:
                    if not self._tasks:
                        self._idle.pop(wake, None)
                        self._threads.discard(threading.current_thread())
                        return


#: Those of the process, for what may wait for anything: loads, refreshes, and what a user's code does.
HANDS: Final = Hands()
#: Those for the requests of tasks. A request waits for the server, for the thread that hears messages and for another
#: thread that just connects or pays what is owed, and for no request that waits here.
REQUESTS: Final = Hands(_REQUESTS)


async def elsewhere(function: Callable[..., T], *args: Any) -> T:
    """For a task: what ``function(*args)`` answers, which may wait for the server, without blocking the event loop."""
    try:
        asked = REQUESTS.submit(function, *args)
    except NoHand:
        # Rather that than not to do it.
        return function(*args)
    await settled(asked)
    return asked.result()  # type: ignore[no-any-return]
