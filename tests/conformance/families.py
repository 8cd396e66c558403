"""Flow parents and their children for the conformance scenarios, laid out by hand or by our verb."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from conformance.scenarios import ROW, then
from wire.handwriting import Wire

from echomq_tasks.queue import Flow, Job, NewJob, Queue

Policy = Literal["fp", "id"]
ON_FAILURE: dict[str, Literal["fail_parent", "ignore"]] = {"fp": "fail_parent", "id": "ignore"}
HELD = ROW | {"state": "awaiting_children"}


@dataclass
class Family:
    """Lays out parents and children, with plain commands as another runtime does, or with our verb."""

    by_hand: bool
    queue: Queue
    wire: Wire
    far: Queue
    far_wire: Wire

    def lay(self, parent: str, *children: str, policy: Policy = "fp", away: bool = False, **of_parent: Any) -> None:
        """A parent in this queue, or ``away`` in the other one, with children that wait in this one."""
        if self.by_hand:
            at = self.far_wire if away else self.wire
            words = [word for field in of_parent.items() for word in field]
            at.do("HSET", f"job:{parent}", "state", "awaiting_children", "attempts", 0, "payload", "p", *words)
            at.do("SET", f"job:{parent}:dependencies", len(children))
            ties = ["parent", parent] + ["parent_queue", self.far.name] * away
            # `fp` is the default, and then another runtime may leave it out.
            ties += ["parent_policy", "id"] if policy == "id" else []
            for child in children:
                self.wire.do("HSET", f"job:{child}", "state", "pending", "attempts", 0, "payload", "p", *ties)
                self.wire.do("ZADD", "pending", 0, child)
        else:
            below = [
                Flow(NewJob("p", id=child), queue=self.queue.name, on_failure=ON_FAILURE[policy]) for child in children
            ]
            (self.far if away else self.queue).add_flow(Flow(NewJob("p", id=parent, **of_parent), below))
        self.quiet()

    def take(self, *children: str) -> list[Job]:
        """Claim children; no token lies there afterwards."""
        jobs = {job.id: job for job in self.queue.claim(50)}
        self.quiet()
        return [jobs[child] for child in children]

    def quiet(self) -> None:
        self.wire.do("DEL", "wake")
        self.far_wire.do("DEL", "wake")


def done(before: dict[str, Any], job_id: str, changes: dict[str, Any]) -> dict[str, Any]:
    """The state after a job was completed: all of its keys are gone, and it was the first that was counted."""
    own: dict[str, Any] = {name: None for name in before if name.startswith(f"job:{job_id}")}
    active = then(before["active"], {job_id: None}) or None
    return then(before, own | {"active": active, "metrics:completed": {"count": "1"}} | changes)
