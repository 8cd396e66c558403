"""Pause, the rate ceiling and the concurrency ceiling of a queue, and when a claim is worth repeating."""

from __future__ import annotations

from wire.handwriting import Wire

from echomq_tasks.queue import Queue, Verdict


def test_a_paused_queue_gives_nothing_promotes_nothing_and_still_settles(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many(["p", "q"])
    late = queue.enqueue("r", delay=60).id
    (job,) = queue.claim()
    wire.come_due(late)
    wire.do("HSET", "meta", "paused", 1)
    claimed = queue.claim(5)
    assert (len(claimed), claimed.look_again) == (0, None)
    assert wire.ids("schedule") == [late]
    assert queue.counts().paused
    assert queue.extend(job) is Verdict.OK
    assert queue.complete(job) is Verdict.OK
    queue.enqueue("s")
    wire.do("HDEL", "meta", "paused")
    assert not queue.counts().paused
    assert len(queue.claim(5)) == 3


def test_paused_set_to_0_is_not_paused(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p")
    wire.do("HSET", "meta", "paused", 0)
    assert len(queue.claim()) == 1


def test_a_rate_ceiling_cuts_a_claim_and_says_when_the_window_ends(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many(["p"] * 5)
    wire.do("HSET", "meta", "max", 3, "duration", 60_000)
    assert len(queue.claim(2)) == 2
    assert wire.read("limiter") == "2"
    assert 0 < wire.do("PTTL", "limiter") <= 60_000
    assert len(queue.claim(10)) == 1
    full = queue.claim(10)
    assert len(full) == 0
    assert full.look_again is not None
    assert 0 < full.look_again <= 60
    assert wire.read("limiter") == "3"
    wire.do("DEL", "limiter")  # the window is over
    assert len(queue.claim(10)) == 2


def test_a_window_starts_with_its_first_job_and_is_not_prolonged_by_the_next(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many(["p"] * 2)
    wire.do("HSET", "meta", "max", 10, "duration", 60_000)
    queue.claim()
    wire.do("PEXPIRE", "limiter", 20_000)
    queue.claim()
    assert 0 < wire.do("PTTL", "limiter") <= 20_000


def test_an_empty_claim_spends_nothing_of_the_window(queue: Queue, wire: Wire) -> None:
    wire.do("HSET", "meta", "max", 3)
    assert not queue.claim(5)
    assert wire.read("limiter") is None


def test_a_window_lasts_a_second_when_nobody_said_otherwise(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many(["p"] * 2)
    wire.do("HSET", "meta", "max", 1)
    wire.do("SET", "limiter", 1)  # left without a TTL: the whole window is the answer
    assert queue.claim().look_again == 1.0


def test_a_concurrency_ceiling_counts_every_active_job_of_the_queue(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many(["p"] * 4)
    queue.enqueue("p", group="lane")
    wire.do("HSET", "meta", "concurrency", 3)
    first = queue.claim(2).jobs
    assert len(queue.claim(10)) == 1
    assert not queue.claim(10)
    assert wire.do("ZCARD", "active") == 3
    queue.complete(first[0])
    assert len(queue.claim(10)) == 1
    queue.release(first[1])
    assert len(queue.claim(10)) == 1


def test_both_ceilings_hold_together(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many(["p"] * 9)
    wire.do("HSET", "meta", "concurrency", 4, "max", 6)
    first = queue.claim(9).jobs
    assert len(first) == 4
    queue.complete_many(first)
    assert len(queue.claim(9)) == 2
    assert not queue.claim(9)


def test_a_claim_answers_the_time_until_the_earliest_scheduled_job(queue: Queue) -> None:
    queue.enqueue("p", delay=500)
    queue.enqueue("p", delay=50)
    queue.enqueue("now")
    claimed = queue.claim()
    assert len(claimed) == 1
    assert claimed.look_again is not None
    assert 0 < claimed.look_again <= 50


def test_of_window_and_schedule_the_sooner_is_answered(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p")
    queue.enqueue("p", delay=500)
    wire.do("HSET", "meta", "max", 1)
    wire.do("SET", "limiter", 1, "PX", 30_000)
    look_again = queue.claim().look_again
    assert look_again is not None
    assert 0 < look_again <= 30
    wire.do("PEXPIRE", "limiter", 3_000_000)
    look_again = queue.claim().look_again
    assert look_again is not None
    assert 30 < look_again <= 500
