"""A log that keeps the events: the same facts as live, under the ids that the live ones carry, in the same order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.hearing import Ear
from wire.handwriting import Wire

from echomq_tasks.bus import Log
from echomq_tasks.connection import Connection
from echomq_tasks.events import EVENTS, Announcing, Event
from echomq_tasks.identity import check_id
from echomq_tasks.queue import Cancellation, Complete, Flow, NewJob, Queue, Retry, Settlement, Verdict

PAYLOAD = '{"actor_name":"s\\u00e9nd \\"x\\"","args":[1]}'


@pytest.fixture
def queue(connection: Connection, queue_name: str) -> Queue:
    queue = Queue(queue_name, connection, announcing=Announcing(EVENTS))
    queue.announcing.choose(EVENTS, log="lifecycle")
    return queue


@pytest.fixture
def log(connection: Connection, queue_name: str) -> Log:
    return Log(queue_name, "lifecycle", connection)


@pytest.fixture
def ear(connection: Connection, queue_name: str) -> Iterator[Ear]:
    with Ear(connection, queue_name) as opened:
        yield opened


def busy(queue: Queue, wire: Wire) -> None:
    """Something of every kind."""
    ids = [answer.id for answer in queue.enqueue_many([PAYLOAD] * 3 + [NewJob("p", delay=60)])]
    jobs = list(queue.claim(3))
    queue.update_progress(ids[0], 'half "way" \U0001f600')
    about = {"actor": 's\xe9nd "x"', "error": "V\xe9rror", "message": "\ud800 \0 \U0001f600", "duration_ms": "1.250"}
    ends: list[Settlement] = [
        Complete(jobs[0], about=about),
        Retry(jobs[1], "no", about=about),
        Retry(jobs[2], "no\nat"),
    ]
    queue.settle(ends)
    queue.cancel(ids[3])
    queue.add_flow(Flow(NewJob("p"), [NewJob("p"), NewJob("p")]))
    queue.pause()
    queue.resume()
    queue.lane("acme").pause()
    queue.publish_event("worker_started", about={"worker": "w:1", "threads": "8"})
    queue.drain("pending", "lanes", "scheduled")


def test_each_live_event_carries_the_id_of_its_record_which_says_the_same(
    queue: Queue, log: Log, ear: Ear, connection: Connection
) -> None:
    busy(queue, Wire(connection, queue.name))
    live = [event for data in ear.raw() if (event := Event.read(data, queue.name))]
    records = list(log.read())
    assert [event.id for event in live] == [record.id for record in records]
    assert [Event.of({**record.fields, "id": str(record.id)}, queue.name) for record in records] == live
    assert len({event.event for event in live}) == 12
    for event in live:
        check_id(str(event.id), "EVT")


def test_a_record_stands_on_the_wire_as_the_live_event_does(queue: Queue, ear: Ear, connection: Connection) -> None:
    wire = Wire(connection, queue.name)
    busy(queue, wire)
    entries = wire.client.xrange(f"{wire.base}stream:lifecycle")
    for (_, fields), said in zip(entries, ear.heard(), strict=True):
        assert next(iter(fields)) == b"id"
        assert {name.decode(): value.decode() for name, value in fields.items()} == said


def test_what_is_not_chosen_is_not_kept_and_progress_is_live_all_the_same(queue: Queue, log: Log, ear: Ear) -> None:
    queue.announcing.choose({"completed"}, log="lifecycle")
    answer = queue.enqueue("p")
    (job,) = queue.claim()
    queue.update_progress(answer.id, 1)
    queue.complete(job)
    progress, completed = ear.heard()
    assert (progress["event"], "id" in progress) == ("progress", False)
    assert [(record.id, record.fields["event"]) for record in log.read()] == [(completed["id"], "completed")]


def test_an_actors_own_choice_counts_for_the_log_too(queue: Queue, log: Log, ear: Ear) -> None:
    queue.announcing.choose({"enqueued"}, log="lifecycle")
    queue.announcing.choose_for("quiet", ())
    queue.announcing.choose_for("loud", {"progress"})
    ids = [queue.enqueue(f'{{"actor_name":"{name}"}}').id for name in ("quiet", "loud", "other")]
    for job_id in ids:
        queue.update_progress(job_id, 1)
    assert ear.names("actor") == [
        ("enqueued", "other"), ("progress", "quiet"), ("progress", "loud"), ("progress", "other"),
    ]  # fmt: skip
    assert [(record.fields["event"], record.fields["actor"]) for record in log.read()] == [
        ("enqueued", "other"), ("progress", "loud"),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["string", "list", "hash", "zset", "a top at the end of time"])
def test_a_log_that_cannot_be_written_harms_no_transition(
    queue: Queue, ear: Ear, connection: Connection, kind: str
) -> None:
    wire = Wire(connection, queue.name)
    match kind:
        case "string":
            wire.do("SET", "stream:lifecycle", "x")
        case "list":
            wire.do("RPUSH", "stream:lifecycle", "x")
        case "hash":
            wire.do("HSET", "stream:lifecycle", "x", "y")
        case "zset":
            wire.do("ZADD", "stream:lifecycle", 1, "x")
        case _:
            wire.do("XADD", "stream:lifecycle", f"{2**64 - 1}-{2**64 - 1}", "x", "y")
    before = wire.client.dump(f"{wire.base}stream:lifecycle")
    answer, other = queue.enqueue_many(["p", "q"])
    job, again = queue.claim(2)
    assert queue.update_progress(answer.id, 1) is Verdict.OK
    assert queue.complete(job) is Verdict.OK
    assert queue.retry(again, "boom", delay=60) is Verdict.SCHEDULED
    assert queue.cancel(other.id) is Cancellation.REMOVED
    assert queue.pause()
    queue.publish_event("worker_started", about={})
    heard = ear.heard()
    assert [event["event"] for event in heard] == [
        "enqueued", "enqueued", "started", "started", "progress", "completed", "retried", "cancelled", "paused",
        "worker_started",
    ]  # fmt: skip
    assert not any("id" in event for event in heard)
    assert wire.client.dump(f"{wire.base}stream:lifecycle") == before


def test_events_of_many_writers_are_published_in_the_order_of_their_records(
    queue: Queue, log: Log, ear: Ear, connection: Connection
) -> None:
    errors: list[BaseException] = []

    def write(number: int) -> None:
        try:
            mine = Queue(queue.name, connection, announcing=queue.announcing)
            for _ in range(20):
                mine.enqueue_many([f'{{"actor_name":"w{number}"}}'] * 3)
                mine.complete_many(list(mine.claim(3)))
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert errors == []
    live = [event["id"] for event in ear.heard()]
    assert live == sorted(live)
    assert len(set(live)) == len(live) == 4 * 20 * 3 * 3
    assert [record.id for record in log.read()] == live


def test_a_writer_whose_clock_is_behind_goes_on_above_the_top(
    queue: Queue, log: Log, ear: Ear, connection: Connection
) -> None:
    wire = Wire(connection, queue.name)
    ahead: Any = wire.now_ms() + 3_600_000
    wire.do("XADD", "stream:lifecycle", f"{ahead}-7", "id", "x", "event", "foreign")
    queue.enqueue_many(["p"] * 3)
    records = list(log.read())[1:]
    assert [record.stream_id for record in records] == [f"{ahead}-{low}" for low in (8, 9, 10)]
    assert [record.id for record in records] == [event["id"] for event in ear.heard()]


def test_what_a_hand_does_has_ids_of_its_own_in_the_logs_of_two_queues(standalone: Connection, queue_name: str) -> None:
    queues = [Queue(f"{queue_name}.{side}", standalone) for side in ("left", "right")]
    for each in queues:
        each.keep_events("audit")
    for _ in range(200):
        for each in queues:
            each.pause()
            each.resume()
    ids = [record.id for each in queues for record in Log(each.name, "audit", standalone).read()]
    assert len(set(ids)) == len(ids) == 800


def test_a_dead_job_that_a_hand_brings_back_is_announced(standalone: Connection, queue_name: str) -> None:
    plain = Queue(queue_name, standalone)
    plain.keep_events("audit")
    with Ear(standalone, queue_name) as ear:
        plain.enqueue(PAYLOAD)
        plain.retry(plain.claim().jobs[0], "no", max_retries=0)
        assert ear.heard() == []
        assert plain.retry_dead() == 1
        plain.retry(plain.claim().jobs[0], "no", max_retries=0)
        (job,) = plain.dead()
        plain.reprocess(job.id)
        assert ear.names("attempt") == [("enqueued", "1"), ("enqueued", "2")]
    assert [record.fields["event"] for record in Log(queue_name, "audit", standalone).read()] == ["enqueued"] * 2
