"""What the tests of flows do again and again: build a chain, take one job, work everything off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from echomq_tasks.queue import Flow, FlowAdded, Job, NewJob, Queue


def chain(*ids: str, queues: tuple[str | None, ...] = (None,), **options: Any) -> Flow:
    """One job under the other, the queues taken in turn."""
    flow: Flow | None = None
    for level in reversed(range(len(ids))):
        below = () if flow is None else (flow,)
        flow = Flow(NewJob(ids[level], id=ids[level]), below, queue=queues[level % len(queues)], **options)
    assert flow is not None
    return flow


def work_off(*queues: Queue) -> list[str]:
    """Complete whatever can be claimed, result = id, and deliver, until nothing moves; answers the ids in order."""
    order: list[str] = []
    while True:
        moved = 0
        for queue in queues:
            for job in queue.claim(100):
                queue.complete(job, job.id)
                order.append(job.id)
                moved += 1
            moved += queue.deliver()
        if not moved:
            return order


def ids_of(added: FlowAdded) -> Iterator[str]:
    yield added.id
    for child in added.children:
        yield from ids_of(child)


def take(queue: Queue, job_id: str) -> Job:
    jobs = {job.id: job for job in queue.claim(50)}
    for other, job in jobs.items():
        if other != job_id:
            queue.release(job)
    return jobs[job_id]
