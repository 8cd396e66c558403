"""What becomes of claimed jobs: deliveries, batches that gather them, and refusals of what cannot be run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dramatiq.errors import DecodeError
from dramatiq.logging import get_logger

from echomq_tasks.brokers.dramatiq.batches import Batch, BatchRule, Member, malformed
from echomq_tasks.brokers.dramatiq.delivery import Delivery, decode
from echomq_tasks.brokers.dramatiq.gathering import Gathering
from echomq_tasks.brokers.dramatiq.slots import Places
from echomq_tasks.queue import Job, Queue, Release, Retry, Settlement

if TYPE_CHECKING:
    from echomq_tasks.brokers.dramatiq.broker import EchoMQBroker


class Room:
    """Places that one claim may fill, and what it fills them with.

    Attributes:
      places: where each delivery gives its place back.
      size: how many there were.
      left: how many are left.
      ready: what is to run there now.
    """

    __slots__ = ("left", "places", "ready", "size")

    def __init__(self, places: Places, size: int) -> None:
        self.places = places
        self.size = self.left = size
        self.ready: list[Delivery | Batch] = []


@dataclass(slots=True)
class Accepted:
    """What became of the jobs of one claim, beside what is in its rooms.

    Attributes:
      held: all deliveries, those that wait in a batch included; their leases are to be renewed.
      ends: what the server is to be told at once: jobs refused, or given back because there was no room.
      fits: whether there was room for all of them.
      error: what kept the rest from being accepted, to be raised once the others are taken care of. The rest is among
        ``ends``, given back.
    """

    held: list[Delivery] = field(default_factory=list)
    ends: list[Settlement] = field(default_factory=list)
    fits: bool = True
    error: BaseException | None = None


class Intake:
    """Makes deliveries of the jobs of one queue; for one thread.

    Parameters:
      broker: whose actors say which messages are gathered.
      queue: the queue.
      apart: tells by an actor's name whether its messages run elsewhere than others.
    """

    def __init__(self, broker: EchoMQBroker, queue: Queue, apart: Callable[[str], bool] | None = None) -> None:
        self.logger = get_logger(__name__, type(self))
        self.gathering = Gathering()
        self._broker = broker
        self._queue = queue
        self._apart = apart

    def accept(self, jobs: Sequence[Job], held_until: float, room: Room, elsewhere: Room | None = None) -> Accepted:
        """Make deliveries, each in a place of its own; a batch needs one for all of its members.

        Parameters:
          jobs: what was claimed.
          held_until: the monotonic second until which their leases can be relied on.
          room: the places.
          elsewhere: those of the messages that run apart.
        """
        taken = Accepted()
        try:
            self._accept(jobs, held_until, room, elsewhere, taken)
        except BaseException as error:
            taken.error = error
            # Each that was dealt with is in one of the two lists.
            taken.ends += [Release(job) for job in jobs[len(taken.held) + len(taken.ends) :]]
        if not taken.fits:
            self.gathering.crowd()
        return taken

    def _accept(
        self, jobs: Sequence[Job], held_until: float, room: Room, elsewhere: Room | None, taken: Accepted
    ) -> None:
        apart, here = self._apart, room
        rules = self._broker.batches
        for job in jobs:
            try:
                message = decode(job, self._queue.name)
            except DecodeError as error:
                taken.ends.append(self._refusal(job, f"DecodeError: {error}"))
                continue
            if apart is not None and elsewhere is not None:
                here = elsewhere if apart(message.actor_name) else room
            rule = rules.get(message.actor_name) if rules else None
            if rule is not None:
                if (fault := malformed(message)) is not None:
                    taken.ends.append(self._refusal(job, fault))
                    continue
                member = Member(message, job, self._queue, here.places, held_until)
                self._gather(member, rule, here, taken)
            elif here.left:
                delivery = Delivery(message, job, self._queue, here.places, held_until)
                here.ready.append(delivery)
                taken.held.append(delivery)
                here.left -= 1
            else:
                # It came with what an open batch takes. From now on that batch asks for no more.
                taken.ends.append(Release(job))
                taken.fits = False

    def _refusal(self, job: Job, fault: str) -> Retry:
        self.logger.error("Job %s on queue %r goes to dead: %s", job.id, self._queue.name, fault)
        return Retry(job, fault, max_retries=0)

    def _gather(self, member: Member, rule: BatchRule, room: Room, taken: Accepted) -> None:
        """Put a member into a batch, or give it back when there is no place for another one."""
        batch = self.gathering.join(member)
        if batch is None:
            if not room.left:
                taken.ends.append(Release(member.job))
                taken.fits = False
                return
            # What kills workers would take along, and discredit, whatever is claimed beside it: it gets all places.
            used = room.left if member.suspect else 1
            room.left -= used
            batch = Batch(member, rule, room.places, used)
            if batch.room:
                self.gathering.open(batch)
        taken.held.append(member)
        if not batch.room:
            self.gathering.close(batch)
            room.ready.append(batch)
