"""The jobs of async actors: each a task on one event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dramatiq.asyncio import EventLoopThread, get_event_loop_thread
from dramatiq.logging import get_logger
from dramatiq.middleware import Shutdown, TimeLimitExceeded

from echomq_tasks.brokers.dramatiq.batches import Batch
from echomq_tasks.forks import after_fork
from echomq_tasks.worker.coroutines import Coroutines
from echomq_tasks.worker.holdups import LoopWatch
from echomq_tasks.worker.interrupts import Interrupts
from echomq_tasks.worker.loop import LoopThread
from echomq_tasks.worker.places import Work
from echomq_tasks.worker.processing import Processing
from echomq_tasks.worker.quick import Quick
from echomq_tasks.worker.run import Run
from echomq_tasks.worker.steps import Step, StepThreads
from echomq_tasks.worker.verdicts import Told

if TYPE_CHECKING:
    from echomq_tasks.brokers.dramatiq.broker import EchoMQBroker


class TaskCrew:
    """Runs deliveries of async actors as tasks, without a thread for each.

    A run goes through three parts, all in one context: the hooks before, the coroutine, the hooks after. The coroutine
    is a task. Hooks are called on the loop where it is known that they wait for nothing, and by a few threads beside it
    where it is not; the task is not there yet then, or done, for two threads cannot be in one context.

    The loop is that of Dramatiq's ``AsyncIO`` middleware when that is in place, and this crew's own when not.

    Parameters:
      broker: whose actors and hooks.
      coroutines: their coroutine functions.
      ended: given each delivery that has ended.
    """

    def __init__(self, broker: EchoMQBroker, coroutines: Coroutines, ended: Callable[[Work, bool], None]) -> None:
        self.logger = get_logger(__name__, type(self))
        self.processing = Processing(broker, ended, Told)
        self._broker = broker
        self._coroutines = coroutines
        self._ended = ended
        self._quick = Quick(broker)
        self._interrupts = Interrupts(broker)
        #: What is to be started, the oldest at the left.
        self._ready: deque[Work] = deque()
        self._runs: set[Run] = set()
        self._loop_thread: LoopThread | EventLoopThread | None = None
        self._watch = LoopWatch(lambda: self._loop_thread if self._looking else None, self._name_of)
        self._steps = StepThreads(broker, self._drop)
        # Several threads may have a first step to do.
        self._lock = threading.Lock()
        self._looking = False
        self._shutting_down = False
        self._closed = False
        # True when there may be runs on a loop that has ended.
        self._moved = False
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        # A job that forks, and does not exit, must not run its parent's other jobs in the child.
        self._lock = threading.Lock()
        self._ready.clear()
        self._runs.clear()

    # -- what the pump calls --------------------------------------------------------------------------------------

    def push(self, work: list[Work]) -> None:
        """Have this run."""
        self._ready.extend(work)
        self._submit(self._start_ready)

    def drain(self) -> list[Work]:
        """Take back what was not started."""
        taken: list[Work] = []
        while True:
            try:
                taken.append(self._ready.popleft())
            except IndexError:
                return taken

    @property
    def running(self) -> list[Work]:
        """What is in hand."""
        return [run.work for run in self._runs.copy()]

    def stranded(self) -> list[Work]:
        """Hand over what was on a loop that somebody has ended; what was not started goes to another loop."""
        thread = self._loop_thread
        if thread is None or self._closed or (thread.is_alive() and not self._moved):
            return []
        self._moved = False
        runs = [run for run in self._runs.copy() if run.home is not None and not run.home.is_alive()]
        if runs:
            self._runs.difference_update(runs)
            self.logger.error("The event loop was ended while jobs ran there (%d): they are given back.", len(runs))
        if self._ready:
            self._submit(self._start_ready)
        return [run.work for run in runs]

    def close(self) -> None:
        """End the threads, when nothing is in hand or what is will not be heard of."""
        self._closed = True
        self._watch.end()
        self._steps.stop()
        if isinstance(self._loop_thread, LoopThread):
            self._loop_thread.end()

    # -- what the worker calls ------------------------------------------------------------------------------------

    def shut_down(self) -> None:
        """Interrupt what wants to be told of a shutdown, as Dramatiq's ``ShutdownNotifications`` does with threads."""
        self._shutting_down = True
        if self._runs:
            self._submit(self._notify)

    def interrupt_all(self) -> None:
        """Cancel all that runs: it is another worker's."""
        if self._runs:
            self._submit(self._interrupt_all)

    def join(self, deadline: float) -> None:
        """Wait for the threads to end, until a monotonic second at most."""
        threads: list[threading.Thread] = [*self._steps.threads]
        if isinstance(self._loop_thread, LoopThread):
            threads.append(self._loop_thread)
        if self._watch.ident is not None:
            threads.append(self._watch)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0.0))

    # -- the loop -------------------------------------------------------------------------------------------------

    def _submit(self, what: Callable[[], None], run: Run | None = None) -> None:
        """Have this called on the loop, for ``run``; on another one, if somebody has ended that."""
        with self._lock:
            thread = self._loop_thread
            if self._closed and (thread is None or not thread.is_alive()):
                # Nobody would hear of what comes of it.
                return
            if thread is None or not thread.is_alive() or thread.loop.is_closed():
                self._moved = thread is not None
                thread = self._loop_thread = self._find_loop()
            if run is not None:
                run.home = thread
            thread.loop.call_soon_threadsafe(what)

    def _find_loop(self) -> LoopThread | EventLoopThread:
        self._looking = False
        if self._watch.ident is None:
            self._watch.start()
        for middleware in self._interrupts.powerless:
            self.logger.warning(
                "%r throws into threads in a way of its own: it does not interrupt async actors.", middleware
            )
        given = get_event_loop_thread()
        if given is not None and given.is_alive() and given.loop.is_running():
            return given
        thread = LoopThread()
        thread.start()
        return thread

    # -- a run, part by part --------------------------------------------------------------------------------------

    def _start_ready(self) -> None:
        for _ in range(len(self._ready)):
            try:
                work = self._ready.popleft()
            except IndexError:
                return
            name = work.actor_name
            run = Run(work, self._broker.actors.get(name), self._coroutines.of(name))
            run.home = threading.current_thread()
            self._runs.add(run)
            self._attempt(self._start, run)

    def _attempt(self, part: Callable[[Run], None], run: Run) -> None:
        """Do a part of a run on the loop."""
        try:
            part(run)
        except Exception:
            self.logger.exception("%s cannot go on: it runs again when its lease ends.", run.work)
            self._drop(run)

    def _start(self, run: Run) -> None:
        work = run.work
        if run.function is None:
            # Not async, or no longer known.
            self._do(Step(run, self._run_whole, self._hand_in))
            return
        for each in work.members if isinstance(work, Batch) else (work,):
            each.in_task = True
        if self._quick.before(work):
            run.context.run(self._begin, run)
            self._enter(run)
        else:
            self._do(Step(run, self._begin, self._post))

    def _run_whole(self, run: Run) -> None:
        self.processing.run(run.work)

    def _begin(self, run: Run) -> None:
        try:
            self.processing.begin(run.work)
        except BaseException as error:
            run.error = error
        run.begun = True

    def _post(self, run: Run) -> None:
        if run.begun:
            if run in self._runs:
                self._submit(lambda: self._attempt(self._enter, run), run)
        else:
            # Torn off: nobody knows which of the hooks were called.
            self._hand_in(run)

    def _enter(self, run: Run) -> None:
        """Start the coroutine, unless there is a reason not to."""
        if run.called:
            # Posted twice: something was thrown into the thread that did it.
            return
        run.called = True
        if run.error is not None or run.work.failed:
            self._leave(run)
            return
        run.due = self._interrupts.due(run)
        if self._shutting_down:
            self._notify_one(run)
        loop = asyncio.get_running_loop()
        run.task = loop.create_task(run.body(), context=run.context)
        run.task.add_done_callback(lambda task: self._attempt(self._come_out, run))
        if not self._looking:
            self._looking = True
            loop.call_later(self._interrupts.pause, self._look)
            self._watch.ask()

    def _come_out(self, run: Run) -> None:
        run.come_out()
        self._leave(run)

    def _leave(self, run: Run) -> None:
        """Call the hooks after the coroutine, and give the end to the pump."""
        if run.error is None and run.actor is not None and self._quick.after(run.work, run.actor):
            run.context.run(self._finish, run)
            self._hand_in(run)
        else:
            self._do(Step(run, self._finish, self._hand_in))

    def _finish(self, run: Run) -> None:
        if run.actor is not None:
            self.processing.finish(run.work, run.actor, run.result, run.error)

    def _hand_in(self, run: Run) -> None:
        run.ended = True
        work = run.work
        run.context.run(self.processing.hand_in, work)
        told = work.awaited
        if isinstance(told, Told):
            with self._lock:
                self._steps.start()
            self._steps.push_once(Step(run, self._conclude, self._give_place), told)
        else:
            self._conclude(run)
            self._runs.discard(run)

    def _conclude(self, run: Run) -> None:
        self.processing.conclude(run.work)
        # Kept, they would keep the frames of the run, and it them.
        run.error = run.thrown = run.result = None

    def _give_place(self, run: Run) -> None:
        self._runs.discard(run)
        # Once more: it has kept its place until now, so that no more are told at once than there are places.
        self._ended(run.work, False)

    def _drop(self, run: Run) -> None:
        """Let go of a run that does not come to its end."""
        run.ended = True
        self.processing.give_up(run.work)
        self._give_place(run)

    def _do(self, step: Step) -> None:
        step.run.home = None
        with self._lock:
            self._steps.push(step)

    # -- interrupting ---------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Interrupt what is to go on no more."""
        runs = self._runs.copy()
        self._looking = bool(runs)
        if runs:
            asyncio.get_running_loop().call_later(self._interrupts.pause, self._look)
        now = time.monotonic()
        for run in runs:
            if run.task is not None and not run.ended and (reason := self._interrupts.reason(run, now)) is not None:
                self._interrupt(run, reason)

    def _name_of(self, task: asyncio.Task[Any] | None) -> str:
        """What a task is, for a person; called by any thread."""
        if task is None:
            return "a callback"
        for run in self._runs.copy():
            if run.task is task:
                job = f"a batch of {len(run.work.members)}" if isinstance(run.work, Batch) else run.work.job_id
                return f"{run.work} ({job})"
        return f"the task {task.get_name()!r} of {getattr(task.get_coro(), '__qualname__', 'a coroutine')}()"

    def _interrupt(self, run: Run, reason: BaseException) -> None:
        if run.interrupt(reason):
            level = logging.WARNING if isinstance(reason, TimeLimitExceeded) else logging.INFO
            self.logger.log(level, "Interrupting %s: %s.", run.work, type(reason).__name__)

    def _notify(self) -> None:
        for run in self._runs.copy():
            if run.task is not None:
                self._notify_one(run)

    def _notify_one(self, run: Run) -> None:
        if self._interrupts.wants_notice(run):
            self._interrupt(run, Shutdown("the worker shuts down"))

    def _interrupt_all(self) -> None:
        for run in self._runs.copy():
            self._interrupt(run, Shutdown("the job was given back"))
