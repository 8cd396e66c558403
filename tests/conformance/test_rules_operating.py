"""The operator's verbs on a whole queue: pause, ceilings and metrics."""

from __future__ import annotations

from dataclasses import replace

import pytest
from wire.handwriting import Wire

from echomq_tasks.errors import InvalidArgument
from echomq_tasks.identity import EPOCH_MS, brand
from echomq_tasks.queue import Limits, Metrics, NewJob, Queue, Verdict

LANE, OTHER = "GRP0NgWEfAEJ0x", "GRP0NgWEfAEJ0y"
NOTHING = Metrics(
    completed=0,
    failed=0,
    waiting=0,
    in_lanes=0,
    active=0,
    scheduled=0,
    late=0,
    dead=0,
    lanes=0,
    oldest_waiting=None,
    oldest_dead=None,
    paused=False,
)


def minted(wire: Wire, seconds_ago: float, number: int = 0) -> str:
    """A JOB id of so many seconds ago, by the server's clock."""
    return brand("JOB", (wire.now_ms() - round(seconds_ago * 1000) - EPOCH_MS) << 22 | number)


# --- pause


def test_pause_stops_claims_and_resume_lets_them_go_on(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many(["p", NewJob(payload="q", group=LANE)])
    before = wire.everything()
    assert queue.pause()
    assert wire.everything() == before | {"meta": {"paused": "1"}}, "the backlog is untouched"
    assert not queue.claim(5)
    assert not queue.pause(), "it was paused already"
    assert queue.resume()
    assert wire.read("meta") is None
    assert len(queue.claim(5)) == 2
    assert not queue.resume(), "it was not paused"


@pytest.mark.parametrize("value", ["1", "true", "yes"])
def test_a_pause_of_another_runtime_is_one(queue: Queue, wire: Wire, value: str) -> None:
    queue.enqueue("p")
    wire.do("HSET", "meta", "paused", value, "max", 5)
    assert queue.limits().paused
    assert not queue.pause()
    assert queue.resume()
    assert wire.read("meta") == {"max": "5"}
    assert len(queue.claim()) == 1


def test_paused_set_to_0_is_no_pause_to_resume_from(queue: Queue, wire: Wire) -> None:
    wire.do("HSET", "meta", "paused", 0)
    assert not queue.limits().paused
    assert not queue.resume()
    assert queue.pause()
    assert wire.read("meta") == {"paused": "1"}


def test_resume_wakes_a_worker_for_each_job_that_can_be_claimed(queue: Queue, wire: Wire) -> None:
    queue.lane(OTHER).pause()
    queue.enqueue_many(["p"] * 3 + [NewJob(payload="p", group=LANE)] * 2 + [NewJob(payload="p", group=OTHER)] * 9)
    queue.pause()
    assert not queue.claim()
    assert wire.wakes() == 0, "a claim of a paused queue takes the tokens away"
    queue.resume()
    assert wire.wakes() == 5


def test_resume_wakes_one_to_look_at_the_schedule_that_nobody_was_told_of(queue: Queue, wire: Wire) -> None:
    queue.pause()
    queue.enqueue("p", delay=60)
    queue.claim()
    assert wire.wakes() == 0
    queue.resume()
    assert wire.wakes() == 1
    assert queue.claim().look_again is not None


def test_resume_of_an_empty_queue_wakes_nobody_and_leaves_no_key(queue: Queue, wire: Wire) -> None:
    queue.pause()
    assert queue.resume()
    assert wire.everything() == {}


def test_resume_leaves_64_tokens_at_most(queue: Queue, wire: Wire) -> None:
    queue.pause()
    queue.enqueue_many([NewJob(payload="p", group=f"GRP0NgWEfAE{number:03}") for number in range(200)] * 2)
    queue.claim()
    queue.resume()
    assert wire.wakes() == 64


def test_a_paused_queue_is_settled_and_extended_as_ever(queue: Queue) -> None:
    queue.enqueue_many(["p", "q", "r"])
    done, back, failed = queue.claim(3).jobs
    queue.pause()
    assert queue.extend(done) is Verdict.OK
    assert queue.complete(done) is Verdict.OK
    assert queue.release(back) is Verdict.OK
    assert queue.retry(failed, max_retries=0) is Verdict.DEAD
    assert not queue.claim(5)
    queue.resume()
    assert [job.id for job in queue.claim(5)] == [back.id]


# --- the rate


def test_a_rate_holds_for_all_claims_of_a_window(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many(["p"] * 5 + [NewJob(payload="q", group=LANE)] * 5)
    queue.limit_rate(3, per=60.0)
    assert wire.read("meta") == {"max": "3", "duration": "60000"}
    assert [len(queue.claim(2)), len(queue.claim(5)), len(queue.claim(5))] == [2, 1, 0]
    assert 0 < wire.do("PTTL", "limiter") <= 60_000


def test_a_window_of_a_second_is_what_every_runtime_has_and_is_not_written(queue: Queue, wire: Wire) -> None:
    queue.limit_rate(3, per=60.0)
    queue.limit_rate(5)
    assert wire.read("meta") == {"max": "5"}
    assert queue.limits() == Limits(rate=5, per=1.0, concurrency=None, paused=False)


def test_a_rate_is_rounded_up_to_whole_milliseconds(queue: Queue, wire: Wire) -> None:
    queue.limit_rate(3, per=0.3)
    assert wire.read("meta") == {"max": "3", "duration": "300"}
    assert queue.limits().per == 0.3


def test_a_raised_rate_lets_more_be_claimed_in_the_same_window_and_wakes(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many(["p"] * 9)
    queue.limit_rate(2, per=60.0)
    assert len(queue.claim(9)) == 2
    assert (len(queue.claim(9)), wire.wakes()) == (0, 0)
    queue.limit_rate(5, per=60.0)
    assert wire.wakes() == 7
    assert len(queue.claim(9)) == 3


def test_without_a_rate_all_is_claimed_and_the_window_is_forgotten(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many(["p"] * 9)
    queue.limit_rate(2, per=60.0)
    queue.claim(9)
    queue.claim(9)
    queue.limit_rate(None)
    assert wire.read("meta") is None
    assert wire.read("limiter") is None
    assert wire.wakes() == 7
    assert len(queue.claim(9)) == 7
    queue.limit_rate(2, per=60.0)
    assert wire.wakes() == 0, "nothing waits"


def test_a_shorter_window_ends_one_that_was_longer(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many(["p"] * 9)
    queue.limit_rate(2, per=3600.0)
    queue.claim(9)
    queue.limit_rate(2, per=60.0)
    assert 0 < wire.do("PTTL", "limiter") <= 60_000
    assert wire.read("limiter") == "2", "what was spent stays spent"
    queue.limit_rate(2, per=7200.0)
    assert 0 < wire.do("PTTL", "limiter") <= 60_000, "an open window is not prolonged"


# --- concurrency


def test_a_concurrency_ceiling_holds_over_lanes_and_the_flat_queue(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many(["p"] * 5 + [NewJob(payload="q", group=LANE)] * 5)
    queue.limit_concurrency(3)
    assert wire.read("meta") == {"concurrency": "3"}
    jobs = [*queue.claim(2), *queue.claim(5)]
    assert len(jobs) == 3
    assert (len(queue.claim(5)), wire.wakes()) == (0, 0)
    queue.complete(jobs[0])
    assert wire.wakes() == 1
    assert len(queue.claim(5)) == 1


def test_a_raised_or_removed_concurrency_ceiling_wakes(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many(["p"] * 9)
    queue.limit_concurrency(2)
    assert [len(queue.claim(9)), len(queue.claim(9))] == [2, 0]
    queue.limit_concurrency(4)
    assert wire.wakes() == 7
    assert [len(queue.claim(9)), len(queue.claim(9)), wire.wakes()] == [2, 0, 0]
    queue.limit_concurrency(None)
    assert wire.read("meta") is None
    assert wire.wakes() == 5
    assert len(queue.claim(9)) == 5


def test_a_lowered_ceiling_stops_nothing_that_runs(queue: Queue) -> None:
    queue.enqueue_many(["p"] * 9)
    jobs = queue.claim(5).jobs
    queue.limit_concurrency(2)
    assert queue.counts().active == 5
    for job in jobs[:3]:
        queue.complete(job)
        assert not queue.claim()
    queue.complete(jobs[3])
    assert len(queue.claim(9)) == 1


def test_the_ceilings_are_set_and_removed_each_for_itself(queue: Queue, wire: Wire) -> None:
    assert queue.limits() == Limits(rate=None, per=1.0, concurrency=None, paused=False)
    queue.limit_rate(3, per=2.5)
    queue.limit_concurrency(7)
    queue.pause()
    assert queue.limits() == Limits(rate=3, per=2.5, concurrency=7, paused=True)
    queue.limit_rate(None)
    assert queue.limits() == Limits(rate=None, per=1.0, concurrency=7, paused=True)
    queue.resume()
    queue.limit_concurrency(None)
    assert wire.everything() == {}


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "3", 2**53 + 1, float("inf")])
def test_a_ceiling_that_is_none_is_refused_before_a_byte_is_sent(queue: Queue, wire: Wire, count: object) -> None:
    with pytest.raises(InvalidArgument, match="ceiling"):
        queue.limit_rate(count)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="ceiling"):
        queue.limit_concurrency(count)  # type: ignore[arg-type]
    assert wire.everything() == {}


@pytest.mark.parametrize("per", [0, -1.0, 0.0, "1", True, float("nan"), float("inf"), None])
def test_a_window_that_has_no_length_is_refused(queue: Queue, wire: Wire, per: object) -> None:
    with pytest.raises(InvalidArgument, match="per"):
        queue.limit_rate(1, per=per)  # type: ignore[arg-type]
    assert wire.everything() == {}


@pytest.mark.parametrize("value", ["many", "", "nan", "inf"])
def test_a_ceiling_that_another_hand_spoilt_is_none_to_a_claim_and_told_so(
    queue: Queue, wire: Wire, value: str
) -> None:
    queue.enqueue("p")
    wire.do("HSET", "meta", "max", value, "concurrency", value)
    limits = queue.limits()
    assert (limits.rate, limits.concurrency) == (None, None)
    assert len(queue.claim()) == 1


# --- metrics


def test_a_queue_without_a_key_has_metrics_of_nothing(queue: Queue, wire: Wire) -> None:
    assert queue.metrics() == NOTHING
    assert wire.everything() == {}


def test_metrics_count_every_state(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many(["p"] * 4)
    done, dead, _ = queue.claim(3).jobs
    queue.complete(done)
    queue.retry(dead, max_retries=0)
    queue.enqueue_many([NewJob(payload="p", group=LANE), NewJob(payload="p", group=OTHER)] * 2)
    queue.lane(OTHER).pause()
    late = queue.enqueue("p", delay=60).id
    queue.enqueue("p", delay=60)
    wire.come_due(late)
    queue.pause()
    metrics = queue.metrics()
    assert metrics == Metrics(
        completed=1,
        failed=1,
        waiting=5,
        in_lanes=4,
        active=1,
        scheduled=2,
        late=1,
        dead=1,
        lanes=2,
        oldest_waiting=metrics.oldest_waiting,
        oldest_dead=metrics.oldest_dead,
        paused=True,
    )
    assert metrics.oldest_waiting is not None
    assert metrics.oldest_dead is not None
    assert 0 <= metrics.oldest_waiting <= metrics.oldest_dead < 60


def test_the_oldest_waiting_job_is_found_behind_any_priority_and_in_any_lane(queue: Queue, wire: Wire) -> None:
    young, old, older, oldest = (minted(wire, age) for age in (10, 1000, 2000, 3000))
    queue.enqueue("p", id=young, priority=-5)
    assert 10 <= (queue.metrics().oldest_waiting or 0) < 70
    queue.enqueue("p", id=old, priority=5)
    assert 1000 <= (queue.metrics().oldest_waiting or 0) < 1060
    queue.enqueue("p", id=older, group=LANE, priority=7)
    queue.enqueue("p", group=LANE)
    assert 2000 <= (queue.metrics().oldest_waiting or 0) < 2060
    queue.lane(OTHER).pause()
    queue.enqueue("p", id=oldest, group=OTHER, priority=1)
    assert 3000 <= (queue.metrics().oldest_waiting or 0) < 3060, "a lane that is not served counts most of all"


def test_the_oldest_is_found_when_it_takes_many_calls(
    queue: Queue, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echomq_tasks.queue.operating._LOOKS", 3)
    groups = [None, *(f"GRP0NgWEfAEJ0{letter}" for letter in "vwxyz")]
    queue.enqueue_many(
        NewJob(payload="p", group=group, priority=priority) for group in groups for priority in (-2, 0, 3, 8)
    )
    assert (queue.metrics().oldest_waiting or 0) < 60
    for place, group in enumerate(groups):
        queue.enqueue("p", id=minted(wire, 1000 * (place + 1)), group=group, priority=8)
        assert 1000 * (place + 1) <= (queue.metrics().oldest_waiting or 0) < 1000 * (place + 1) + 60


def test_an_id_minted_by_a_clock_ahead_of_the_servers_is_of_no_age(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p", id=minted(wire, -500))
    assert queue.metrics().oldest_waiting == 0


def test_an_id_that_is_none_tells_no_time_and_stops_no_metrics(queue: Queue, wire: Wire) -> None:
    wire.do("ZADD", "pending", 0, "AAA", 1, "JOBzzzzzzzzzzz")
    wire.do("ZADD", "dead", 0, b"\x80")
    wire.do("HSET", "metrics:completed", "count", "lots")
    assert queue.metrics() == replace(NOTHING, waiting=2, dead=1)
    queue.enqueue("p", id=minted(wire, 100), priority=2)
    assert 100 <= (queue.metrics().oldest_waiting or 0) < 160


def test_the_counts_of_a_spoilt_queue_are_counts(queue: Queue, wire: Wire) -> None:
    wire.do("HSET", "metrics:completed", "count", "lots")
    wire.do("HSET", "metrics:failed", "count", 2)
    counts = queue.counts()
    assert (counts.completed, counts.failed, counts.paused) == (0, 2, False)
