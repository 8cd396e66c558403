"""The threads of a worker and the jobs that are ready for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import repeat, starmap
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from echomq_tasks.forks import after_fork

if TYPE_CHECKING:
    from echomq_tasks.worker.thread import WorkerThread

W = TypeVar("W")


class Crew(Generic[W]):
    """Hands work to threads, waking one at a time: who takes some and sees that there is more wakes the next, first.

    So a backlog of jobs that take no time runs in one thread with hardly a switch, and jobs that block spread over all
    threads at once.

    An exception may be thrown into a worker's thread between any two steps of Python. What must not be torn apart is
    therefore one call into C: taking work *and* noting it, taking a sleeper off the list *and* waking it.
    """

    def __init__(self) -> None:
        self.threads: list[WorkerThread[W]] = []
        #: What is to be run, the oldest at the left.
        self.ready: deque[W] = deque()
        # Locks on which threads sleep; the one that fell asleep last is woken first, for its caches are warm.
        self._asleep: list[Any] = []
        self._wakes: Iterator[None] = map(type(Lock()).release, starmap(self._asleep.pop, repeat(())))
        # True from when a thread is woken until it is up: it will wake the next itself, if it still finds that many.
        self._waking = False
        self.stopping = False
        #: Told of what a hook has ended a thread's boot with.
        self.on_broken: Callable[[BaseException], None] = lambda error: None
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        # A job that forks, and does not exit, goes on in a thread of the child: it must not run its parent's jobs.
        self.stopping = True
        self.ready.clear()
        for thread in self.threads:
            thread.stop()

    def taker(self, holding: list[W]) -> Iterator[None]:
        """An iterator whose each step takes work and puts it into ``holding``; IndexError when there is none."""
        return map(holding.append, starmap(self.ready.popleft, repeat(())))

    def push(self, work: list[W]) -> None:
        """Have this run."""
        self.ready.extend(work)
        self.wake()

    def wake(self) -> None:
        """Wake one thread that sleeps, if any, and if none is on its way already."""
        if self._asleep and not self._waking:
            # Before it is up, for it says that it is.
            self._waking = True
            try:
                next(self._wakes)
            except (IndexError, RuntimeError):
                # Another thread was faster; or the sleeper is awake already, and looks.
                self._waking = False

    @property
    def more(self) -> bool:
        """Whether there is work, and a thread that could be woken for it."""
        return bool(self.ready and self._asleep and not self._waking)

    def sleep(self, bed: Any) -> None:
        """Sleep on ``bed``, a lock of the thread's own that is held, until there is work or the worker stops."""
        self._asleep.append(bed)
        if self.ready or self.stopping:
            # It came between the look at the work and now, and its waker may have seen nobody asleep.
            self.rise(bed)
            return
        bed.acquire()
        self._waking = False

    def rise(self, bed: Any) -> None:
        """Make sure that ``bed`` is no longer on the list, and is held."""
        while bed in self._asleep:
            try:
                self._asleep.remove(bed)
            except ValueError:
                break
        bed.acquire(blocking=False)
        self._waking = False

    def drain(self) -> list[W]:
        """Take back what no thread has started."""
        taken: list[W] = []
        take = self.taker(taken)
        while True:
            try:
                next(take)
            except IndexError:
                return taken

    def stop(self) -> None:
        """Have each thread end when it has done what it has in hand."""
        self.stopping = True
        for thread in self.threads:
            thread.stop()
        for _ in self.threads:
            self._waking = False
            self.wake()

    def stranded(self) -> list[W]:
        """Nothing: a thread does not end before its work does."""
        return []

    def close(self) -> None:
        """Have the threads end, if they were not told to yet."""
        self.stop()

    @property
    def running(self) -> list[W]:
        """What the threads have in hand."""
        return [work for thread in self.threads for work in list(thread.holding)]
