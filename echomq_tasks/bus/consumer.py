"""A consumer of a log: one member of a group that shares the work, each entry finished by one of them at least once."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from echomq_tasks.bus.bell import Bell
from echomq_tasks.bus.failures import backoff
from echomq_tasks.bus.groups import GroupInfo, dead_log, read_groups
from echomq_tasks.bus.hands import Handler, Hands, OnLoop, OwnThread, is_async
from echomq_tasks.bus.holding import Held, Holding
from echomq_tasks.bus.intake import Intake
from echomq_tasks.bus.ledger import Ledger, Tally
from echomq_tasks.bus.log import Log
from echomq_tasks.bus.loops import check_loop, in_thread
from echomq_tasks.bus.member import Member, unique_name
from echomq_tasks.bus.pulse import Pulse
from echomq_tasks.bus.settings import Settings, Start, check_handler
from echomq_tasks.errors import EchoMQError, InvalidArgument, ServerOutOfMemory, ServerUnavailable
from echomq_tasks.forks import after_fork
from echomq_tasks.scripts.arguments import shown

_log = logging.getLogger(__name__)

#: Seconds of work that are read ahead: what is read waits for its turn here, while others may have nothing to do.
_AHEAD = 0.5
#: Seconds after which what is finished is told, though more is in hand.
_TELL = 0.2
#: Seconds a look at the event loop or at the bell takes while coroutines are at work.
_LOOK = 0.05
#: How often an end is told to a server that is away, before it is left to whoever claims the entries later; and for how
#: many seconds at most, for one that hangs takes its time with each.
_LAST_TRIES, _LAST_SECONDS = 4, 3.0
#: Seconds between two looks for consumers that are gone.
_TIDY = 60.0


class Consumer:
    """Handles the entries of a log as a member of a group. Making it does no I/O; :meth:`run` does the work.

    In an asyncio app ``await consumer.arun(handler)`` does it, with async handlers on the app's own loop.

    First what it was given before and has not finished, then what dead members hold, then new entries. An entry is
    finished when its handler returned; one whose handler raised is delivered again after ``min_idle``, to this or
    another member, and goes to the dead log ``<log>.dead`` when it has failed ``max_deliveries`` times. So every entry
    is handled at least once, and more than once only when a member died or lost the server at the wrong moment.

    What was delivered before may have killed who had it, so a member handles those one at a time (new ones beside it,
    when it is async). An entry that kills all who take it is given up like one that fails, and no other with it.

    A record of the dead log has the fields of the entry (its ``id`` is ``dead.id``) and ``dead.error``, ``dead.entry``
    (its stream id), ``dead.group`` and ``dead.deliveries``. Of an entry with more than 3,000 fields it has the first
    3,000, and ``dead.truncated`` tells how many are missing. The dead log keeps about its newest 100,000 records, or
    what its own retention says; :meth:`echomq_tasks.bus.Bus.replay_dead` gives its entries back to their groups.

    Parameters:
      log: the log.
      group: the group's name, 1 to 128 of ``A-Z a-z 0-9 . _ -``; it is made when it is not there.
      start: where a group that is made begins: ``"head"`` (all that is kept) or ``"new"`` (what comes from then on).
      handler: called with each :class:`~echomq_tasks.bus.Delivery`; a function, or an async function.
      name: the consumer's name, which no other living consumer of the group may have; by default one that is unique. A
        name that stays the same over restarts lets a consumer go on with what it held when it died.
      batch: most entries a read; fewer are read when the handler is slow.
      concurrency: how many coroutines of an async handler run at once.
      min_idle: seconds without a sign of life after which an entry is taken from its consumer. An entry at work is
        renewed, however long it takes.
      max_deliveries: deliveries after which an entry that still fails is given up.
      beat: seconds between two looks at what dead members hold.
      forget: seconds after which a consumer that holds nothing and was not heard of is removed from the group.
      on_behind: called with the number of entries that were trimmed before the group read them, once for each gap.

    Raises:
      InvalidName: when a name is not allowed.
      InvalidArgument: when another argument is out of range.
    """

    def __init__(
        self,
        log: Log,
        group: str,
        *,
        start: Start,
        handler: Handler | None = None,
        name: str | None = None,
        batch: int = 100,
        concurrency: int = 1,
        min_idle: float = 30.0,
        max_deliveries: int = 5,
        beat: float = 5.0,
        forget: float = 600.0,
        on_behind: Callable[[int], Any] | None = None,
    ) -> None:
        if not isinstance(log, Log):
            raise InvalidArgument(f'a consumer takes a log, as bus.log("orders", "audit"), not {shown(log)}')
        dead_log(log.name)
        #: What it was made with.
        self.settings = Settings(
            group, start, name, batch, concurrency, min_idle, max_deliveries, beat, forget, on_behind
        )
        if handler is not None:
            check_handler(handler, concurrency)
        self.log = log
        self.group = group
        self.start: Start = start
        self.tally = Tally()
        self._handler = handler
        self._open(name)
        after_fork(self._after_fork)

    def __repr__(self) -> str:
        return f"Consumer({self.log!r}, {self.group!r}, name={self.name!r})"

    def _open(self, name: str | None) -> None:
        #: The consumer's name in the group.
        self.name = name or unique_name()
        self._member = Member(self.log, self.group, self.name)
        self._holding = Holding()
        self._ledger = Ledger(self._member, self._holding, self.settings, self.tally)
        self._bell = Bell(self.log)
        self._busy = threading.Lock()  # held by the thread that runs
        # No threading.Event: a signal handler that stops this could find its lock held by its own thread.
        self._stopping = False
        self._waiting: deque[Held] = deque()
        self._hands: Hands | None = None
        # The rest belongs to the thread that runs.
        self._intake = Intake(self.log, self._member, self._holding, self._ledger, self.settings)
        self._next_tidy = 0.0
        self._tries = 0

    def _after_fork(self) -> None:
        # Whatever runs, runs in the parent. A child that runs it too is another consumer, and needs a name of its own.
        self._open(self.settings.name)

    # -- for everybody ------------------------------------------------------------------------------------------

    def run(self, handler: Handler | None = None, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Handle entries until :meth:`stop`; blocks. It goes on by itself over whatever happens to the server.

        Parameters:
          handler: instead of the one that the consumer was made with.
          loop: where an async handler runs: a loop that another thread runs for as long as this does. By default, one
            of its own, in a thread of its own.

        Raises:
          InvalidArgument: when there is no handler, it runs already, or the loop is this thread's, or closed.
          EchoMQError: what waiting cannot mend: the key holds no log, or the server's ACL does not allow this.
        """
        work = self._handler if handler is None else handler
        if work is None:
            raise InvalidArgument(
                "a consumer without a handler has nothing to run: give it one, here or when it is made"
            )
        check_handler(work, self.settings.concurrency)
        if loop is not None:
            check_loop(loop)
        if not self._busy.acquire(blocking=False):
            raise InvalidArgument(f"the consumer {self.name} runs already: make another one for another thread")
        try:
            self._run(work, loop)
        finally:
            self._busy.release()

    async def arun(self, handler: Handler | None = None) -> None:
        """As :meth:`run`, without blocking the caller's loop, on which an async handler runs, ``concurrency`` at once.

        What talks to the server has a thread of its own; a plain function runs there, too. Cancelling this does what
        :meth:`stop` does: what the handlers have in hand is finished, and the rest given back, before the
        CancelledError goes on. Cancelled a second time, it cancels its handlers, too, and gives their entries back.

        Parameters:
          handler: instead of the one that the consumer was made with.

        Raises: as :meth:`run`.
        """
        loop = asyncio.get_running_loop()

        def stop(again: bool) -> None:
            self.stop()
            if again and self._hands is not None:
                self._hands.cancel()

        await in_thread(lambda: self.run(handler, loop=loop), stop, f"echomq-consumer-{self.group}")

    def stop(self) -> None:
        """Let :meth:`run` end, from any thread: it finishes what its handler has and gives the rest back. For good."""
        self._stopping = True
        self._bell.silence()

    @property
    def stopping(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stopping

    @property
    def at_work(self) -> bool:
        """Whether its handler has something in hand."""
        hands = self._hands
        return hands is not None and hands.running() > 0

    def info(self) -> GroupInfo | None:
        """How the group stands; None when the server knows no such group.

        Raises:
          ServerError: when the server cannot be asked.
        """
        return next((group for group in read_groups(self.log) if group.name == self.group), None)

    # -- the loop -----------------------------------------------------------------------------------------------

    def _run(self, work: Handler, loop: asyncio.AbstractEventLoop | None) -> None:
        if is_async(work):
            self._hands = OnLoop(work, self.settings.concurrency, self._holding, loop)
        else:
            self._hands = OwnThread(work, self._holding)
        self._intake.begin()
        pulse = Pulse(self._ledger.renew_stale, self.settings.min_idle / 4, f"echomq-pulse-{self.group}")
        try:
            self._join("")
            while not self._stopping:
                self._surviving(self._turn)
        finally:
            try:
                self._hands.close()
                self._leave()
            finally:
                pulse.stop()
                self._bell.close()

    def _surviving(self, step: Callable[[], None]) -> None:
        """Take a step; when the server is away, wait a little instead."""
        try:
            step()
            if self._tries > 1:
                _log.info("%s of %s is back", self.name, self._ledger.where)
            self._tries = 0
        except (ServerUnavailable, ServerOutOfMemory) as error:
            # Not at the first: a connection that only dropped is back by then.
            if self._tries == 1:
                _log.warning("%s of %s lost the server and tries to get back: %s", self.name, self._ledger.where, error)
            self._intake.lost()
            self._rest(backoff(self._tries))
            self._tries += 1

    def _rest(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._stopping and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK))

    def _join(self, why: str) -> None:
        """Make the group when it is not there, however long that takes."""
        made = False

        def make() -> None:
            nonlocal made
            if self._member.create(self.start) and why:
                _log.warning("%s %s: it was made again, and begins at %s", self._ledger.where, why, self.start)
            made = True

        while not made and not self._stopping:
            self._surviving(make)

    def _turn(self) -> None:
        """Start what can be started, or read more, or wait."""
        assert self._hands is not None
        if not self._hands.room(_LOOK) or self._stopping:
            self._ledger.tell(_TELL)
        elif self._waiting:
            self._start()
            self._ledger.tell(_TELL)
        elif not self._read():
            self._idle()

    def _start(self) -> None:
        """Give the handler the next entry."""
        assert self._hands is not None
        if self._waiting[0].delivery.deliveries > 1:
            # It may end this process, and what is finished would be handled again.
            self._ledger.tell(0)
        held = self._waiting.popleft()
        if self._still_ours(held):
            held.started = True
            self._hands.start(held)

    def _idle(self) -> None:
        assert self._hands is not None
        while not self._stopping:
            left = self._intake.left
            if left <= 0 or self._holding.any_finished:
                return
            # A coroutine that ends does not ring, so it is looked for.
            if self._bell.wait(self._intake.last, min(left, _LOOK) if self._hands.running() else left):
                return

    def _read(self) -> bool:
        """Take entries in hand; False when there are none."""
        if time.monotonic() >= self._next_tidy:
            self._tidy()
        taken = self._intake.more(self._ahead())
        if taken is None:
            self._rejoin()
            return True
        self._waiting.extend(taken)
        return bool(taken)

    def _ahead(self) -> int:
        """How many new entries to read: as many as are handled within half a second."""
        assert self._hands is not None
        pace, batch, concurrency = self._hands.pace, self.settings.batch, self.settings.concurrency
        if pace is None:
            # Nobody knows how long one takes: no more than can be started now.
            return max(1, min(batch, concurrency - self._hands.running()))
        return max(1, min(batch, int(_AHEAD * concurrency / max(pace, 1e-6))))

    def _rejoin(self) -> None:
        # Whatever is in hand was delivered by a group that is no more; the new one delivers what is still there.
        self._holding.forget(self._waiting)
        self._waiting.clear()
        self._intake.regrouped()
        self._join("is gone, as after the server was emptied")

    # -- what is in hand ----------------------------------------------------------------------------------------

    def _still_ours(self, held: Held) -> bool:
        if not held.lost and time.monotonic() - held.seen > self.settings.min_idle / 2:
            # Not renewed for long: this process was held up, or the server away, and others may have it by now.
            try:
                self._ledger.renew([held])
            except ServerUnavailable:
                self._waiting.appendleft(held)
                raise
        if held.lost:
            self._holding.forget([held])
        return not held.lost

    def _tidy(self) -> None:
        forget_ms = self.settings.forget_ms
        self._next_tidy = time.monotonic() + min(_TIDY, forget_ms / 1000)
        if dropped := self._member.tidy(forget_ms):
            _log.info("%s: removed consumers that are gone: %s", self._ledger.where, ", ".join(dropped))

    def _leave(self) -> None:
        """Give back what was not started, tell of what is finished, and go."""
        back = [held for held in self._waiting if not held.lost]
        self._waiting.clear()
        if self._stopping:
            # No failures: whoever stops the app has cancelled these handlers.
            cut = [held for held in self._holding.finished if isinstance(held.error, asyncio.CancelledError)]
            self._holding.forget(cut)
            back += cut
        self._ledger.interrupted()
        self._holding.abandon()
        ids, deadline = [held.id for held in back], time.monotonic() + _LAST_SECONDS
        for attempt in range(_LAST_TRIES):
            try:
                self._ledger.exchange(*([self._member.release(ids)] if ids else []))
                self._member.tidy(0, self.name)
                return
            except ServerUnavailable as error:
                if attempt == _LAST_TRIES - 1 or time.monotonic() > deadline:
                    left = len(self._holding.finished) + len(ids)
                    _log.warning("%s left %d entries of %s pending: %s", self.name, left, self._ledger.where, error)
                    return
                time.sleep(0.05 * 2**attempt)
            except EchoMQError:
                _log.exception("%s could not tidy up behind itself in %s", self.name, self._ledger.where)
                return
