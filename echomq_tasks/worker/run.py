"""One job of an async actor on its way through the event loop."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from contextvars import Context
from typing import Any

from dramatiq import Actor

from echomq_tasks.brokers.dramatiq.batches import Batch
from echomq_tasks.worker.coroutines import CoroutineFunction
from echomq_tasks.worker.places import Work


class Run:
    """A delivery or a batch, and how far it is.

    Attributes:
      work: the delivery or batch.
      actor: its actor, None when that is not known here.
      function: the actor's coroutine function, None when it is none.
      context: of the hooks before, the coroutine, and the hooks after.
      home: the thread of the loop on which it is; None while it is elsewhere.
      begun: True once the hooks before are through, in whatever way.
      called: True once the coroutine was called, or the reason not to call it found.
      task: the task of the coroutine, None before.
      entered: True once its first line has run; cancelled before, it would not run at all.
      result: what it returned.
      error: what it, or a hook before it, raised.
      due: the monotonic second at which its time is over.
      thrown: why it was interrupted.
      ended: True once its end was given to the pump.
    """

    __slots__ = (
        "actor", "begun", "called", "context", "due", "ended", "entered", "error", "function", "home", "result", "task",
        "thrown", "work",
    )  # fmt: skip

    def __init__(self, work: Work, actor: Actor[..., Any] | None, function: CoroutineFunction | None) -> None:
        self.work = work
        self.actor = actor
        self.function = function
        self.context = Context()
        self.home: threading.Thread | None = None
        self.begun = False
        self.called = False
        self.task: asyncio.Task[None] | None = None
        self.entered = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.due = math.inf
        self.thrown: BaseException | None = None
        self.ended = False

    async def body(self) -> None:
        """Call the function, and keep what comes of it: raised from a task, SystemExit would end the loop."""
        self.entered = True
        if self.thrown is not None and (task := asyncio.current_task()) is not None:
            # It came before there was anything to interrupt.
            task.cancel()
        # Logged as by Dramatiq's Actor, whose call this takes the place of.
        log = self.actor.logger if self.actor is not None and self.actor.logger.isEnabledFor(logging.DEBUG) else None
        started = time.perf_counter()
        if log is not None:
            log.debug("Received args=%r kwargs=%r.", self.work.args, self.work.kwargs)
        try:
            if self.function is not None:
                self.result = await self.function(*self.work.args, **self.work.kwargs)
        except BaseException as error:
            self.error = error
        if log is not None:
            log.debug("Completed after %.02fms.", (time.perf_counter() - started) * 1000)

    def interrupt(self, reason: BaseException) -> bool:
        """Have the coroutine cancelled, for this reason; once. In the thread of its loop.

        Answers False when there is nothing to interrupt, or it was interrupted before.
        """
        if self.thrown is not None or self.ended or (self.task is not None and self.task.done()):
            return False
        self.thrown = reason
        for each in self.work.running if isinstance(self.work, Batch) else (self.work,):
            each.current.interrupted = reason
        if self.entered and self.task is not None:
            self.task.cancel()
        return True

    def come_out(self) -> None:
        """Note that the task is done: what cancelled it is told in the place of the cancellation."""
        if not self.entered:
            # Cancelled by somebody else, before its first line.
            self.error = asyncio.CancelledError()
        if self.thrown is not None and isinstance(self.error, asyncio.CancelledError):
            cancelled, self.error = self.error, self.thrown.with_traceback(self.error.__traceback__)
            # Not said to come "during the handling of": it is the same event.
            self.error.__cause__, cancelled.__traceback__ = None, None
