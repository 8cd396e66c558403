"""The model of a queue, with what its operator does: ceilings on the whole queue, and jobs that change their lane."""

from __future__ import annotations

from dataclasses import dataclass, field

from queue_model import ModelJob, QueueModel


@dataclass
class LaneModel(QueueModel):
    """The queue with its rate (in one window that never ends) and its concurrency ceiling."""

    weights: dict[str, int] = field(default_factory=dict)
    rate: int | None = None
    spent: int = 0
    concurrency: int | None = None

    def claimable(self) -> int:
        """How many jobs one boundless claim would get."""
        room = super().claimable()
        if self.rate is not None:
            room = min(room, self.rate - self.spent)
        if self.concurrency is not None:
            room = min(room, self.concurrency - len(self.of("active")))
        return max(room, 0)

    def claim(self, job_id: str) -> ModelJob:
        """A job was handed out: as in any queue, and no ceiling was in its way."""
        assert self.claimable() > 0, "a ceiling is passed"
        job = super().claim(job_id)
        if self.rate is not None:
            self.spent += 1
        return job

    def limit_rate(self, count: int | None) -> None:
        """Without a ceiling nothing is counted, and what was is forgotten."""
        self.rate = count
        if count is None:
            self.spent = 0

    def drop(self, group: str | None) -> int:
        """All that waits in a lane, or flat, is gone."""
        dropped = self.waiting(group)
        for job in dropped:
            del self.jobs[job.id]
        return len(dropped)

    def settings(self) -> set[str]:
        """The groups of which the queue knows anything."""
        return self.lanes() | set(self.running()) | set(self.limits) | set(self.weights) | self.paused_lanes
