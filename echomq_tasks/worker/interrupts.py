"""Why a coroutine is interrupted: a time limit, a cancel, a lost lease, or a shutdown."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from dramatiq import Middleware
from dramatiq.middleware import ShutdownNotifications, TimeLimit, TimeLimitExceeded

from echomq_tasks.brokers.dramatiq.batches import Batch
from echomq_tasks.brokers.dramatiq.hooks import THREAD_HOOKS
from echomq_tasks.errors import JobCancelled
from echomq_tasks.worker.run import Run

if TYPE_CHECKING:
    from echomq_tasks.brokers.dramatiq.broker import EchoMQBroker

#: Seconds between two looks at what runs; a time limit's interval if that is shorter.
_LOOK = 1.0


class Interrupts:
    """Does for tasks what Dramatiq's middleware does for threads, with the options of that middleware.

    ``TimeLimit`` and ``ShutdownNotifications`` throw into threads, and a loop's thread is not one job's. So their hooks
    are not called for tasks, and what they were told is looked up here.

    Parameters:
      broker: whose middleware says what is interrupted.
    """

    def __init__(self, broker: EchoMQBroker) -> None:
        self._broker = broker
        self._seen: tuple[list[Middleware], list[TimeLimit], list[ShutdownNotifications]] = ([], [], [])

    @property
    def pause(self) -> float:
        """Seconds between two looks at what runs."""
        intervals = [getattr(limit.manager, "interval", _LOOK) for limit in self._look()[1]]
        return float(min([_LOOK, *intervals]))

    @property
    def powerless(self) -> list[Middleware]:
        """Middleware that throws into threads in a way of its own, so that it does not reach tasks."""
        return [
            each
            for each in self._broker.middleware
            if isinstance(each, (TimeLimit, ShutdownNotifications)) and not _is_stock(each)
        ]

    def due(self, run: Run) -> float:
        """The monotonic second at which the time of a run that starts now is over."""
        due, work, actor = math.inf, run.work, run.actor
        # Of a batch, the last member's counts, as in a thread.
        message: Any = work.running[-1] if isinstance(work, Batch) else work
        for middleware in self._look()[1] if actor is not None else ():
            limit = message.options.get("time_limit") or actor.options.get("time_limit", middleware.time_limit)  # type: ignore[union-attr]
            if isinstance(limit, (int, float)):
                due = time.monotonic() + limit / 1000
        return due

    def reason(self, run: Run, now: float) -> BaseException | None:
        """Why to interrupt a run now; None when it may go on."""
        work = run.work
        if run.due <= now:
            return TimeLimitExceeded("it has run for longer than its time limit")
        if isinstance(work, Batch):
            # One member that is cancelled is no reason to interrupt the others.
            return None
        if work.lost:
            return JobCancelled(f"{work.job_id}: the lease was lost and another worker has the job")
        if work.current.unaware:
            return JobCancelled(f"{work.job_id} was cancelled")
        return None

    def wants_notice(self, run: Run) -> bool:
        """Whether a run is to be interrupted because the worker shuts down."""
        members = run.work.running if isinstance(run.work, Batch) else [run.work]
        return any(each.should_notify(run.actor, member) for each in self._look()[2] for member in members)

    def _look(self) -> tuple[list[Middleware], list[TimeLimit], list[ShutdownNotifications]]:
        seen = self._seen
        if seen[0] != self._broker.middleware:
            middleware = self._broker.middleware.copy()
            stock = [each for each in middleware if _is_stock(each)]
            limits = [each for each in stock if isinstance(each, TimeLimit)]
            notices = [each for each in stock if isinstance(each, ShutdownNotifications)]
            seen = self._seen = middleware, limits, notices
        return seen


def _is_stock(middleware: Middleware) -> bool:
    return type(middleware).before_process_message in THREAD_HOOKS
