"""What a worker runs beside its actors: the functions that are registered with ``@bus.on`` and ``@bus.consumer``."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from echomq_tasks.bus import Bus, Runner, buses_with_handlers
from echomq_tasks.bus.handlers import GroupHandler, LiveHandler, watch
from echomq_tasks.connection import Connection
from echomq_tasks.forks import after_fork

if TYPE_CHECKING:
    from echomq_tasks.brokers.dramatiq.broker import EchoMQBroker

_log = logging.getLogger(__name__)

#: Seconds that a worker which stops waits for a handler to finish what it has in hand: what Dramatiq gives a job.
_STOP = 600.0


class BrokerBus(Bus):
    """The bus of a broker, on the broker's connection: it connects when the broker does."""

    def __init__(self, broker: EchoMQBroker) -> None:
        super().__init__()
        self._broker = broker

    def connect(self) -> Connection:
        """The broker's connection."""
        return self._broker.connection

    def __repr__(self) -> str:
        return f"<Bus of {self._broker!r}>"


class Listening:
    """Runs the handlers of all buses of this process while at least one of its workers runs."""

    def __init__(self) -> None:
        self._reset()
        after_fork(self._reset)
        watch(self._late)

    def _reset(self) -> None:
        # A child of a fork has none of its parent's threads.
        self._lock = threading.Lock()
        self._workers = 0
        self._runner: Runner | None = None
        self._ending = False

    def start(self) -> None:
        """A worker boots: the first one starts the handlers."""
        with self._lock:
            self._workers += 1
            self._run()

    def ask(self) -> None:
        """A worker is about to stop: with the last one, the handlers take nothing new while its jobs end."""
        with self._lock:
            if self._workers <= 1 and self._runner is not None:
                self._ending = True
                self._runner.stop(0)

    def stop(self) -> None:
        """A worker has stopped: with the last one, the handlers finish what they have in hand, and end."""
        with self._lock:
            self._workers = max(self._workers - 1, 0)
            if self._runner is None or (self._workers and not self._ending):
                return
            runner, self._runner, self._ending = self._runner, None, False
        if not runner.stop(_STOP):
            _log.error("A bus handler still runs after %d s and is left behind.", _STOP)
        with self._lock:
            # One that has booted while this one stopped.
            if self._workers:
                self._run()

    def _late(self, bus: Bus, handler: LiveHandler | GroupHandler) -> None:
        """Something was registered: when a worker runs, it runs that, too."""
        with self._lock:
            if self._workers and self._runner is not None:
                self._runner.add(bus)
            elif self._workers:
                self._run()

    def _run(self) -> None:
        """Start what is registered and does not run; the lock is held."""
        buses = buses_with_handlers()
        if self._runner is None and buses:
            self._runner = Runner(buses)
            self._runner.start()


#: The one of this process.
listening = Listening()
