"""Wire §5, admission: enqueue, enqueue_in, enqueue_at, enqueue_many, and enqueue in a lane."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from conformance.scenarios import (
    FAR,
    LANE,
    OTHER,
    ROW,
    WHERE,
    A,
    B,
    C,
    D,
    E,
    Instant,
    Start,
    scenario,
    then,
)
from wire.handwriting import Wire

from echomq_tasks.errors import InvalidId, WrongKind
from echomq_tasks.queue import Admission, NewJob, Queue

NOT_JOBS = ["EVT000xY9Wvvcd", "job0NgWEfAEJfs", "JOB0NgWEfAEJf", "JOB0NgWEfAEJfsx", ""]


# -- enqueue ------------------------------------------------------------------------------------------------------


@scenario("5.01.1", "row `state=pending attempts=0 payload`; `ZADD pending 0 id`; a wake token")
def test_an_admission_writes_a_row_an_id_at_score_0_and_a_wake_token(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(B)
    before = wire.everything()
    answer = queue.enqueue("p", id=A)
    assert (answer.id, answer.admission) == (A, Admission.ENQUEUED)
    assert wire.everything() == then(before, {f"job:{A}": ROW, "pending": {A: 0, B: 0}, "wake": ["1"]})


@scenario("5.01.2", "kind: what is no JOB id is refused before anything is written")
@pytest.mark.parametrize("job_id", NOT_JOBS)
def test_an_admission_under_an_id_of_another_kind_is_refused(
    start: Start, queue: Queue, wire: Wire, job_id: str
) -> None:
    start.waiting(B)
    before = wire.everything()
    with pytest.raises(InvalidId):
        queue.enqueue("p", id=job_id)
    # And by the server, should a caller have no gate; the good one beside it is not admitted either.
    good, bad = (A, "p", "now", 0, 0, "", ""), (job_id, "p", "now", 0, 0, "", "")
    with pytest.raises(WrongKind):
        queue.run("job_enqueue", "somebody", "1.1", *good, *bad)
    assert wire.everything() == before


@scenario("5.01.3", "row exists → duplicate, nothing changes; a success shape, not an error")
@pytest.mark.parametrize("where", WHERE)
def test_an_id_that_has_a_row_is_a_duplicate_wherever_it_is(start: Start, queue: Queue, wire: Wire, where: str) -> None:
    start.put(where, A)
    before = wire.everything()
    answer = queue.enqueue("another payload", id=A, priority=3)
    assert (answer.id, answer.admission, answer.duplicate) == (A, Admission.DUPLICATE, True)
    assert wire.everything() == before


@scenario("5.01.4", "a job with a `priority` has it as its score, lower first; jobs without one stay at 0 (§2)")
def test_a_priority_is_the_score_and_a_field_among_jobs_that_have_none(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(B)
    start.waiting(C, priority=4)
    queue.enqueue("p", id=A, priority=9)
    queue.enqueue("p", id=D, priority=-9)
    assert wire.read("pending") == {D: -9, B: 0, C: 4, A: 9}
    assert wire.row(A) == ROW | {"priority": "9"}
    assert [job.id for job in queue.claim(9)] == [D, B, C, A]


# -- enqueue_in, enqueue_at ---------------------------------------------------------------------------------------


@scenario("5.02.1", "row `state=scheduled`; `ZADD schedule (server now + delay) id`")
def test_a_delay_is_a_score_on_the_servers_clock(start: Start, queue: Queue, wire: Wire) -> None:
    start.scheduled(B, at=1)  # earlier, so that no token is due
    before, now = wire.everything(), Instant(wire)
    answer = queue.enqueue("p", id=A, delay=90.5)
    assert answer.admission is Admission.SCHEDULED
    row = ROW | {"state": "scheduled"}
    assert wire.everything() == then(before, {f"job:{A}": row, "schedule": {B: 1, A: now + 90_500}})


@scenario("5.02.2", "`ZADD schedule run-at id`")
def test_a_run_at_is_exactly_that_score(start: Start, queue: Queue, wire: Wire) -> None:
    start.scheduled(C, at=1)
    before = wire.everything()
    queue.enqueue("p", id=A, at=datetime(2100, 1, 1, tzinfo=UTC))
    queue.enqueue("p", id=B, at=4_102_444_800.25)
    row = ROW | {"state": "scheduled"}
    scores = {C: 1, A: 4_102_444_800_000, B: 4_102_444_800_250}
    assert wire.everything() == then(before, {f"job:{A}": row, f"job:{B}": row, "schedule": scores})


@scenario("5.02.3", "the same refusals: row exists → duplicate, nothing changes")
@pytest.mark.parametrize("where", WHERE)
def test_a_later_admission_of_an_id_that_has_a_row_is_a_duplicate(
    start: Start, queue: Queue, wire: Wire, where: str
) -> None:
    start.put(where, A)
    before = wire.everything()
    assert queue.enqueue("p", id=A, delay=5).duplicate
    assert queue.enqueue("p", id=A, at=5).duplicate
    assert wire.everything() == before


@scenario("5.02.4", "a scheduled admission that becomes the earliest pushes a token, another does not (§2)")
def test_only_a_new_earliest_run_at_wakes_a_worker(start: Start, queue: Queue, wire: Wire) -> None:
    start.scheduled(A, at=FAR)
    queue.enqueue("p", id=B, at=FAR / 1000 + 1)
    assert wire.read("wake") is None
    queue.enqueue("p", id=C, at=FAR / 1000 - 1)
    assert wire.read("wake") == ["1"]
    queue.enqueue("p", id=D, delay=60)
    assert wire.read("wake") == ["1", "1"]


@scenario("5.02.5", "a job for later keeps its lane and its priority in its row, and enters neither before its time")
def test_a_lane_and_a_priority_wait_in_the_row(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(B)
    before, now = wire.everything(), Instant(wire)
    queue.enqueue("p", id=A, delay=60, group=LANE, priority=-2)
    row = ROW | {"state": "scheduled", "group": LANE, "priority": "-2"}
    assert wire.everything() == then(before, {f"job:{A}": row, "schedule": {A: now + 60_000}, "wake": ["1"]})


# -- enqueue_many -------------------------------------------------------------------------------------------------


@scenario("5.03.1", "each item by the same rule; one verdict per item, input order")
def test_many_admissions_get_one_verdict_each_in_input_order(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(B)
    start.scheduled(D)
    before, now = wire.everything(), Instant(wire)
    jobs = [
        NewJob("p", id=C, group=LANE), NewJob("q", id=B), NewJob("p", id=A, delay=60), NewJob("q", id=D),
        NewJob("p", id=E),
    ]  # fmt: skip
    answers = queue.enqueue_many(jobs)
    assert [(answer.id, answer.admission.value) for answer in answers] == [
        (C, "enqueued"), (B, "duplicate"), (A, "scheduled"), (D, "duplicate"), (E, "enqueued"),
    ]  # fmt: skip
    changes = {
        f"job:{C}": ROW | {"group": LANE}, f"g:{LANE}:pending": {C: 0}, "ring": [LANE],
        f"job:{A}": ROW | {"state": "scheduled"}, "schedule": {A: now + 60_000, D: FAR},
        f"job:{E}": ROW, "pending": {B: 0, E: 0},
        "wake": ["1", "1", "1"],  # two that wait, and a new earliest run-at
    }  # fmt: skip
    assert wire.everything() == then(before, changes)


@scenario("5.03.2", "`enqueue_many` pushes min(n, 64) tokens (§2)")
@pytest.mark.parametrize(("jobs", "tokens"), [(2, 2), (64, 64), (65, 64), (600, 64)])
def test_many_admissions_push_a_token_each_and_64_at_most(
    start: Start, queue: Queue, wire: Wire, jobs: int, tokens: int
) -> None:
    start.waiting(A)
    queue.enqueue_many(["p"] * jobs)
    assert wire.read("wake") == ["1"] * tokens


@scenario("5.03.3", "the wake list is kept at 64 (`LTRIM 0 63`, §2), whoever pushed before")
def test_tokens_of_another_runtime_count_towards_the_64(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(A)
    wire.do("LPUSH", "wake", *["1"] * 62)
    queue.enqueue_many(["p"] * 5)
    queue.enqueue("p")
    assert wire.read("wake") == ["1"] * 64


# -- enqueue in a lane --------------------------------------------------------------------------------------------


@scenario("5.04.1", "row with `group`; `ZADD g:<group>:pending 0 id`; the lane joins the ring; a wake token")
def test_an_admission_in_a_lane_writes_the_lane_and_rings_it(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(B, group=OTHER)
    before = wire.everything()
    assert queue.enqueue("p", id=A, group=LANE).admission is Admission.ENQUEUED
    row = ROW | {"group": LANE}
    changes = {f"job:{A}": row, f"g:{LANE}:pending": {A: 0}, "ring": [OTHER, LANE], "wake": ["1"]}
    assert wire.everything() == then(before, changes)


@scenario("5.04.2", "rule 6: a lane that is in the ring is not pushed again")
def test_a_lane_is_in_the_ring_once(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(B, group=LANE)
    start.waiting(C, group=OTHER)
    queue.enqueue("p", id=A, group=LANE)
    assert wire.ring() == [LANE, OTHER]
    assert wire.read(f"g:{LANE}:pending") == {A: 0, B: 0}


@scenario("5.04.3", "rule 6: a lane in `paused` stays out of the ring")
def test_an_admission_to_a_paused_lane_waits_outside_the_ring(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(B, group=OTHER)
    wire.do("SADD", "paused", LANE)
    queue.enqueue("p", id=A, group=LANE)
    assert (wire.ids(f"g:{LANE}:pending"), wire.ring()) == ([A], [OTHER])
    assert [job.id for job in queue.claim(9)] == [B]


@scenario("5.04.4", "rule 6: a lane joins the ring only while `gactive < glimit`")
@pytest.mark.parametrize(("limit", "joins"), [(0, False), (1, False), (2, True), (None, True)])
def test_an_admission_to_a_lane_at_its_limit_waits_outside_the_ring(
    start: Start, queue: Queue, wire: Wire, limit: int | None, joins: bool
) -> None:
    start.running(B, group=LANE)
    if limit is not None:
        wire.do("HSET", "glimit", LANE, limit)
    queue.enqueue("p", id=A, group=LANE)
    assert (wire.ids(f"g:{LANE}:pending"), wire.ring()) == ([A], [LANE] if joins else [])
    assert len(queue.claim(9)) == joins


@scenario("5.04.5", "the same refusals: row exists → duplicate, no lane changes")
@pytest.mark.parametrize("where", WHERE)
def test_an_admission_in_a_lane_of_an_id_that_has_a_row_is_a_duplicate(
    start: Start, queue: Queue, wire: Wire, where: str
) -> None:
    start.put(where, A)
    before = wire.everything()
    assert queue.enqueue("p", id=A, group=OTHER).duplicate
    assert wire.everything() == before
