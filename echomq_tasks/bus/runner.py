"""The runner: everything that is registered with some buses, each handler in a thread that is kept alive."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from echomq_tasks.bus.consumer import Consumer
from echomq_tasks.bus.gap import Gap
from echomq_tasks.bus.handlers import GroupHandler, LiveHandler, registered
from echomq_tasks.bus.hands import is_async
from echomq_tasks.bus.loops import LoopThread
from echomq_tasks.errors import EchoMQError, InvalidArgument
from echomq_tasks.forks import after_fork

if TYPE_CHECKING:
    from echomq_tasks.bus.bus import Bus

_log = logging.getLogger(__name__)

#: Seconds a look at the events takes, and so about the longest that a stop waits for a live handler that has nothing.
_LOOK = 0.25
#: Seconds until a thread that failed is started again: the first time, and the most.
_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
#: Seconds of good work after which a failure counts as the first one again.
_GOOD = 30.0


class Runner:
    """Runs what is registered with buses when it starts; making the object does no I/O, and neither does starting it.

    A handler of events, and each consumer of a group, has a thread; async handlers share one event loop. What a fork's
    child inherits does not run there: start it in the child.

    Parameters:
      buses: the buses, as :func:`~echomq_tasks.bus.buses_with_handlers` finds them.
    """

    def __init__(self, buses: Iterable[Bus]) -> None:
        self._buses = list(buses)
        self._reset()
        after_fork(self._reset)

    def _reset(self) -> None:
        # Also in the child of a fork, whose threads are the parent's.
        self._lock = threading.Lock()  # guards what is below
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._consumers: list[Consumer] = []
        self._loop: LoopThread | None = None

    @property
    def running(self) -> bool:
        """Whether any of its threads runs."""
        return any(thread.is_alive() for thread in self._threads)

    def start(self) -> None:
        """Start the threads; they find the server by themselves, also when it is away now.

        Raises:
          InvalidArgument: when it was started and not stopped.
        """
        with self._lock:
            if self._threads or self._loop is not None:
                raise InvalidArgument("the runner is started already: stop() it first")
            self._stopping.clear()
            found = [(bus, registered(bus)) for bus in self._buses]
            functions = [each.function for _, all_ in found for each in all_.live]
            functions += [each.function for _, all_ in found for each in all_.groups]
            if any(map(is_async, functions)):
                self._loop = LoopThread("echomq-handlers")
            for bus, all_ in found:
                for live in all_.live:
                    self._keep(f"echomq-on-{_name(live.function)}", _Live(self, bus, live).listen)
                for group in all_.groups:
                    for place in range(group.threads):
                        self._keep(f"echomq-group-{group.group}", _Group(self, bus, group, place).consume)
            for thread in self._threads:
                thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Tell every handler to finish what it has in hand and no more, and wait for the threads to end.

        Parameters:
          timeout: seconds to wait for that, 0 to tell them only; None waits for as long as it takes.

        Returns:
          False when something is still in hand. It goes on, and its thread ends afterwards; call again to wait.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._stopping.set()
        with self._lock:
            consumers, threads = list(self._consumers), list(self._threads)
        for consumer in consumers:
            consumer.stop()
        for thread in threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(None if deadline is None else max(deadline - time.monotonic(), 0))
        with self._lock:
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            if self._threads:
                return False
            self._consumers.clear()
            loop = self._loop
        if loop is not None and not loop.close(None if deadline is None else max(deadline - time.monotonic(), 0)):
            # A handler has left something behind in another thread.
            return False
        with self._lock:
            self._loop = None
        return True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    # -- for the threads ----------------------------------------------------------------------------------------

    @property
    def stopping(self) -> threading.Event:
        """Set when the threads are to end."""
        return self._stopping

    @property
    def loop(self) -> LoopThread:
        """Where async handlers run."""
        assert self._loop is not None
        return self._loop

    def enlist(self, consumer: Consumer) -> None:
        """Let :meth:`stop` reach a consumer, also when it comes at this very moment."""
        with self._lock:
            self._consumers.append(consumer)
        if self._stopping.is_set():
            consumer.stop()

    def _keep(self, name: str, work: Callable[[], None]) -> None:
        """A thread that does ``work`` again whenever that fails."""

        def keep() -> None:
            pause = _PAUSE
            while not self._stopping.is_set():
                began = time.monotonic()
                try:
                    work()
                except EchoMQError as error:
                    _log.warning("%s stopped, and is started again: %s", name, error)
                except BaseException:
                    # A handler's sys.exit() too: it ends no process from here, only this thread, and without a word.
                    _log.exception("%s failed, and is started again", name)
                if time.monotonic() - began > _GOOD:
                    pause = _PAUSE
                self._stopping.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

        self._threads.append(threading.Thread(target=keep, name=name, daemon=True))


class _Live:
    """One live handler."""

    def __init__(self, runner: Runner, bus: Bus, handler: LiveHandler) -> None:
        self._runner = runner
        self._bus = bus
        self._handler = handler
        self._heard: float | None = None

    def listen(self) -> None:
        """Call the handler with events until the runner stops."""
        handler = self._handler
        subscription = self._bus.subscribe(
            *handler.queues, events=handler.events, patterns=handler.patterns, catch_up=handler.catch_up
        )
        with subscription as events:
            if self._heard is not None and handler.gaps:
                # An earlier subscription failed, and what came since then was missed.
                self._call(Gap("reconnected", self._heard, handler.queues, handler.patterns))
            while not self._runner.stopping.is_set():
                self._heard = time.time()
                event = events.get(timeout=_LOOK)
                if event is not None and (handler.gaps or not isinstance(event, Gap)):
                    self._call(event)

    def _call(self, event: Any) -> None:
        function = self._handler.function
        try:
            if is_async(function):
                self._runner.loop.start(_guarded(function, event)).result()
            else:
                function(event)
        except BaseException:
            # sys.exit() too, which would only end this thread.
            _log.exception("the handler %s failed on %s", _name(function), event)


class _Group:
    """One consumer of a registered group."""

    def __init__(self, runner: Runner, bus: Bus, handler: GroupHandler, place: int) -> None:
        self._runner = runner
        self._bus = bus
        self._handler = handler
        self._place = place
        self._consumer: Consumer | None = None

    def consume(self) -> None:
        """Handle deliveries until the runner stops."""
        if self._consumer is None:
            # The same one over failures: what it holds then is its own, and first in line.
            self._consumer = self._handler.consumer(self._bus.connect(), self._place)
            self._runner.enlist(self._consumer)
        self._consumer.run(loop=self._runner.loop.loop if is_async(self._handler.function) else None)


async def _guarded(function: Callable[[Any], Any], event: Any) -> None:
    try:
        await function(event)
    except SystemExit as error:
        # It would end the loop under all the others.
        raise RuntimeError(f"the handler raised {error!r}") from error


def _name(function: object) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__
