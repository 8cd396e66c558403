"""Lanes: the jobs of one group wait apart, so that one customer's thousand jobs do not stand before another's one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from echomq_tasks.errors import InvalidArgument
from echomq_tasks.identity import check_id, group_id
from echomq_tasks.queue.arguments import whole
from echomq_tasks.queue.handle import Handle
from echomq_tasks.queue.model import Verdict
from echomq_tasks.queue.replies import text

#: How many jobs one script call drops, expired leases it looks at, or lanes it tells of.
_STEP = 500
#: The most jobs of one lane that are served in one turn.
MAX_WEIGHT = 1000


@dataclass(frozen=True, slots=True)
class LaneInfo:
    """A lane at one instant.

    Attributes:
      name: what the group is called; its id when no name was given.
      group: its branded id.
      depth: jobs that wait.
      active: jobs that run.
      limit: how many may run at once; None when there is no ceiling.
      weight: how many of its jobs are served in each of its turns.
      paused: whether the lane is paused.
    """

    name: str
    group: str
    depth: int
    active: int
    limit: int | None
    weight: int
    paused: bool


class Lane:
    """One lane of a queue, made by :meth:`Queue.lane`. It exists as soon as it has a job or a setting.

    Attributes:
      name: the name or branded id it was asked for.
      group: its branded id.
    """

    def __init__(self, queue: Lanes, name: str) -> None:
        self._queue = queue
        self.group = group_id(name)
        self.name = str.__str__(name)
        # What a derived group was called is kept for people.
        self._kept = "" if self.group == self.name else self.name

    def __repr__(self) -> str:
        return f"<Lane {self.name!r} of {self._queue!r}>"

    def limit(self, count: int | Literal["auto"] | None) -> None:
        """Let ``count`` of its jobs run at once, on all workers together; jobs that run already are not stopped.

        Parameters:
          count: 1 or more; None removes the ceiling. Both hold until you change them, whatever ``group_limit`` jobs
            bring; with ``"auto"`` those hold again.

        Raises:
          InvalidArgument: before a byte is sent.
        """
        if count == 0 and not isinstance(count, bool):
            raise InvalidArgument("a limit of 0 lets nothing through: use pause() for that, or None for no limit")
        ceiling: bytes | int = b"auto"
        if count != "auto":
            ceiling = b"" if count is None else whole(count, "a limit", 1)
        self._queue.run("lane_limit", self.group, self._kept, ceiling)

    def weight(self, count: int | None) -> None:
        """Serve up to ``count`` of its jobs in each of its turns, where other lanes have one.

        Parameters:
          count: 1 to 1000; None is 1.

        Raises:
          InvalidArgument: before a byte is sent.
        """
        weight = b"" if count is None else whole(count, "a weight", 1, MAX_WEIGHT)
        self._queue.run("lane_weight", self.group, self._kept, weight)

    def pause(self) -> bool:
        """Let its jobs wait, by any runtime, until :meth:`resume`; answers whether it was not paused before."""
        done = bool(self._queue.run("lane_pause", self.group, self._kept))
        if done:
            self._queue.send_signal("paused", group=self.group)
        return done

    def resume(self) -> bool:
        """Serve the lane again, and wake workers for its jobs; answers whether it was paused."""
        done = bool(self._queue.run("lane_resume", self.group))
        if done:
            self._queue.send_signal("resumed", group=self.group)
        return done

    def depth(self) -> int:
        """How many of its jobs wait."""
        return self.info().depth

    def drain(self) -> int:
        """Drop the jobs that wait in it, with their rows; answers how many. What runs or is scheduled stays.

        A flow parent that waits for a dropped job learns that it failed.
        """
        total = 0
        while True:
            # The last step announces what was dropped in all.
            dropped = int(self._queue.run_once("lane_drain", self.group, _STEP, texts=(str(total), "1")))
            total += dropped
            if dropped < _STEP:
                break
        if total:
            self._queue.send_signal("drained", jobs=str(total), group=self.group)
        return total

    def move(self, job_id: str) -> Verdict:
        """Move a waiting job into this lane, from another or from none; its priority stays. OK or GONE.

        Raises:
          WrongState: when the job does not wait: it runs, is scheduled, dead, or awaits its children.
          Held: when a worker holds it.
          InvalidId: when ``job_id`` is not a JOB id.
        """
        return self._queue.move(job_id, self.name)

    def reap(self, limit: int = 100) -> int:
        """Bring jobs of this lane whose lease ran out back to where they wait; answers how many."""
        most, reaped, passed = whole(limit, "limit", 1), 0, 0
        while reaped < most:
            came, looked = self._queue.run("lane_reap", self.group, most - reaped, _STEP, passed)
            reaped += came
            # Those of other lanes stay where they are, before the ones that come next.
            passed += looked - came
            if looked < _STEP:
                break
        return reaped

    def info(self) -> LaneInfo:
        """How many of its jobs wait and run, and its settings."""
        (found,) = self._queue.lanes_of([self.group])
        # Nobody has told the queue the name of a lane that was never used.
        return replace(found, name=self.name) if found.name == self.group else found


class Lanes(Handle):
    """The lanes of a queue."""

    def lane(self, name: str) -> Lane:
        """One lane by the group that jobs are admitted with: any text, or a branded id.

        Raises:
          InvalidName: when the name is empty or not a text that UTF-8 can hold.
        """
        return Lane(self, name)

    def lanes(self) -> list[LaneInfo]:
        """Every lane that has waiting or active jobs or a setting, by name; a round trip for each 500 of them."""
        return sorted(self.lanes_of(self.run("lane_list")), key=lambda lane: (lane.name, lane.group))

    def lanes_of(self, groups: Sequence[str | bytes]) -> list[LaneInfo]:
        """What :meth:`lanes` tells, of these groups (branded ids), in order."""
        found: list[LaneInfo] = []
        for start in range(0, len(groups), _STEP):
            page = groups[start : start + _STEP]
            for group, reply in zip(page, self.run("lane_info", *page), strict=True):
                name, depth, active, limit, weight, paused = reply
                # A hand may have put anything there, which must not hide the others.
                known = group if isinstance(group, str) else group.decode(errors="replace")
                found.append(
                    LaneInfo(
                        name=name.decode(errors="replace") if name else known,
                        group=known,
                        depth=depth,
                        active=active,
                        limit=None if limit < 0 else limit,
                        weight=weight,
                        paused=bool(paused),
                    )
                )
        return found

    def move(self, job_id: str, group: str | None) -> Verdict:
        """Move a waiting job into a lane, or with None out of its lane to the jobs that have none; its priority stays.

        OK, or GONE when there is no such job.

        Raises: as :meth:`Lane.move`, and InvalidName when the group is no name.
        """
        lane = "" if group is None else group_id(group)
        name = "" if group is None or group == lane else group
        return Verdict(text(self.run("lane_move", check_id(job_id, "JOB"), lane, name)))
