"""What the conformance scenarios share: their numbers, two ways to begin, and whole states of a queue to compare."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from wire.handwriting import Wire

from echomq_tasks.queue import Job, Queue

F = TypeVar("F", bound=Callable[..., None])

A, B, C, D, E = (f"JOB0NgWEfAEJ0{letter}" for letter in "ABCDE")
LANE, OTHER = "GRP0NgWEfAEJ0x", "GRP0NgWEfAEJ0y"
#: The places of a job, for :meth:`Start.put`.
WHERE = ["waiting", "lane", "running", "scheduled", "dead"]
#: A run-at that no test lives to see, unix ms.
FAR = 4_000_000_000_000
#: The lease of jobs that run at the beginning, ms.
LEASE = 30_000
#: The row of a job that was just admitted; its payload is its id's.
ROW = {"state": "pending", "attempts": "0", "payload": "p"}
#: Fields of a row that only we write and read; other runtimes carry them along.
OURS = ("settled", "died")


def scenario(number: str, line: str) -> Callable[[F], F]:
    """Mark a scenario: where its line stands on the page, ``section.line.number``, and what that line says.

    The table in the documentation is read from these marks, see ``table.py``.
    """

    def mark(function: F) -> F:
        function.__dict__["scenario"] = (number, line)
        return function

    return mark


class Start(ABC):
    """Brings a queue into the state that a scenario begins with; afterwards no wake token lies there."""

    def __init__(self, queue: Queue, wire: Wire) -> None:
        # Of its own, so that it is another caller than the queue under test.
        self.queue = Queue(queue.name, queue.connection)
        self.wire = wire

    def put(self, where: str, job_id: str) -> None:
        """One job in one of the places a job can be."""
        match where:
            case "waiting":
                self.waiting(job_id)
            case "lane":
                self.waiting(job_id, group=LANE)
            case "running":
                self.running(job_id)
            case "scheduled":
                self.scheduled(job_id)
            case "dead":
                self.dead(job_id)
            case _:
                raise ValueError(where)

    @abstractmethod
    def waiting(self, *ids: str, group: str | None = None, priority: int = 0) -> None:
        """Jobs that wait, flat or in a lane."""

    @abstractmethod
    def running(self, job_id: str, *, group: str | None = None, priority: int = 0, token: int = 1) -> Job:
        """A job that a worker has claimed ``token`` times; nothing else may wait yet."""

    @abstractmethod
    def scheduled(self, *ids: str, group: str | None = None, priority: int = 0, at: int = FAR) -> None:
        """Jobs that wait for their time, in unix ms."""

    @abstractmethod
    def dead(self, job_id: str, *, group: str | None = None, error: str = "boom") -> None:
        """A job that failed for good; nothing else may wait yet."""


class ByHand(Start):
    """With plain commands, as another runtime leaves a queue behind: nothing that is additive, the lock as a key."""

    def _row(self, job_id: str, state: str, attempts: int, group: str | None, priority: int, **fields: str) -> None:
        fields |= ({"group": group} if group else {}) | ({"priority": str(priority)} if priority else {})
        words = [word for field in fields.items() for word in field]
        self.wire.do("HSET", f"job:{job_id}", "state", state, "attempts", attempts, "payload", "p", *words)

    def waiting(self, *ids: str, group: str | None = None, priority: int = 0) -> None:
        for job_id in ids:
            self._row(job_id, "pending", 0, group, priority)
            self.wire.do("ZADD", f"g:{group}:pending" if group else "pending", priority, job_id)
        if group and group not in self.wire.ring():
            self.wire.do("RPUSH", "ring", group)

    def running(self, job_id: str, *, group: str | None = None, priority: int = 0, token: int = 1) -> Job:
        self._row(job_id, "active", token, group, priority)
        self.wire.do("SET", f"job:{job_id}:lock", token, "PX", 2 * LEASE)
        self.wire.do("ZADD", "active", self.wire.now_ms() + LEASE, job_id)
        if group:
            self.wire.do("HINCRBY", "gactive", group, 1)
        return Job(job_id, b"p", token, group)

    def scheduled(self, *ids: str, group: str | None = None, priority: int = 0, at: int = FAR) -> None:
        for job_id in ids:
            self._row(job_id, "scheduled", 0, group, priority)
            self.wire.do("ZADD", "schedule", at, job_id)

    def dead(self, job_id: str, *, group: str | None = None, error: str = "boom") -> None:
        self._row(job_id, "dead", 1, group, 0, last_error=error)
        self.wire.do("ZADD", "dead", 0, job_id)
        self.wire.do("HINCRBY", "metrics:failed", "count", 1)


class ByVerbs(Start):
    """With the verbs of our own queue."""

    def _quiet(self) -> None:
        self.wire.do("DEL", "wake")

    def waiting(self, *ids: str, group: str | None = None, priority: int = 0) -> None:
        for job_id in ids:
            assert not self.queue.enqueue("p", id=job_id, group=group, priority=priority).duplicate
        self._quiet()

    def running(self, job_id: str, *, group: str | None = None, priority: int = 0, token: int = 1) -> Job:
        self.waiting(job_id, group=group, priority=priority)
        for _ in range(token - 1):
            self.queue.release(self.queue.claim().jobs[0])
        (job,) = self.queue.claim(lease=LEASE / 1000)
        assert (job.id, job.token) == (job_id, token), "begin with what runs, then with what waits"
        self._quiet()
        return job

    def scheduled(self, *ids: str, group: str | None = None, priority: int = 0, at: int = FAR) -> None:
        for job_id in ids:
            assert not self.queue.enqueue("p", id=job_id, at=at / 1000, group=group, priority=priority).duplicate
        self._quiet()

    def dead(self, job_id: str, *, group: str | None = None, error: str = "boom") -> None:
        self.queue.retry(self.running(job_id, group=group), error, max_retries=0)
        self._quiet()


def seen(wire: Wire) -> dict[str, Any]:
    """Every key of the queue with its whole value, as another runtime sees it: a row without what is only ours."""
    found = wire.everything()
    for suffix, value in found.items():
        if suffix.startswith("job:") and isinstance(value, dict):
            found[suffix] = {name: text for name, text in value.items() if name not in OURS}
    return found


def then(before: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A whole state (or a row) after ``changes``; what is None there is gone."""
    return {name: value for name, value in (before | changes).items() if value is not None}


def unlocked(before: dict[str, Any], job_id: str, **fields: str | None) -> dict[str, Any]:
    """The row of a job that no worker holds any more, and its lock key, as changes for :func:`then`."""
    return {f"job:{job_id}": then(before[f"job:{job_id}"], {"lock": None, **fields}), f"job:{job_id}:lock": None}


class Instant:
    """Equal to any score from when it was made to when it is compared, on the server's clock, plus some ms."""

    def __init__(self, wire: Wire, since: int | None = None, plus: int = 0) -> None:
        self._wire = wire
        self._since = wire.now_ms() if since is None else since
        self._plus = plus

    def __add__(self, ms: int) -> Instant:
        return Instant(self._wire, self._since, self._plus + ms)

    def __eq__(self, score: object) -> bool:
        if not isinstance(score, (int, float)):
            return NotImplemented
        return self._since <= score - self._plus <= self._wire.now_ms()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self._since + self._plus} or a little later>"
