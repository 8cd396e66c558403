"""Complete, retry, release and extend: who may, what it does, and what a late one finds."""

from __future__ import annotations

import pytest
from wire.handwriting import Wire

from echomq_tasks.errors import StaleToken
from echomq_tasks.queue import Complete, Job, NewJob, Queue, Release, Retry, State, Verdict

LANE = "GRP0NgWEfAEJfs"
GROUPS = [None, LANE]


def claimed(queue: Queue, group: str | None = None, priority: int = 0) -> Job:
    queue.enqueue("p", group=group, priority=priority)
    (job,) = queue.claim()
    return job


def test_a_completed_job_is_gone_and_completing_it_again_says_so(queue: Queue, wire: Wire) -> None:
    job = claimed(queue)
    assert queue.complete(job) is Verdict.OK
    assert queue.complete(job) is Verdict.GONE
    with pytest.raises(StaleToken):
        queue.retry(job)
    assert queue.release(job) is Verdict.GONE
    assert queue.extend(job) is Verdict.GONE
    assert wire.everything() == {"metrics:completed": {"count": "1"}}


def test_a_retry_waits_for_its_delay_and_counts_a_failure_and_not_an_attempt(queue: Queue, wire: Wire) -> None:
    job = claimed(queue)
    for failures in (1, 2, 3):
        assert queue.retry(job, f"boom {failures}", delay=60) is Verdict.SCHEDULED
        row = wire.row(job.id)
        assert (row["failures"], row["attempts"], row["last_error"]) == (str(failures),) * 2 + (f"boom {failures}",)
        wire.come_due(job.id)
        (job,) = queue.claim()
        assert (job.failures, job.token) == (failures, failures + 1)


def test_a_claim_that_never_started_costs_no_retry(queue: Queue, wire: Wire) -> None:
    job = claimed(queue)
    for _ in range(5):
        assert queue.release(job) is Verdict.OK
        (job,) = queue.claim()
    assert (job.token, job.failures) == (6, 0)
    assert queue.retry(job, max_retries=1, delay=60) is Verdict.SCHEDULED
    wire.come_due(job.id)
    (job,) = queue.claim()
    assert queue.retry(job, max_retries=1) is Verdict.DEAD


@pytest.mark.parametrize(("limit", "survives"), [(0, 0), (1, 1), (3, 3), (None, 6)])
def test_a_job_is_retried_as_often_as_allowed_and_then_buried(
    queue: Queue, wire: Wire, limit: int | None, survives: int
) -> None:
    job = claimed(queue)
    for _ in range(survives):
        assert queue.retry(job, "boom", max_retries=limit) is Verdict.SCHEDULED
        (job,) = queue.claim()
    if limit is not None:
        assert queue.retry(job, "last", max_retries=limit) is Verdict.DEAD
        assert (wire.ids("dead"), wire.row(job.id)["last_error"]) == ([job.id], "last")
        assert queue.counts().failed == 1
        assert queue.state(job.id) is State.DEAD


@pytest.mark.parametrize("limit", [0, 5])
def test_the_same_retry_again_after_a_lost_answer_counts_once(queue: Queue, wire: Wire, limit: int) -> None:
    job = claimed(queue)
    first = queue.retry(job, "boom", delay=60, max_retries=limit)
    before = wire.everything()
    assert queue.retry(job, "boom", delay=60, max_retries=limit) is first
    assert wire.everything() == before


def test_the_same_retry_again_is_known_even_when_the_job_was_promoted_meanwhile(queue: Queue, wire: Wire) -> None:
    job = claimed(queue)
    queue.retry(job, "boom", delay=60)
    wire.come_due(job.id)
    queue.promote()
    before = wire.everything()
    assert queue.retry(job, "boom", delay=60) is Verdict.SCHEDULED
    assert wire.everything() == before
    (again,) = queue.claim()
    assert (again.failures, again.token) == (1, 2)
    assert queue.retry(again, "boom again", delay=60) is Verdict.SCHEDULED
    assert wire.row(job.id)["failures"] == "2"


def test_the_same_retry_again_after_the_job_was_promoted_meanwhile_counts_once(queue: Queue, wire: Wire) -> None:
    job = claimed(queue)
    assert queue.retry(job, "boom") is Verdict.SCHEDULED
    assert queue.promote() == 1
    assert queue.retry(job, "boom") is Verdict.SCHEDULED
    assert (wire.row(job.id)["failures"], wire.ids("pending")) == ("1", [job.id])


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("verb", ["retry", "release", "reap", "sweep"])
def test_a_priority_survives_every_way_back(queue: Queue, wire: Wire, verb: str, group: str | None) -> None:
    queue.enqueue("first", group=group)
    job = claimed(queue, group, priority=-5)
    match verb:
        case "retry":
            queue.retry(job, delay=60)
            wire.come_due(job.id)
            assert queue.promote() == 1
        case "release":
            queue.release(job)
        case _:
            wire.expire(job.id)
            assert queue.reap() == 1 if verb == "reap" else queue.sweep_stalled().recovered == (job.id,)
    where = f"g:{group}:pending" if group else "pending"
    assert wire.read(where)[job.id] == -5
    assert [again.id for again in queue.claim()] == [job.id]


@pytest.mark.parametrize("group", GROUPS)
def test_a_job_that_was_reaped_is_completed_where_it_waits(queue: Queue, wire: Wire, group: str | None) -> None:
    job = claimed(queue, group)
    wire.expire(job.id)
    assert queue.reap() == 1
    assert queue.complete(job) is Verdict.OK
    found = wire.everything()
    found.pop("wake", None)
    assert found == {"metrics:completed": {"count": "1"}}


@pytest.mark.parametrize("group", GROUPS)
def test_completing_a_reaped_job_leaves_the_others_of_its_lane(queue: Queue, wire: Wire, group: str | None) -> None:
    job = claimed(queue, group)
    other = queue.enqueue("other", group=group).id
    wire.expire(job.id)
    queue.reap()
    assert queue.complete(job) is Verdict.OK
    assert wire.ring() == ([group] if group else [])
    assert wire.running() == {}
    assert [again.id for again in queue.claim(5)] == [other]


@pytest.mark.parametrize("group", GROUPS)
def test_a_job_that_was_reaped_is_retried_from_where_it_waits(queue: Queue, wire: Wire, group: str | None) -> None:
    job = claimed(queue, group)
    wire.expire(job.id)
    queue.reap()
    assert queue.retry(job, "boom", delay=60) is Verdict.SCHEDULED
    assert wire.ids("schedule") == [job.id]
    assert (wire.read("pending"), wire.read(f"g:{LANE}:pending"), wire.ring()) == (None, None, [])


@pytest.mark.parametrize("group", GROUPS)
def test_releasing_a_reaped_job_leaves_it_where_it_waits(queue: Queue, wire: Wire, group: str | None) -> None:
    job = claimed(queue, group)
    wire.expire(job.id)
    queue.reap()
    before = wire.everything()
    assert queue.release(job) is Verdict.OK
    assert wire.everything() == before
    with pytest.raises(StaleToken):  # its lease is over, and nobody holds it
        queue.extend(job)


@pytest.mark.parametrize("group", GROUPS)
def test_a_job_reaped_and_claimed_again_refuses_the_old_token(queue: Queue, wire: Wire, group: str | None) -> None:
    old = claimed(queue, group)
    wire.expire(old.id)
    queue.reap()
    (new,) = queue.claim()
    before = wire.dumps()
    for settle in (queue.complete, queue.retry, queue.release, queue.extend):
        with pytest.raises(StaleToken):
            settle(old)
    assert wire.dumps() == before
    assert queue.extend_many([old, new]) == [old]
    assert queue.complete(new) is Verdict.OK


def test_many_leases_are_renewed_under_one_deadline_and_the_lost_ones_are_named(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many(["p"] * 4)
    kept, gone, lost, also = queue.claim(4, lease=5).jobs
    queue.complete(gone)
    wire.expire(lost.id)
    queue.reap()
    assert queue.extend_many([kept, gone, lost, also], lease=900) == [gone, lost]
    deadlines = wire.read("active")
    assert deadlines[kept.id] == deadlines[also.id] > wire.now_ms() + 800_000
    assert queue.extend_many([]) == []


def test_an_expired_lease_that_nobody_reaped_can_still_be_renewed_and_settled(queue: Queue, wire: Wire) -> None:
    job = claimed(queue)
    wire.expire(job.id)
    assert queue.extend(job) is Verdict.OK
    assert queue.reap() == 0
    wire.expire(job.id)
    assert queue.complete(job) is Verdict.OK


def test_a_mixed_batch_answers_each_in_its_place(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many([NewJob(payload=str(number), group=LANE if number % 2 else None) for number in range(6)])
    one, two, three, four, five, six = queue.claim(6).jobs
    stale = Job(six.id, b"", six.token + 1)
    verdicts = queue.settle(
        [
            Release(one),
            Retry(two, max_retries=0),
            Complete(three),
            Complete(stale),
            Retry(four, delay=9),
            Complete(five),
        ]
    )
    assert [verdict.value for verdict in verdicts] == ["ok", "dead", "ok", "stale", "scheduled", "ok"]
    assert wire.ids("active") == [six.id]
    assert queue.settle([]) == []


def test_a_turn_settles_first_and_then_claims(queue: Queue) -> None:
    queue.enqueue_many(["a", "b"])
    (job,) = queue.claim()
    turn = queue.turn([Release(job)], 5)
    assert turn.verdicts == (Verdict.OK,)
    assert [(again.payload, again.token) for again in turn.claimed] == [(b"a", 2), (b"b", 1)]
    assert queue.turn([Complete(again) for again in turn.claimed], 0).claimed.jobs == ()
    assert queue.turn([], 0).verdicts == ()
    assert queue.counts().completed == 2


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("limit", [0, 5])
def test_a_job_completed_after_its_own_retry_leaves_the_set_it_went_to(
    queue: Queue, wire: Wire, limit: int, group: str | None
) -> None:
    job = claimed(queue, group)
    queue.retry(job, "boom", delay=60, max_retries=limit)
    assert queue.complete(job) is Verdict.OK
    assert set(wire.everything()) <= {"metrics:completed", "metrics:failed", "wake"}
