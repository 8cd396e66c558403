"""Worker processes: how the example starts, kills and stops them; run as a module, this is one of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import dramatiq


class Workers:
    """Worker processes with ``threads`` threads each. They stop when their standard input, a pipe from here, ends."""

    def __init__(self, threads: int) -> None:
        self.command = [sys.executable, "-m", "stdlib_index.workers", str(threads)]
        # They can import what this process can, from wherever it was started.
        self.env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> int:
        """Start one and return its pid."""
        process = subprocess.Popen(self.command, stdin=subprocess.PIPE, env=self.env)
        self.running[process.pid] = process
        return process.pid

    def kill(self) -> int:
        """Kill the oldest with SIGKILL, so that it cannot give its jobs back, and return its pid."""
        pid, process = next(iter(self.running.items()))
        process.kill()
        process.communicate()
        del self.running[pid]
        return pid

    def dead(self) -> list[int]:
        """Return the pids of those that ended by themselves."""
        return [pid for pid, process in self.running.items() if process.poll() is not None]

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
                process.wait()


if __name__ == "__main__":
    from stdlib_index.jobs import broker

    # Ctrl-C reaches the whole process group, but the parent decides; its end, however sudden, ends our input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = dramatiq.Worker(broker, worker_threads=int(sys.argv[1]))
    worker.start()
    sys.stdin.read()
    worker.stop()
    broker.close()
