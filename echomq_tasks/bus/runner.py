"""The runner: everything that is registered with some buses, each handler in a thread that is kept alive."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from echomq_tasks.bus.consumer import Consumer
from echomq_tasks.bus.gap import Gap
from echomq_tasks.bus.handlers import GroupHandler, Handlers, LiveHandler, registered, watch
from echomq_tasks.bus.hands import is_async
from echomq_tasks.bus.loops import LoopThread
from echomq_tasks.errors import EchoMQError, InvalidArgument
from echomq_tasks.forks import after_fork
from echomq_tasks.scripts.arguments import shown

if TYPE_CHECKING:
    from echomq_tasks.bus.bus import Bus

_log = logging.getLogger(__name__)

#: Seconds a look at the events takes, and so about the longest that a stop waits for a live handler that has nothing.
_LOOK = 0.25
#: Seconds until a thread that failed is started again: the first time, and the most.
_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
#: Seconds of good work after which a failure counts as the first one again.
_GOOD = 30.0
#: Seconds that a stop waits for a thread whose handler has nothing in hand: it talks to a server that hangs.
_QUIET = 5.0


class Runner:
    """Runs what is registered with buses, before it starts and while it runs; neither making nor starting it does I/O.

    A handler of events, and each consumer of a group, has a thread; async handlers share one event loop. What a fork's
    child inherits does not run there: start it in the child.

    Parameters:
      buses: the buses, as :func:`~echomq_tasks.bus.buses_with_handlers` finds them.

    Raises:
      InvalidArgument: when these are no buses.
    """

    def __init__(self, buses: Iterable[Bus]) -> None:
        if not isinstance(buses, Iterable):
            raise InvalidArgument(f"a runner takes buses, as Runner([bus]), not {shown(buses)}")
        self._buses = [_checked(bus) for bus in buses]
        self._reset()
        after_fork(self._reset)
        watch(self._late)

    def _reset(self) -> None:
        # Also in the child of a fork, whose threads are the parent's.
        self._lock = threading.Lock()  # guards what is below
        self._stopping = threading.Event()
        self._started = False
        self._known: list[LiveHandler | GroupHandler] = []
        self._threads: list[_Kept] = []
        self._consumers: list[Consumer] = []
        self._loop: LoopThread | None = None

    @property
    def running(self) -> bool:
        """Whether any of its threads runs."""
        return any(kept.thread.is_alive() for kept in self._threads)

    def start(self) -> None:
        """Start the threads; they find the server by themselves, also when it is away now.

        Raises:
          InvalidArgument: when it was started and not stopped.
        """
        with self._lock:
            if self._started:
                raise InvalidArgument("the runner is started already: stop() it first")
            self._started = True
            self._stopping.clear()
            for bus in self._buses:
                self._begin(bus)

    def add(self, bus: Bus) -> None:
        """Run what is registered with one more bus, too; at once when the runner is started.

        Raises:
          InvalidArgument: when it is no bus.
        """
        with self._lock:
            if _checked(bus) not in self._buses:
                self._buses.append(bus)
            if self._started:
                self._begin(bus)

    def stop(self, timeout: float | None = None) -> bool:
        """Tell every handler to finish what it has in hand and no more, and wait for the threads to end.

        Parameters:
          timeout: seconds to wait for that, 0 to tell them only; None waits for as long as their handlers take.

        Returns:
          False when something is still in hand. It goes on, and its thread ends afterwards; call again to wait. A
          thread that has nothing in hand and hears nothing from its server is left behind after 5 s, with a warning:
          what it could not tell the server is delivered again.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._stopping.set()
        with self._lock:
            consumers, threads = list(self._consumers), list(self._threads)
        for consumer in consumers:
            consumer.stop()
        quiet = time.monotonic() + _QUIET
        left = [kept for kept in threads if kept.thread is not threading.current_thread() and kept.end(deadline, quiet)]
        with self._lock:
            self._threads = [kept for kept in self._threads if kept.thread.is_alive() and kept not in left]
            if self._threads:
                return False
            self._consumers.clear()
            loop = self._loop
        if loop is not None and not loop.close(None if deadline is None else max(deadline - time.monotonic(), 0)):
            # A handler has left something behind in another thread.
            return False
        with self._lock:
            self._loop = None
            self._known.clear()
            self._started = False
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

    def _late(self, bus: Bus, handler: LiveHandler | GroupHandler) -> None:
        """Something was registered."""
        with self._lock:
            if self._started and bus in self._buses:
                self._begin(bus)

    def _begin(self, bus: Bus) -> None:
        """Start what is registered with a bus and does not run yet; the lock is held."""
        found = registered(bus)
        handlers: list[LiveHandler | GroupHandler] = [*found.live, *found.groups]
        for handler in handlers:
            if self._stopping.is_set() or any(handler is known for known in self._known):
                continue
            self._known.append(handler)
            if self._loop is None and is_async(handler.function):
                self._loop = LoopThread("echomq-handlers")
            if isinstance(handler, LiveHandler):
                live = _Live(self, bus, handler)
                self._keep(f"echomq-on-{_name(handler.function)}", live.listen, live.at_work)
            else:
                for place in range(handler.threads):
                    group = _Group(self, bus, handler, place)
                    self._keep(f"echomq-group-{handler.group}", group.consume, group.at_work)

    def _keep(self, name: str, work: Callable[[], None], at_work: Callable[[], bool]) -> None:
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

        thread = threading.Thread(target=keep, name=name, daemon=True)
        thread.start()
        self._threads.append(_Kept(thread, at_work))


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """One thread, and whether its handler has something in hand."""

    thread: threading.Thread
    at_work: Callable[[], bool]

    def end(self, deadline: float | None, quiet: float) -> bool:
        """Wait for the end of the thread until ``deadline``, and ``quiet`` or so long after its handler's end.

        Answers whether it is left behind.
        """
        while self.thread.is_alive():
            now = time.monotonic()
            if self.at_work():
                quiet = now + _QUIET
            elif now >= quiet:
                _log.warning("%s gets no answer from its server, and is left behind", self.thread.name)
                return True
            if deadline is not None and now >= deadline:
                return False
            # The end of the handler is looked for, too.
            self.thread.join(min(_LOOK, quiet - now, _LOOK if deadline is None else deadline - now))
        return False


class _Live:
    """One live handler."""

    def __init__(self, runner: Runner, bus: Bus, handler: LiveHandler) -> None:
        self._runner = runner
        self._bus = bus
        self._handler = handler
        self._heard: float | None = None
        self._calling = False

    def at_work(self) -> bool:
        """Whether the handler has an event in hand."""
        return self._calling

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
        self._calling = True
        try:
            if is_async(function):
                self._runner.loop.start(_guarded(function, event)).result()
            else:
                function(event)
        except BaseException:
            # sys.exit() too, which would only end this thread.
            _log.exception("the handler %s failed on %s", _name(function), event)
        finally:
            self._calling = False


class _Group:
    """One consumer of a registered group."""

    def __init__(self, runner: Runner, bus: Bus, handler: GroupHandler, place: int) -> None:
        self._runner = runner
        self._bus = bus
        self._handler = handler
        self._place = place
        self._consumer: Consumer | None = None

    def at_work(self) -> bool:
        """Whether the handler has a delivery in hand."""
        return self._consumer is not None and self._consumer.at_work

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


def _checked(bus: Bus) -> Bus:
    if not isinstance(bus, Handlers):
        raise InvalidArgument(f"a runner takes buses, as Runner([bus]), not {shown(bus)}")
    return bus


def _name(function: object) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__
