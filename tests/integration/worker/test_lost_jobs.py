"""What the log says of jobs whose worker has died: which they are, and of which actors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from chaos.crew import PATIENCE
from support.eventually import eventually

from echomq_tasks.connection import Connection
from echomq_tasks.errors import ServerUnavailable
from echomq_tasks.queue import Queue

Shops = Callable[..., Any]


def lose(queue: Queue, count: int) -> list[str]:
    """Claim jobs as a worker does that dies at once."""
    jobs = queue.claim(count, lease=0.001).jobs
    assert len(jobs) == count
    return [job.id for job in jobs]


@pytest.mark.parametrize(("count", "said"), [(1, "1 job of a lost worker waits"), (6, "6 jobs of lost workers wait")])
def test_jobs_of_a_lost_worker_are_told_with_their_actors(
    open_shop: Shops, standalone: Connection, queue_name: str, caplog: pytest.LogCaptureFixture, count: int, said: str
) -> None:
    gate = threading.Event()
    shop = open_shop(connection=standalone, lease=0.4)
    run = shop.actor(lambda: gate.wait(PATIENCE), queue_name, "crash")
    shop.broker.enqueue_many([run.message() for _ in range(count)])
    lost = lose(shop.queue(queue_name), count)
    try:
        shop.work()
        eventually(lambda: f"{said} again: " in caplog.text, PATIENCE)
    finally:
        gate.set()
    (line,) = [record.getMessage() for record in caplog.records if " again: " in record.getMessage()]
    names = line.partition(" again: ")[2].split(", ")
    assert set(names) <= {f"{job_id} (crash)" for job_id in lost} | {"..."}
    assert (len(names), names[-1] == "...") == ((1, False) if count == 1 else (6, True))


@pytest.mark.parametrize("answered", [True, False])
def test_a_job_that_goes_to_dead_with_its_worker_is_told_whether_or_not_its_actor_is_known(
    open_shop: Shops,
    standalone: Connection,
    queue_name: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    answered: bool,
) -> None:
    shop = open_shop(connection=standalone, lease=0.4, max_stalled=1)
    shop.actor(lambda: None, queue_name, "crash").send()
    (lost,) = lose(shop.queue(queue_name), 1)
    if not answered:

        def unanswered(queue: Queue, ids: object) -> None:
            raise ServerUnavailable("gone")

        monkeypatch.setattr(Queue, "get_many", unanswered)
    shop.work()
    named = f"{lost} (crash)" if answered else lost
    eventually(lambda: f"Job {named} goes to dead: a worker died with it" in caplog.text, PATIENCE, caplog.text)
