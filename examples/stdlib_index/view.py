"""What the person sees: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn


def numbered(number: int, noun: str) -> str:
    """A number and its noun: "1 job", "2 jobs"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


class View:
    """The progress of ``total`` jobs; a context manager."""

    def __init__(self, total: int) -> None:
        # Said outright, as variables like FORCE_COLOR would put control codes into a file.
        self.console = Console(force_terminal=sys.stdout.isatty(), highlight=False)
        self.live = self.console.is_terminal and not self.console.is_dumb_terminal
        columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f}{task.fields[note]}")
        self.progress = Progress(*columns, console=self.console, disable=not self.live)
        self.total = total
        self.bars: dict[str, TaskID] = {}
        self.next_line = 0.0

    def __enter__(self) -> View:
        self.progress.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.progress.stop()

    def say(self, text: str) -> None:
        """Print a line, above the bars."""
        self.console.print(text, soft_wrap=True, markup=False)

    def show(self, done: int, seconds: float, workers: Mapping[int, int], killed: Collection[int] = ()) -> None:
        """Show the jobs done, in all and by each worker's pid; without a terminal about one line a second."""
        note = f" of {self.total:,}, {done / seconds:,.0f} jobs/s"
        if self.live:
            self._draw("all jobs", done, note)
            for pid, count in workers.items():
                self._draw(f"worker {pid}", count, ", killed" if pid in killed else "")
        elif done == self.total or time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + 1.0
            names = {pid: f"worker {pid}{' (killed)' if pid in killed else ''}" for pid in workers}
            self.say(f"{done:,}{note}; " + ", ".join(f"{names[pid]}: {count:,}" for pid, count in workers.items()))

    def _draw(self, name: str, count: int, note: str) -> None:
        if name not in self.bars:
            self.bars[name] = self.progress.add_task(name, total=self.total, note="")
        self.progress.update(self.bars[name], completed=count, note=note)
