"""What our queue writes, key by key: all of the queue's keys are compared, so nothing unnamed is left behind."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from wire.handwriting import Wire

from echomq_tasks.connection import Connection, Server
from echomq_tasks.queue import NewJob, Queue, Verdict

A, B = "JOB0NgWEfAEJ0A", "JOB0NgWEfAEJ0B"
LANE = "GRP0NgWEfAEJfs"
ROW = {"state": "pending", "attempts": "0", "payload": "p"}


def test_a_flat_job_is_a_row_an_id_at_score_0_and_one_wake_token(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p", id=A)
    assert wire.everything() == {f"job:{A}": ROW, "pending": {A: 0}, "wake": ["1"]}


def test_a_payload_travels_as_the_bytes_it_was_given(queue: Queue, wire: Wire) -> None:
    payload = bytes(range(256))
    queue.enqueue(payload, id=A)
    assert wire.client.hget(f"{wire.base}job:{A}", "payload") == payload
    assert queue.claim().jobs[0].payload == payload


def test_a_priority_is_the_score_and_a_field_of_the_row(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p", id=A, priority=-7)
    assert wire.everything() == {f"job:{A}": ROW | {"priority": "-7"}, "pending": {A: -7}, "wake": ["1"]}


def test_a_job_in_a_lane_is_in_the_lanes_zset_and_its_lane_in_the_ring(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p", id=A, group=LANE)
    assert wire.everything() == {
        f"job:{A}": ROW | {"group": LANE},
        f"g:{LANE}:pending": {A: 0},
        "ring": [LANE],
        "wake": ["1"],
    }


def test_a_named_group_is_its_branded_id_on_the_wire(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p", id=A, group="acme")
    # BLAKE2b of the name, 8 bytes, top bit cleared, in base62: computed apart from this package.
    assert wire.row(A)["group"] == "GRP48IbgTeK9Cr"
    assert wire.ring() == ["GRP48IbgTeK9Cr"]


def test_a_delayed_job_is_scored_by_the_servers_clock_and_waits_nowhere_else(queue: Queue, wire: Wire) -> None:
    before = wire.now_ms()
    queue.enqueue("p", id=A, delay=90.5, priority=3, group=LANE)
    after = wire.now_ms()
    found = wire.everything()
    assert before <= found.pop("schedule")[A] - 90_500 <= after
    row = {"state": "scheduled", "attempts": "0", "payload": "p", "priority": "3", "group": LANE}
    assert found == {f"job:{A}": row, "wake": ["1"]}


def test_a_job_with_a_time_is_scored_by_exactly_that_time(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p", id=A, at=datetime(2100, 1, 1, tzinfo=UTC))
    queue.enqueue("p", id=B, at=4_102_444_800.25)
    assert wire.read("schedule") == {A: 4_102_444_800_000, B: 4_102_444_800_250}


def test_many_jobs_are_the_same_rows_and_as_many_wake_tokens(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many([NewJob(payload="p", id=A), NewJob(payload="p", id=B)])
    assert wire.everything() == {f"job:{A}": ROW, f"job:{B}": ROW, "pending": {A: 0, B: 0}, "wake": ["1", "1"]}


def test_a_claim_moves_the_id_to_active_scored_by_its_deadline(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p", id=A, group=LANE)
    before = wire.now_ms()
    queue.claim(lease=45)
    after = wire.now_ms()
    found = wire.everything()
    assert before <= found.pop("active")[A] - 45_000 <= after
    row = {"state": "active", "attempts": "1", "payload": "p", "group": LANE, "lock": "1"}
    assert found == {f"job:{A}": row, "gactive": {LANE: "1"}}


def test_the_lock_marker_is_a_field_of_the_row_that_expires_after_two_leases(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p", id=A)
    (job,) = queue.claim(lease=30)
    assert wire.row(A)["lock"] == "1"
    (ttl,) = wire.do("HPTTL", f"job:{A}", "FIELDS", 1, "lock")
    assert 30_000 < ttl <= 60_000
    assert queue.extend(job, lease=300) is Verdict.OK
    (ttl,) = wire.do("HPTTL", f"job:{A}", "FIELDS", 1, "lock")
    assert 300_000 < ttl <= 600_000
    assert wire.do("HPTTL", f"job:{A}", "FIELDS", 1, "payload") == [-1]


def test_the_lock_marker_is_a_key_where_the_server_has_no_field_ttl(
    queue: Queue, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "server", Server("valkey", (8, 1, 0), (7, 2, 4)))
    queue.enqueue("p", id=A)
    (job,) = queue.claim(lease=30)
    assert "lock" not in wire.row(A)
    assert wire.read(f"job:{A}:lock") == "1"
    assert 30_000 < wire.do("PTTL", f"job:{A}:lock") <= 60_000
    assert queue.extend(job, lease=300) is Verdict.OK
    assert 300_000 < wire.do("PTTL", f"job:{A}:lock") <= 600_000
    assert queue.complete(job) is Verdict.OK
    assert wire.everything() == {"metrics:completed": {"count": "1"}}


@pytest.mark.parametrize("field_ttl", [True, False])
@pytest.mark.parametrize("verb", ["release", "retry", "bury", "reap", "sweep", "stall"])
def test_no_lock_marker_outlives_the_claim(
    queue: Queue, wire: Wire, verb: str, field_ttl: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not field_ttl:
        monkeypatch.setattr(Connection, "server", Server("valkey", (8, 1, 0), (7, 2, 4)))
    queue.enqueue("p", id=A)
    (job,) = queue.claim()
    match verb:
        case "release":
            queue.release(job)
        case "retry":
            queue.retry(job, "boom", delay=60)
        case "bury":
            queue.retry(job, "boom", max_retries=0)
        case _:
            wire.expire(A)
            if verb == "reap":
                assert queue.reap() == 1
            else:
                queue.sweep_stalled(max_stalled=1 if verb == "stall" else 2)
    assert "lock" not in wire.row(A)
    assert wire.read(f"job:{A}:lock") is None
    assert wire.read("active") is None


def test_a_completed_job_leaves_only_the_count(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p", id=A, group=LANE, priority=2)
    (job,) = queue.claim()
    assert queue.complete(job, b"result") is Verdict.OK
    assert wire.everything() == {"metrics:completed": {"count": "1"}}


def test_a_buried_job_is_at_score_0_in_dead_with_its_error_and_counted(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p", id=A, group=LANE)
    (job,) = queue.claim()
    assert queue.retry(job, "ValueError: no", max_retries=0) is Verdict.DEAD
    row = {"state": "dead", "attempts": "1", "payload": "p", "group": LANE, "failures": "1", "settled": "1"}
    died = wire.row(A)["died"]
    assert abs(int(died) - wire.now_ms()) < 60_000
    assert wire.everything() == {
        f"job:{A}": row | {"last_error": "ValueError: no", "died": died},
        "dead": {A: 0},
        "metrics:failed": {"count": "1"},
    }


def test_a_released_job_is_as_it_was_apart_from_its_token(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p", id=A, group=LANE, priority=5)
    before = wire.everything()
    (job,) = queue.claim()
    assert queue.release(job) is Verdict.OK
    before[f"job:{A}"]["attempts"] = "1"
    assert wire.everything() == before


def test_an_extension_moves_the_deadline_by_the_servers_clock(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p", id=A)
    (job,) = queue.claim(lease=1)
    before = wire.now_ms()
    assert queue.extend(job, lease=500) is Verdict.OK
    assert before <= wire.read("active")[A] - 500_000 <= wire.now_ms()


def test_a_retry_may_replace_the_payload_and_else_leaves_it(queue: Queue, wire: Wire) -> None:
    queue.enqueue_many([NewJob(payload="p", id=A), NewJob(payload="p", id=B)])
    first, second = queue.claim(2).jobs
    queue.retry(first, "boom", delay=60, payload="")
    queue.retry(second, "boom", delay=60)
    assert (wire.row(A)["payload"], wire.row(B)["payload"]) == ("", "p")
