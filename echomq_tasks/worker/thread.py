"""One thread of a worker: takes work, runs it, hands its end to the pump, and survives what is thrown into it."""

from __future__ import annotations

import enum
import threading
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from dramatiq.logging import get_logger

from echomq_tasks.worker.crew import Crew

if TYPE_CHECKING:
    from dramatiq import Broker


#: How often a thread goes on with what it holds after something was thrown into it; more often is no accident.
_MOST_FALLS = 5


W = TypeVar("W")
V = TypeVar("V", contravariant=True)


class Runner(Protocol[V]):
    """What a thread does with its work (:class:`~echomq_tasks.worker.processing.Processing`)."""

    def run(self, work: V, /) -> None:
        """Run it."""

    def hand_in(self, work: V, /) -> None:
        """Give its end on; harmless when that was done."""

    def conclude(self, work: V, /) -> None:
        """Do what comes after its end."""

    def give_up(self, work: V, /) -> None:
        """Let go of it: its end fails again and again."""


class _Stage(enum.Enum):
    """How far a thread is with what it holds."""

    NEW = enum.auto()
    RUNNING = enum.auto()
    ENDING = enum.auto()
    HANDED_IN = enum.auto()


class WorkerThread(threading.Thread, Generic[W]):
    """Runs jobs; the object that ``worker_thread_boot`` and ``worker_thread_shutdown`` hooks are given.

    Middleware throws exceptions into this thread (a time limit, a shutdown). One that comes while a function runs ends
    that function; one that comes late finds the thread between two jobs. What the thread holds and how far it is with
    it is noted at each step, so that it goes on from there.

    Parameters:
      broker: whose hooks are called.
      crew: where the work comes from.
      processing: how it is run.
      name: of the thread.
    """

    def __init__(self, broker: Broker, crew: Crew[W], processing: Runner[W], name: str) -> None:
        super().__init__(daemon=True, name=name)
        self.logger = get_logger(__name__, type(self))
        self.broker = broker
        self.running = False
        #: What it has in hand: one delivery or batch, or none.
        self.holding: list[W] = []
        self._crew = crew
        self._processing = processing
        self._stage = _Stage.NEW
        self._take = crew.taker(self.holding)
        self._bed = threading.Lock()
        self._bed.acquire()
        self._thrown: BaseException | None = None
        self._done = False
        self._falls = 0

    def stop(self) -> None:
        """Have it end after what it has in hand; join it then."""
        self.running = False

    def run(self) -> None:
        """Work until :meth:`stop`."""
        self.running = not self._crew.stopping
        try:
            self.broker.emit_after("worker_thread_boot", self)
        except BaseException as error:
            # A hook that exits ends the worker, not one thread of it in silence; until then this one does its part.
            self._crew.on_broken(error)
        while not self._done:
            try:
                self._last()
            except BaseException as error:
                # Thrown while what was thrown just before was caught.
                self._thrown = error
        self.broker.emit_before("worker_thread_shutdown", self)

    def _last(self) -> None:
        while not self._done:
            try:
                self._go_on()
            except BaseException as error:
                # Nothing more here: what is thrown next is to find the thread inside of the try again.
                self._thrown = error

    def _go_on(self) -> None:
        thrown, self._thrown = self._thrown, None
        if thrown is not None:
            self._crew.rise(self._bed)
            where = f"while {self.holding[0]} was about to end" if self.holding else "between two jobs"
            self.logger.warning(
                "%s was thrown into %s %s; the thread goes on.", type(thrown).__name__, self.name, where
            )
            # The one that it was about to wake may sleep on.
            self._crew.wake()
        if self.holding:
            self._falls += 1
            if self._falls > _MOST_FALLS:
                self.logger.error("%s does not come to its end: %s", self.holding[0], thrown, exc_info=thrown)
                self._processing.give_up(self.holding[0])
                self.holding.clear()
            else:
                self._serve(self.holding[0])
        self._stage, self._falls = _Stage.NEW, 0
        self._work()
        self._done = True

    def _work(self) -> None:
        crew, take, holding = self._crew, self._take, self.holding
        # What is left when the worker stops is for other workers.
        while self.running:
            try:
                next(take)
            except IndexError:
                crew.sleep(self._bed)
                continue
            if crew.more:
                crew.wake()
            self._serve(holding[0])

    def _serve(self, work: W) -> None:
        processing = self._processing
        if self._stage is _Stage.NEW:
            self._stage = _Stage.RUNNING
            processing.run(work)
        if self._stage is _Stage.RUNNING:
            # Also when something thrown has torn the run off: its end says so.
            self._stage = _Stage.ENDING
        if self._stage is _Stage.ENDING:
            processing.hand_in(work)
            self._stage = _Stage.HANDED_IN
        processing.conclude(work)
        # In this order: with empty hands, the stage does not matter.
        self.holding.clear()
        self._stage = _Stage.NEW
