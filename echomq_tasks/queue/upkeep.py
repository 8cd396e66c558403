"""Upkeep: what any worker does now and then for the whole queue."""

from __future__ import annotations

from echomq_tasks.errors import InvalidArgument
from echomq_tasks.queue.arguments import whole
from echomq_tasks.queue.handle import Handle
from echomq_tasks.queue.model import MAX_LEVELS, Swept
from echomq_tasks.queue.replies import text

#: What a person calls the sets, and their names on the wire.
_SETS = {
    "pending": "pending",
    "lanes": "lanes",
    "scheduled": "schedule",
    "schedule": "schedule",
    "dead": "dead",
    "active": "active",
    "awaiting": "flow:parents",
}


class Upkeep(Handle):
    """Promotion, reaping, sweeping and draining."""

    def promote(self, limit: int = 100) -> int:
        """Bring due scheduled jobs back to where they wait; answers how many. Claims do this by themselves."""
        return int(self.scripts.call("job_promote", self.base, (whole(limit, "limit", 1, 10_000),)))

    def reap(self, limit: int = 100) -> int:
        """Bring jobs whose lease ran out back to where they wait; answers how many."""
        return int(self.run("job_reap", whole(limit, "limit", 1, 10_000)))

    def sweep_stalled(self, *, max_stalled: int = 3, limit: int = 100) -> Swept:
        """As :meth:`reap`, and count it: a job whose worker died ``max_stalled`` times with it goes to dead."""
        args = (whole(limit, "limit", 1, 10_000), whole(max_stalled, "max_stalled", 1))
        recovered, dead = self.run("job_sweep", *args)
        return Swept(tuple(text(id) for id in recovered), tuple(text(id) for id in dead))

    def drain(self, *sets: str) -> int:
        """Drop jobs and their rows; answers how many. Bounded steps, so a large queue takes several round trips.

        Parameters:
          sets: any of ``pending``, ``lanes``, ``scheduled``, ``dead``, ``active``, ``awaiting`` (flow parents); the
            first two by default. A worker that runs an ``active`` job finishes it and finds it gone.

        Raises:
          InvalidArgument: on another name.
        """
        chosen = sets or ("pending", "lanes")
        for name in chosen:
            if name not in _SETS:
                raise InvalidArgument(f"a queue has no set {name!r} to drain: it has {', '.join(_SETS)}")
        total, step, partial = 0, 500, 0
        # A child that is dropped can make its parent wait, and so on up its tree, in a set that was looked at before.
        while partial <= MAX_LEVELS:
            # The last step announces what was dropped in all.
            last = "1" if partial == MAX_LEVELS else ""
            names = (_SETS[name] for name in chosen)
            dropped = int(self.run_once("queue_drain", step, *names, texts=(str(total), last)))
            total += dropped
            partial += dropped < step
            if not dropped:
                break
        if total:
            self.send_signal("drained", jobs=str(total))
        return total
