"""What a consumer does for the whole queue beside serving it: each worker a little, none of them in particular."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dramatiq.logging import get_logger

from echomq_tasks.brokers.dramatiq.repeating import register_repeats
from echomq_tasks.bus import keep_retention
from echomq_tasks.errors import EchoMQError, ScriptError
from echomq_tasks.queue import Claimed, Queue
from echomq_tasks.queue.dead import actor_name

if TYPE_CHECKING:
    from echomq_tasks.brokers.dramatiq.broker import EchoMQBroker

#: Seconds between two looks at the dead, or at the logs, while all of them are within bounds.
_TRIM_BEAT = 60.0
#: Seconds until the next step when there is likely more to do. Not at once, so that a claim comes in between.
_SOON = 0.1
#: A step that drops so many records of logs was cut off, and there are more to drop.
_LOG_STEP = 5_000
#: How many dead jobs one step looks at.
_TRIM_STEP = 500
#: Jobs that fit a line of the log.
_FEW = 5
#: Seconds before a chore that failed is tried again, when jobs wait for it.
_PAUSE = 1.0


class _Chore:
    """Upkeep that must not keep the queue from being served when it fails.

    Attributes:
      due: the monotonic second at which it is to be done.
    """

    def __init__(self, what: str, do: Callable[[], Any], pause: float, due: float = math.inf) -> None:
        self.what = what
        self.do = do
        self.due = due
        self._pause = pause
        # After a failure, until when it waits whoever asks for it.
        self._pause_until = 0.0

    def ask(self) -> None:
        """Have it done now, or when its pause is over."""
        self.due = min(self.due, max(time.monotonic(), self._pause_until))

    def failed(self) -> None:
        """Have it done again after a pause."""
        self.due = self._pause_until = time.monotonic() + self._pause


class Tending:
    """Sweeps stalled jobs, fires repeats, delivers to parents elsewhere, and keeps the dead and the logs within bounds.

    For one consumer and its thread, which calls :meth:`on_beat` when it has nothing to hand out.

    Parameters:
      broker: whose bounds hold.
      queue: the queue.
      beat: seconds between two sweeps.
    """

    def __init__(self, broker: EchoMQBroker, queue: Queue, beat: float) -> None:
        self.logger = get_logger(__name__, type(self))
        self._broker = broker
        self._queue = queue
        self._beat = beat
        self._sweep_at = 0.0
        self._trimmed_to: str | None = None
        self._claimed_at = time.monotonic()
        #: Counts what may have changed what there is to claim, or when to look for it.
        self.stirred = 0
        self._registering = _Chore("registering repeats", lambda: register_repeats(broker, queue), beat)
        self._firing = _Chore("firing repeats", self._fire, _PAUSE)
        self._delivering = _Chore("delivering to parents", self._deliver, _PAUSE)
        self._trimming = _Chore("dropping old dead jobs", self._trim, beat, due=0.0)
        self._retaining = _Chore("trimming logs", self._retain, beat, due=0.0)
        self._chores = (self._registering, self._firing, self._delivering, self._trimming, self._retaining)

    @property
    def due(self) -> float:
        """The monotonic second at which there is something to do."""
        return min(self._sweep_at, *(chore.due for chore in self._chores))

    def on_beat(self) -> None:
        """Do what is due by this process's clock, or what a claim told of.

        Raises:
          ServerError: when the server did not answer the sweep.
        """
        now = time.monotonic()
        if now >= self._sweep_at:
            self._sweep_at = now + self._beat
            self._sweep()
            # Actors may have been declared since.
            self._registering.ask()
            if now - self._claimed_at > 2 * self._beat:
                # All threads are busy, so no claim tells of chores; what is due must not wait for them. Twice, because
                # an idle worker claims once a beat.
                self._firing.ask()
                self._delivering.ask()
        for chore in self._chores:
            if chore.due <= time.monotonic():
                self._do(chore)

    def after_claim(self, claimed: Claimed) -> float:
        """Note the chores that a claim told of; answers at which monotonic second to look again because of them.

        They are done later, because what was claimed is to be handed out first.
        """
        self._claimed_at = time.monotonic()
        look_at = math.inf
        for told, chore in ((claimed.repeats_due, self._firing), (claimed.outbox, self._delivering)):
            if told:
                chore.ask()
                look_at = min(look_at, chore.due)
        return look_at

    def _do(self, chore: _Chore) -> None:
        chore.due = math.inf
        try:
            chore.do()
        except EchoMQError as error:
            chore.failed()
            self.logger.warning("Queue %r: %s failed and is tried again: %s", self._queue.name, chore.what, error)
        except Exception:
            # Whatever it is, the queue is served all the same.
            chore.failed()
            self.logger.exception("Queue %r: %s failed and is tried again.", self._queue.name, chore.what)

    def _sweep(self) -> None:
        try:
            swept = self._queue.sweep_stalled(max_stalled=self._broker.max_stalled)
        except ScriptError:
            self.logger.exception("The sweep of queue %r failed; trying again on the next beat.", self._queue.name)
            return
        self._broker.signalling.swept(self._queue, swept)
        if swept.recovered:
            self.stirred += 1
            count = len(swept.recovered)
            jobs = "1 job of a lost worker waits" if count == 1 else f"{count} jobs of lost workers wait"
            named = ", ".join(self._named(swept.recovered[:_FEW])) + (", ..." if count > _FEW else "")
            self.logger.warning("%s again: %s", jobs, named)
        most = self._broker.max_stalled
        for job in self._named(swept.dead):
            self.logger.error(
                "Job %s goes to dead: %s died with it", job, "a worker" if most == 1 else f"{most} workers"
            )
        if len(swept.recovered) + len(swept.dead) >= 100:
            # A full step means that there may be more.
            self._sweep_at = time.monotonic() + _SOON

    def _named(self, ids: Sequence[str]) -> list[str]:
        """Each job with its actor: of a worker that was killed, nothing else tells what ran there."""
        try:
            found = self._queue.get_many(ids) if ids else []
        except EchoMQError:
            return [*ids]
        names = [None if info is None else actor_name(info.payload) for info in found]
        return [each if name is None else f"{each} ({name})" for each, name in zip(ids, names, strict=True)]

    def _deliver(self) -> None:
        self.stirred += 1
        self._queue.deliver()

    def _fire(self) -> None:
        self.stirred += 1
        self._broker.signalling.fired(self._queue, self._queue.fire_repeats())

    def _retain(self) -> None:
        removed = keep_retention(self._queue.scripts, self._queue.base)
        # A log that grows is looked after on each beat; that of this broker's own events may grow fast.
        grows = removed or self._broker.announcing.log is not None
        pause = _SOON if removed >= _LOG_STEP else self._beat if grows else _TRIM_BEAT
        self._retaining.due = time.monotonic() + pause

    def _trim(self) -> None:
        most, ttl = self._broker.dead_max, self._broker.dead_ttl
        if most is None and ttl is None:
            return
        self._trimming.due = time.monotonic() + _TRIM_BEAT
        dropped, self._trimmed_to = self._queue.trim_dead(most=most, ttl=ttl, behind=self._trimmed_to, limit=_TRIM_STEP)
        if dropped:
            self.logger.info("Queue %r: %d dead jobs were dropped: too many, or too old.", self._queue.name, dropped)
        if self._trimmed_to is not None or dropped >= _TRIM_STEP:
            # There is more to look at.
            self._trimming.due = time.monotonic() + _SOON
        elif dropped:
            # They are at their bound, and more of them come.
            self._trimming.due = time.monotonic() + self._beat
