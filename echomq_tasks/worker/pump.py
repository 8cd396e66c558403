"""The pump: the one thread of a worker that claims, settles and parks."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, cast

from dramatiq.logging import get_logger

from echomq_tasks.brokers.dramatiq.batches import Batch, deliveries
from echomq_tasks.brokers.dramatiq.delivery import Delivery
from echomq_tasks.errors import EchoMQError
from echomq_tasks.queue import Release
from echomq_tasks.worker.asking import Asking
from echomq_tasks.worker.due import start_due_batches
from echomq_tasks.worker.ends import Ends, settlements
from echomq_tasks.worker.giving import Giving
from echomq_tasks.worker.line import Line
from echomq_tasks.worker.lookout import Lookout
from echomq_tasks.worker.outage import Outage
from echomq_tasks.worker.places import FreePlaces
from echomq_tasks.worker.rounds import Rounds
from echomq_tasks.worker.taking import Taking
from echomq_tasks.worker.tender import Tender
from echomq_tasks.worker.verdicts import Awaited

if TYPE_CHECKING:
    from echomq_tasks.brokers.dramatiq.broker import EchoMQBroker


class Pump(threading.Thread):
    """Runs until it is told to end; see :mod:`echomq_tasks.worker`.

    Nothing but the pump touches the lines, the places and the connections it parks on. Other threads give it ends
    (:meth:`end`) and orders (:meth:`order`).

    Parameters:
      broker: whose queues.
      pools: for how many jobs there is room, and who runs them.
    """

    def __init__(self, broker: EchoMQBroker, pools: Sequence[FreePlaces]) -> None:
        super().__init__(daemon=True, name="echomq-pump")
        self.logger = get_logger(__name__, type(self))
        self.broker = broker
        self.lines: dict[str, Line] = {}
        #: Whether it claims.
        self.claiming = True
        #: True when it sleeps, and nothing is in hand and nothing is still to be told.
        self.quiet = False
        #: What was thrown into this thread and ends it: only a hook that exits does that. It claims no more.
        self.broken: BaseException | None = None
        #: Called then, in this thread.
        self.on_broken: Callable[[], None] = lambda: None
        self._pools = tuple(pools)
        self._ended: deque[Delivery | Batch] = deque()
        self._orders: deque[Callable[[], None]] = deque()
        self._lookout = Lookout(lambda: broker.connection)
        # How many ends are worth waking the pump for: infinite while it is awake.
        self._wake_at: float = math.inf
        self._outage = Outage(self.logger, "Talking to the server")
        self._tender = Tender(lambda: list(self.lines.values()), self._look_again)
        # Queues that are to be served once there is a connection.
        self._wanted: deque[Line] = deque()
        self._asking = Asking(self._pools)
        self._ends = Ends(broker, self.logger)
        #: What gives jobs back; in this thread, as by :meth:`order`.
        self.giving = Giving(broker, self._pools, lambda: self.lines)
        taking = Taking(broker, self._pools, self.giving.release, self._tender.ask)
        self._rounds = Rounds(broker, self._lookout, self._ends, taking, self._outage)
        self._finishing = False
        self._finishing_since = math.inf
        self._end_by = math.inf

    # -- what other threads call ----------------------------------------------------------------------------------

    def end(self, work: Delivery | Batch, waits: bool) -> None:
        """Take a delivery whose run has ended; ``waits`` when its thread waits for the verdict."""
        self._ended.append(work)
        if len(self._ended) >= self._wake_at or (waits and self._wake_at < math.inf):
            self._lookout.bell.ring_once()

    def order(self, what: Callable[[], None]) -> None:
        """Have the pump do this soon, in its thread."""
        self._orders.append(what)
        self._lookout.bell.ring()

    def serve(self, line: Line) -> None:
        """Serve this queue, too."""
        self.order(lambda: self._wanted.append(line))

    def finish(self) -> None:
        """Claim no more, and end once all that was claimed has ended and is told; join it then."""

        self.order(self._finish)

    def _finish(self) -> None:
        self.claiming = False
        if not self._finishing:
            self._finishing = True
            self._finishing_since = time.monotonic()

    def hurry(self, deadline: float) -> None:
        """End at this monotonic second, whatever is still to be told by then."""

        def do() -> None:
            self._end_by = deadline

        self.order(do)

    @property
    def untold(self) -> int:
        """How many jobs ran, or run, of whose end the server does not know, nor that they were given back."""
        runs = [*self._ended.copy(), *(run for line in self.lines.values() for run in line.unsettled.copy())]
        runs += [work for pool in self._pools for work in pool.team.running]
        refused = [end for line in self.lines.values() for end in line.refused.copy()]
        for end in self._rounds.ends:
            if isinstance(end, Delivery):
                runs.append(end)
            else:
                refused.append(end)
        untold = {id(run) for run in deliveries(runs) if not isinstance(run.outcome, Release)}
        untold |= {id(end) for end in refused if not isinstance(end, Release)}
        return len(untold)

    def _look_again(self, line: Line) -> None:
        def do() -> None:
            line.look_at = 0.0

        self.order(do)

    # -- the loop -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until :meth:`finish`."""
        self._tender.start()
        try:
            while not self._is_finished():
                try:
                    self._step()
                except Exception as error:
                    # Whatever it is: jobs wait, and others are to be told of.
                    self.logger.critical("The worker's pump failed; it goes on.", exc_info=True)
                    self._outage.begin(error)
                except BaseException as error:
                    self._break(error)
        finally:
            self._tender.stop()
            for line in self.lines.values():
                try:
                    self.broker.emit_before("consumer_thread_shutdown", line)
                except BaseException as error:
                    self._break(error)
            try:
                self._leave()
            except Exception:
                self.logger.exception("The worker leaves its place at the server unasked.")
            self._rounds.close()
            self._lookout.close()
            for pool in self._pools:
                pool.team.close()
            self._tender.join()

    def break_off(self, error: BaseException) -> None:
        """Claim no more, as when a hook exits in the pump itself."""
        self.order(lambda: self._break(error))

    def _break(self, error: BaseException) -> None:
        """Somebody wants this thread to exit: not before what runs has ended and is told."""
        self.logger.critical(
            "%s in a hook ends the worker: no more jobs are claimed, and what runs is the last.", type(error).__name__,
            exc_info=error,
        )  # fmt: skip
        if self.broken is not None:
            self._outage.begin(error)
            return
        self.broken = error
        self._finish()
        self._orders.append(self.giving.give_back)
        self.on_broken()

    def _is_finished(self) -> bool:
        if not self._finishing or self._orders:
            return False
        self._collect()
        return self._is_idle() or self._is_vain() or time.monotonic() >= self._end_by

    def _has_work(self) -> bool:
        return bool(self._rounds) or any(pool.free < pool.capacity for pool in self._pools)

    def _is_idle(self) -> bool:
        return not self._has_work() and not any(line.owes for line in self.lines.values())

    def _is_vain(self) -> bool:
        """Whether all that is left is to give back what comes back by itself, and the server does not take that."""
        if self._has_work():
            return False
        owing = [line for line in self.lines.values() if line.owes]
        if any(max(line.outage.failed_at, self._outage.failed_at) < self._finishing_since for line in owing):
            return False
        ends = [end for line in owing for end in settlements([*line.unsettled, *line.refused])]
        if not all(isinstance(end, Release) for end in ends):
            return False
        self.logger.warning("%d jobs could not be given back: they run when their leases end.", len(ends))
        return True

    def _step(self) -> None:
        if self._orders:
            # What is claimed before it is what it is about.
            self._rounds.land_all(claiming=self.claiming)
            # One may be to end, so that is looked at next.
            self._orders.popleft()()
            return
        if self._rounds.land(claiming=self.claiming) and self._finishing:
            # That may have been all.
            return
        if self._wanted and not self._finishing:
            self._open()
        self._collect()
        now = time.monotonic()
        start_due_batches(self.lines.values(), self._pools, now, claiming=self.claiming)
        if self._outage.until <= now and not self._rounds.full:
            asked = self._asking.asks(self.lines.values(), now, claiming=self.claiming)
            if asked:
                if self._rounds.begin(asked, claiming=self.claiming):
                    self._asking.told()
                return
        self._sleep()

    def _open(self) -> None:
        """Begin to serve queues that are wanted, if the server is there."""
        if self._outage.until > time.monotonic():
            return
        while self._wanted:
            line = self._wanted[0]
            if line.queue_name not in self.lines:
                try:
                    line.open()
                except EchoMQError as error:
                    self._outage.begin(error)
                    return
                self.lines = {**self.lines, line.queue_name: line}
                if line.apart:
                    self._rounds.most = len(self.lines)
                self.broker.emit_after("consumer_thread_boot", line)
                self._tender.ask()
            self._wanted.popleft()

    def _collect(self) -> None:
        """Take what has ended off the crew's hands; its places are free."""
        if not self._ended:
            return
        now = time.monotonic()
        while self._ended:
            work = self._ended.popleft()
            if work.collected:
                # It comes twice when an exception was thrown into its thread, or it has kept its place until now.
                work.give_slot()
                continue
            work.collected = True
            if (places := work.places) is not None:
                cast("FreePlaces", places).took(now - work.claimed_at)
            if work.awaited is None:
                work.give_slot()
            elif work.awaited.holds_thread:
                self._asking.urgent = True
            if isinstance(work, Batch):
                for member in work.unsettled():
                    if not member.collected:
                        member.collected = True
                        self._take_end(member, work.awaited)
            elif work.awaited is None and work.outcome is not None and not work.settled:
                self.lines[work.queue.name].unsettled.append(work)
            else:
                self._take_end(work, work.awaited)

    def _take_end(self, run: Delivery, awaited: Awaited | None) -> None:
        if run.settled:
            # Given up meanwhile.
            if awaited is not None:
                awaited.arrive()
        elif run.outcome is None:
            self._ends.done(run, None, awaited)
        else:
            run.awaited = awaited
            self.lines[run.queue.name].unsettled.append(run)

    # -- sleeping -------------------------------------------------------------------------------------------------

    def _sleep(self) -> None:
        self.giving.rescue()
        now = time.monotonic()
        until = self._wait_until(now)
        # An answer that is about to come says where there is room. What another queue gets meanwhile is found by a look
        # (asking.UNSEEN).
        if not self._rounds.prompt:
            self._park(now)
            if self._lookout.stand_at > now:
                until = min(until, self._lookout.stand_at)
            if self._outage.until > now:
                until = min(until, self._outage.until)
        if self._orders:
            return
        self.quiet = not self._ended and self._is_idle()
        need = 1
        patient = self._asking.is_patient(self.lines.values(), now, claiming=self.claiming)
        if patient:
            need = max(min(line.half - line.room for line in self.lines.values() if line.is_busy), 1)
        if self._outage.until > now or self._rounds.full:
            # What ends now cannot be told.
            self._wake_at = math.inf
        else:
            self._lookout.bell.arm()
            self._wake_at = need
            if len(self._ended) >= need:
                self._wake_at = math.inf
                return
        if patient:
            # Fewer than that may be all that end for long.
            until = min(until, self._asking.tell_by)
        stood_at = self._lookout.at
        looks = self._lookout.sleep(until, self.lines)
        self._wake_at = math.inf
        now = time.monotonic()
        for name in stood_at:
            self.lines[name].seen_at = now
        self.quiet = False
        for name in looks:
            if name in self.lines:
                self.lines[name].call()

    def _wait_until(self, now: float) -> float:
        """The monotonic second at which there is something to do by the clock."""
        until = min(now + 60.0, self._end_by)
        if self._rounds:
            until = min(until, self._rounds.overdue_at)
        if self._rounds.full:
            return until
        if self._outage.until > now:
            return min(self._outage.until, until)
        # While it is patient, what is due waits until then, and what has ended in any case.
        patient = self._asking.is_patient(self.lines.values(), now, claiming=self.claiming)
        floor = self._asking.tell_by if patient else 0.0
        held = self._asking.held(self.lines.values())
        for line in self.lines.values():
            if line.apart and line.under_way:
                until = min(until, line.gathering.due)
                continue
            if line.outage.until > now:
                until = min(until, line.outage.until)
                continue
            until = min(until, line.gathering.due)
            if line.has_ends:
                until = min(until, floor)
            if self.claiming and line.may_claim and line.wants(max(line.room - held, 0)):
                until = min(until, max(line.look_at, floor))
        return until

    def _park(self, now: float) -> None:
        """Stand at the wake keys of the queues for whose jobs there is room, and nowhere else."""
        # Nor at those that failed, which are asked again by the clock: the node of one may be away, the others there.
        fit = [name for name, line in self.lines.items() if line.room and not line.is_away]
        roomy = fit if self.claiming else []
        if not roomy:
            self._leave()
            return
        if len(roomy) < len(self.lines):
            self._pass_on_looks(roomy)
        if self._outage.until > now or any(line.is_busy for line in self.lines.values()):
            if not self._lookout.stands_among(roomy):
                self._lookout.leave()
            return
        try:
            self._lookout.stand(roomy)
        except EchoMQError as error:
            self._outage.begin(error)

    def _leave(self) -> None:
        self._lookout.leave()
        self._pass_on_looks(())

    def _pass_on_looks(self, roomy: Collection[str]) -> None:
        for name, line in self.lines.items():
            if line.owes_look and name not in roomy:
                # Others rely on this worker to look, which has no room.
                line.owes_look = False
                self._lookout.pass_on(name)
