"""``python -m echomq_tasks.worker.spawned N``: a process with an interpreter of its own; N is its end of the line."""

from __future__ import annotations

import sys

from echomq_tasks.worker.channel import Channel
from echomq_tasks.worker.settings import Task
from echomq_tasks.worker.starting import carry_out


def main() -> int:
    """Hear from the main process what to do, and do it; answers the exit code."""
    channel = Channel.inherited(int(sys.argv[1]))
    order = channel.receive()
    if order is None:
        return 1
    task = Task.from_json(order["task"])
    sys.path[:] = task.import_path
    return carry_out(task, channel)


if __name__ == "__main__":
    sys.exit(main())
