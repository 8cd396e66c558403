"""The main process of ``echomq worker``: it starts the others, replaces what dies, and passes on what it is told."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from typing import Any

from echomq_tasks.worker import telling
from echomq_tasks.worker.alarm import Alarm, ignore_from_now_on
from echomq_tasks.worker.logs import log_here, reopen
from echomq_tasks.worker.memory import resident_mib
from echomq_tasks.worker.pidfile import PidFile
from echomq_tasks.worker.process import SLACK, Process
from echomq_tasks.worker.reload import Reload
from echomq_tasks.worker.roster import Roster
from echomq_tasks.worker.settings import Settings
from echomq_tasks.worker.watching import Watcher

_log = logging.getLogger(__name__)

#: Exit codes: work was cut short; what was asked for cannot be done.
CUT_SHORT = 1
CANNOT_LOAD = 2
#: Seconds between two looks at the memory of the processes, and at the files that are watched; of the time of this
#: process, looking at many files takes a twentieth at most.
_MEMORY_BEAT = 1.0
_WATCH_BEAT, _WATCH_SHARE = 0.4, 20
#: Seconds after which a person wonders why nothing is ready yet.
_LONG = 10.0


class Supervisor:
    """Runs worker processes until a signal stops them. Only :meth:`run` is for others.

    One thread, no connection, and no module of the app: so its processes can be forked from it, and each start takes
    the code as it is then.

    Parameters:
      settings: the options.
      pid_file: closed in each process that is started; the caller closes it in this one.
    """

    def __init__(self, settings: Settings, pid_file: PidFile | None = None) -> None:
        self._settings = settings
        self._pid_file = pid_file
        self._main = os.getpid()
        self._roster = Roster(settings, self._leave_to_child)
        self._reload = Reload(self._roster, settings)
        self._booted = False
        self._stopping = 0
        self._code = 0
        self._refused = False
        self._began = time.monotonic()
        self._wondered = False
        self._watcher = self._watch() if settings.watch is not None else None
        self._next_watch = self._next_memory = 0.0
        self._terminals = [descriptor for descriptor in range(3) if os.isatty(descriptor)]

    def _watch(self) -> Watcher:
        include = ("*.py", *self._settings.watch_include)
        return Watcher(str(self._settings.watch), include, self._settings.watch_exclude)

    def run(self) -> int:
        """Run them; answers the exit code: 0 when all ended as they were asked to, 1 when work was cut short, and what
        :mod:`~echomq_tasks.worker.loading` says when what was asked for could never be done.
        """
        log_here(self._settings, main=True)
        numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            # Else it was started so that it survives its terminal (nohup).
            numbers.append(signal.SIGHUP)
        self._alarm = Alarm(numbers)
        try:
            for slot in self._roster.workers:
                self._roster.start(slot)
            while self._roster.processes() or not self._stopping:
                self._turn()
        finally:
            if self._main == os.getpid():
                ignore_from_now_on()
        if self._refused or (self._code and not self._booted):
            # It has said why nothing began.
            return self._code
        _log.info("Stopped." if not self._code else "Stopped; what was cut short runs again.")
        return self._code

    # -- one turn -----------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        by_channel = {process.channel: process for process in self._roster.processes() if not process.gone}
        for channel in self._alarm.wait(list(by_channel), self._rest()):
            self._hear(by_channel[channel])
        self._reap()
        for number in self._alarm.signals():
            if number == signal.SIGHUP:
                self._hang_up()
            elif number == signal.SIGUSR1:
                self._reopen()
            elif number != signal.SIGCHLD:
                self._end(signal.Signals(number).name)
        now = time.monotonic()
        for process in self._roster.processes():
            if process.kill_at is not None and now >= process.kill_at:
                process.kill_at = None
                self._code = self._code or CUT_SHORT
                _log.warning("%s does not end: it is killed.", telling.capital(process))
                process.signal(signal.SIGKILL)
        if self._stopping:
            return
        for slot in self._roster.places():
            if slot.due is not None and now >= slot.due:
                self._roster.start(slot)
        self._look_at_memory(now)
        self._look_at_files(now)
        if not self._booted and not self._wondered and now - self._began >= _LONG:
            self._wondered = True
            _log.info("Still importing %s.", self._settings.broker)

    def _rest(self) -> float | None:
        """Seconds until something is to be done unasked."""
        times = [process.kill_at for process in self._roster.processes()]
        if not self._stopping:
            times += [slot.due for slot in self._roster.places()]
            times += [self._next_memory] if self._settings.max_memory is not None else []
            times += [self._next_watch] if self._watcher is not None else []
            times += [self._began + _LONG] if not self._booted and not self._wondered else []
        known = [each for each in times if each is not None]
        return max(0.0, min(known) - time.monotonic()) if known else None

    # -- one process --------------------------------------------------------------------------------------------

    def _leave_to_child(self) -> None:
        self._alarm.close()
        if self._pid_file is not None:
            self._pid_file.close()

    def _hear(self, process: Process) -> None:
        while not process.gone and process.channel.waiting():
            message = process.channel.receive()
            if message is None:
                process.gone = True
            elif "failed" in message:
                process.failed = message["failed"]
                if self._is_hopeless(process):
                    self._give_up(message["failed"], message["code"])
            elif "ready" in message:
                process.ready, process.ready_at = message, time.monotonic()
                self._is_ready(process)
            elif "finished" in message:
                process.kill_after(SLACK)
            elif "leaving" in message:
                self._make_room(process, f"has begun its --max-jobs ({self._settings.max_jobs:,})")

    def _is_hopeless(self, process: Process) -> bool:
        """Whether one that cannot boot shows that the command line is wrong: nothing like it has ever worked."""
        if self._stopping:
            return False
        slot = self._roster.slot_of(process)
        if slot.function is None:
            return not self._booted
        return slot.function in self._settings.functions and not slot.proven

    def _reap(self) -> None:
        for process in self._roster.processes():
            pid, status = os.waitpid(process.pid, os.WNOHANG)
            if pid:
                # Its last words may be on the line still.
                self._hear(process)
                process.channel.close()
                self._has_ended(process, os.waitstatus_to_exitcode(status))
        if os.getpid() == 1:
            self._reap_strangers()

    def _reap_strangers(self) -> None:
        """In a container this may be process 1, to which the system gives the orphans of all others."""
        known = {process.pid for process in self._roster.processes()}
        while (info := _ended_child()) is not None and info not in known:
            os.waitpid(info, 0)

    def _has_ended(self, process: Process, code: int) -> None:
        slot = self._roster.slot_of(process)
        place = "coming" if process is slot.coming else "current" if process is slot.current else "leaving"
        slot.discard(process)
        if self._stopping or place == "leaving":
            # What was cut short it has told itself.
            if code not in (0, CUT_SHORT) and process.failed is None:
                _log.warning("%s ended with %s.", telling.capital(process), telling.ending(code))
            self._code = self._code or (CUT_SHORT if code and self._stopping and process.ready else 0)
            if self._stopping:
                self._end_errands()
            return
        if place == "coming":
            self._reload.break_off(process, code)
            return
        if slot.coming is not None:
            _log.warning("%s %s.", telling.capital(process), telling.end_of(process, code))
            return
        if slot.function is not None and (process.ending or code == 0):
            # Told to make room for its successor, or done with what it had to do.
            if process.ending and slot.wanted:
                self._roster.start(slot)
            else:
                _log.info("%s has ended.", telling.capital(process))
            if not slot.wanted:
                self._roster.errands.remove(slot)
            return
        pause = slot.pause_after(process)
        if pause:
            text = "%s %s: started again in %.0f s.%s"
            _log.error(text, telling.capital(process), telling.end_of(process, code), pause, telling.reason(process))
            slot.start_in(pause)
            return
        self._roster.start(slot)
        if slot.current is not None:
            text = "%s %s: PID %d takes its place."
            _log.error(text, telling.capital(process), telling.end_of(process, code), slot.current.pid)

    def _is_ready(self, process: Process) -> None:
        slot = self._roster.slot_of(process)
        slot.proven = True
        if self._stopping:
            return
        if slot.function is not None:
            _log.info("%s runs.", telling.capital(process))
            return
        if self._is_too_big(process):
            return
        if process is slot.coming:
            self._reload.take_over(slot)
        if not self._booted and all(slot.current is not None and slot.current.ready for slot in self._roster.workers):
            self._booted = True
            assert process.ready is not None
            for line in telling.warnings(process.ready, self._settings):
                _log.warning(line)
            _log.info(telling.booted(process.ready, self._settings, self._roster.pids()))
            # Not before: what they share with the workers is made by the first of those.
            self._roster.run_beside(dict.fromkeys((*self._settings.functions, *process.ready["functions"])))

    def _make_room(self, process: Process, why: str) -> None:
        """Let another take the place of one that ends by itself, or is told to here; what runs in it is finished."""
        slot = self._roster.slot_of(process)
        if self._stopping or process is not slot.current:
            process.stop(None)
            return
        slot.leave()
        process.stop(None)
        self._roster.start(slot)
        if slot.current is not None:
            _log.info("%s %s: PID %d takes its place.", telling.capital(process), why, slot.current.pid)

    # -- memory and files ---------------------------------------------------------------------------------------

    def _is_too_big(self, process: Process) -> bool:
        """Give up on a process that needs more than ``--max-memory`` before its first job: the next one would, too."""
        most = self._settings.max_memory
        if most is None or (taken := resident_mib(process.pid)) is None or taken <= most:
            return False
        text = f"--max-memory {most:g} is too little: before its first job a process has {taken:.0f} MiB"
        if self._booted:
            # Code that has grown, or an odd day: better one that is too big than none at all.
            process.bounded = False
            _log.error("%s; %s is left alone.", text, process)
            return False
        self._give_up(text, CANNOT_LOAD)
        return True

    def _look_at_memory(self, now: float) -> None:
        most = self._settings.max_memory
        if most is None or now < self._next_memory:
            return
        self._next_memory = now + _MEMORY_BEAT
        for slot in self._roster.workers:
            process = slot.current
            if process is None or not process.ready or not process.bounded:
                continue
            if (taken := resident_mib(process.pid)) is None:
                continue
            if taken > most:
                self._make_room(process, f"has {taken:.0f} MiB (--max-memory {most:g})")

    def _look_at_files(self, now: float) -> None:
        if self._watcher is None or now < self._next_watch:
            return
        changed = self._watcher.settled()
        done = time.monotonic()
        self._next_watch = done + max(_WATCH_BEAT, _WATCH_SHARE * (done - now))
        if changed is not None:
            self._reload.begin(f"{changed} has changed")

    # -- reload and log files -------------------------------------------------------------------------------------

    def _hang_up(self) -> None:
        if any(not os.isatty(descriptor) for descriptor in self._terminals):
            self._end("The terminal is gone (SIGHUP)")
            return
        self._pass_on_reopening()
        if not self._stopping:
            self._reload.begin("SIGHUP")

    def _reopen(self) -> None:
        if self._settings.log_file is None:
            _log.info("SIGUSR1: there is no --log-file to open again.")
        elif self._pass_on_reopening():
            _log.info("SIGUSR1: the log file is opened again.")

    def _pass_on_reopening(self) -> bool:
        if not reopen(self._settings):
            return False
        for process in self._roster.processes():
            process.reopen()
        return True

    # -- the end ------------------------------------------------------------------------------------------------

    def _give_up(self, text: str, code: int) -> None:
        """What was asked for cannot be done, now or later."""
        self._code = code
        self._refused = True
        self._stopping = 1
        sys.stderr.write(telling.note(text))
        sys.stderr.flush()
        for process in self._roster.processes():
            process.stop(0.0)
            process.kill_after(SLACK)
        self._end_errands()

    def _end(self, what: str) -> None:
        self._stopping += 1
        grace = self._settings.grace
        if self._stopping == 1:
            _log.info("%s: stopping. What runs has %g s to finish; a second one ends it at once.", what, grace)
            for slot in self._roster.workers:
                slot.due = None
                for process in slot.processes():
                    process.stop(grace)
                    process.kill_after(grace + SLACK)
            self._end_errands()
        elif self._stopping == 2:
            _log.warning("%s: ending at once. What runs is given back, to run again.", what)
            for process in self._roster.processes():
                process.end()
        else:
            _log.warning("%s: all processes are killed.", what)
            for process in self._roster.processes():
                process.signal(signal.SIGKILL)

    def _end_errands(self) -> None:
        """End what runs beside the workers, once those are gone: what they did last is still to be told."""
        for errand in self._roster.errands:
            errand.due = None
            for process in errand.processes():
                if not process.ending and not any(True for slot in self._roster.workers for _ in slot.processes()):
                    process.end()


def _ended_child() -> int | None:
    """The id of a child that has ended, which it stays until it is waited for."""
    try:
        info: Any = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if info is None else int(info.si_pid)
