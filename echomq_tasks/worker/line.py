"""One queue, as the pump of a worker sees it."""

from __future__ import annotations

import math
import random
from collections import deque
from typing import TYPE_CHECKING

from dramatiq.logging import get_logger

from echomq_tasks.brokers.dramatiq.batches import MAX_BATCH
from echomq_tasks.brokers.dramatiq.delivery import Delivery
from echomq_tasks.brokers.dramatiq.intake import Intake
from echomq_tasks.brokers.dramatiq.tending import Tending
from echomq_tasks.queue import Queue, Settlement
from echomq_tasks.worker.coroutines import Coroutines
from echomq_tasks.worker.outage import Outage
from echomq_tasks.worker.places import FreePlaces

if TYPE_CHECKING:
    from echomq_tasks.brokers.dramatiq.broker import EchoMQBroker

#: Seconds between two sweeps of a queue.
BEAT = 5.0
#: So many times as long is the time between two looks at a queue that is quiet. A wake token or a due job ends it.
_QUIET = 1.25
#: What a worker calls all the time.
_SCRIPTS = ("job_claim", "job_complete", "job_retry", "job_release", "job_discard")
#: The most settlements in one call; the server is held for its length.
MOST_ENDS = 256


class Line:
    """Belongs to the pump, but for its tending; hooks of consumer threads are given it.

    Attributes:
      queue_name: its name.
      look_at: the monotonic second of the next look.
      backlog: True while the last claim got all it asked for, so that more is likely waiting.
      flowing: True while the last claim found something, so that the next settlement takes a claim along.
      owes_look: True while other workers rely on this one to look: it took a token, or alone may know of a due time.
      unsettled: runs that have ended and of which the server has not heard.
      refused: ends of jobs of which there is no delivery: refused, or given back.
      telling: how many ends the server was told of, and has not answered yet.
      held: how many of those have a place that is not claimed for in the same round trip.
      claims: how many claims it has not answered yet.
      stuck: True while some of these could not be told: nothing is claimed then, so their number is bounded.
      called: True while it was to be looked at since the last claim was sent: what that finds says nothing of it.
      seen_at: the monotonic second until which the server would have told of a job: of the last look, or of standing
        at the wake key.
      apart: whether it is on a node of a cluster: others may be on nodes that answer when this one does not.
      late: True while its node has not answered in good time. What it owes, and what it was asked for, holds nobody up.
      given: higher than that of another line when it was given a place more recently.
    """

    def __init__(
        self,
        broker: EchoMQBroker,
        queue_name: str,
        in_threads: FreePlaces,
        in_tasks: FreePlaces,
        coroutines: Coroutines,
    ) -> None:
        self.broker = broker
        self.queue_name = queue_name
        self.in_threads = in_threads
        self.in_tasks = in_tasks
        self._coroutines = coroutines
        self._plain = self._async = self._gathers = False
        #: Where its jobs run: what is claimed may be of any of its actors, so there has to be room for it in each.
        self.pools: tuple[FreePlaces, ...] = (in_threads,)
        for actor in [*broker.actors.values()]:
            if actor.queue_name == queue_name:
                self.note_actor(actor.actor_name)
        # Each worker has a beat of its own, so that those which were started together do not all look at once.
        self.beat = min(BEAT, broker.lease / 2) * random.uniform(0.9, 1.1)
        self.quiet_beat = self.beat * _QUIET
        self.outage = Outage(get_logger(__name__, type(self)), f"Serving queue {queue_name!r}")
        self.look_at = 0.0
        self.backlog = False
        self.flowing = False
        self.owes_look = False
        self.unsettled: deque[Delivery] = deque()
        self.refused: deque[Settlement] = deque()
        self.telling = 0
        self.held = 0
        self.claims = 0
        self.stuck = False
        self.called = False
        self.seen_at = 0.0
        self.apart = False
        self.late = False
        self.given = 0

    def open(self) -> None:
        """Connect, and have the queue, the intake and the tending.

        Raises:
          ServerError, ConfigError: when there is no connection.
        """
        self.queue: Queue = self.broker.queue(self.queue_name)
        self.apart = self.queue.connection.is_cluster
        # Else the first ends would be refused for want of their script, and sent again behind the claim.
        self.queue.scripts.load(_SCRIPTS)
        self.intake = Intake(self.broker, self.queue, self._is_apart)
        self.gathering = self.intake.gathering
        self.tending = Tending(self.broker, self.queue, self.beat)

    def __repr__(self) -> str:
        return f"<Line of queue {self.queue_name!r}>"

    def note_actor(self, actor_name: str) -> None:
        """Note that messages of this actor come here."""
        self._gathers = self._gathers or actor_name in self.broker.batches
        if self._coroutines.has(actor_name):
            self._async = True
        else:
            self._plain = True
        if self._async:
            self.pools = (self.in_threads, self.in_tasks) if self._plain else (self.in_tasks,)

    def _is_apart(self, actor_name: str) -> bool:
        """Whether a message of this actor runs on the event loop."""
        if self._coroutines.has(actor_name):
            if not self._async:
                self.note_actor(actor_name)
            return True
        if actor_name not in self.broker.actors:
            # It is refused wherever the others run.
            return self._async and not self._plain
        if not self._plain:
            self.note_actor(actor_name)
        return False

    @property
    def room(self) -> int:
        """For how many jobs there is room, whatever actors they are of."""
        return min([pool.free - pool.asked for pool in self.pools])

    @property
    def half(self) -> int:
        """How much room makes a claim worth its while, while short jobs queue up."""
        return min([pool.half for pool in self.pools])

    @property
    def is_busy(self) -> bool:
        """Whether short jobs queue up."""
        return self.backlog and any(pool.is_short for pool in self.pools)

    @property
    def owes(self) -> bool:
        """Whether the server is still to be told of something."""
        return bool(self.unsettled or self.refused or self.telling)

    @property
    def has_ends(self) -> bool:
        """Whether there is something to tell it."""
        return bool(self.unsettled or self.refused)

    @property
    def under_way(self) -> bool:
        """Whether the server is to answer something."""
        return bool(self.claims or self.telling)

    @property
    def is_away(self) -> bool:
        """Whether its node does not answer, as far as is known."""
        return self.late or self.outage.failed_at > -math.inf

    @property
    def may_claim(self) -> bool:
        """Whether to claim: beside a claim that is not answered yet only when more waits than that one asks for."""
        # A batch has its members in their order, of which two claims at once would know nothing.
        return not self.stuck and (not self.claims or (self.backlog and not self._gathers))

    def is_due(self, now: float) -> bool:
        """Whether to look now, if there is room."""
        return (self.look_at <= now or (self.flowing and self.has_ends)) and self.may_claim

    def call(self) -> None:
        """Have it looked at: there was a token, and no other worker is told."""
        self.look_at = 0.0
        self.owes_look = self.called = True

    def wants(self, places: int) -> int:
        """How many jobs to ask for when it has so many places: an open batch takes more than it has places."""
        return min(places + self.gathering.asks, MAX_BATCH)
