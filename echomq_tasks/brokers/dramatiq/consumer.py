"""The consumer: claims what its worker can start, parks when there is nothing, settles what is done."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dramatiq import Consumer, MessageProxy
from dramatiq.errors import ConnectionClosed
from dramatiq.logging import get_logger

from echomq_tasks.brokers.dramatiq.batch_end import settle_batch
from echomq_tasks.brokers.dramatiq.batches import MAX_BATCH, Batch, Member, deliveries
from echomq_tasks.brokers.dramatiq.delivery import Delivery, lease_end
from echomq_tasks.brokers.dramatiq.hearing import hear
from echomq_tasks.brokers.dramatiq.intake import Intake, Room
from echomq_tasks.brokers.dramatiq.slots import Slots
from echomq_tasks.brokers.dramatiq.tending import Tending
from echomq_tasks.brokers.dramatiq.transport import settling, transport
from echomq_tasks.errors import EchoMQError, ServerUnavailable
from echomq_tasks.queue import Claimed, Queue, Release, Retry, Settlement, Verdict
from echomq_tasks.queue.breaks import Breaks

if TYPE_CHECKING:
    from echomq_tasks.brokers.dramatiq.broker import EchoMQBroker

#: Seconds between two looks at a queue that is quiet; a wake token or a due job ends the wait at once.
_BEAT = 5.0
#: Seconds for which a free thread may wait for others to be free too, while short jobs queue up ...
_PATIENCE = 0.001
#: ... short being this many seconds from claim to end, on average: a thread's wait would be felt by longer ones.
_SHORT = 0.003
#: The most jobs in one claim.
_MOST = 64


class EchoMQConsumer(Consumer):
    """Iterates over the deliveries of one queue; made by :meth:`EchoMQBroker.consume`, used by one thread.

    ``ack``, ``nack`` and ``requeue`` may come from other threads, and for deliveries of an earlier consumer.
    """

    def __init__(
        self, broker: EchoMQBroker, queue: Queue, prefetch: int, timeout: int, worker_slots: Slots | None
    ) -> None:
        self.logger = get_logger(__name__, type(self))
        self._broker = broker
        self._queue = queue
        self._timeout = timeout / 1000
        self._beat = min(_BEAT, broker.lease / 2)
        # Dramatiq's prefetch bounds each consumer; the worker's threads bound all of its consumers together.
        self._slots = Slots(prefetch, worker_slots)
        self._ready: deque[Delivery | Batch] = deque()
        self._intake = Intake(broker, queue)
        self._gathering = self._intake.gathering
        self._parking = queue.parking()
        self._look_at = 0.0
        self._tending = Tending(broker, queue, self._beat)
        self._breaks = Breaks()
        self._closed = False
        # True while the last claim got all it asked for, so that more is likely waiting.
        self._backlog = False
        # Seconds from claim to end, averaged over the last few dozen jobs. Threads change it without a lock: a lost
        # update makes it a little older.
        self._pace = 1.0
        # True while other workers rely on this one to look: it took a token, or it alone may know of a due time.
        self._owes_look = False

    def __next__(self) -> Delivery | Batch | None:
        if self._closed:
            return None
        if self._ready:
            return self._ready.popleft()
        deadline = time.monotonic() + self._timeout
        if self._gathering.due < math.inf and self._slots.closed:
            # No thread will start them: they are for other workers, now and not when their time has come.
            self.requeue(self._gathering.take_all())
        with transport():
            while True:
                self._tending.on_beat()
                if time.monotonic() >= self._look_at:
                    self._look(deadline)
                    if self._ready:
                        return self._ready.popleft()
                if self._gathering.due <= time.monotonic() and not (self._backlog and self._gathering.room):
                    # Not while the next claim would bring more at once.
                    self._ready.extend(self._gathering.take_due(time.monotonic()))
                    if self._ready:
                        return self._ready.popleft()
                # Park until a token comes, a look, a chore or a batch is due, or the worker wants this thread back.
                left = min(deadline, self._look_at, self._gathering.due, self._tending.due) - time.monotonic()
                if left > 0 and self._wait(left):
                    self._look_at = 0.0
                    self._owes_look = True
                if self._closed or time.monotonic() >= deadline:
                    return None

    def _wait(self, seconds: float) -> bool:
        """Park; True when the queue is to be looked at now."""
        try:
            return self._parking.wait(seconds)
        except ServerUnavailable:
            # Raised, it would keep this queue from being served until the worker has restarted its consumer. If only
            # this connection broke, a look finds the server there; if not, the look says so.
            if self._breaks.broke():
                raise
            return True

    def _look(self, deadline: float) -> None:
        """Claim as many jobs as there are free places; without any, wait for one until ``deadline``."""
        if self._backlog and self._pace < _SHORT:
            self._slots.gather(_PATIENCE)
        places = self._slots.take(_MOST)
        # An open batch takes more than there are threads for.
        extra = self._gathering.asks
        wanted = min(places + extra, MAX_BATCH)
        if not wanted:
            # While the wait for a token stands, tokens come here that a worker with room should have.
            self._parking.leave()
            if self._owes_look:
                self._owes_look = False
                self._parking.pass_on()
            if self._gathering.stuck(self._slots.capacity):
                # Nobody can join any more, and the threads that wait for them could run.
                self._ready.extend(self._gathering.take_all())
                return
            self._slots.wait(max(min(deadline, self._gathering.due, self._tending.due) - time.monotonic(), 0.0))
            return
        claimed = Claimed(())
        self._owes_look = self._backlog = False
        try:
            held_until = lease_end(self._broker.lease)
            claimed = self._queue.claim(wanted, lease=self._broker.lease)
        finally:
            if not claimed.jobs:
                self._slots.give(places)
        self._backlog = len(claimed) == wanted
        if claimed.jobs:
            if self._accept(claimed, held_until, places) and self._backlog and extra:
                self._gathering.grow()
        else:
            beat = self._beat if claimed.look_again is None else min(self._beat, claimed.look_again)
            self._look_at = time.monotonic() + beat
            self._owes_look = claimed.look_again is not None
        self._look_at = min(self._look_at, self._tending.after_claim(claimed))

    def _accept(self, claimed: Claimed, held_until: float, places: int) -> bool:
        """Make deliveries of jobs, each in one of the ``places``; answers whether there was room for all of them."""
        room = Room(self._slots, places)
        taken = self._intake.accept(claimed.jobs, held_until, room)
        self._ready.extend(room.ready)
        self._broker.leases.hold(taken.held)
        if room.left:
            self._slots.give(room.left)
        if taken.ends:
            for end, verdict in zip(taken.ends, self._queue.settle(taken.ends), strict=True):
                if isinstance(end, Retry):
                    self._broker.signalling.refused(self._queue, end, verdict)
        if taken.error is not None:
            raise taken.error
        return taken.fits

    def ack(self, message: MessageProxy) -> None:
        """Settle a delivery as done, or as the retry that was asked for.

        Raises:
          ConnectionClosed: when the server did not answer; the call can be repeated.
        """
        self._settle(message, rejected=False)

    def nack(self, message: MessageProxy) -> None:
        """Send a delivery to dead with its error.

        Raises:
          ConnectionClosed: when the server did not answer; the call can be repeated.
        """
        self._settle(message, rejected=True)

    def _settle(self, message: MessageProxy, *, rejected: bool) -> None:
        if isinstance(message, Batch):
            self._settle_batch(message, rejected=rejected)
            return
        if not isinstance(message, Delivery):
            self.logger.warning("%r was not delivered by this broker: there is nothing to settle.", message)
            return
        if message.settled:
            return
        if message.lost:
            # Its token may still fit, when the job waits again and nobody has claimed it. But this run was not
            # reported, so the job's next run must end it.
            self.logger.debug("The late end of job %s is dropped: its lease was lost.", message.job_id)
            self._done(message)
            return
        message.settling = True
        try:
            with settling():
                message.pay_owed()
                verdict = self._broker.settler(message.queue).settle(message.settlement(rejected=rejected))
        except ConnectionClosed:
            raise
        except BaseException:
            # The worker will not repeat this: the job is given up, so that it runs again when its lease ends.
            self._done(message)
            raise
        self._done(message)
        hear(self._broker, message, verdict)

    def _settle_batch(self, batch: Batch, *, rejected: bool) -> None:
        def done(member: Member, verdict: Verdict | None) -> None:
            self._forget(member)
            hear(self._broker, member, verdict)

        try:
            settle_batch(batch, done, rejected=rejected)
        except ConnectionClosed:
            raise
        except BaseException:
            for member in batch.unsettled():
                self._forget(member)
            batch.give_slot()
            raise
        batch.give_slot()

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Give deliveries back that were never started; they lose no retry.

        Raises:
          ConnectionClosed: when the server did not answer; they come back when their leases end.
        """
        given = list(messages)
        held = deliveries(given)
        queues: dict[Queue, list[Delivery]] = {}
        for delivery in held:
            queues.setdefault(delivery.queue, []).append(delivery)
        # Before the server is asked: what it does not hear of must no longer be renewed, or it would never come back.
        for delivery in held:
            delivery.settling = True
            self._done(delivery)
        for message in given:
            if isinstance(message, Batch):
                message.give_slot()
        with transport():
            for queue, mine in queues.items():
                releases: list[Settlement] = [Release(delivery.job) for delivery in mine]
                queue.settle(releases)

    def close(self) -> None:
        """Give back what was claimed and not handed out, and leave the parking place."""
        self._closed = True
        ready, self._ready = [*self._ready, *self._gathering.take_all()], deque()
        try:
            # Left, not only closed: a token that came since the last wait belongs to another worker.
            self._parking.leave()
        finally:
            self._parking.close()
            try:
                self.requeue(ready)
            except EchoMQError:
                # A worker closes its consumers while it recovers; what is raised there would end the consumer's thread.
                self.logger.exception("Jobs of queue %r come back when their leases end.", self._queue.name)

    def _done(self, delivery: Delivery) -> None:
        self._pace += (time.monotonic() - delivery.claimed_at - self._pace) / 16
        self._forget(delivery)
        delivery.give_slot()

    def _forget(self, delivery: Delivery) -> None:
        delivery.settled = True
        self._broker.leases.drop(delivery)
