"""Looking into a queue: where a job is, its row, pages of ids, and the counts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from echomq_tasks.errors import InvalidArgument
from echomq_tasks.identity import check_id, group_id
from echomq_tasks.queue.arguments import whole
from echomq_tasks.queue.handle import Handle
from echomq_tasks.queue.model import Counts, JobInfo, State
from echomq_tasks.queue.parking import Parking
from echomq_tasks.queue.replies import job_info, text


class Looking(Handle):
    """What a queue holds; nothing here writes."""

    def now(self) -> datetime:
        """The server's clock, by which jobs come due and leases end; in UTC, to the millisecond."""
        return datetime.fromtimestamp(int(self.run("queue_clock")) / 1000, tz=UTC)

    def state(self, job_id: str) -> State:
        """Where a job is.

        Raises:
          InvalidId: when ``job_id`` is not a JOB id.
        """
        return State(text(self.scripts.call("job_state", self.base, (check_id(job_id, "JOB"),))))

    def get(self, job_id: str) -> JobInfo | None:
        """A job's row and place; None when it has no row.

        Raises:
          InvalidId: when ``job_id`` is not a JOB id.
        """
        return self.get_many([job_id])[0]

    def get_many(self, job_ids: Sequence[str]) -> list[JobInfo | None]:
        """The rows of many jobs in one round trip, in order."""
        ids = [check_id(job_id, "JOB") for job_id in job_ids]
        rows = self.scripts.call("job_get", self.base, ids) if ids else []
        return [job_info(job_id, row) for job_id, row in zip(ids, rows, strict=True)]

    def browse(
        self, state: State = State.PENDING, *, count: int = 50, before: str | None = None, group: str | None = None
    ) -> list[str]:
        """The ids of one state, newest first.

        Parameters:
          state: PENDING, ACTIVE, SCHEDULED, DEAD or AWAITING_CHILDREN (of parents that this runtime added).
          count: at most so many.
          before: only ids older than this one: the last id of the page before.
          group: the lane to look into, for PENDING.

        Raises:
          InvalidArgument: on another state, or a group with a state other than PENDING.
        """
        names = {
            State.PENDING: "pending",
            State.ACTIVE: "active",
            State.SCHEDULED: "schedule",
            State.DEAD: "dead",
            State.AWAITING_CHILDREN: "flow:parents",
        }
        name = names.get(state)
        if name is None:
            raise InvalidArgument(
                f"{state!r} cannot be browsed: use PENDING, ACTIVE, SCHEDULED, DEAD or AWAITING_CHILDREN"
            )
        if group is not None:
            if state is not State.PENDING:
                raise InvalidArgument("a lane holds pending jobs only: leave group= out, or browse PENDING")
            name = f"g:{group_id(group)}:pending"
        cursor = "" if before is None else check_id(before, "JOB")
        ids = self.scripts.call("queue_browse", self.base, (name, whole(count, "count", 1, 10_000), cursor))
        return [text(id) for id in ids]

    def counts(self) -> Counts:
        """Count the jobs of each state at one instant."""
        pending, in_lanes, active, scheduled, dead, completed, failed, paused, awaiting = self.scripts.call(
            "queue_counts", self.base
        )
        return Counts(pending, in_lanes, active, scheduled, dead, completed, failed, bool(paused), awaiting)

    def parking(self) -> Parking:
        """A place to wait for jobs of this queue, for one thread; close it after use."""
        return Parking(self.name, self.connection)
