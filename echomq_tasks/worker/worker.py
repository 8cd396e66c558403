"""The worker's outside: what Dramatiq's has, by the same names."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection
from queue import PriorityQueue
from types import TracebackType
from typing import Any, Self

from dramatiq import Actor, Broker, Middleware
from dramatiq.common import q_name
from dramatiq.logging import get_logger

from echomq_tasks.brokers.dramatiq.broker import EchoMQBroker
from echomq_tasks.errors import ConfigError
from echomq_tasks.worker.coroutines import Coroutines
from echomq_tasks.worker.crew import Crew
from echomq_tasks.worker.line import Line
from echomq_tasks.worker.loop import undone_on_failure
from echomq_tasks.worker.places import FreePlaces, Work
from echomq_tasks.worker.processing import Processing
from echomq_tasks.worker.pump import Pump
from echomq_tasks.worker.tasks import TaskCrew
from echomq_tasks.worker.thread import WorkerThread

#: Seconds between two looks at whether a pause or a join is over.
_LOOK = 0.002
#: Jobs are short when they take less than so many seconds from claim to end, on average: those of threads, and those
#: of tasks for each that may run at once.
_SHORT = 0.003
_SHORT_TASK = 0.00025


class Worker:
    """Runs the jobs of an :class:`~echomq_tasks.brokers.dramatiq.EchoMQBroker`, as :class:`dramatiq.Worker` does.

    One thread, the pump, claims as many jobs as there are free threads, and settles those that are done in the same
    round trips; the others run them. Jobs of async actors are tasks on one event loop, and hold no thread. What that
    promises:

    - The end of a job is told to the server within 5 ms, also when all threads are busy with other jobs, as long as
      the server answers and no job holds the interpreter. While the server is away, ends are kept and told again.
    - A worker never holds more jobs than it has threads, and ``async_concurrency`` async ones, those included that have
      ended and are still to be settled: that many may run again when the process is killed. A batch counts as one.

    Middleware, actors and messages are Dramatiq's, and so are the hooks and their order. ``after_ack`` and
    ``after_nack`` hooks, signals of a job's end and ``invalidates=`` are told in the thread that ran the job, which
    waits for the server's verdict then; where there are none, it does not.

    A worker starts once. In a ``with`` block it has started, and the end of the block stops it.

    Parameters:
      broker: an EchoMQBroker.
      queues: serve only these of the declared queues; all, those that are declared later included, by default.
      worker_threads: how many jobs of plain actors run at once.
      worker_timeout: taken for the sake of Dramatiq's worker, whose threads wake after so many milliseconds; those of
        this one sleep until there is something to do.
      async_concurrency: how many jobs of async actors run at once.

    Raises:
      ConfigError: when the broker is another one, or a number is not above 0.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        queues: Collection[str] | None = None,
        worker_threads: int = 8,
        worker_timeout: int = 1000,
        async_concurrency: int = 100,
    ) -> None:
        if not isinstance(broker, EchoMQBroker):
            raise ConfigError(
                f"this worker runs the jobs of an EchoMQBroker, not of a {type(broker).__name__}: make the broker an "
                "EchoMQBroker, or use dramatiq.Worker"
            )
        for name, value in (("worker_threads", worker_threads), ("async_concurrency", async_concurrency)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} is a whole number from 1 up, not {value!r}")
        if isinstance(queues, str):
            raise ConfigError(f"queues is a set of names, as {{{queues!r}}}, not one name")
        self.logger = get_logger(__name__, type(self))
        self.broker = broker
        self.consumer_whitelist = set(queues) if queues else None
        self.worker_threads = worker_threads
        self.worker_timeout = worker_timeout
        self.async_concurrency = async_concurrency
        self._coroutines = Coroutines(broker.actors)
        self._crew: Crew[Work] = Crew()
        self._tasks = TaskCrew(broker, self._coroutines, lambda work, waits: self._pump.end(work, waits))
        self._places = FreePlaces(worker_threads, self._crew, _SHORT)
        self._task_places = FreePlaces(async_concurrency, self._tasks, max(_SHORT, async_concurrency * _SHORT_TASK))
        self._pump = Pump(broker, (self._places, self._task_places))
        #: Always empty, for middleware that looks at Dramatiq's: what is claimed here has a thread already.
        self.work_queue: PriorityQueue[Any] = PriorityQueue()
        #: What is served, by the name of the queue.
        self.consumers: dict[str, Line] = {}
        self._crew.on_broken = self._pump.break_off
        self._processing = Processing(broker, self._pump.end)
        self._declared = _Declared(self)
        self._started = self._over = False

    @property
    def workers(self) -> list[WorkerThread[Work]]:
        """The threads that run jobs."""
        return self._crew.threads

    @property
    def broken(self) -> BaseException | None:
        """What a hook has ended the claiming with, as ``SystemExit``; None as long as it goes on.

        What runs is finished and told even so; then :meth:`stop` the worker and have another process take over.
        """
        return self._pump.broken

    @property
    def untold(self) -> int:
        """How many jobs ran, or run, here of which the server knows neither the end nor that they were given back.

        They run again when their leases end, if the process exits now.
        """
        return self._pump.untold

    def on_broken(self, call: Callable[[], None]) -> None:
        """Have ``call`` called, in a thread of the worker, when it is :attr:`broken`; before :meth:`start`."""
        self._pump.on_broken = call

    def start(self) -> None:
        """Start all threads; returns at once. The hooks of ``worker_boot`` run here.

        The event loop of async actors starts with their first job.

        Raises:
          RuntimeError: when it was started, or told to stop, before.
          ConnectionFailed: when the server is there and cannot serve us; one that is away is waited for.
          MiddlewareError: when a ``before_worker_boot`` hook raised one: it can be started again.
        """
        if self._started or self._over:
            done = "was told to stop" if self._over else "was started"
            raise RuntimeError(
                f"this worker {done} before, and a worker starts once: make another Worker(broker); for a break there "
                "are pause() and resume()"
            )
        with undone_on_failure():
            self.broker.emit_before("worker_boot", self)
        self._started = True
        self._declared.join()
        for number in range(1, self.worker_threads + 1):
            thread = WorkerThread(self.broker, self._crew, self._processing, f"echomq-worker-{number}")
            self._crew.threads.append(thread)
            thread.start()
        self._pump.start()
        self.broker.emit_after("worker_boot", self)

    def pause(self) -> None:
        """Take no more jobs, give back what has not started, and wait until what runs has ended."""

        def do() -> None:
            self._pump.claiming = False
            self._pump.giving.give_back()

        self._pump.order(do)
        while self._pump.is_alive() and (self._pump.claiming or not self._pump.quiet):
            time.sleep(_LOOK)

    def claim_no_more(self) -> None:
        """Begin to :meth:`pause`, from any thread, and wait for nothing."""
        # At once: until the pump has come to an order, it may claim again.
        self._pump.claiming = False
        self._pump.order(self._pump.giving.give_back)

    def resume(self) -> None:
        """Go on after :meth:`pause`."""

        def do() -> None:
            self._pump.claiming = True
            for line in self._pump.lines.values():
                line.look_at = 0.0

        self._pump.order(do)

    def join(self) -> None:
        """Wait until nothing runs and all ends are told; for tests."""
        while self._pump.is_alive() and not self._pump.quiet:
            time.sleep(_LOOK)

    def stop(self, timeout: int = 600_000) -> None:
        """Take no more jobs, give back what has not started, wait for what runs and tell its end, and stop.

        Parameters:
          timeout: the most milliseconds to wait. What runs on after that is told all the same when it ends, as long as
            the process lives; see :meth:`abandon`.
        """
        self._over = True
        deadline = time.monotonic() + timeout / 1000
        self.broker.emit_before("worker_shutdown", self)
        self._tasks.shut_down()
        self.logger.info("Shutting down...")
        self._pump.finish()
        self._pump.order(self._pump.giving.give_back)
        self._crew.stop()
        for thread in (*self._crew.threads, self._pump):
            if thread.is_alive():
                thread.join(max(deadline - time.monotonic(), 0.0))
        running = len(self._crew.running) + len(self._tasks.running)
        if running and time.monotonic() >= deadline:
            text = "1 job still runs" if running == 1 else f"{running} jobs still run"
            self.logger.warning("%s after %g s: what runs is left to itself.", text, timeout / 1000)
        elif running:
            text = "1 job that ran was" if running == 1 else f"{running} jobs that ran were"
            self.logger.info("%s given back.", text)
        elif self._pump.is_alive():
            self.logger.warning("The ends of jobs are still to be told after %g s.", timeout / 1000)
        else:
            self._tasks.join(deadline)
        self._declared.leave()
        self.broker.emit_after("worker_shutdown", self)
        if running:
            # One of these hooks may have ended their event loop.
            self._pump.order(self._pump.giving.rescue)
        self.logger.info("Worker has been shut down.")

    def abandon(self, timeout: int = 2_000) -> int:
        """Give everything back at once, what runs included, for a process that is about to exit.

        Jobs that run are for other workers from now on: they lose no retry, and what they still do here is not heard
        of. Exit soon, or they run twice at the same time. May be called while another thread is in :meth:`stop`.

        Parameters:
          timeout: the most milliseconds to wait for the server; what it does not hear of runs again when its lease
            ends.

        Returns:
          How many jobs that ran were given back; :attr:`untold` says how many are left beside them.
        """
        deadline = time.monotonic() + timeout / 1000
        self._over = True
        self._declared.leave()
        self._processing.hurry = self._tasks.processing.hurry = True
        self._pump.finish()
        self._crew.stop()
        self._pump.order(self._pump.giving.give_back)
        self._pump.order(self._pump.giving.give_up)
        self._pump.order(self._tasks.interrupt_all)
        self._pump.hurry(deadline)
        if self._pump.is_alive():
            self._pump.join(timeout / 1000)
        return self._pump.giving.cut_short

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._over:
            self.stop()

    def serve(self, queue_name: str) -> None:
        """Serve a queue that was declared, if it is one of those that are wanted."""
        wanted = not self.consumer_whitelist or q_name(queue_name) in self.consumer_whitelist
        if wanted and queue_name not in self.consumers:
            line = self.consumers[queue_name] = Line(
                self.broker, queue_name, self._places, self._task_places, self._coroutines
            )
            self._pump.serve(line)


class _Declared(Middleware):
    """Tells a worker of the queues of its broker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def join(self) -> None:
        """Join the broker's middleware, and tell of the queues that are declared already."""
        broker = self._worker.broker
        # Not by add_middleware(), which warns of a second one of a class: each worker of a broker has its own.
        broker.middleware.append(self)
        for queue_name in broker.get_declared_queues():
            self._worker.serve(queue_name)

    def leave(self) -> None:
        """Leave it; harmless when that was done, also by another thread."""
        with contextlib.suppress(ValueError):
            self._worker.broker.middleware.remove(self)

    def after_declare_queue(self, broker: Any, queue_name: str) -> None:
        """Called for each queue that is declared from now on."""
        self._worker.serve(queue_name)

    def after_declare_actor(self, broker: Any, actor: Actor[..., Any]) -> None:
        """Called for each actor that is declared from now on; a queue that is served knows those before."""
        if (line := self._worker.consumers.get(actor.queue_name)) is not None:
            line.note_actor(actor.actor_name)
