"""Times by the server's clock: none, a millisecond, ten years; and nothing runs before its time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from conformance.scenarios import A, B, C
from support.eventually import eventually
from wire.handwriting import Wire

from echomq_tasks.queue import Admission, NewJob, Queue, State

TEN_YEARS = 10 * 365.25 * 86_400


@pytest.mark.parametrize("group", [None, "acme"])
def test_a_delay_of_nothing_is_due_at_once(queue: Queue, group: str | None) -> None:
    assert queue.enqueue("p", delay=0, group=group, id=A).admission is Admission.SCHEDULED
    assert [job.id for job in queue.claim(2)] == [A]


def test_a_delay_of_a_millisecond_is_one(queue: Queue, wire: Wire) -> None:
    before = wire.now_ms()
    queue.enqueue("p", delay=0.001, id=A)
    after = wire.now_ms()
    score = wire.do("ZSCORE", "schedule", A)
    assert before + 1 <= float(score) <= after + 1
    eventually(lambda: queue.claim())
    assert wire.now_ms() >= float(score)


@pytest.mark.parametrize("how", ["delay", "datetime", "unix"])
def test_ten_years_are_ten_years(queue: Queue, wire: Wire, how: str) -> None:
    then = wire.now_ms() / 1000 + TEN_YEARS
    if how == "delay":
        queue.enqueue("p", delay=TEN_YEARS, id=A)
    else:
        queue.enqueue("p", at=datetime.fromtimestamp(then, tz=UTC) if how == "datetime" else then, id=A)
    assert abs(float(wire.do("ZSCORE", "schedule", A)) - then * 1000) < 60_000
    claimed = queue.claim()
    assert not claimed
    assert claimed.look_again is not None
    assert abs(claimed.look_again - TEN_YEARS) < 60
    info = queue.get(A)
    assert info is not None
    assert info.due is not None
    assert abs(info.due - datetime.now(UTC) - timedelta(seconds=TEN_YEARS)) < timedelta(minutes=1)


def test_a_repeat_and_a_key_of_ten_years_stand(queue: Queue, wire: Wire) -> None:
    queue.repeat("decade", "p", every=TEN_YEARS)
    assert queue.fire_repeats() == []
    (found,) = queue.repeats()
    assert abs(found.next_run - datetime.now(UTC) - timedelta(seconds=TEN_YEARS)) < timedelta(minutes=1)


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.002, 0.003, 0.005, 0.008, 0.0125])
def test_nothing_is_claimed_before_its_time(queue: Queue, wire: Wire, delay: float) -> None:
    ids = [queue.enqueue("p", delay=delay).id for _ in range(20)]
    due = {job_id: float(score) for job_id, score in wire.read("schedule").items()}
    seen: set[str] = set()

    def claim() -> bool:
        taken = [job.id for job in queue.claim(5)]
        now = wire.now_ms()
        assert all(due[job_id] <= now for job_id in taken if job_id in due)
        seen.update(taken)
        return seen == set(ids)

    eventually(claim)


def test_nothing_is_claimed_that_is_due_an_hour_after_the_clock_was_set_back(queue: Queue, wire: Wire) -> None:
    # To the server it is the same: scores that lie ahead of its clock, of a job, of a retry and of a repeat.
    ahead = wire.now_ms() + 3_600_000
    queue.enqueue_many([NewJob(payload="p", id=A, delay=0), NewJob(payload="p", id=B)])
    queue.repeat("r", "p", every=60, first_in=0)
    queue.retry(next(job for job in queue.claim(2) if job.id == B), delay=0)
    wire.do("ZADD", "schedule", ahead, A, ahead, B)
    wire.do("ZADD", "repeat", "XX", ahead, "r")
    wire.do("ZREM", "active", A)
    assert not queue.claim(5)
    assert queue.promote() == 0
    assert queue.fire_repeats() == []
    assert queue.state(B) is State.SCHEDULED


@pytest.mark.parametrize("verb", ["enqueue", "retry"])
def test_a_fraction_of_a_millisecond_is_rounded_up(queue: Queue, wire: Wire, verb: str) -> None:
    if verb == "retry":
        queue.enqueue("p", id=C)
        job = queue.claim().jobs[0]
        before = wire.now_ms()
        queue.retry(job, delay=0.0101)
    else:
        before = wire.now_ms()
        queue.enqueue("p", delay=0.0101, id=C)
    assert float(wire.do("ZSCORE", "schedule", C)) >= before + 11
