"""The verbs on one job by its id: update_data, update_progress, add_log, remove, reprocess."""

from __future__ import annotations

import json

import pytest
from wire.handwriting import Wire

from echomq_tasks.connection import Connection
from echomq_tasks.errors import Held, InvalidArgument, InvalidId, WrongState
from echomq_tasks.keyspace import queue_key
from echomq_tasks.queue import Queue, State, Verdict

A, B = "JOB0NgWEfAEJ0A", "JOB0NgWEfAEJ0B"
LANE = "GRP0NgWEfAEJfs"


def test_an_updated_payload_is_what_the_next_claim_gets(queue: Queue) -> None:
    queue.enqueue("old", id=A)
    assert queue.update_data(A, "new") is Verdict.OK
    assert queue.claim().jobs[0].payload == b"new"
    assert queue.update_data(B, "x") is Verdict.GONE
    assert queue.state(B) is State.ABSENT


@pytest.mark.parametrize("progress", [0.4, 3, 'half "way" 🐍', ""])
def test_progress_is_kept_and_published_as_one_json_object_of_strings(
    queue: Queue, connection: Connection, wire: Wire, progress: float | str
) -> None:
    queue.enqueue("p", id=A)
    listener = connection.client.pubsub()
    listener.subscribe(queue_key(queue.name, "events"))
    assert listener.get_message(timeout=5)["type"] == "subscribe"
    assert queue.update_progress(A, progress) is Verdict.OK
    said = listener.get_message(timeout=5)
    listener.close()
    fields = json.loads(said["data"])
    assert abs(int(fields.pop("at")) - wire.now_ms()) < 60_000
    rest = {"queue": queue.name, "attempt": "0", "progress": str(progress)}
    assert fields == {"event": "progress", "job": A, **rest}
    info = queue.get(A)
    assert info is not None
    assert info.progress == str(progress)
    assert queue.update_progress(B, progress) is Verdict.GONE


def test_a_log_grows_and_keeps_its_last_lines(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p", id=A)
    assert [queue.add_log(A, f"line {number}", keep=3) for number in range(5)] == [1, 2, 3, 3, 3]
    assert queue.logs(A) == ["line 2", "line 3", "line 4"]
    assert queue.logs(A, count=1) == ["line 4"]
    assert queue.add_log(A, "line 5") == 4
    assert queue.add_log(B, "x") is None
    assert set(wire.everything()) == {f"job:{A}", f"job:{A}:logs", "pending", "wake"}


@pytest.mark.parametrize("where", ["pending", "lane", "scheduled", "dead", "expired"])
def test_a_removed_job_leaves_nothing_behind(queue: Queue, wire: Wire, where: str) -> None:
    group = LANE if where in ("lane", "expired") else None
    queue.enqueue("p", id=A, group=group, delay=60 if where == "scheduled" else None)
    wire.do("HSET", f"job:{A}", "dedup", "once")
    wire.do("SET", "de:once", A)
    queue.add_log(A, "x")
    if where == "dead":
        queue.retry(queue.claim().jobs[0], "boom", max_retries=0)
    if where == "expired":
        queue.claim()
        wire.do("HDEL", f"job:{A}", "lock")
        wire.do("DEL", f"job:{A}:lock")
    assert queue.remove(A) is Verdict.OK
    assert set(wire.everything()) <= {"wake", "metrics:failed"}
    assert queue.remove(A) is Verdict.GONE


def test_a_removed_job_leaves_the_key_that_another_job_holds_and_the_others_of_its_lane(
    queue: Queue, wire: Wire
) -> None:
    queue.enqueue("p", id=A, group=LANE)
    queue.enqueue("p", id=B, group=LANE)
    wire.do("HSET", f"job:{A}", "dedup", "once")
    wire.do("SET", "de:once", B)
    assert queue.remove(A) is Verdict.OK
    assert (wire.ids(f"g:{LANE}:pending"), wire.ring(), wire.read("de:once")) == ([B], [LANE], B)


def test_a_held_job_is_not_removed_in_either_form_of_its_lock(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p", id=A)
    queue.claim()
    before = wire.dumps()
    with pytest.raises(Held, match=A):
        queue.remove(A)
    assert wire.dumps() == before
    wire.do("HDEL", f"job:{A}", "lock")
    wire.do("SET", f"job:{A}:lock", 1, "PX", 60_000)
    with pytest.raises(Held):
        queue.remove(A)


@pytest.mark.parametrize("group", [None, LANE])
def test_a_reprocessed_job_starts_over_with_all_its_retries(queue: Queue, wire: Wire, group: str | None) -> None:
    queue.enqueue("p", id=A, group=group, priority=4)
    queue.retry(queue.claim().jobs[0], "boom", max_retries=0)
    wire.do("DEL", "wake")
    assert queue.reprocess(A) is Verdict.OK
    assert queue.state(A) is State.PENDING
    assert wire.read(f"g:{LANE}:pending" if group else "pending") == {A: 4}
    assert wire.wakes() == 1
    row = wire.row(A)
    assert "last_error" not in row
    assert "failures" not in row
    (job,) = queue.claim()
    assert (job.token, job.failures) == (2, 0)
    assert queue.retry(job, "boom", max_retries=1) is Verdict.SCHEDULED


def test_only_a_dead_job_is_reprocessed(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p", id=A)
    before = wire.dumps()
    with pytest.raises(WrongState, match="pending"):
        queue.reprocess(A)
    assert wire.dumps() == before
    assert queue.reprocess(B) is Verdict.GONE


def test_bad_input_is_refused_before_a_byte_is_sent(queue: Queue, wire: Wire) -> None:
    for verb in (queue.remove, queue.reprocess, queue.logs):
        with pytest.raises(InvalidId):
            verb("EVT000xY9Wvvcd")
    with pytest.raises(InvalidId):
        queue.update_data("x", "p")
    with pytest.raises(InvalidArgument):
        queue.update_data(A, 7)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        queue.update_progress(A, True)
    with pytest.raises(InvalidArgument):
        queue.add_log(A, "x", keep=0)
    assert wire.everything() == {}


def test_an_id_made_beforehand_makes_an_admission_safe_to_repeat(queue: Queue) -> None:
    job_id = queue.new_id()
    assert not queue.enqueue("p", id=job_id).duplicate
    assert queue.enqueue("p", id=job_id).duplicate
    assert queue.counts().pending == 1


def test_the_schedule_is_drained_by_both_of_its_names(queue: Queue) -> None:
    for name in ("scheduled", "schedule"):
        queue.enqueue("p", delay=60)
        assert queue.drain(name) == 1
