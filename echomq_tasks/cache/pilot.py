"""What the leader of a flight does: look again in both layers, follow another process, or load."""

from __future__ import annotations

import contextlib
import math
import time
from concurrent.futures import Future
from typing import Any, Final

from echomq_tasks.cache.call import Call, Mode
from echomq_tasks.cache.claims import Follow, Hit, Lead
from echomq_tasks.cache.drive import Drive, Stopped
from echomq_tasks.cache.failures import pack, unpack
from echomq_tasks.cache.flight import Abandoned, Flight
from echomq_tasks.cache.flights import room
from echomq_tasks.cache.freshness import Times
from echomq_tasks.cache.inside import inside, is_inside, leads
from echomq_tasks.cache.owners import OWNERS
from echomq_tasks.cache.parts import Parts, Unreadable
from echomq_tasks.cache.reach import Away, Reach, Unanswered
from echomq_tasks.cache.row import OVERHEAD, Row
from echomq_tasks.cache.store import ALWAYS, Store
from echomq_tasks.cache.versions import VERSIONS
from echomq_tasks.cache.weighing import weight
from echomq_tasks.errors import InvalidArgument, JobCancelled, LoadTimeout, Unencodable

#: Seconds past the end of a lease after which it is claimed.
_GRACE: Final = 0.01
#: Frames that must be left for who asks the server: its client does not survive it when there are none.
_ROOM: Final = 32
#: Of a value that no layer keeps.
_NEVER: Final = Times(math.inf, math.inf, math.inf)
#: What the followers of a flight whose value is not kept are told: to load by themselves, all at once.
_ALONE: Final = b"alone"


class Pilot:
    """Flies the flights of one table.

    Parameters:
      parts: the table's.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._lease_ms = max(int(parts.lease * 1000), 1)

    async def fly(self, flight: Flight, call: Call, mode: Mode, drive: Drive) -> None:
        """Lead a flight to its end, which is then told to all who wait for it.

        Raises:
          BaseException: what ended the leader and is no failure of the load, such as its cancellation. Who waits then
            asks again.
        """
        flights = self._parts.flights
        try:
            row = await self._row(flight, call, mode, drive)
        except _Mine as error:
            flights.end(flight)
            flight.abandon(error.cause)
            raise error.cause from None
        except Exception as error:
            flights.end(flight)
            # A job that is asked to stop says nothing of the value.
            if isinstance(error, JobCancelled):
                flight.abandon(error)
                raise
            flight.fail(error)
        except BaseException as error:
            flights.end(flight)
            flight.abandon(error)
            raise
        else:
            flights.end(flight)
            flight.land(row)

    def land(self, flight: Flight, call: Call) -> Row | None:
        """Land a flight at once if the server likely has its row, and has: the short way of most calls that L1 cannot
        answer. It blocks; when it answers None, :meth:`fly`.

        Raises:
          BaseException: as :meth:`fly`.
        """
        reach = self._short(flight, call)
        if reach is None:
            return None
        try:
            hit = reach.ask(lambda store: store.look(call.id, call.marks))
            return None if hit is None else self._landed(flight, call, hit)
        except Away:
            return None
        except BaseException as error:
            self._parts.flights.end(flight)
            flight.abandon(error)
            raise

    async def aland(self, flight: Flight, call: Call, drive: Drive) -> Row | None:
        """As :meth:`land`, for a task. Who waits for the flight asks again when that is cancelled."""
        reach = self._short(flight, call)
        if reach is None:
            return None
        # A thread that runs this loop must not wait for it.
        flight.loop = drive.loop
        try:
            hit = await reach.look(call.id, call.marks, drive.ask)
            return None if hit is None else self._landed(flight, call, hit)
        except Away:
            return None
        except BaseException as error:
            self._parts.flights.end(flight)
            flight.abandon(error)
            raise

    def _short(self, flight: Flight, call: Call) -> Reach | None:
        """Where to look for the row first of all; None when there is a longer way to go."""
        parts = self._parts
        reach, l1 = parts.reach, parts.l1
        if reach is None or not reach.listening or reach.shut or l1.get(call.id) is not None:
            return None
        flight.epoch = l1.epoch
        return reach

    def _landed(self, flight: Flight, call: Call, hit: Hit) -> Row | None:
        found = self._found(flight, call, hit)
        if found is not None:
            parts = self._parts
            parts.counters.add("l2_hits", call.id)
            self._keep(flight, found)
            parts.flights.end(flight)
            flight.land(found)
        return found

    # Where the row comes from.

    async def _row(self, flight: Flight, call: Call, mode: Mode, drive: Drive) -> Row:
        parts = self._parts
        row = flight.over = parts.l1.get(call.id)
        if row is not None and row.rest != call.rest:
            row = None
        if mode == "read" and row is not None and not row.suspect and time.monotonic() < row.until:
            # Loaded since the caller looked.
            row.hits += 1
            return row
        reach = parts.reach
        if reach is not None and not reach.shut:
            room(_ROOM)
            try:
                if not reach.listening:
                    await drive.ask(reach.listen)
                if mode == "read" and row is not None and row.suspect and await self._stands(row, call, drive):
                    row.hits += 1
                    return row
                return await self._claimed(flight, call, mode, row, drive)
            except Away:
                pass
        if reach is not None:
            parts.counters.add("skipped", call.id)
        if mode == "read" and row is not None and not row.doubt and time.monotonic() < max(row.until, row.expires):
            # It could not be checked, and is better than none: that there is something newer nobody has heard.
            row.hits += 1
            return row
        flight.epoch = parts.l1.epoch
        return await self._load(flight, call, mode, drive, self._mint(row))

    async def _stands(self, row: Row, call: Call, drive: Drive) -> bool:
        """Check a suspect row against the server; when it is still the one there, it is as good as before."""
        if not row.anchored or time.monotonic() >= max(row.until, row.expires):
            return False
        parts, reach = self._parts, self._parts.reach
        assert reach is not None
        epoch, doubt = parts.l1.epoch, row.doubt
        version = await drive.ask(lambda: reach.ask(lambda store: store.version(call.id, call.tags)))
        return version == row.version and parts.l1.trust(row, epoch, doubt)

    async def _claimed(self, flight: Flight, call: Call, mode: Mode, row: Row | None, drive: Drive) -> Row:
        parts, reach = self._parts, self._parts.reach
        assert reach is not None
        owner = OWNERS.next()
        least_ms = self._least_ms(mode, row)
        # Who is waited for here may wait, in the end, for whoever waits for this: no process sees the whole circle.
        nested = is_inside()
        patience = min(parts.lease, math.inf if parts.wait is None else parts.wait) if nested else parts.wait
        deadline = math.inf if patience is None else time.monotonic() + patience
        followed = False
        waiter = parts.wakes.expect(call.id)
        try:
            while True:
                waiter.forget()
                flight.epoch = parts.l1.epoch
                answer = await self._claim(call, owner, least_ms, drive)
                if isinstance(answer, Hit):
                    found = self._found(flight, call, answer)
                    if found is None:
                        least_ms = ALWAYS
                        continue
                    parts.counters.add("coalesced" if followed else "l2_hits", call.id)
                    self._keep(flight, found)
                    return found
                if isinstance(answer, Lead):
                    return await self._load(flight, call, mode, drive, answer.version, owner)
                if mode == "ahead":
                    raise _Mine(Abandoned())
                if mode == "refresh":
                    # The other load may have begun before whatever our caller knows of: what it brings is old.
                    await drive.ask(lambda: reach.ask(lambda store: store.drop(call.id)))
                    continue
                if leads(answer.owner):
                    # A function that shares the row, and whose loader has called this one, would wait for itself.
                    flight.detached = True
                    return await self._load(flight, call, mode, drive, self._mint(row))
                followed = flight.abroad = True
                left = deadline - time.monotonic()
                if left <= 0 and nested:
                    return await self._load(flight, call, mode, drive, self._mint(row))
                if left <= 0:
                    raise _Mine(self._late())
                await drive.wait(waiter.woken, min(answer.pttl_ms / 1000 + _GRACE, left))
                wake = waiter.of(answer.owner)
                if wake is not None and wake.what == "failed":
                    parts.counters.add("coalesced", call.id)
                    error = unpack(wake.payload)
                    raise Stopped(error) if isinstance(error, StopIteration) else error
                if wake is not None and wake.what == "released" and wake.payload:
                    # It has loaded what the server does not keep; to load it one after the other would take for ever.
                    return await self._load(flight, call, mode, drive, self._mint(row))
        finally:
            parts.wakes.done(call.id, waiter)

    async def _claim(self, call: Call, owner: str, least_ms: int, drive: Drive) -> Hit | Lead | Follow:
        reach = self._parts.reach
        assert reach is not None

        def claim(store: Store) -> Hit | Lead | Follow:
            return store.claim(call.id, owner, self._lease_ms, call.tags, least_ms=least_ms)

        try:
            return await drive.ask(lambda: reach.ask(claim))
        except BaseException as error:
            # Whatever the server answers to nobody must not stand until its lease ends.
            if isinstance(error, Unanswered) or not isinstance(error, Away):
                drive.give_up(lambda: self._release(call.id, owner))
            raise

    def _mint(self, row: Row | None) -> str:
        return VERSIONS.mint(self._parts.kind, None if row is None else row.version)

    def _least_ms(self, mode: Mode, row: Row | None) -> int:
        if mode == "refresh":
            return ALWAYS
        if mode == "stale":
            return self._parts.freshness.fresh_ms
        if mode == "ahead" and row is not None:
            return self._parts.freshness.newer_ms(row.expires, time.monotonic())
        return 0

    def _late(self) -> LoadTimeout:
        return LoadTimeout(
            f"another process has not loaded the value within {self._parts.wait:g} seconds, the wait= of the cache "
            f"table {self._parts.name}: raise it, or limit the loader with loader_timeout="
        )

    def _found(self, flight: Flight, call: Call, hit: Hit) -> Row | None:
        """The row on the server; None when it is another call's, or none that this code can read."""
        parts, size = self._parts, len(call.rest)
        if hit.value[:size] != call.rest:
            return None
        payload = hit.value[size:]
        try:
            value = parts.decoded(call.id, call.rest, payload)
        except Unreadable as error:
            parts.tell_once("a row on the server cannot be read, and is loaded anew: %s", error)
            return None
        times = parts.freshness.found(hit.pttl_ms / 1000, call.ttl, time.monotonic())
        return self._made(flight, call, hit.version, value, payload, times)

    def _made(
        self,
        flight: Flight,
        call: Call,
        version: str,
        value: Any,
        payload: bytes | None,
        times: Times,
        *,
        anchored: bool = True,
    ) -> Row:
        # The leader's own; who follows gets another one of a value that can be changed.
        flight.first.append(value)
        shared = payload is None or self._parts.shared(value)
        size = OVERHEAD + (weight(value) if shared else len(payload or b""))
        early, until, expires = times
        return Row(
            call.id, call.rest, version, value if shared else None, None if shared else payload,
            size=size, early=early, until=until, expires=expires, tags=call.marks, anchored=anchored,
        )  # fmt: skip

    # Loading.

    async def _load(
        self,
        flight: Flight,
        call: Call,
        mode: Mode,
        drive: Drive,
        version: str,
        owner: str | None = None,
    ) -> Row:
        """Load the row under ``version``, and give it to both layers.

        Parameters:
          owner: of the flight on the server, which is led under a lease; None when the row is not to be stored there.
        """
        parts = self._parts
        # A version of our own stands in no order with what is heard: any news of the row ends a flight without a lease.
        anchored = owner is not None or parts.reach is None
        flight.version = version if anchored else None
        flight.owner, flight.abroad = owner, False
        hard = parts.freshness.hard
        try:
            parts.hanging.check(call.id, call.rest)
        except LoadTimeout:
            if owner is not None and flight.mine:
                # Other processes may well be able to load it.
                drive.give_up(lambda: self._release(call.id, owner))
            raise

        def leave(load: Future[Any]) -> None:
            parts.hanging.leave(call.id, call.rest, load)

        try:
            parts.counters.add("loads", call.id)
            with inside(flight), self._held(flight, call, owner):
                # At once where that is the same: each frame less lets recursive functions go deeper.
                value = call.loader() if drive.blocks and hard is None else await drive.load(call.loader, hard, leave)
            ttl = parts.freshness.ttl_of(value, call.ttl)
            payload = self._encoded(call, value)
        except StopIteration as error:
            await self._failed(flight, call, owner, error, drive)
            raise Stopped(error) from error
        except Exception as error:
            if not isinstance(error, JobCancelled):
                await self._failed(flight, call, owner, error.error if isinstance(error, Stopped) else error, drive)
                raise
            if owner is not None and flight.mine:
                drive.give_up(lambda: self._release(call.id, owner))
            raise
        except BaseException:
            if owner is not None and flight.mine:
                drive.give_up(lambda: self._release(call.id, owner))
            raise
        try:
            keep = payload is not None and ttl > 0
            times = parts.freshness.loaded(ttl, time.monotonic()) if keep else _NEVER
            row = self._made(flight, call, version, value, payload, times, anchored=anchored)
            # In the child of a fork that the loader made, the flight is its parent's.
            if flight.mine and owner is not None:
                if not keep:
                    await self._let_go(call, owner, drive)
                elif not await self._fill(call, owner, row, call.rest + (payload or b""), ttl, mode, drive):
                    flight.detached = True
            if flight.mine and mode == "refresh":
                self._supersede(flight, call, row, led=owner is not None)
            if flight.mine and keep:
                self._keep(flight, row)
        except BaseException:
            # Whatever it was, nobody is to wait for the end of the lease.
            if owner is not None and flight.mine:
                drive.give_up(lambda: self._release(call.id, owner))
            raise
        return row

    def _supersede(self, flight: Flight, call: Call, row: Row, *, led: bool) -> None:
        """A row was loaded anew: who comes now finds nothing that is older."""
        parts = self._parts
        if not led and parts.reach is not None:
            # Nobody else has heard of it: let them find out that what they have is old.
            parts.reach.owed.row(call.id, row.version)
        # Who comes now knows of the new value, and neither joins who has read the old one meanwhile, nor finds what
        # that one has left here.
        parts.flights.detach(call.id, row.version if row.anchored else None, but=flight)
        if not row.anchored:
            # What that one has left may say of itself to be newer, or news of before may have ended this flight.
            parts.l1.kill(call.id)

    def _keep(self, flight: Flight, row: Row) -> None:
        def old() -> bool:
            if flight.doubted:
                row.doubt = object()
            return flight.detached

        self._parts.l1.put(row, flight.epoch, over=flight.over, unless=old)

    def _held(self, flight: Flight, call: Call, owner: str | None) -> contextlib.AbstractContextManager[None]:
        reach = self._parts.reach
        if owner is None or reach is None:
            return contextlib.nullcontext()

        def renew() -> bool:
            if flight.done or flight.lost:
                # Nobody loads it any more, or not for now: others may.
                return flight.lost
            with contextlib.suppress(Away):
                return reach.ask(lambda store: store.renew(call.id, owner, self._lease_ms))
            # It may be back before the lease ends.
            return True

        return reach.shared.leases.held(self._parts.lease, renew)

    def _encoded(self, call: Call, value: Any) -> bytes | None:
        try:
            return self._parts.encoded(call.id, call.rest, value)
        except Unencodable as error:
            self._parts.tell_once("a value is not kept, and is loaded each time: %s", error)
            return None

    async def _fill(self, call: Call, owner: str, row: Row, frame: bytes, ttl: float, mode: Mode, drive: Drive) -> bool:
        """Store a row on the server; False when what it loaded was dropped meanwhile, True also when it is away."""
        parts, reach = self._parts, self._parts.reach
        assert reach is not None
        kept_ms = parts.freshness.kept_ms(ttl)
        announce = mode == "refresh"
        try:
            stored = await drive.ask(
                lambda: reach.ask(
                    lambda store: store.fill(
                        call.id, owner, row.version, frame, kept_ms, call.tags, announce=announce, led=True
                    )
                )
            )
        except Away:
            # It may not know of this row when the next version is given.
            row.anchored = False
            if announce:
                # Nor may anybody else.
                reach.owed.row(call.id, row.version)
            return True
        except InvalidArgument as error:
            parts.tell_once("a value is not kept on the server: %s", error)
            row.anchored = False
            await self._let_go(call, owner, drive)
            if announce:
                reach.owed.row(call.id, row.version)
            return True
        if stored:
            reach.stored()
        return stored

    # The ends of a flight that stores nothing.

    async def _failed(self, flight: Flight, call: Call, owner: str | None, error: Exception, drive: Drive) -> None:
        parts, reach = self._parts, self._parts.reach
        parts.counters.add("errors", call.id)
        if owner is None or reach is None or not flight.mine:
            return
        payload = pack(error)
        with contextlib.suppress(Away):
            await drive.ask(lambda: reach.ask(lambda store: store.fail(call.id, owner, payload)))

    async def _let_go(self, call: Call, owner: str, drive: Drive) -> None:
        reach = self._parts.reach
        assert reach is not None
        with contextlib.suppress(Away):
            await drive.ask(lambda: reach.ask(lambda store: store.release(call.id, owner, _ALONE)))

    def _release(self, id: str, owner: str) -> None:
        reach = self._parts.reach
        assert reach is not None
        with contextlib.suppress(Away):
            reach.ask(lambda store: store.release(id, owner))


class _Mine(Exception):
    """What ends the leader alone: its own patience, not the load."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause
