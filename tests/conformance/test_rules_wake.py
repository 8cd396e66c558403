"""Wake tokens: whoever makes work pushes them, a claim that finds nothing takes them away, 64 are enough."""

from __future__ import annotations

import pytest
from wire.handwriting import Wire

from echomq_tasks.queue import NewJob, Queue

LANE = "GRP0NgWEfAEJfs"


@pytest.mark.parametrize("group", [None, LANE])
def test_every_admission_pushes_one_token(queue: Queue, wire: Wire, group: str | None) -> None:
    for tokens in (1, 2, 3):
        queue.enqueue("p", group=group)
        assert wire.wakes() == tokens


@pytest.mark.parametrize(("jobs", "tokens"), [(1, 1), (5, 5), (64, 64), (65, 64), (600, 64)])
def test_many_admissions_push_as_many_tokens_and_64_at_most(queue: Queue, wire: Wire, jobs: int, tokens: int) -> None:
    queue.enqueue_many(["p"] * jobs)
    assert wire.read("wake") == ["1"] * tokens


def test_a_duplicate_wakes_nobody(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p", id="JOB0NgWEfAEJfs")
    queue.enqueue("p", id="JOB0NgWEfAEJfs")
    assert wire.wakes() == 1


def test_a_claim_that_leaves_nothing_waiting_takes_the_tokens_away(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many(["p", NewJob(payload="p", group=LANE), "p"])
    queue.claim(2)
    assert wire.wakes() == 3
    queue.claim(2)
    assert wire.wakes() == 0
    wire.do("LPUSH", "wake", 1)
    assert not queue.claim()
    assert wire.wakes() == 0


def test_a_paused_queue_takes_the_tokens_away_so_that_its_workers_do_not_spin(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p")
    wire.do("HSET", "meta", "paused", 1)
    queue.claim()
    assert wire.wakes() == 0


def test_a_full_queue_takes_the_tokens_away_and_a_settled_job_brings_one_back(queue: Queue, wire: Wire) -> None:
    wire.do("HSET", "meta", "concurrency", 1)
    queue.enqueue_many(["p", "p", "p"])
    (job,) = queue.claim()
    assert not queue.claim()
    assert wire.wakes() == 0
    queue.complete(job)
    assert wire.wakes() == 1
    (job,) = queue.claim()
    assert not queue.claim()
    queue.retry(job, delay=60, max_retries=0)
    assert wire.wakes() == 1


def test_a_scheduled_job_wakes_only_when_it_becomes_the_earliest(queue: Queue, wire: Wire) -> None:
    seen = []
    for delay in (100, 200, 50, 75, 20):
        queue.enqueue("p", delay=delay)
        seen.append(wire.wakes())
    assert seen == [1, 1, 2, 2, 3]
    queue.enqueue_many([NewJob(payload="p", delay=delay) for delay in (15, 10, 5)])
    assert wire.wakes() == 4  # one look at the clock is enough for a whole batch


def test_a_retry_wakes_only_when_it_becomes_the_earliest(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many(["p", "p", "p"])
    first, second, third = queue.claim(3).jobs
    seen = []
    for job, delay in ((first, 100), (second, 200), (third, 50)):
        queue.retry(job, delay=delay)
        seen.append(wire.wakes())
    assert seen == [1, 1, 2]


def test_a_claim_with_jobs_passes_the_watch_on_the_schedule_to_a_parked_worker(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many([NewJob(payload="p", delay=8), "p"])
    assert len(queue.claim(5)) == 1
    assert wire.wakes() == 1
    assert not queue.claim(5)
    assert wire.wakes() == 0


def test_a_parked_worker_is_not_woken_for_a_time_that_it_learns_by_itself(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many([NewJob(payload="p", delay=100), "p"])
    assert len(queue.claim(5)) == 1
    assert wire.wakes() == 0


def test_a_claim_that_leaves_jobs_leaves_a_token_too(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many(["p"] * 3)
    wire.do("DEL", "wake")  # the workers that took the tokens died before they claimed
    assert len(queue.claim(2)) == 2
    assert wire.wakes() == 1
    assert len(queue.claim(2)) == 1
    assert wire.wakes() == 0


def test_promotion_reap_sweep_and_release_push_a_token_for_each_job(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many([NewJob(payload="p", delay=60)] * 3)
    wire.come_due(*wire.ids("schedule"))
    wire.do("DEL", "wake")
    assert (queue.promote(), wire.wakes()) == (3, 3)
    jobs = queue.claim(3).jobs
    assert wire.wakes() == 0
    wire.expire(*(job.id for job in jobs))
    assert (queue.reap(1), wire.wakes()) == (1, 1)
    assert (len(queue.sweep_stalled(limit=1).recovered), wire.wakes()) == (1, 2)
    queue.release(jobs[2])
    assert wire.wakes() == 3


def test_due_jobs_beyond_what_a_claim_takes_wake_others(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many([NewJob(payload="p", delay=60)] * 5)
    wire.come_due(*wire.ids("schedule"))
    wire.do("DEL", "wake")
    assert len(queue.claim(2)) == 2
    assert wire.wakes() == 3


def test_upkeep_that_finds_nothing_wakes_nobody(queue: Queue, wire: Wire) -> None:
    assert (queue.promote(), queue.reap(), queue.sweep_stalled().recovered) == (0, 0, ())
    assert wire.everything() == {}


def test_more_jobs_than_lua_can_unpack_are_promoted_and_push_64_tokens(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many([NewJob(payload="p", delay=0)] * 9000)
    assert queue.promote(9000) == 9000
    assert wire.wakes() == 64
