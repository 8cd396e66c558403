"""Admission: enqueue, enqueue_in, enqueue_at, enqueue_many, in a lane; a row that exists is a duplicate."""

from __future__ import annotations

import time

import pytest
from wire.handwriting import Wire

from echomq_tasks.errors import InvalidArgument, InvalidId
from echomq_tasks.identity import group_id
from echomq_tasks.queue import Admission, NewJob, Queue, State

A, B, C = "JOB0NgWEfAEJ0A", "JOB0NgWEfAEJ0B", "JOB0NgWEfAEJ0C"


def test_an_admitted_job_waits_and_a_second_of_its_id_is_a_duplicate(queue: Queue, wire: Wire) -> None:
    first = queue.enqueue("p", id=A)
    before = wire.everything()
    again = queue.enqueue("other", id=A, priority=5, group="lane", delay=3)
    assert (first.admission, first.duplicate, again.admission, again.duplicate) == (
        Admission.ENQUEUED, False, Admission.DUPLICATE, True,
    )  # fmt: skip
    assert wire.everything() == before


@pytest.mark.parametrize("where", ["active", "scheduled", "dead"])
def test_a_job_is_a_duplicate_wherever_the_first_is_now(queue: Queue, wire: Wire, where: str) -> None:
    queue.enqueue("p", id=A)
    (job,) = queue.claim()
    if where != "active":
        queue.retry(job, "boom", delay=60, max_retries=1 if where == "scheduled" else 0)
    before = wire.everything()
    assert queue.enqueue("p", id=A).duplicate
    assert wire.everything() == before


def test_an_id_is_free_again_once_its_job_is_completed(queue: Queue) -> None:
    queue.enqueue("p", id=A)
    queue.complete(queue.claim().jobs[0])
    assert not queue.enqueue("p", id=A).duplicate
    assert queue.claim().jobs[0].token == 1


def test_a_delayed_job_is_scheduled_and_not_claimed_before_its_time(queue: Queue) -> None:
    answer = queue.enqueue("p", delay=3600)
    assert answer.admission is Admission.SCHEDULED
    assert not queue.claim(5)
    assert queue.state(answer.id) is State.SCHEDULED


def test_a_delay_of_nothing_and_a_time_that_has_passed_run_at_once(queue: Queue) -> None:
    ids = {queue.enqueue("p", delay=0).id, queue.enqueue("p", at=time.time() - 60).id, queue.enqueue("p", at=0).id}
    assert {job.id for job in queue.claim(5)} == ids


def test_many_jobs_get_one_verdict_each_in_input_order(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p", id=B)
    answers = queue.enqueue_many(
        [NewJob(payload="p", id=A, group="lane"), NewJob(payload="p", id=B), NewJob(payload="p", id=C, delay=60), "q"]
    )
    assert [answer.admission.value for answer in answers] == ["enqueued", "duplicate", "scheduled", "enqueued"]
    assert [answer.id for answer in answers[:3]] == [A, B, C]
    assert wire.row(answers[3].id)["payload"] == "q"


def test_more_jobs_than_one_call_takes_are_all_in_and_in_order(queue: Queue) -> None:
    answers = queue.enqueue_many(str(number) for number in range(1100))
    assert len({answer.id for answer in answers}) == 1100
    assert [job.payload for job in queue.claim(1000)] == [str(number).encode() for number in range(1000)]
    assert queue.counts().pending == 100


def test_one_inadmissible_job_among_many_sends_nothing(queue: Queue, wire: Wire) -> None:
    with pytest.raises(InvalidArgument):
        queue.enqueue_many(["p", NewJob(payload="p", delay=-1)])
    with pytest.raises(InvalidId):
        queue.enqueue_many(["p", NewJob(payload="p", id="USR0NgWEfAEJfs")])
    assert wire.everything() == {}


def test_a_job_in_a_paused_lane_waits_outside_the_ring(queue: Queue, wire: Wire) -> None:
    lane = wire_lane(queue, wire)
    wire.do("SADD", "paused", lane)
    wire.do("DEL", "ring")
    queue.enqueue("p", id=B, group=lane)
    assert wire.ids(f"g:{lane}:pending") == [A, B]
    assert wire.ring() == []
    assert not queue.claim(5)


@pytest.mark.parametrize(("limit", "active", "joins"), [(1, 1, False), (2, 1, True), (0, 0, False), (1, 0, True)])
def test_a_lane_joins_the_ring_only_below_its_limit(
    queue: Queue, wire: Wire, limit: int, active: int, joins: bool
) -> None:
    lane = "GRP0NgWEfAEJfs"
    wire.do("HSET", "glimit", lane, limit)
    if active:
        wire.do("HSET", "gactive", lane, active)
    queue.enqueue("p", group=lane)
    assert wire.ring() == ([lane] if joins else [])
    assert len(queue.claim(5)) == int(joins)


def test_a_lane_is_in_the_ring_once_however_many_jobs_wait_in_it(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many([NewJob(payload="p", group=group) for group in ("a", "b", "a", "b", "a")])
    assert len(wire.ring()) == len(set(wire.ring())) == 2


def wire_lane(queue: Queue, wire: Wire) -> str:
    """Admit A to a lane; answers the lane's id."""
    queue.enqueue("p", id=A, group="lane")
    (lane,) = wire.ring()
    return lane


def test_the_name_of_a_derived_group_is_kept_for_people_and_a_branded_id_needs_none(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many([NewJob(payload="p", group=group) for group in ("acme", "Ελλάδα", "GRP0NgWEfAEJfs")])
    assert wire.read("gnames") == {group_id("acme"): "acme", group_id("Ελλάδα"): "Ελλάδα"}


def test_the_kept_answers_are_one_bounded_key_that_goes_by_itself(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p")
    queue.claim()
    assert 0 < wire.do("HLEN", "replies") <= 2
    assert 0 < wire.do("PTTL", "replies") <= 3_600_000
    wire.do("HSET", "replies", *[word for number in range(12_000) for word in (f"caller-{number}", "1.1 1")])
    Queue(queue.name, queue.connection).enqueue("p")
    # The one that finds the key too full empties it, and keeps its own answer.
    assert wire.do("HLEN", "replies") == 1
