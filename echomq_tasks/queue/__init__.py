"""The queue: one job to one worker, with leases on the server's clock and fencing tokens."""

from __future__ import annotations

from echomq_tasks.queue.admission import check_job
from echomq_tasks.queue.flows import Children, Flow, FlowAdded
from echomq_tasks.queue.lanes import Lane, LaneInfo
from echomq_tasks.queue.model import (
    Admission,
    Cancellation,
    Claimed,
    Complete,
    Counts,
    Discard,
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
    Unique,
    Verdict,
)
from echomq_tasks.queue.operating import Limits, Metrics
from echomq_tasks.queue.parking import Parking
from echomq_tasks.queue.queue import Queue
from echomq_tasks.queue.renewal import extend_all
from echomq_tasks.queue.repeats import Repeat, check_repeat

__all__ = [
    "Admission",
    "Cancellation",
    "Children",
    "Claimed",
    "Complete",
    "Counts",
    "Discard",
    "Enqueued",
    "Flow",
    "FlowAdded",
    "Job",
    "JobInfo",
    "Lane",
    "LaneInfo",
    "Limits",
    "Metrics",
    "NewJob",
    "Parking",
    "Queue",
    "Release",
    "Renewal",
    "Repeat",
    "Retry",
    "Settlement",
    "State",
    "Swept",
    "Turn",
    "Unique",
    "Verdict",
    "check_job",
    "check_repeat",
    "extend_all",
]
