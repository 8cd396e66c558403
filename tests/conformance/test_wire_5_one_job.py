"""Wire §5, one job by its id: its data, its removal, its second life, its state; and what is said below the table."""

from __future__ import annotations

import json

import pytest
from conformance.scenarios import (
    LANE,
    OTHER,
    WHERE,
    A,
    B,
    C,
    Instant,
    Start,
    scenario,
    seen,
    then,
)
from wire.handwriting import Wire

from echomq_tasks.errors import Held, StaleToken, WrongState
from echomq_tasks.keyspace import queue_key
from echomq_tasks.queue import Queue, State, Verdict

# -- update_data, update_progress, add_log ------------------------------------------------------------------------


@scenario("5.16.1", "update_data: `payload`; ok / gone")
@pytest.mark.parametrize("where", WHERE)
def test_an_updated_payload_is_the_rows_wherever_the_job_is(start: Start, queue: Queue, wire: Wire, where: str) -> None:
    start.put(where, A)
    before = wire.everything()
    assert queue.update_data(A, "new") is Verdict.OK
    assert queue.update_data(B, "new") is Verdict.GONE
    assert wire.everything() == then(before, {f"job:{A}": before[f"job:{A}"] | {"payload": "new"}})


@scenario("5.16.2", "update_progress: `progress` + PUBLISH, one JSON object of flat strings (§2)")
def test_progress_is_kept_in_the_row_and_published(start: Start, queue: Queue, wire: Wire) -> None:
    start.running(A)
    before = wire.everything()
    with wire.client.pubsub() as listener:
        listener.subscribe(queue_key(queue.name, "events"))
        assert listener.get_message(timeout=10)["type"] == "subscribe"
        assert queue.update_progress(A, 50) is Verdict.OK
        said = listener.get_message(timeout=10)
    fields = json.loads(said["data"])
    assert fields.pop("at").isdigit()
    attempt = wire.row(A)["attempts"]
    assert fields == {"event": "progress", "job": A, "queue": queue.name, "attempt": attempt, "progress": "50"}
    assert queue.update_progress(B, 50) is Verdict.GONE
    assert wire.everything() == then(before, {f"job:{A}": before[f"job:{A}"] | {"progress": "50"}})


@scenario("5.16.3", "add_log: `RPUSH logs` (+ keep last n); log count / gone")
def test_a_log_grows_at_its_end_and_keeps_its_last_lines(start: Start, queue: Queue, wire: Wire) -> None:
    start.running(A)
    wire.do("RPUSH", f"job:{A}:logs", "one")
    before = wire.everything()
    assert (queue.add_log(A, "two"), queue.add_log(A, "three", keep=2), queue.add_log(B, "x")) == (2, 2, None)
    assert wire.everything() == then(before, {f"job:{A}:logs": ["two", "three"]})
    assert queue.logs(A) == ["two", "three"]


# -- remove -------------------------------------------------------------------------------------------------------


@scenario("5.17.1", "held (`:lock`, or `lock` field) → EMQLOCK")
def test_a_held_job_is_not_removed_whichever_its_lock_is(start: Start, queue: Queue, wire: Wire) -> None:
    start.running(A)
    before = wire.everything()
    with pytest.raises(Held):
        queue.remove(A)
    assert wire.everything() == before


@scenario("5.17.2", "leave whichever set or lane holds it; `DEL` row, logs")
@pytest.mark.parametrize("where", ["waiting", "lane", "scheduled", "dead"])
def test_a_removed_job_leaves_its_place_and_its_row(start: Start, queue: Queue, wire: Wire, where: str) -> None:
    start.waiting(C, group=OTHER)
    wire.do("SADD", "paused", OTHER)  # so that it is in nobody's way
    wire.do("DEL", "ring")
    before = wire.everything()
    start.put(where, A)
    queue.add_log(A, "a line")
    assert queue.remove(A) is Verdict.OK
    assert then(wire.everything(), {"metrics:failed": None}) == before
    assert queue.state(A) is State.ABSENT


@scenario("5.17.3", "leave the lane: the others of it stay, and the ring as it is")
def test_a_removed_job_leaves_the_others_of_its_lane(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(A, B, group=LANE)
    start.waiting(C, group=OTHER)
    before = wire.everything()
    assert queue.remove(A) is Verdict.OK
    assert wire.everything() == then(before, {f"job:{A}": None, f"g:{LANE}:pending": {B: 0}})


@scenario("5.17.4", "release `de:` key if it points here")
@pytest.mark.parametrize(("holder", "stays"), [(A, False), (B, True)])
def test_a_removed_job_gives_back_its_own_idempotency_key_and_no_other(
    start: Start, queue: Queue, wire: Wire, holder: str, stays: bool
) -> None:
    start.waiting(A, B)
    wire.do("HSET", f"job:{A}", "dedup", "order-7")
    wire.do("SET", "de:order-7", holder, "PX", 60_000)
    before = wire.everything()
    assert queue.remove(A) is Verdict.OK
    changes = {f"job:{A}": None, "pending": {B: 0}} | ({} if stays else {"de:order-7": None})
    assert wire.everything() == then(before, changes)


@scenario("5.17.5", "row gone → gone")
def test_removing_a_job_that_is_gone_changes_nothing(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(B)
    before = wire.everything()
    assert queue.remove(A) is Verdict.GONE
    assert wire.everything() == before


# -- reprocess ----------------------------------------------------------------------------------------------------


@scenario("5.18.1", "dead → pending, `last_error` dropped; ok")
@pytest.mark.parametrize("group", [None, LANE])
def test_a_dead_job_waits_again_without_its_error(start: Start, queue: Queue, wire: Wire, group: str | None) -> None:
    start.dead(A, group=group)
    before = seen(wire)
    assert queue.reprocess(A) is Verdict.OK
    row = then(before[f"job:{A}"], {"state": "pending", "last_error": None, "failures": None})
    place = {f"g:{LANE}:pending": {A: 0}, "ring": [LANE]} if group else {"pending": {A: 0}}
    found = seen(wire)
    assert set(found.pop("wake")) == {"1"}
    assert found == then(before, {f"job:{A}": row, "dead": None} | place)
    assert [job.id for job in queue.claim()] == [A]


@scenario("5.18.2", "not in dead → EMQSTATE")
@pytest.mark.parametrize("where", ["waiting", "lane", "running", "scheduled"])
def test_only_a_dead_job_is_reprocessed(start: Start, queue: Queue, wire: Wire, where: str) -> None:
    start.put(where, A)
    before = seen(wire)
    with pytest.raises(WrongState):
        queue.reprocess(A)
    assert seen(wire) == before


@scenario("5.18.3", "row gone → gone")
def test_reprocessing_a_job_that_is_gone_changes_nothing(start: Start, queue: Queue, wire: Wire) -> None:
    start.dead(B)
    before = seen(wire)
    assert queue.reprocess(A) is Verdict.GONE
    assert seen(wire) == before


# -- state of -----------------------------------------------------------------------------------------------------


@scenario("5.19.1", "which set or lane holds the id; the row's own word is not believed")
@pytest.mark.parametrize(
    ("where", "state"),
    [
        ("waiting", State.PENDING), ("lane", State.PENDING), ("running", State.ACTIVE),
        ("scheduled", State.SCHEDULED), ("dead", State.DEAD),
    ],
)  # fmt: skip
def test_the_state_of_a_job_is_the_set_that_holds_it(
    start: Start, queue: Queue, wire: Wire, where: str, state: State
) -> None:
    start.put(where, A)
    wire.do("HSET", f"job:{A}", "state", "awaiting_children")
    before = wire.everything()
    assert queue.state(A) is state
    assert wire.everything() == before


@scenario("5.19.2", "else the row's `awaiting_children`; else unknown / absent")
def test_a_job_in_no_set_awaits_its_children_or_is_unknown_or_absent(start: Start, queue: Queue, wire: Wire) -> None:
    start.waiting(A)
    wire.do("DEL", "pending")
    assert queue.state(A) is State.UNKNOWN
    wire.do("HSET", f"job:{A}", "state", "awaiting_children")
    assert queue.state(A) is State.AWAITING_CHILDREN
    assert queue.state(B) is State.ABSENT


# -- what is said below the table ---------------------------------------------------------------------------------


@scenario("5.20.1", "`attempts` never goes down, or an old token could settle a new claim")
@pytest.mark.parametrize("way", ["release", "reap", "sweep", "retry", "reprocess"])
def test_the_token_goes_up_over_every_way_back(start: Start, queue: Queue, wire: Wire, way: str) -> None:
    old = start.running(A, token=3)
    match way:
        case "release":
            queue.release(old)
        case "retry":
            queue.retry(old, "boom")
        case "reprocess":
            queue.retry(old, "boom", max_retries=0)
            queue.reprocess(A)
        case _:
            wire.expire(A)
            assert queue.reap() == 1 if way == "reap" else queue.sweep_stalled().recovered == (A,)
    assert wire.row(A)["attempts"] == "3"
    (new,) = queue.claim()
    assert new.token == 4
    before = wire.everything()
    with pytest.raises(StaleToken):
        queue.complete(old)
    assert wire.everything() == before
    assert queue.complete(new) is Verdict.OK


@scenario("5.20.2", "a retry limit counts `failures`, so a job that was claimed and never started has lost nothing")
def test_claims_that_never_started_cost_no_retry(start: Start, queue: Queue, wire: Wire) -> None:
    job = start.running(A, token=7)
    assert queue.retry(job, "boom", delay=60, max_retries=1) is Verdict.SCHEDULED
    assert (wire.row(A)["attempts"], wire.row(A)["failures"]) == ("7", "1")
    wire.come_due(A)
    (job,) = queue.claim()
    assert queue.retry(job, "boom", max_retries=1) is Verdict.DEAD


@scenario("5.20.3", "scripts take a literal delay: backoff is computed above the wire")
def test_a_delay_is_taken_as_it_is_given_at_every_failure(start: Start, queue: Queue, wire: Wire) -> None:
    job = start.running(A, token=5)
    for _ in range(3):
        now = Instant(wire)
        queue.retry(job, "boom", delay=1.5)
        assert wire.read("schedule") == {A: now + 1_500}
        wire.come_due(A)
        (job,) = queue.claim()
