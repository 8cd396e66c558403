"""Worker processes: how the example starts, kills and stops them; run as a module, this is one of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from threading import Thread
from typing import IO

import dramatiq


class Workers:
    """Worker processes with ``threads`` threads each; ``say`` is told what they write to standard error.

    They stop when their standard input, a pipe from here, ends, however sudden the end of this process is.
    """

    def __init__(self, threads: int, say: Callable[[str], None]) -> None:
        self.say = say
        self.command = [sys.executable, "-m", "stdlib_index.workers", str(threads)]
        # They can import what this process can, from wherever it was started.
        self.env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.running: dict[int, subprocess.Popen[str]] = {}
        self.readers: dict[int, Thread] = {}

    def start(self) -> int:
        """Start one and return its pid."""
        process = subprocess.Popen(
            self.command,
            env=self.env,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # Ctrl-C reaches the terminal's process group: this process, which decides, and not its workers.
            start_new_session=True,
        )
        self.running[process.pid] = process
        # Written to the terminal by the worker itself, a line would land in the middle of the bars.
        reader = Thread(target=self._read, args=(process.pid, process.stderr), daemon=True)
        self.readers[process.pid] = reader
        reader.start()
        return process.pid

    def _read(self, pid: int, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                self.say(f"worker {pid}: {line.rstrip()}")

    def kill(self) -> int:
        """Kill the oldest with SIGKILL, so that it cannot give its jobs back, and return its pid."""
        pid, process = next(iter(self.running.items()))
        process.kill()
        self._end(process)
        del self.running[pid]
        return pid

    def dead(self) -> list[int]:
        """Return the pids of those that ended by themselves."""
        pids = [pid for pid, process in self.running.items() if process.poll() is not None]
        for pid in pids:
            self._end(self.running[pid])
        return pids

    def stop(self) -> None:
        """Let all finish the jobs they are running, and wait for that."""
        for process in self.running.values():
            if process.stdin:
                process.stdin.close()
        for process in self.running.values():
            try:
                process.wait(timeout=15.0)
            except subprocess.TimeoutExpired:
                process.kill()
            self._end(process)

    def _end(self, process: subprocess.Popen[str]) -> None:
        process.wait()
        if process.stdin:
            process.stdin.close()
        # Its last words are said before anybody speaks of its end.
        self.readers[process.pid].join(timeout=5.0)


if __name__ == "__main__":
    from stdlib_index.jobs import broker

    worker = dramatiq.Worker(broker, worker_threads=int(sys.argv[1]))
    worker.start()
    sys.stdin.read()
    worker.stop()
    broker.close()
