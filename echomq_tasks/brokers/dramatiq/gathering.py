"""The batches of a consumer that others may still join."""

from __future__ import annotations

import math

from echomq_tasks.brokers.dramatiq.batches import MAX_BATCH, Batch, Member

#: How many jobs beyond the free places are asked for at first: what does not fit has been claimed for nothing.
_FEW = 8


class Gathering:
    """The open batches of one consumer, one for each actor; for the consumer's own thread.

    An open batch has the place of its first member, so that a thread is free for it when its time comes.
    """

    def __init__(self) -> None:
        self._open: dict[str, Batch] = {}
        # Outlives each batch: a queue of one batch actor's jobs alone is not felt out again for each of them.
        self._step = _FEW
        #: The monotonic second at which the first of them starts.
        self.due = math.inf

    @property
    def opened(self) -> int:
        """How many batches are open; each has a place."""
        return len(self._open)

    @property
    def batches(self) -> list[Batch]:
        """Those that are open."""
        return [*self._open.values()]

    @property
    def room(self) -> int:
        """How many more the open batches take, of those that may still ask for more."""
        return sum(batch.room for batch in self._open.values() if not batch.crowded)

    @property
    def asks(self) -> int:
        """How many jobs beyond the free places to claim: more each time while all that came had room."""
        return min(self.room, self._step)

    def grow(self) -> None:
        """Note that there was room for everything that came."""
        self._step = min(self._step * 2, MAX_BATCH)

    def join(self, member: Member) -> Batch | None:
        """Let a member into the open batch of its actor; None when there is none for it."""
        batch = self._open.get(member.actor_name)
        if batch is None or member.alone:
            return None
        batch.members.append(member)
        return batch

    def open(self, batch: Batch) -> None:
        """Let others join a batch that has room."""
        self._open[batch.actor_name] = batch
        self.due = min(self.due, batch.due)

    def close(self, batch: Batch) -> None:
        """Let nobody join any more."""
        if self._open.get(batch.actor_name) is batch:
            del self._open[batch.actor_name]
            self.due = min((each.due for each in self._open.values()), default=math.inf)

    def crowd(self) -> None:
        """Note that other jobs wait for free places."""
        self._step = _FEW
        for batch in self._open.values():
            batch.crowded = True

    def stuck(self, capacity: int) -> bool:
        """True when open batches have all the places there are, and none of them may ask for more."""
        return len(self._open) >= capacity and not self.room

    def take_due(self, now: float) -> list[Batch]:
        """Close the batches whose time has come."""
        taken = [batch for batch in self._open.values() if batch.due <= now]
        for batch in taken:
            self.close(batch)
        return taken

    def take_all(self) -> list[Batch]:
        """Close all."""
        return self.take_due(math.inf)
