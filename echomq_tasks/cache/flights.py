"""Flights: one load per key in a process, whoever asks for it, in threads and in the tasks of any event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Final

from echomq_tasks.cache.flight import Flight
from echomq_tasks.cache.frames import newer
from echomq_tasks.forks import after_fork

#: Frames that must be left for whoever joins a flight, so that he can leave it whatever happens.
_ROOM: Final = 12


def room(frames: int) -> None:
    """Return if so many frames are left of what Python allows.

    Raises:
      RecursionError: when they are not.
    """
    if frames:
        room(frames - 1)


class Flights:
    """The flights of one table; a fork starts with none."""

    def __init__(self) -> None:
        self._after_fork()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        # Reentrant, as the other one: the collector may end a flight amid anything.
        self._lock = threading.RLock()
        self._flights: dict[str, Flight] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def join(self, mine: Flight, *, anew: bool = False) -> Flight:
        """The flight that loads a row, which ``mine`` has joined: itself when its maker is the one to lead it.

        He has to :meth:`leave` it whatever happens, from here on: so it was made before.

        Parameters:
          mine: of the row. Two keys that share an id do not share a flight.
          anew: lead a new flight in any case; one that is on its way is detached.

        Raises:
          RecursionError: when there is no room left for what has to be done in the end.
        """
        room(_ROOM)
        lost: Flight | None = None
        with self._lock:
            flight = self._flights.get(mine.id)
            if flight is not None and flight.lost:
                lost = flight
                lost.detached, flight = True, None
            if flight is None or anew:
                if flight is not None:
                    flight.detached = True
                mine.home = self
                self._flights[mine.id] = mine
            elif flight.rest == mine.rest:
                mine.follow(flight)
            else:
                # Nobody finds it there, to tell it of a drop.
                mine.detached = True
        if lost is not None:
            lost.forsake()
        return mine.joined

    def leave(self, mine: Flight) -> None:
        """The maker of a flight leaves, whatever has become of it; to do it twice does no harm.

        When he led it, it is over. When he was the last who waited for it, the task that leads is cancelled.
        """
        flight = mine.joined
        task: asyncio.Task[Any] | None = None
        with self._lock:
            mine.unfollow()
            if not flight.waiters and not flight.done and not flight.wanted:
                task = flight.task
                # Who comes now must not join a flight that ends without a row, and a drop would not reach it there.
                if task is not None:
                    flight.detached = True
                    self._drop(flight)
        if flight is mine and not flight.handed:
            flight.close()
        elif task is not None and flight.loop is not None:
            try:
                flight.loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:
                flight.forsake()  # the loop is closed
        flight.forget()

    def end(self, flight: Flight) -> None:
        """A flight is over: nobody joins it any more."""
        with self._lock:
            self._drop(flight)

    def _drop(self, flight: Flight) -> None:
        if self._flights.get(flight.id) is flight:
            del self._flights[flight.id]

    def detach(self, id: str, version: str | None = None, *, but: Flight | None = None) -> None:
        """The row was dropped: who comes from now on joins no flight that began before.

        Parameters:
          id: the row.
          version: under which it was dropped; None detaches whatever flight there is.
          but: not this one.
        """
        with self._lock:
            flight = self._flights.get(id)
            if flight is not None and flight is not but:
                self._detach(flight, version)

    def detach_tag(self, tag: str, version: str | None = None) -> None:
        """As :meth:`detach`, of all rows with a tag."""
        with self._lock:
            for flight in list(self._flights.values()):
                if tag in flight.tags:
                    self._detach(flight, version)

    def detach_all(self) -> None:
        """All rows were dropped."""
        with self._lock:
            for flight in list(self._flights.values()):
                self._detach(flight, None)

    def _detach(self, flight: Flight, version: str | None) -> None:
        if version is not None and flight.version is not None and newer(flight.version, version):
            # Led after that, unless the server has forgotten the flight since.
            flight.doubted = True
            return
        flight.detached = True
        self._drop(flight)
