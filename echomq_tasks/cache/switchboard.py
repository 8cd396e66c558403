"""The switchboard of a connection: which ears there are, and the one line that serves them while there are any."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from echomq_tasks.cache.line import Line, tell
from echomq_tasks.connection import Connection
from echomq_tasks.errors import ServerUnavailable
from echomq_tasks.forks import after_fork

if TYPE_CHECKING:
    from echomq_tasks.cache.ear import Ear

#: Seconds that closing the connection waits for the line's thread.
_PATIENCE = 1.0


class Switchboard:
    """Made once a connection, by :meth:`~echomq_tasks.connection.Connection.companion`, and closed with it.

    Any thread may wait and leave. Ears are held weakly, so that a table that nobody refers to is heard for no longer.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._ears: set[weakref.ref[Ear]] = set()
        self._line: Line | None = None
        self._begin()
        after_fork(self._after_fork)

    def _begin(self) -> None:
        # Reentrant: a signal handler may close an ear whose thread is just opening another. It guards the two above,
        # and the state of the ears.
        self.change = threading.Condition(threading.RLock())

    def _after_fork(self) -> None:
        self._begin()
        line, self._line = self._line, None
        if line is not None:
            line.forget()
        for ear in self.ears():
            ear.hears = False

    def ears(self) -> list[Ear]:
        """Those that are left."""
        with self.change:
            self._ears = {reference for reference in self._ears if reference() is not None}
            return [ear for reference in self._ears if (ear := reference()) is not None]

    def wait(self, ear: Ear, timeout: float | None) -> None:
        """Let ``ear`` be heard.

        Raises:
          EchoMQError: when it cannot be now, as :meth:`echomq_tasks.cache.ear.Ear.ready` has it.
        """
        seconds = self.connection.config.timeout if timeout is None else timeout
        with self.change:
            self._join(ear)
            self.change.wait_for(lambda: ear.hears or ear.failure is not None, seconds)
            if ear.hears:
                return
            failure = ear.failure
        if failure is not None:
            # Each caller has one of its own: one exception that many threads raise grows a traceback of them all.
            raise type(failure)(*failure.args) from failure
        raise ServerUnavailable(f"{self.connection.config.address} let {ear!r} wait for more than {seconds:g} seconds")

    def leave(self, ear: Ear) -> None:
        """Let go of ``ear``."""
        with self.change:
            self._ears.discard(weakref.ref(ear))
            ear.hears = False
            ear.failure = None
            line = self._line
        if line is not None:
            line.ring()

    def close(self) -> None:
        """End the thread; the ears that are left begin anew when they are waited for."""
        with self.change:
            line, self._line = self._line, None
            ears = [ear for ear in self.ears() if ear.hears]
            for ear in ears:
                ear.hears = False
        if line is not None:
            line.stop(_PATIENCE)
        for ear in ears:
            tell(ear.on_lost)

    def serves(self, line: Line) -> bool:
        """Whether ``line`` has somebody to serve. If not it ends, and the next ear gets another."""
        with self.change:
            if self._line is line and not self.ears():
                self._line = None
            return self._line is line

    def ended(self, line: Line) -> None:
        """The thread of ``line`` has ended, whatever the reason."""
        with self.change:
            if self._line is line:
                self._line = None
                for ear in self.ears():
                    ear.hears = False

    def _join(self, ear: Ear) -> None:
        reference = weakref.ref(ear, self._forgotten)
        if reference not in self._ears:
            self._ears.add(reference)
            ear.failure = None
        if self._line is None:
            # Whatever an earlier line has met says nothing of this one.
            for each in self.ears():
                each.failure = None
            line = Line(self)
            try:
                line.start()
            except RuntimeError as error:
                line.forget()
                raise ServerUnavailable(f"{ear!r} needs a thread, and none can be started: {error}") from error
            self._line = line
        self._line.ring()

    def _forgotten(self, reference: weakref.ref[Ear]) -> None:
        # The collector may call this in any thread, amid anything: no lock is taken here, and the line does the rest.
        line = self._line
        if line is not None:
            line.ring()
