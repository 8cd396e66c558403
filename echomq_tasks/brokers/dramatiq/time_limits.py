"""The timers of ``TimeLimit``, which commands start, and nobody does for a worker in a script or test."""

from __future__ import annotations

import threading

from dramatiq import Broker
from dramatiq.middleware import TimeLimit


def start_timers(broker: Broker) -> None:
    """Start the timers that do not run yet in this process; harmless when repeated.

    Without them a time limit does nothing, and says nothing. The other hooks of ``process_boot`` are for who owns the
    process to call: they may open a port, or set up what a test wants otherwise.
    """
    for middleware in [*broker.middleware]:
        if isinstance(middleware, TimeLimit):
            try:
                _start(middleware, broker)
            except Exception:
                broker.logger.critical("The timer of %r does not start: it limits nothing.", middleware, exc_info=True)


def _start(middleware: TimeLimit, broker: Broker) -> None:
    timer = middleware.manager
    # That of gevent is no thread, and needs no start.
    if not isinstance(timer, threading.Thread) or timer.is_alive():
        return
    if timer.ident is not None:
        # It ran in the process that this one was forked from, and a thread does not start twice.
        middleware.manager = TimeLimit(interval=round(timer.interval * 1000)).manager
    try:
        TimeLimit.after_process_boot(middleware, broker)
    except RuntimeError:
        # Another worker, in another thread, was faster.
        if not getattr(middleware.manager, "is_alive", bool)():
            raise
