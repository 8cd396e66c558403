"""A consumer of a log: one member of a group that shares the work, each entry finished by one of them at least once."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import re
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from echomq_tasks.bus.bell import Bell
from echomq_tasks.bus.delivery import Delivery
from echomq_tasks.bus.failures import backoff
from echomq_tasks.bus.groups import GroupInfo, dead_log, read_groups
from echomq_tasks.bus.hands import Handler, Hands, OnLoop, OwnThread, is_async
from echomq_tasks.bus.holding import Held, Holding
from echomq_tasks.bus.ledger import Ledger, Tally, Unfinished
from echomq_tasks.bus.log import Log
from echomq_tasks.bus.member import Entry, Member, entries
from echomq_tasks.bus.pulse import Pulse
from echomq_tasks.bus.records import Record
from echomq_tasks.bus.settings import Settings, Start, check_handler
from echomq_tasks.errors import EchoMQError, InvalidArgument, ServerOutOfMemory, ServerUnavailable
from echomq_tasks.forks import after_fork
from echomq_tasks.scripts.arguments import shown

_log = logging.getLogger(__name__)

#: Seconds of work that are read ahead: what is read waits for its turn here, while others may have nothing to do.
_AHEAD = 0.5
#: Pending entries of our own that are looked at in one step.
_PAGE = 100
#: Seconds after which what is finished is told, though more is in hand.
_TELL = 0.2
#: Seconds a look at the event loop or at the bell takes while coroutines are at work.
_LOOK = 0.05
#: How often an end is told to a server that is away, before it is left to whoever claims the entries later.
_LAST_TRIES = 4
#: Seconds between two looks for consumers that are gone.
_TIDY = 60.0


class Consumer:
    """Handles the entries of a log as a member of a group. Making it does no I/O; :meth:`run` does the work.

    In an asyncio app ``await consumer.arun(handler)`` does it, with async handlers on the app's own loop.

    First what it was given before and has not finished, then what dead members hold, then new entries. An entry is
    finished when its handler returned; one whose handler raised is delivered again after ``min_idle``, to this or
    another member, and goes to the dead log ``<log>.dead`` when it has failed ``max_deliveries`` times. So every entry
    is handled at least once, and more than once only when a member died or lost the server at the wrong moment.

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
        self.name = name or _unique()
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
        self._own: str | None = ""  # where the look at our own pending entries goes on; None when it is done
        self._own_counts = True
        self._cursor = "0-0"
        self._last = "0-0"
        self._next_claim = self._next_tidy = 0.0
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
            _check_loop(loop)
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
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        thread = ThreadPoolExecutor(1, thread_name_prefix=f"echomq-consumer-{self.group}")
        cancelled: asyncio.CancelledError | None = None
        try:
            # In the caller's context, which the handlers then have, too.
            end = loop.run_in_executor(thread, lambda: context.run(self.run, handler, loop=loop))
            while not end.done():
                try:
                    await asyncio.wait([end])
                except asyncio.CancelledError as error:
                    if cancelled is not None and self._hands is not None:
                        self._hands.cancel()
                    cancelled = error
                    self.stop()
        finally:
            thread.shutdown(wait=False)
        end.result()
        if cancelled is not None:
            raise cancelled

    def stop(self) -> None:
        """Let :meth:`run` end, from any thread: it finishes what its handler has and gives the rest back. For good."""
        self._stopping = True
        self._bell.silence()

    @property
    def stopping(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stopping

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
        self._own, self._own_counts = "", True
        pulse = Pulse(self._renew_stale, self.settings.min_idle / 4, f"echomq-pulse-{self.group}")
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
            # A reply may have been lost on its way, and with it what it delivered.
            if self._own is None:
                self._own, self._own_counts = "", False
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
            held = self._waiting.popleft()
            if self._still_ours(held):
                held.started = True
                self._hands.start(held)
            self._ledger.tell(_TELL)
        elif not self._read():
            self._idle()

    def _idle(self) -> None:
        assert self._hands is not None
        while not self._stopping:
            left = self._next_claim - time.monotonic()
            if left <= 0 or self._holding.any_finished:
                return
            # A coroutine that ends does not ring, so it is looked for.
            if self._bell.wait(self._last, min(left, _LOOK) if self._hands.running() else left):
                return

    def _read(self) -> bool:
        """Take entries in hand: our own first, then those of the dead, then new ones; False when there are none."""
        if time.monotonic() >= self._next_tidy:
            self._tidy()
        most, now = self._ahead(), time.monotonic()
        while self._own is not None:
            reply = self._ledger.exchange(self._member.held(self._own, _PAGE))
            if not reply:
                self._rejoin()
                return True
            # Goes on when nothing is due: to look is no sign yet that the server takes what a read writes.
            if self._drain([entry.decode() for entry in reply[0]], most, now):
                return True
        if now >= self._next_claim:
            reply = self._ledger.exchange(self._member.claim(self.settings.min_idle, self._cursor, most))
            if reply:
                self._cursor = reply[0].decode()
                if self._cursor == "0-0":
                    self._next_claim = now + self.settings.beat
                self._ledger.drop(reply[2])
                self._take(entries(reply[1]), now)
                return True
        else:
            reply = self._ledger.exchange(self._member.read(most))
            if reply:
                self._ledger.miss(reply[0])
                self._last = reply[1].decode()
                return self._take(entries(reply[2]), now) > 0
        self._rejoin()
        return True

    def _drain(self, page: list[str], most: int, now: float) -> bool:
        """Take what is due of our own pending entries; the others stay as they are, not counted, and as idle as before.

        Answers whether there was something.
        """
        chosen: dict[str, bool] = {}
        tries = self._ledger.tries
        own = page[-1] if len(page) == _PAGE else None
        for entry in page:
            if self._holding.holds(entry) or not tries.due(entry):
                continue
            if len(chosen) == most:
                own = next(reversed(chosen))
                break
            # What we have lost on its way was counted when the server sent it; what has failed here is tried anew.
            chosen[entry] = self._own_counts or tries.known(entry)
        if chosen:
            reply = self._ledger.exchange(self._member.own(chosen))
            if reply:
                self._ledger.drop(reply[1])
                self._take(entries(reply[0]), now)
        self._own = own
        return bool(chosen)

    def _ahead(self) -> int:
        """How many entries to read: as many as are handled within half a second."""
        assert self._hands is not None
        pace, batch, concurrency = self._hands.pace, self.settings.batch, self.settings.concurrency
        if pace is None:
            # Nobody knows how long one takes: no more than can be started now.
            return max(1, min(batch, concurrency - self._hands.running()))
        return max(1, min(batch, int(_AHEAD * concurrency / max(pace, 1e-6))))

    def _take(self, delivered: Iterable[Entry], now: float) -> int:
        taken = 0
        for entry in delivered:
            record = Record.of(entry.id, entry.pairs, self.log.codec)
            delivery = Delivery(record, self.log.queue, self.log.name, self.group, entry.deliveries)
            held = self._holding.take(delivery, now)
            if held is None:
                continue
            taken += 1
            if entry.deliveries > self.settings.max_deliveries:
                self._holding.finish(held, Unfinished(entry.deliveries - 1, self._ledger.tries.error(entry.id)))
            else:
                self._waiting.append(held)
        return taken

    def _rejoin(self) -> None:
        # Whatever is in hand was delivered by a group that is no more; the new one delivers what is still there.
        self._holding.forget(self._waiting)
        self._waiting.clear()
        self._cursor = "0-0"
        self._join("is gone, as after the server was emptied")

    # -- what is in hand ----------------------------------------------------------------------------------------

    def _still_ours(self, held: Held) -> bool:
        if not held.lost and time.monotonic() - held.seen > self.settings.min_idle / 2:
            # Not renewed for long: this process was held up, or the server away, and others may have it by now.
            try:
                self._renew([held])
            except ServerUnavailable:
                self._waiting.appendleft(held)
                raise
        if held.lost:
            self._holding.forget([held])
        return not held.lost

    def _renew_stale(self) -> None:
        """Renew what was not renewed for a while; the pulse calls it."""
        if stale := self._holding.stale(self.settings.min_idle / 8):
            self._renew(stale)

    def _renew(self, several: list[Held]) -> None:
        now = time.monotonic()
        ours = self._member.renew(held.id for held in several)
        for held in self._holding.renewed(several, ours, now):
            _log.warning("the entry %s of %s is at work, and was trimmed or taken over", held.id, self._ledger.where)

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
        ids = [held.id for held in back]
        for attempt in range(_LAST_TRIES):
            try:
                self._ledger.exchange(*([self._member.release(ids)] if ids else []))
                self._member.tidy(0, self.name)
                return
            except ServerUnavailable as error:
                if attempt == _LAST_TRIES - 1:
                    left = len(self._holding.finished) + len(ids)
                    _log.warning("%s left %d entries of %s pending: %s", self.name, left, self._ledger.where, error)
                else:
                    time.sleep(0.05 * 2**attempt)
            except EchoMQError:
                _log.exception("%s could not tidy up behind itself in %s", self.name, self._ledger.where)
                return


def _check_loop(loop: asyncio.AbstractEventLoop) -> None:
    if not isinstance(loop, asyncio.AbstractEventLoop) or loop.is_closed():
        raise InvalidArgument(f"loop is an event loop that runs in another thread, not {shown(loop)}")
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return
    if running is loop:
        raise InvalidArgument("run() would block the loop that its handlers run on: use await consumer.arun() there")


def _unique() -> str:
    """A name that no other consumer has, and that tells a person which machine and process it is."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64] or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"
