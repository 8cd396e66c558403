"""A worker process: it loads, runs actors, and ends when it is told to or when the main process is gone."""

from __future__ import annotations

import faulthandler
import logging
import os
import random
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, NoReturn

from dramatiq import BrokerConnectionError
from dramatiq.common import q_name

from echomq_tasks import __version__
from echomq_tasks.bus.handlers import buses_with_handlers
from echomq_tasks.errors import EchoMQError, ServerError, ServerUnavailable
from echomq_tasks.worker import telling
from echomq_tasks.worker.alarm import HELD_BACK, Alarm
from echomq_tasks.worker.channel import Channel
from echomq_tasks.worker.coroutines import Coroutines
from echomq_tasks.worker.loading import (
    CANNOT_CONNECT,
    LoadingFailed,
    check_functions,
    extend_path,
    load,
    other_brokers,
    told,
)
from echomq_tasks.worker.logs import log_here, print_line_by_line, reopen
from echomq_tasks.worker.recycling import JobCount
from echomq_tasks.worker.settings import Task
from echomq_tasks.worker.worker import Worker

_log = logging.getLogger(__name__)

#: Exit code of a process that has cut running jobs short, or has not told the end of some, or has failed.
CUT_SHORT = 1
#: Milliseconds that stand for "as long as it takes": the end of the grace is looked for here, not by the worker.
_FOR_EVER = 10**9


class _Stopped(BaseException):
    """Told to stop before there was anything to finish."""


class Child:
    """One worker process. Only :meth:`run` is for others.

    The main thread waits for orders, signals and the end of the main process; a thread of its own stops the worker, so
    that a second order is heard meanwhile. The order and the signal of one Ctrl-C, or of one SIGTERM to a process
    group, arrive here on two ways: each way is counted for itself.

    Parameters:
      task: what to do.
      channel: the line to the main process.
    """

    def __init__(self, task: Task, channel: Channel) -> None:
        self._task = task
        self._settings = task.settings
        self._channel = channel
        self._importing = True
        self._asked = 0
        self._deadline: float | None = None
        self._stopping: threading.Thread | None = None
        self._enough = False
        self._finished = self._failed = False
        self._alarm = Alarm([signal.SIGTERM])
        self._interrupted = signal.signal(signal.SIGTERM, self._interrupt)

    def run(self) -> int:
        """Do it; answers the exit code. Signals that were blocked until here are let through."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # A fork has the handler of the main process, which waits for its children.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A reload is the main process's affair; not ignored, or the programs that jobs start would do so, too.
        signal.signal(signal.SIGHUP, lambda number, frame: None)
        signal.signal(signal.SIGUSR1, lambda number, frame: self._reopen())
        try:
            try:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
                self._boot()
            except LoadingFailed as failure:
                self._importing = False
                self._channel.send(failed=failure.text, code=failure.code)
                return failure.code
        except _Stopped:
            return 0
        return self._serve()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._importing:
            # Nothing runs yet: however long an import takes, nobody has to wait for it.
            self._importing = False
            raise _Stopped
        if callable(self._interrupted):
            self._interrupted(number, frame)

    def _boot(self) -> None:
        random.seed()
        print_line_by_line()
        log_here(self._settings, main=False)
        if not faulthandler.is_enabled():
            # A crash of C code shows in which actor it was.
            faulthandler.enable(all_threads=False)
        if self._task.version != __version__:
            raise LoadingFailed(
                f"echomq_tasks {__version__} is installed now, and the main process runs {self._task.version}: "
                "restart it; a reload renews only what it starts"
            )
        extend_path(self._settings.path)
        broker: Any = load(self._settings.broker, self._settings.modules)
        check_functions(self._settings.functions)
        if self._settings.max_jobs is not None:
            JobCount(self._settings.max_jobs, self._had_enough).add_to(broker)
        wanted = set(self._settings.queues)
        declared = {q_name(name) for name in broker.get_declared_queues()}
        served = declared & wanted if wanted else declared
        names = (self._settings.broker, *self._settings.modules)
        others = other_brokers(broker, *names)
        if not served and not buses_with_handlers():
            text = telling.nothing_to_serve(names, sorted(wanted), sorted(declared))
            raise LoadingFailed(" ".join((f"{text}.", *telling.others(others))).removesuffix("."))
        self._importing = False
        self._broker = broker
        try:
            self._worker = Worker(
                broker,
                queues=wanted or None,
                worker_threads=self._settings.threads,
                async_concurrency=self._settings.concurrency,
            )
            self._worker.on_broken(self._has_broken)
            self._worker.start()
            there = _is_there(broker)
        except (BrokerConnectionError, ServerError) as error:
            raise LoadingFailed(str(error), CANNOT_CONNECT) from None
        except EchoMQError as error:
            raise LoadingFailed(str(error)) from None
        except Exception as error:
            raise LoadingFailed(told(error, "the worker cannot be started")) from None
        self._channel.send(
            ready=True,
            server=broker.address,
            there=there,
            wanted_server=self._unused_server(broker),
            queues=sorted(served),
            unknown=sorted(wanted - declared),
            others=others,
            coroutines=any(map(Coroutines(broker.actors).has, [*broker.actors])),
            functions=[f"{each.__module__}:{each.__name__}" for one in broker.middleware for each in one.forks],
        )

    def _unused_server(self, broker: Any) -> str | None:
        """The server that the command line names, when the broker has another."""
        return None if self._settings.server == broker.address else self._settings.server

    def _had_enough(self) -> None:
        # At once, whatever the main thread has in hand.
        self._worker.claim_no_more()
        self._enough = True
        self._alarm.poke()

    def _has_broken(self) -> None:
        self._failed = True
        self._alarm.poke()

    def _serve(self) -> int:
        others: list[Any] = [self._channel]
        while True:
            rest = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            for _ in self._alarm.wait(others, rest):
                order = self._channel.receive()
                if order is None:
                    others.clear()
                    self._main_process_is_gone()
                elif order.get("order") == "stop":
                    self._stop(order.get("grace"))
                elif order.get("order") == "reopen":
                    self._reopen()
                elif order.get("order") == "now":
                    self._end_now("Told to end at once")
            for _ in self._alarm.signals():
                self._asked += 1
                self._stop(self._settings.grace)
                if self._asked > 1:
                    self._end_now("A second signal")
            if self._enough and self._stopping is None:
                self._channel.send(leaving=True)
                self._stop(None)
            if self._failed and self._stopping is None:
                # It claims no more, which looks like an idle process from outside: another is to take its place.
                self._stop(self._settings.grace)
            if self._finished:
                if self._failed:
                    self._end_now("It has not stopped in order")
                # What the app has left behind, as threads that go on, may still hold the process up.
                self._channel.send(finished=True)
                return 0
            if self._deadline is not None and time.monotonic() >= self._deadline:
                self._end_now("The grace is over")

    def _reopen(self) -> None:
        reopen(self._settings)

    def _main_process_is_gone(self) -> None:
        _log.warning("The main process is gone: no more jobs are taken.")
        self._stop(self._settings.grace)

    def _stop(self, grace: float | None) -> None:
        """Take no more jobs, and end once what runs has ended, within ``grace`` seconds if that is a number."""
        if grace is not None and self._deadline is None:
            self._deadline = time.monotonic() + grace
        if self._stopping is None:
            # Of the kind that the interpreter does not wait for: it may hang, and be overtaken by the next order.
            self._stopping = threading.Thread(target=self._finish, name="echomq-stop", daemon=True)
            self._stopping.start()

    def _finish(self) -> None:
        try:
            self._worker.stop(timeout=_FOR_EVER)
            self._broker.close()
        except Exception:
            self._failed = True
            _log.exception("The worker cannot be stopped in order.")
        finally:
            self._finished = True
            self._alarm.poke()

    def _end_now(self, why: str) -> NoReturn:
        code = CUT_SHORT
        try:
            given_back = self._worker.abandon()
        except Exception as error:
            _log.warning("What runs could not be given back, and runs again when its lease ends: %s", error)
        else:
            untold = self._worker.untold
            code = CUT_SHORT if given_back or untold or self._failed else 0
            if untold:
                _log.warning(
                    "%s: the server was not told how %d %s ended, which run again when their leases end.",
                    why, untold, "job" if untold == 1 else "jobs",
                )  # fmt: skip
            if given_back:
                jobs = "job was" if given_back == 1 else "jobs were"
                _log.warning("%s: %d running %s given back, to run again.", why, given_back, jobs)
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # Threads that still run code of jobs must not get any further.
        os._exit(code)


def _is_there(broker: Any) -> bool:
    try:
        return broker.connection is not None
    except ServerUnavailable:
        # Away: the worker waits for it.
        return False
