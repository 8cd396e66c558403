"""What a consumer has in hand: read, at work, or finished and not yet told to the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from echomq_tasks.bus.delivery import Delivery


class Held:
    """One entry in hand; :class:`Holding` guards its fields.

    Attributes:
      delivery: what the handler is given.
      seen: the monotonic second at which it was last known to be this consumer's.
      started: whether the handler has it, or had it.
      finished: whether the handler is done with it.
      error: what the handler raised; it is not finished when that ends the consumer's run, as SystemExit does.
      lost: whether the server has said that it is this consumer's no more.
    """

    __slots__ = ("delivery", "error", "finished", "lost", "seen", "started")

    def __init__(self, delivery: Delivery, seen: float) -> None:
        self.delivery = delivery
        self.seen = seen
        self.started = self.finished = self.lost = False
        self.error: BaseException | None = None

    @property
    def id(self) -> str:
        """The entry's id."""
        return self.delivery.stream_id


class Holding:
    """All that one consumer has in hand; used by its own thread, its event loop and the thread that renews."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._finished: list[Held] = []
        self._lock = threading.Lock()

    def take(self, delivery: Delivery, seen: float) -> Held | None:
        """Take an entry in hand that was read at ``seen``; None when it is there already."""
        with self._lock:
            held = self._held.get(delivery.stream_id)
            if held is not None:
                # Claimed back from nobody but ourselves, as after a pause of this process.
                held.seen, held.lost = seen, False
                return None
            held = self._held[delivery.stream_id] = Held(delivery, seen)
            return held

    def finish(self, held: Held, error: BaseException | None) -> None:
        """The handler is done with it."""
        with self._lock:
            held.started = held.finished = True
            held.error = error
            self._finished.append(held)

    @property
    def finished(self) -> list[Held]:
        """What the server is to be told of, in the order in which it was finished."""
        with self._lock:
            return list(self._finished)

    @property
    def any_finished(self) -> bool:
        """Whether there is something to tell."""
        return bool(self._finished)

    def forget(self, several: Iterable[Held]) -> None:
        """Let go of entries: the server was told, or they are somebody else's."""
        with self._lock:
            gone = set(several)
            for held in gone:
                self._held.pop(held.id, None)
            self._finished = [held for held in self._finished if held not in gone]

    def holds(self, entry_id: str) -> bool:
        """Whether an entry is in hand, and nobody's else as far as is known."""
        with self._lock:
            held = self._held.get(entry_id)
            return held is not None and not held.lost

    def has(self, held: Held) -> bool:
        """Whether this very delivery is in hand."""
        with self._lock:
            return self._held.get(held.id) is held

    def interrupted(self) -> list[Held]:
        """What ended the run instead of being finished by it."""
        with self._lock:
            return [held for held in self._held.values() if held.error is not None and not held.finished]

    def abandon(self) -> None:
        """Let go of all that is not finished: to renew what nobody works on would keep it from others."""
        with self._lock:
            self._held = {held.id: held for held in self._finished}

    def stale(self, age: float) -> list[Held]:
        """What the server was not told of for ``age`` seconds, and is not finished."""
        before = time.monotonic() - age
        with self._lock:
            return [held for held in self._held.values() if held.seen <= before and not held.finished]

    def renewed(self, several: Iterable[Held], ours: Iterable[bool], at: float) -> list[Held]:
        """Note the server's verdicts on what was asked of it at ``at``; answers what was lost while it is at work."""
        surprised = []
        with self._lock:
            for held, kept in zip(several, ours, strict=True):
                if kept:
                    held.seen = at
                elif not held.finished and not held.lost:
                    held.lost = True
                    if held.started:
                        surprised.append(held)
        return surprised
