"""A process, as the main process knows it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from typing import Any

from echomq_tasks.worker.channel import Channel

#: Seconds that a process has to be gone after its grace, or after it was told to end at once, before it is killed.
SLACK = 5.0


@dataclass(eq=False)
class Process:
    """A process that was started here and has not been waited for.

    Parameters:
      pid: its id; nobody else's, until it is waited for.
      name: what it is called in the log.
      channel: the line to it.
      ready: what it said once it had booted.
      ready_at: when that was, by the monotonic clock.
      failed: what it said why it, and any other, cannot boot.
      stale: whether it is to be replaced by a reload.
      ending: whether it was told to stop, or said that it does.
      kill_at: when it is killed, by the monotonic clock.
      gone: whether its end of the line is closed.
      bounded: whether it has to keep to ``--max-memory``.
    """

    pid: int
    name: str
    channel: Channel
    ready: dict[str, Any] | None = None
    ready_at: float = 0.0
    failed: str | None = None
    stale: bool = False
    ending: bool = False
    kill_at: float | None = None
    gone: bool = False
    bounded: bool = True

    def __str__(self) -> str:
        return f"{self.name} (PID {self.pid})"

    def lived(self) -> float:
        """For how many seconds it has been ready; 0 when it never was."""
        return 0.0 if self.ready is None else time.monotonic() - self.ready_at

    def stop(self, grace: float | None) -> None:
        """Tell it to finish what runs and end, within ``grace`` seconds if that is a number."""
        self.ending = True
        self.channel.send(order="stop", grace=grace)
        if self.ready is None:
            # While it imports it hears signals only.
            self.signal(signal.SIGTERM)

    def end(self) -> None:
        """Tell it to give back what runs and end; it is killed when it does not."""
        self.ending = True
        self.channel.send(order="now")
        if self.ready is None:
            self.signal(signal.SIGTERM)
        self.kill_after(SLACK)

    def reopen(self) -> None:
        """Have it write to a new log file."""
        self.channel.send(order="reopen")
        if self.ready is None:
            self.signal(signal.SIGUSR1)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill_after(self, seconds: float) -> None:
        """Kill it when it is still there then."""
        due = time.monotonic() + seconds
        self.kill_at = due if self.kill_at is None else min(due, self.kill_at)
