"""Replace all processes by ones with the code as it is now."""

from __future__ import annotations

import logging

from echomq_tasks.worker import telling
from echomq_tasks.worker.process import SLACK, Process
from echomq_tasks.worker.roster import Roster
from echomq_tasks.worker.settings import Settings
from echomq_tasks.worker.slot import Slot

_log = logging.getLogger(__name__)


class Reload:
    """One process after the other: its successor boots, then it is told to finish what runs and end.

    The first successor is on trial: if it does not boot, all goes on as before. With ``--watch`` the others follow at
    once, so that nobody wonders which code runs.

    Parameters:
      roster: the processes.
      settings: the options.
    """

    def __init__(self, roster: Roster, settings: Settings) -> None:
        self._roster = roster
        self._settings = settings
        self._running = False

    def begin(self, why: str) -> None:
        """Replace all that is there; begins anew when it is on the way."""
        _log.info("%s: the code is loaded again.", why)
        # A fork would have this process's modules, from before.
        self._roster.fork = False
        self._running = True
        for process in self._roster.processes():
            process.stale = True
        self._next()

    def _next(self) -> None:
        workers = self._roster.workers
        if not self._running or any(slot.coming is not None for slot in workers):
            return
        for slot in workers:
            if slot.current is None:
                # It is due anyway, now with code that may be better.
                self._roster.start(slot)
            elif slot.current.stale:
                if not self._roster.start(slot, beside=True):
                    self._leave_as_it_is("it cannot be started")
                return
        self._running = False
        _log.info("Reloaded: %s.", telling.pids(self._roster.pids()))

    def take_over(self, slot: Slot) -> None:
        """The successor in this place is ready."""
        process = slot.coming
        assert process is not None
        assert process.ready is not None
        self._retire(slot)
        slot.current, slot.coming = process, None
        if self._settings.watch is not None:
            for other in self._roster.workers:
                if other.current is not None and other.current.stale:
                    self._retire(other)
                    self._roster.start(other)
        self._roster.run_beside(dict.fromkeys((*self._settings.functions, *process.ready["functions"])))
        self._next()

    def _retire(self, slot: Slot) -> None:
        if slot.current is not None:
            slot.current.stop(self._settings.grace)
            slot.current.kill_after(self._settings.grace + SLACK)
        slot.leave()

    def break_off(self, process: Process, code: int) -> None:
        """A successor has ended before it was ready."""
        self._leave_as_it_is(f"PID {process.pid} {telling.end_of(process, code)}", telling.reason(process))
        for slot in self._roster.workers:
            if slot.current is None and slot.due is None:
                slot.start_in(slot.pause_after(process))

    def _leave_as_it_is(self, why: str, details: str = "") -> None:
        _log.error("The reload is broken off (%s): the processes with the old code go on.%s", why, details)
        self._running = False
        for process in self._roster.processes():
            process.stale = False
