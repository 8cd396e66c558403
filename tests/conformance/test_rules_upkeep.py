"""Promote, reap and the sweep of stalled jobs; draining; and where a job is."""

from __future__ import annotations

import pytest
from wire.handwriting import Wire

from echomq_tasks.errors import InvalidId
from echomq_tasks.queue import NewJob, Queue, State
from echomq_tasks.scripts import Scripts

LANE = "GRP0NgWEfAEJfs"


def test_promote_takes_only_what_is_due_the_earliest_first_and_no_more_than_asked(queue: Queue, wire: Wire) -> None:
    ids = [queue.enqueue("p", delay=60 + number).id for number in range(4)]
    assert queue.promote() == 0
    for score, job_id in zip((3, 1, 2), ids, strict=False):
        wire.do("ZADD", "schedule", score, job_id)
    assert queue.promote(2) == 2
    assert wire.ids("pending") == [ids[1], ids[2]]
    assert [queue.promote(), queue.promote()] == [1, 0]
    assert wire.ids("schedule") == [ids[3]]


def test_a_scheduled_id_whose_row_was_deleted_by_hand_is_not_promoted(queue: Queue, wire: Wire) -> None:
    job_id = queue.enqueue("p", delay=60).id
    wire.do("DEL", f"job:{job_id}")
    wire.come_due(job_id)
    wire.do("DEL", "wake")
    assert queue.promote() == 0
    assert wire.everything() == {}


def test_reap_takes_only_expired_leases_and_no_more_than_asked(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many(["p"] * 5)
    jobs = queue.claim(5).jobs
    assert queue.reap() == 0
    wire.expire(*(job.id for job in jobs[:4]))
    assert [queue.reap(3), queue.reap(3), queue.reap(3)] == [3, 1, 0]
    assert wire.ids("active") == [jobs[4].id]
    assert wire.ids("pending") == [job.id for job in jobs[:4]]
    assert all(wire.row(job.id)["state"] == "pending" for job in jobs[:4])
    assert all("stalled" not in wire.row(job.id) for job in jobs)


def test_the_token_never_goes_down(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p")
    for token in (1, 2, 3):
        (job,) = queue.claim()
        assert job.token == token
        wire.expire(job.id)
        assert queue.reap() == 1


@pytest.mark.parametrize("upkeep", ["reap", "sweep"])
def test_an_active_id_whose_row_was_deleted_by_hand_is_dropped(queue: Queue, wire: Wire, upkeep: str) -> None:
    queue.enqueue("p")
    (job,) = queue.claim()
    wire.do("DEL", f"job:{job.id}")
    wire.expire(job.id)
    if upkeep == "reap":
        assert queue.reap() == 0
    else:
        swept = queue.sweep_stalled(max_stalled=1)
        assert (swept.recovered, swept.dead) == ((), ())
    assert wire.everything() == {}


@pytest.mark.parametrize("group", [None, LANE])
def test_a_job_that_kills_its_workers_is_buried_at_the_limit(queue: Queue, wire: Wire, group: str | None) -> None:
    job_id = queue.enqueue("p", group=group).id
    for stalled in (0, 1, 2):
        (job,) = queue.claim()
        assert (job.stalled, job.failures) == (stalled, 0)
        wire.expire(job_id)
        swept = queue.sweep_stalled(max_stalled=3)
        assert (swept.recovered, swept.dead) == (((), (job_id,)) if stalled == 2 else ((job_id,), ()))
    row = wire.row(job_id)
    assert (row["state"], row["last_error"], row["stalled"]) == ("dead", "stalled", "3")
    assert wire.read("dead") == {job_id: 0}
    assert wire.read("metrics:failed") == {"count": "1"}
    assert (wire.running(), wire.ring(), wire.read("active")) == ({}, [], None)


def test_a_sweep_leaves_live_leases_alone_and_takes_no_more_than_asked(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many(["p"] * 4)
    jobs = queue.claim(4).jobs
    wire.expire(*(job.id for job in jobs[:3]))
    assert queue.sweep_stalled(limit=2).recovered == (jobs[0].id, jobs[1].id)
    assert queue.sweep_stalled(limit=2).recovered == (jobs[2].id,)
    assert wire.ids("active") == [jobs[3].id]


def test_the_state_of_a_job_is_the_set_that_holds_it(queue: Queue, wire: Wire) -> None:
    job_id = queue.enqueue("p", delay=60).id
    assert queue.state(job_id) is State.SCHEDULED
    wire.come_due(job_id)
    queue.promote()
    assert queue.state(job_id) is State.PENDING
    (job,) = queue.claim()
    assert queue.state(job_id) is State.ACTIVE
    queue.retry(job, max_retries=0)
    assert queue.state(job_id) is State.DEAD
    wire.do("ZREM", "dead", job_id)
    assert queue.state(job_id) is State.UNKNOWN
    wire.do("HSET", f"job:{job_id}", "state", "awaiting_children")
    assert queue.state(job_id) is State.AWAITING_CHILDREN
    wire.do("DEL", f"job:{job_id}")
    assert queue.state(job_id) is State.ABSENT
    assert queue.state(queue.enqueue("p", group=LANE).id) is State.PENDING
    with pytest.raises(InvalidId):
        queue.state("USR0NgWEfAEJfs")


def test_the_sets_are_believed_and_not_the_rows_own_word(queue: Queue, wire: Wire) -> None:
    job_id = queue.enqueue("p").id
    wire.do("HSET", f"job:{job_id}", "state", "dead")
    assert queue.state(job_id) is State.PENDING


def test_draining_drops_rows_and_leaves_no_other_key_behind(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many([NewJob(payload="p", group=group) for group in (None, "a", "b") for _ in range(3)])
    queue.enqueue("p", delay=60)
    active = queue.claim(1).jobs[0]
    wire.do("RPUSH", f"job:{wire.ids('pending')[0]}:logs", "a line")
    assert queue.drain() == 8
    assert wire.ring() == []
    assert queue.drain("schedule", "dead", "active") == 2
    assert queue.state(active.id) is State.ABSENT
    assert set(wire.everything()) <= {"wake", "meta", "gnames"}


def test_one_call_of_the_drain_drops_no_more_than_it_was_asked_to(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many([NewJob(payload="p", group=group) for group in (None, "a", "b") for _ in range(3)])
    scripts, base = Scripts.of(queue.connection), wire.base.encode()
    for call, left in enumerate((7, 5, 3, 1)):
        assert scripts.call("queue_drain", base, ("me", f"{call}.1", 2, "pending", "lanes")) == 2
        assert queue.counts().waiting == left
    assert scripts.call("queue_drain", base, ("me", "4.1", 2, "pending", "lanes")) == 1
