"""The consumer: claims what its worker can start, parks when there is nothing, settles what is done."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dramatiq import Consumer, MessageProxy
from dramatiq.errors import ConnectionClosed, DecodeError
from dramatiq.logging import get_logger

from echomq_tasks.brokers.dramatiq.delivery import Delivery, decode, lease_end
from echomq_tasks.brokers.dramatiq.slots import Slots
from echomq_tasks.brokers.dramatiq.transport import settling, transport
from echomq_tasks.errors import EchoMQError, ScriptError, ServerUnavailable
from echomq_tasks.queue import Claimed, Queue, Release, Retry, Settlement, Swept, Verdict

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
        self._ready: deque[Delivery] = deque()
        self._parking = queue.parking()
        self._look_at = 0.0
        self._sweep_at = 0.0
        self._broke_at = -math.inf
        self._closed = False
        # True while the last claim got all it asked for, so that more is likely waiting.
        self._backlog = False
        # Seconds from claim to end, averaged over the last few dozen jobs. Threads change it without a lock: a lost
        # update makes it a little older.
        self._pace = 1.0
        # True while other workers rely on this one to look: it took a token, or it alone may know of a due time.
        self._owes_look = False

    def __next__(self) -> Delivery | None:
        if self._closed:
            return None
        if self._ready:
            return self._ready.popleft()
        deadline = time.monotonic() + self._timeout
        with transport():
            while True:
                now = time.monotonic()
                if now >= self._sweep_at:
                    self._sweep()
                if now >= self._look_at:
                    self._look(deadline)
                    if self._ready:
                        return self._ready.popleft()
                # Park until a token comes, the next look is due, or the worker wants this thread back.
                left = min(deadline, self._look_at) - time.monotonic()
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
            now = time.monotonic()
            if now - self._broke_at < 1.0:
                raise
            self._broke_at = now
            return True

    def _look(self, deadline: float) -> None:
        """Claim as many jobs as there are free places; without any, wait for one until ``deadline``."""
        if self._backlog and self._pace < _SHORT:
            self._slots.gather(_PATIENCE)
        places = self._slots.take(_MOST)
        if not places:
            # While the wait for a token stands, tokens come here that a worker with room should have.
            self._parking.leave()
            if self._owes_look:
                self._owes_look = False
                self._parking.pass_on()
            self._slots.wait(max(deadline - time.monotonic(), 0.0))
            return
        claimed = Claimed(())
        self._owes_look = False
        try:
            held_until = lease_end(self._broker.lease)
            claimed = self._queue.claim(places, lease=self._broker.lease)
        finally:
            if len(claimed) < places:
                self._slots.give(places - len(claimed))
        self._backlog = len(claimed) == places
        if claimed.jobs:
            self._accept(claimed, held_until)
        else:
            beat = self._beat if claimed.look_again is None else min(self._beat, claimed.look_again)
            self._look_at = time.monotonic() + beat
            self._owes_look = claimed.look_again is not None

    def _accept(self, claimed: Claimed, held_until: float) -> None:
        deliveries, refused = [], []
        for job in claimed.jobs:
            try:
                message = decode(job, self._queue.name)
            except DecodeError as error:
                self.logger.error("Job %s on queue %r goes to dead: %s", job.id, self._queue.name, error)
                refused.append(Retry(job, f"DecodeError: {error}", max_retries=0))
            else:
                deliveries.append(Delivery(message, job, self._queue, self._slots, held_until))
        self._ready.extend(deliveries)
        self._broker.leases.hold(deliveries)
        if refused:
            self._slots.give(len(refused))
            self._queue.settle(refused)

    def _sweep(self) -> None:
        self._sweep_at = time.monotonic() + self._beat
        try:
            swept: Swept = self._queue.sweep_stalled(max_stalled=self._broker.max_stalled)
        except ScriptError:
            # Upkeep that fails must not keep the queue from being served.
            self.logger.exception("The sweep of queue %r failed; trying again on the next beat.", self._queue.name)
            return
        if swept.recovered:
            self.logger.warning("%d jobs of a lost worker wait again: %s", len(swept.recovered), swept.recovered[:5])
        for job_id in swept.dead:
            self.logger.error("Job %s goes to dead: %d workers died with it", job_id, self._broker.max_stalled)
        if len(swept.recovered) + len(swept.dead) >= 100:
            # A full step means that there may be more.
            self._sweep_at = 0.0

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
        if verdict is Verdict.STALE:
            self.logger.warning(
                "The late end of job %s was refused: its lease was lost and another worker has it.", message.job_id
            )
        elif verdict is Verdict.GONE:
            self.logger.debug("Job %s was gone when it ended.", message.job_id)

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Give deliveries back that were never started; they lose no retry.

        Raises:
          ConnectionClosed: when the server did not answer; they come back when their leases end.
        """
        held = [message for message in messages if isinstance(message, Delivery) and not message.settled]
        queues: dict[Queue, list[Delivery]] = {}
        for delivery in held:
            queues.setdefault(delivery.queue, []).append(delivery)
        # Before the server is asked: what it does not hear of must no longer be renewed, or it would never come back.
        for delivery in held:
            delivery.settling = True
            self._done(delivery)
        with transport():
            for queue, deliveries in queues.items():
                releases: list[Settlement] = [Release(delivery.job) for delivery in deliveries]
                queue.settle(releases)

    def close(self) -> None:
        """Give back what was claimed and not handed out, and leave the parking place."""
        self._closed = True
        ready, self._ready = list(self._ready), deque()
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
        delivery.settled = True
        self._pace += (time.monotonic() - delivery.claimed_at - self._pace) / 16
        self._broker.leases.drop(delivery)
        delivery.give_slot()
