"""All processes that the main process has started, by their places."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection

from echomq_tasks import __version__
from echomq_tasks.worker import telling
from echomq_tasks.worker.process import Process
from echomq_tasks.worker.settings import Settings, Task
from echomq_tasks.worker.slot import Slot
from echomq_tasks.worker.starting import start

_log = logging.getLogger(__name__)


class Roster:
    """The places of worker processes, those of errands beside them, and how a place is filled.

    Parameters:
      settings: the options.
      in_child: called in each process that is forked, to close what only the main process may hold.
    """

    def __init__(self, settings: Settings, in_child: Callable[[], None]) -> None:
        self._settings = settings
        self._in_child = in_child
        self.workers = [Slot(f"process {number}") for number in range(1, settings.processes + 1)]
        self.errands: list[Slot] = []
        #: Whether to fork; a fork has the modules that this process has loaded, which may have changed since.
        self.fork = not settings.use_spawn

    def places(self) -> list[Slot]:
        """All of them."""
        return [*self.workers, *self.errands]

    def processes(self) -> list[Process]:
        """All that are there."""
        return [process for slot in self.places() for process in slot.processes()]

    def slot_of(self, process: Process) -> Slot:
        """The place of a process."""
        return next(slot for slot in self.places() if process in slot.processes())

    def pids(self) -> list[int]:
        """The ids of the current worker processes."""
        return [slot.current.pid for slot in self.workers if slot.current is not None]

    def start(self, slot: Slot, *, beside: bool = False) -> bool:
        """Start a process for a place, or one ``beside`` the current one, to take over; False when it is put off."""
        slot.due = None
        task = Task(self._settings, slot.name, slot.function, __version__, sys.path.copy())
        try:
            process = start(task, fork=self.fork, in_child=self._leave_to_child)
        except OSError as error:
            _log.error("A process cannot be started for %s: %s.", slot.name, error)
            if not beside:
                slot.start_in(slot.pause_after(None))
            return False
        _log.debug("%s starts.", telling.capital(process))
        if beside:
            slot.coming = process
        else:
            slot.current = process
        return True

    def _leave_to_child(self) -> None:
        # A copy of the main process's end of a line would hide its death from the process at the other end.
        for process in self.processes():
            process.channel.close()
        self._in_child()

    def run_beside(self, functions: Collection[str]) -> None:
        """Have just these functions run in processes of their own, by code that is not stale."""
        for errand in self.errands:
            errand.wanted = errand.function in functions
            if errand.current is not None and (errand.current.stale or not errand.wanted):
                # It may hold a port: its successor starts when it has ended.
                errand.current.end()
            elif not errand.wanted:
                errand.due = None
        there = {errand.function for errand in self.errands}
        for name in functions:
            if name not in there:
                self.errands.append(Slot(name, name))
                self.start(self.errands[-1])
