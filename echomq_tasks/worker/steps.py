"""Parts of runs that may block, for threads beside the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from echomq_tasks.worker.crew import Crew
from echomq_tasks.worker.thread import WorkerThread
from echomq_tasks.worker.verdicts import Told

if TYPE_CHECKING:
    from echomq_tasks.brokers.dramatiq.broker import EchoMQBroker
    from echomq_tasks.worker.run import Run

#: How many threads: they wait for a server, mostly.
_THREADS = 8


class Step:
    """One part of a run.

    Parameters:
      run: the run.
      do: called in the context of the run.
      then: called after that, also when something thrown into the thread has torn it off; again, when torn off itself.
    """

    __slots__ = ("_do", "_then", "run")

    def __init__(self, run: Run, do: Callable[[Run], None], then: Callable[[Run], None]) -> None:
        self.run = run
        self._do = do
        self._then = then

    def __str__(self) -> str:
        return str(self.run.work)

    def do(self) -> None:
        """Do it."""
        self.run.context.run(self._do, self.run)

    def then(self) -> None:
        """Go on from there."""
        self._then(self.run)


class StepThreads:
    """Threads that do steps; they are started with the first step.

    The hooks of middleware are called here, so ``worker_thread_boot`` and ``worker_thread_shutdown`` are, too.

    Parameters:
      broker: whose hooks are called.
      dropped: given each run whose step does not come to its end.
    """

    def __init__(self, broker: EchoMQBroker, dropped: Callable[[Run], None]) -> None:
        self._broker = broker
        self._dropped = dropped
        self._crew: Crew[Step] = Crew()

    @property
    def threads(self) -> list[WorkerThread[Step]]:
        """The threads."""
        return self._crew.threads

    def push(self, step: Step) -> None:
        """Have this done soon; for one thread at a time while there are no threads yet."""
        self.start()
        self._crew.push([step])

    def push_once(self, step: Step, told: Told) -> None:
        """Have this done once there are the verdicts; harmless when that was said before."""
        told.left(step, self._crew.ready.append, self._crew.wake)

    def stop(self) -> None:
        """Have the threads end; join them then."""
        self._crew.stop()

    def start(self) -> None:
        """Start the threads, if they are not there yet."""
        if self._crew.threads:
            return
        threads = [
            WorkerThread(self._broker, self._crew, self, f"echomq-hooks-{number}") for number in range(1, _THREADS + 1)
        ]
        self._crew.threads += threads
        for thread in threads:
            thread.start()

    # -- what a thread asks of its processing ---------------------------------------------------------------------

    def run(self, step: Step) -> None:
        """Do a step."""
        step.do()

    def hand_in(self, step: Step) -> None:
        """Go on from a step."""
        step.then()

    def conclude(self, step: Step) -> None:
        """There is nothing to wait for."""

    def give_up(self, step: Step) -> None:
        """Let go of a step that is torn off again and again."""
        self._dropped(step.run)
