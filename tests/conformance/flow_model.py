"""Flows over several queues in plain Python: what the wire says should be true after each transition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

#: The states of a job that has still to end.
OPEN = ("awaiting_children", "pending", "scheduled", "active")


@dataclass
class FlowJob:
    """One job of a tree, and what it knows of its children."""

    id: str
    queue: int
    parent: str | None
    ignored: bool
    children: list[str]
    state: str = "pending"
    attempts: int = 0
    failures: int = 0
    stalled: int = 0
    late: bool = False
    cancelled: bool = False
    #: Whether it has ever been dead: one that came back may end after its parent ran.
    has_died: bool = False
    outstanding: int = 0
    processed: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    unsuccessful: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Fact:
    """What a queue owes to a parent in another one; ``kind`` is done, fp or id."""

    parent_queue: int
    parent: str
    kind: str
    child: str
    value: str


class FlowModel:
    """All jobs of all queues, those that are gone left out, and what is owed."""

    def __init__(self, queues: int) -> None:
        self.jobs: dict[str, FlowJob] = {}
        #: The queue of every job that ever was: a child outlives its parent.
        self.homes: dict[str, int] = {}
        self.outbox: list[list[Fact]] = [[] for _ in range(queues)]
        self.completed = [0] * queues
        self.failed = [0] * queues

    def add(self, job: FlowJob) -> None:
        """A job was admitted; a parent before its children."""
        self.jobs[job.id] = job
        self.homes[job.id] = job.queue
        job.outstanding = len(job.children)
        job.state = "awaiting_children" if job.children else "pending"

    def of(self, queue: int, *states: str) -> list[FlowJob]:
        """The jobs of one queue in these states, in mint order."""
        return [job for _, job in sorted(self.jobs.items()) if job.queue == queue and job.state in states]

    # -- what a job does ----------------------------------------------------------------------------------------

    def claim(self, queue: int, count: int) -> Iterator[FlowJob]:
        """Up to ``count`` jobs are handed out; those that were asked to stop are dropped on the way."""
        for job in self.of(queue, "scheduled"):
            job.state = "pending"
        for _ in range(10):
            heads = self.of(queue, "pending")[:count]
            given = [job for job in heads if not job.cancelled]
            for job in heads:
                if job.cancelled:
                    self.forget(job, "cancelled")
            for job in given:
                self._start(job)
                yield job
            count -= len(given)
            if len(given) == len(heads):
                return

    def _start(self, job: FlowJob) -> None:
        for child in job.children:
            open_one = self.jobs.get(child)
            assert open_one is None or open_one.state not in OPEN or open_one.has_died, f"{job.id} runs before {child}"
        job.state, job.late = "active", False
        job.attempts += 1

    def complete(self, job: FlowJob, result: str) -> None:
        """A job is done and gone."""
        del self.jobs[job.id]
        self.completed[job.queue] += 1
        self._tell(job, "done", result)

    def retry(self, job: FlowJob, error: str, limit: int) -> str:
        """A job failed; answers where it went."""
        if job.cancelled:
            self.forget(job, "cancelled")
            return "cancelled"
        job.failures += 1
        job.stalled = 0
        if job.failures <= limit:
            job.state, job.late = "scheduled", False
            return "scheduled"
        self.bury(job, error)
        return "dead"

    def bury(self, job: FlowJob, reason: str) -> None:
        """A job is dead."""
        job.state, job.late, job.has_died = "dead", False, True
        self.failed[job.queue] += 1
        self._tell(job, "id" if job.ignored else "fp", reason)

    def forget(self, job: FlowJob, reason: str) -> None:
        """A job is taken away."""
        del self.jobs[job.id]
        self._tell(job, "id" if job.ignored else "fp", reason)

    def bring_back(self, job: FlowJob) -> None:
        """A dead job waits again, a parent for the children that are still to end."""
        job.state, job.failures, job.stalled, job.cancelled = "pending", 0, 0, False
        if job.outstanding > 0:
            job.state = "awaiting_children"
            job.failed.clear()

    # -- what its parent learns ---------------------------------------------------------------------------------

    def _tell(self, job: FlowJob, kind: str, value: str) -> None:
        if job.parent is None:
            return
        fact = Fact(self.homes[job.parent], job.parent, kind, job.id, value)
        if fact.parent_queue != job.queue:
            self.outbox[job.queue].append(fact)
        else:
            self.learn(fact)

    def learn(self, fact: Fact) -> None:
        """A parent is told; a second time changes nothing."""
        parent = self.jobs.get(fact.parent)
        if parent is None:
            return
        counted = fact.child in parent.processed or fact.child in parent.unsuccessful
        if fact.kind == "done":
            parent.processed.setdefault(fact.child, fact.value)
        elif fact.kind == "id":
            if fact.child not in parent.processed:
                parent.unsuccessful.setdefault(fact.child, fact.value)
        else:
            parent.failed[fact.child] = fact.value
            if parent.state == "awaiting_children":
                self.bury(parent, f"child {fact.child} failed: {fact.value}")
            return
        if not counted:
            parent.outstanding -= 1
            if parent.outstanding == 0 and parent.state == "awaiting_children":
                parent.state = "pending"

    def deliver(self, queue: int) -> int:
        """All that is owed is told."""
        facts, self.outbox[queue] = self.outbox[queue], []
        for fact in facts:
            self.learn(fact)
        return len(facts)
