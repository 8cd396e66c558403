"""A queue in plain Python: what the wire says should be true after each transition, without a server."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ModelJob:
    """One job; ``late`` is a lease that is over or a time that has come, ``retried`` the token of its last retry."""

    id: str
    group: str | None
    priority: int
    state: str
    attempts: int = 0
    failures: int = 0
    stalled: int = 0
    late: bool = False
    retried: int = 0

    @property
    def order(self) -> tuple[int, str]:
        """Where it stands among those that wait with it."""
        return self.priority, self.id


@dataclass
class QueueModel:
    """The whole queue: its jobs and the settings of its lanes."""

    jobs: dict[str, ModelJob] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    paused_lanes: set[str] = field(default_factory=set)
    paused: bool = False
    completed: int = 0
    failed: int = 0

    def of(self, state: str) -> list[ModelJob]:
        """The jobs of one state, in mint order."""
        return [self.jobs[job_id] for job_id in sorted(self.jobs) if self.jobs[job_id].state == state]

    def waiting(self, group: str | None) -> list[ModelJob]:
        """The jobs that wait in a lane, or flat, in the order in which they are served."""
        return sorted((job for job in self.of("pending") if job.group == group), key=lambda job: job.order)

    def running(self) -> dict[str, int]:
        """How many jobs of each lane are active; lanes without any are left out."""
        counts: dict[str, int] = {}
        for job in self.of("active"):
            if job.group:
                counts[job.group] = counts.get(job.group, 0) + 1
        return counts

    def lanes(self) -> set[str]:
        """The lanes that hold a job."""
        return {job.group for job in self.of("pending") if job.group}

    def headroom(self, group: str) -> int:
        """How many more jobs of a lane may run."""
        return self.limits.get(group, 1_000_000) - self.running().get(group, 0)

    def serviceable(self) -> set[str]:
        """The lanes that the ring must hold: no more and no fewer."""
        return {group for group in self.lanes() - self.paused_lanes if self.headroom(group) > 0}

    def claimable(self) -> int:
        """How many jobs one boundless claim would get."""
        if self.paused:
            return 0
        lanes = sum(min(len(self.waiting(group)), self.headroom(group)) for group in self.serviceable())
        return lanes + len(self.waiting(None))

    def promote(self, limit: int = 1_000_000) -> int:
        """Due jobs wait again."""
        due = [job for job in self.of("scheduled") if job.late][:limit]
        for job in due:
            job.state, job.late = "pending", False
        return len(due)

    def claim(self, job_id: str) -> ModelJob:
        """A job was handed out: it must have been the head of where it waited, and its lane one to be served."""
        job = self.jobs[job_id]
        assert job.state == "pending"
        assert self.waiting(job.group)[0] is job, f"{job_id} was not the head of {job.group or 'pending'}"
        assert job.group is None or job.group in self.serviceable(), f"lane {job.group} was not to be served"
        job.state, job.late = "active", False
        job.attempts += 1
        return job

    def expired(self, limit: int) -> list[ModelJob]:
        """The active jobs whose lease is over."""
        return [job for job in self.of("active") if job.late][:limit]

    def back(self, job: ModelJob) -> None:
        """An active job waits again."""
        job.state, job.late = "pending", False

    def complete(self, job: ModelJob) -> None:
        """A job is done and gone."""
        del self.jobs[job.id]
        self.completed += 1

    def retry(self, job: ModelJob, limit: int) -> str:
        """A job failed; answers where it went. The same retry again changes nothing, wherever the job is by then."""
        if job.retried == job.attempts:
            return "dead" if job.state == "dead" else "scheduled"
        job.retried = job.attempts
        job.failures += 1
        job.stalled = 0
        job.late = False
        if job.failures <= limit:
            job.state = "scheduled"
        else:
            self.bury(job)
        return job.state

    def bury(self, job: ModelJob) -> None:
        """A job is dead."""
        job.state, job.late = "dead", False
        self.failed += 1
