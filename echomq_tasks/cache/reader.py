"""How a caller comes to a value: from what is at hand, by leading a flight, or by following one."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from typing import Any

from echomq_tasks.cache.call import Call, Mode
from echomq_tasks.cache.drive import Drive, run
from echomq_tasks.cache.flight import Abandoned, Flight, Late
from echomq_tasks.cache.hands import NoHand
from echomq_tasks.cache.inside import is_inside, waiting_for
from echomq_tasks.cache.parts import Parts, Unreadable
from echomq_tasks.cache.pilot import Pilot
from echomq_tasks.cache.row import Row
from echomq_tasks.errors import LoadTimeout

_log = logging.getLogger(__name__)


class Reader:
    """Answers the calls of one table.

    Parameters:
      parts: the table's.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._pilot = Pilot(parts)

    def at_hand(self, id: str, rest: bytes) -> Row | None:
        """A row that may be given now, fresh or stale."""
        row = self._parts.l1.get(id)
        if row is None or row.suspect or row.rest != rest or time.monotonic() >= max(row.until, row.expires):
            return None
        return row

    def fetch(self, call: Call, drive: Drive) -> Any:
        """As :meth:`value`, in a thread: most calls that L1 cannot answer find their row on the server in one step."""
        parts = self._parts
        if parts.l1.get(call.id) is not None:
            return run(self.value(call, drive))
        mine = Flight(call.id, call.rest, call.marks)
        try:
            row = self._pilot.land(mine, call) if parts.flights.join(mine) is mine else None
            if row is None:
                return run(self.value(call, drive, mine))
            return run(self._serve_stale(row, call, drive)) if _is_stale(row) else mine.first.pop()
        finally:
            if not mine.landed:
                parts.flights.leave(mine)

    async def value(self, call: Call, drive: Drive, mine: Flight | None = None) -> Any:
        """The value that a call asks for.

        Parameters:
          call: what it asks for.
          drive: how it waits.
          mine: what has joined a flight for it, and is left by who made it.

        Raises:
          LoadTimeout: when somebody else did not load it in time.
          Exception: what the loader raised.
        """
        parts, flights = self._parts, self._parts.flights
        deadline = math.inf if parts.wait is None else time.monotonic() + parts.wait
        while True:
            row = self.at_hand(call.id, call.rest) if mine is None else None
            if row is not None:
                try:
                    return await self._serve(row, call, drive)
                except Unreadable as error:
                    parts.tell_once("a value cannot be read again, and is loaded anew: %s", error)
                    parts.l1.kill(call.id)
            fresh, mine = mine is None, mine or Flight(call.id, call.rest, call.marks)
            try:
                flight = flights.join(mine) if fresh else mine.joined
                if flight is not mine:
                    return await self._follow(flight, call, drive, deadline)
                if drive.blocks:
                    await self._pilot.fly(mine, call, "read", drive)
                elif await self._pilot.aland(mine, call, drive) is None:
                    await self._lead(mine, call, drive)
                row = mine.result()
                if _is_stale(row):
                    return await self._serve_stale(row, call, drive)
                return mine.first.pop() if mine.first else parts.value(row)
            except Abandoned:
                pass
            except Unreadable as error:
                parts.tell_once("a value cannot be read again, and is loaded anew: %s", error)
                return await self._direct(call, drive)
            finally:
                # Whatever was thrown into this thread, and wherever: who led is not followed any more.
                flights.leave(mine)
            mine = None

    async def _lead(self, flight: Flight, call: Call, drive: Drive) -> None:
        await drive.lead(flight, lambda drive: self._pilot.fly(flight, call, "read", drive))

    async def refresh(self, call: Call, drive: Drive) -> tuple[Row, Any]:
        """Load a row anew, whatever there is, in a load that begins now; answers the value too.

        Raises: what the loader raised.
        """
        flights, flight = self._parts.flights, Flight(call.id, call.rest, call.marks)
        try:
            flights.join(flight, anew=True)
            await drive.lead(flight, lambda drive: self._pilot.fly(flight, call, "refresh", drive))
            return flight.result(), flight.first.pop()
        finally:
            flights.leave(flight)

    async def _serve(self, row: Row, call: Call, drive: Drive) -> Any:
        parts, now = self._parts, time.monotonic()
        if now < row.until:
            row.hits += 1
            if now >= row.early and parts.l1.postpone(row):
                await self._behind(call, "ahead", row, drive)
            return parts.value(row)
        return await self._serve_stale(row, call, drive)

    async def _serve_stale(self, row: Row, call: Call, drive: Drive) -> Any:
        parts = self._parts
        if time.monotonic() >= row.retry_at:
            fresh = await self._behind(call, "stale", row, drive, parts.freshness.soft)
            if fresh is not None:
                with contextlib.suppress(Unreadable):
                    return parts.value(fresh)
        parts.counters.add("stale", call.id)
        return parts.value(row)

    async def _follow(self, flight: Flight, call: Call, drive: Drive, deadline: float) -> Any:
        parts = self._parts
        if flight.lost:
            raise Abandoned
        if drive.can_follow(flight):
            with waiting_for(flight) as free:
                row = await self._row_of(flight, drive, deadline) if free else None
                if row is not None:
                    parts.counters.add("coalesced", call.id)
                    return await self._serve_stale(row, call, drive) if _is_stale(row) else parts.value(row)
        # The flight waits, in the end, for this call, or may: to wait for it would take for ever.
        return await self._direct(call, drive)

    async def _row_of(self, flight: Flight, drive: Drive, deadline: float) -> Row | None:
        """The row of a flight; None when it may wait, by way of other processes, for the loader that asks for it."""
        lease = self._parts.lease if is_inside() else math.inf
        while True:
            left = max(min(deadline - time.monotonic(), lease), 0.0)
            try:
                return await drive.follow(flight, None if left == math.inf else left)
            except Late:
                if flight.abroad and lease < math.inf:
                    return None
                if time.monotonic() >= deadline:
                    raise self._late() from None

    def _late(self) -> LoadTimeout:
        return LoadTimeout(
            f"another caller has not loaded the value within {self._parts.wait:g} seconds, the wait= of the cache "
            f"table {self._parts.name}: raise it, or limit the loader with loader_timeout="
        )

    async def _direct(self, call: Call, drive: Drive) -> Any:
        """Load a value that is kept nowhere."""
        parts = self._parts
        parts.counters.add("loads", call.id)
        try:
            parts.hanging.check(call.id, call.rest)
            return await drive.load(
                call.loader, parts.freshness.hard, lambda load: parts.hanging.leave(call.id, call.rest, load)
            )
        except Exception:
            parts.counters.add("errors", call.id)
            raise

    # In the background.

    async def _behind(self, call: Call, mode: Mode, row: Row, drive: Drive, soft: float | None = None) -> Row | None:
        """Load a row anew in the background, unless somebody does; with ``soft`` the new one, if it comes in time."""
        flights, mine = self._parts.flights, Flight(call.id, call.rest, call.marks)
        try:
            flight = flights.join(mine)
            if flight is mine:
                with flight.handed_over(wanted=True):
                    drive.spawn(flight, lambda drive: self._refreshed(flight, call, mode, row, drive))
            if soft is not None and drive.can_follow(flight):
                # Whatever goes wrong with it, there is a value.
                with contextlib.suppress(Exception), waiting_for(flight) as free:
                    if free:
                        return await drive.follow(flight, soft)
        except NoHand:
            pass  # the row is as good as it was
        finally:
            flights.leave(mine)
        return None

    async def _refreshed(self, flight: Flight, call: Call, mode: Mode, row: Row, drive: Drive) -> None:
        try:
            await self._pilot.fly(flight, call, mode, drive)
        finally:
            error = flight.cause if isinstance(flight.error, Abandoned) else flight.error
            flight.wanted = False
            flight.close()
            if isinstance(error, Exception) and not isinstance(error, Abandoned):
                self._failed(row, error)

    def _failed(self, row: Row, error: Exception) -> None:
        parts = self._parts
        row.failures += 1
        pause = parts.freshness.pause(row.failures)
        row.retry_at = time.monotonic() + pause
        if row.failures == 1:
            _log.warning(
                "A value of the cache table %s could not be refreshed; the old one serves as long as it may: %r",
                parts.name, error,
            )  # fmt: skip


def _is_stale(row: Row) -> bool:
    """Whether a row that has just come is stale already. One that is gone already was good for this call."""
    return row.until <= time.monotonic() < row.expires
