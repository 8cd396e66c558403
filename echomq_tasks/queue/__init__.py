"""The queue: one job to one worker, with leases on the server's clock and fencing tokens."""

from __future__ import annotations

from echomq_tasks.queue.admission import check_job
from echomq_tasks.queue.model import (
    Admission,
    Claimed,
    Complete,
    Counts,
    Enqueued,
    Job,
    JobInfo,
    NewJob,
    Release,
    Renewal,
    Retry,
    Settlement,
    State,
    Swept,
    Turn,
    Verdict,
)
from echomq_tasks.queue.parking import Parking
from echomq_tasks.queue.queue import Queue
from echomq_tasks.queue.renewal import extend_all

__all__ = [
    "Admission",
    "Claimed",
    "Complete",
    "Counts",
    "Enqueued",
    "Job",
    "JobInfo",
    "NewJob",
    "Parking",
    "Queue",
    "Release",
    "Renewal",
    "Retry",
    "Settlement",
    "State",
    "Swept",
    "Turn",
    "Verdict",
    "check_job",
    "extend_all",
]
