"""Admission: bad input is refused before a byte is sent, and every payload comes back as it went in."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
import redis

from echomq_tasks.connection import Connection
from echomq_tasks.errors import InvalidArgument, InvalidId, InvalidName
from echomq_tasks.identity import group_id
from echomq_tasks.keyspace import queue_key
from echomq_tasks.queue import Admission, Job, NewJob, Queue, State

JOB = "JOB0KHTOWnGLuC"


class NoOffset(tzinfo):
    """A time zone that does not know its offset: Python calls such a datetime naive."""

    def utcoffset(self, when: datetime | None) -> None:
        return None

    def dst(self, when: datetime | None) -> None:
        return None

    def tzname(self, when: datetime | None) -> None:
        return None


BAD: list[tuple[dict[str, Any], type[Exception]]] = [
    *(({"delay": value}, InvalidArgument) for value in (math.nan, math.inf, -math.inf, -1, -0.001, 1e300, 10**400)),
    *(({"delay": value}, InvalidArgument) for value in (True, False, "5", b"5", [5], timedelta(seconds=5), 5j)),
    *(({"at": value}, InvalidArgument) for value in (math.nan, math.inf, -1, True, "2030-01-01", b"1", [], 1e300)),
    ({"at": datetime(2030, 1, 1)}, InvalidArgument),
    ({"at": datetime(2030, 1, 1, tzinfo=NoOffset())}, InvalidArgument),
    ({"at": datetime.max.replace(tzinfo=UTC)}, InvalidArgument),
    ({"at": datetime(1969, 12, 31, tzinfo=UTC)}, InvalidArgument),
    ({"at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 1}, InvalidArgument),
    ({"at": 1_900_000_000, "delay": 0}, InvalidArgument),
    *(({"priority": value}, InvalidArgument) for value in (1.5, 1.0, True, "1", None, 2**60, -(2**60), 2**53 + 1)),
    *(({"payload": value}, InvalidArgument) for value in (None, {}, {"a": 1}, [], 1, 1.5, True, object(), NewJob)),
    *(({"payload": value}, InvalidArgument) for value in ("\ud800", "ok \udfff ok")),
    *(({"group": value}, InvalidName) for value in ("", "\ud800", b"g", 7, True, ["g"])),
    *(({"id": value}, InvalidId) for value in ("", "JOB", "USR0KHTOWnGLuC", "job0KHTOWnGLuC", JOB + "x", JOB[:-1])),
    *(({"id": value}, InvalidId) for value in (JOB + "\n", "JOBzzzzzzzzzzz", "JOB0KHTOWnGL-C", JOB.encode(), 7, True)),
]


def shown(value: object, length: int) -> str:
    """The start of how a value looks, the same in every process: an address in it is left out."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))[:length]


@pytest.fixture
def queue(connection: Connection, queue_name: str) -> Queue:
    return Queue(queue_name, connection)


@pytest.fixture
def flat(standalone: Connection, queue_name: str) -> Queue:
    """A queue where the engine does not matter."""
    return Queue(queue_name, standalone)


@pytest.mark.parametrize(("arguments", "error"), BAD, ids=[shown(arguments, 60) for arguments, _ in BAD])
def test_bad_input_is_refused_before_anything_is_written(
    flat: Queue, arguments: dict[str, Any], error: type[Exception]
) -> None:
    before = flat.connection.client.dbsize()
    arguments = {"payload": b"x", **arguments}
    with pytest.raises(error) as one:
        flat.enqueue(**arguments)
    # A good job first: not even its own node id may be leased before all are checked.
    with pytest.raises(error) as many:
        flat.enqueue_many([NewJob(payload=b"good"), NewJob(**arguments), NewJob(payload=b"good")])
    assert str(one.value) == str(many.value)
    assert len(str(one.value)) > 20
    assert flat.connection.client.dbsize() == before


@pytest.mark.parametrize("jobs", ["abc", b"abc", [None], [1], [{"payload": "x"}], [("x",)]])
def test_what_is_not_a_list_of_jobs_is_refused(flat: Queue, jobs: Any) -> None:
    before = flat.connection.client.dbsize()
    with pytest.raises(InvalidArgument):
        flat.enqueue_many(jobs)
    assert flat.connection.client.dbsize() == before


def test_an_error_of_the_caller_s_own_iterable_comes_before_anything_is_written(flat: Queue) -> None:
    def jobs() -> Iterator[bytes]:
        yield b"one"
        raise LookupError("no more")

    before = flat.connection.client.dbsize()
    with pytest.raises(LookupError):
        flat.enqueue_many(jobs())
    assert flat.connection.client.dbsize() == before


@pytest.mark.parametrize("name", ["", "emq", "a b", "a\n", "x" * 129, "{q}", None, 7])
def test_a_queue_is_not_made_under_a_name_the_wire_does_not_allow(standalone: Connection, name: Any) -> None:
    with pytest.raises(InvalidName):
        Queue(name, standalone)


# -- good input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "admission"),
    [
        ({}, Admission.ENQUEUED),
        ({"delay": 0}, Admission.SCHEDULED),
        ({"delay": 0.0}, Admission.SCHEDULED),
        ({"delay": 3600}, Admission.SCHEDULED),
        ({"delay": 100 * 365 * 86400.0}, Admission.SCHEDULED),
        ({"at": 0}, Admission.SCHEDULED),
        ({"at": 250_000_000_000}, Admission.SCHEDULED),
        ({"delay": 250_000_000_000}, Admission.SCHEDULED),
        ({"priority": 2**53}, Admission.ENQUEUED),
        ({"priority": -(2**53)}, Admission.ENQUEUED),
        ({"group": "g"}, Admission.ENQUEUED),
        ({"group": "g", "delay": 1, "priority": -1}, Admission.SCHEDULED),
    ],
)
def test_the_ends_of_every_range_are_taken(queue: Queue, arguments: dict[str, Any], admission: Admission) -> None:
    enqueued = queue.enqueue("x", **arguments)
    assert enqueued.admission is admission
    info = queue.get(enqueued.id)
    assert info is not None
    assert info.state is (State.PENDING if admission is Admission.ENQUEUED else State.SCHEDULED)
    assert info.priority == arguments.get("priority", 0)
    assert info.group == (("g" in arguments.values() and group_id("g")) or None)


def test_an_aware_datetime_means_one_instant_in_every_zone(queue: Queue) -> None:
    instant = datetime(2040, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC)
    zones = [UTC, timezone(timedelta(hours=14)), timezone(-timedelta(hours=9, minutes=30))]
    answers = queue.enqueue_many([NewJob(payload="x", at=instant.astimezone(zone)) for zone in zones])
    answers += queue.enqueue_many([NewJob(payload="x", at=instant.timestamp())])
    assert [info and info.due for info in queue.get_many([answer.id for answer in answers])] == [instant] * 4


def test_a_run_at_past_year_9999_that_another_runtime_wrote_can_be_read(
    standalone: Connection, queue_name: str
) -> None:
    queue = Queue(queue_name, standalone)
    job_id = queue.enqueue("x", delay=60).id
    standalone.client.zadd(queue_key(queue_name, "schedule"), {job_id: 2**53})
    info = queue.get(job_id)
    assert info is not None
    assert info.due == datetime.max.replace(tzinfo=UTC)


def test_a_delay_is_rounded_up_to_the_millisecond_and_not_beyond(standalone: Connection, queue_name: str) -> None:
    queue = Queue(queue_name, standalone)
    client = standalone.client
    assert isinstance(client, redis.Redis)
    for at, due in [(1e9 + 0.3, 1e12 + 300), (1e9 + 0.0004, 1e12 + 1), (1e9, 1e12)]:
        job_id = queue.enqueue("x", at=at).id
        assert client.zscore(queue_key(queue_name, "schedule"), job_id) == due


PAYLOADS: list[bytes | str | bytearray | memoryview] = [
    b"",
    "",
    bytes(range(256)),
    bytes(range(256)) * 257,
    b"\r\n$5\r\nhello\r\n*1\r\n",
    b"\0",
    "👩‍🚀 ünïcode \u0000 ☃",
    bytearray(b"\xff\xfe"),
    memoryview(b"abcdef")[::2],
]


@pytest.mark.parametrize("payload", PAYLOADS, ids=[shown(payload, 30) for payload in PAYLOADS])
def test_a_payload_comes_back_as_it_went_in(queue: Queue, payload: Any) -> None:
    expected = payload.encode() if isinstance(payload, str) else bytes(payload)
    one = queue.enqueue(payload)
    two = queue.enqueue_many([payload if isinstance(payload, (str, bytes)) else NewJob(payload=payload)])[0]
    claimed = {job.id: job.payload for job in queue.claim(10)}
    assert claimed == {one.id: expected, two.id: expected}
    info = queue.get(one.id)
    assert info is not None
    assert info.payload == expected


def test_ten_megabytes_come_back_as_they_went_in(queue: Queue) -> None:
    payload = random.Random(7).randbytes(10 << 20)
    one = queue.enqueue(payload)
    # Far more than one call or one round trip carries.
    many = queue.enqueue_many([payload, b"small", payload])
    jobs = list(queue.claim(10))
    assert [job.id for job in jobs] == [one.id, *(answer.id for answer in many)]
    assert [job.payload == payload for job in jobs] == [True, True, False, True]
    assert [verdict.value for verdict in queue.complete_many(jobs)] == ["ok"] * 4


def mixed(number: int) -> NewJob:
    """A job of one of many kinds."""
    return NewJob(
        payload=f"job {number}",
        delay=None if number % 5 else 3600 + number,
        priority=number % 3 - 1,
        group=None if number % 4 else f"tenant-{number % 7}",
        id=None,
    )


def test_twenty_thousand_mixed_jobs_are_admitted_in_one_call(queue: Queue) -> None:
    jobs = [mixed(number) for number in range(20_000)]
    answers = queue.enqueue_many(iter(jobs))
    assert len({answer.id for answer in answers}) == len(jobs)
    assert [answer.admission for answer in answers] == [
        Admission.ENQUEUED if job.delay is None else Admission.SCHEDULED for job in jobs
    ]
    counts = queue.counts()
    assert counts.scheduled == sum(job.delay is not None for job in jobs)
    assert counts.in_lanes == sum(job.delay is None and job.group is not None for job in jobs)
    assert counts.pending == sum(job.delay is None and job.group is None for job in jobs)
    infos = queue.get_many([answer.id for answer in answers])
    for job, info in zip(jobs, infos, strict=True):
        assert info is not None
        assert info.payload == str(job.payload).encode()
        assert info.priority == job.priority
        assert info.group == (None if job.group is None else group_id(job.group))


def test_answers_come_in_the_order_of_the_jobs_duplicates_among_them(queue: Queue) -> None:
    ids = [f"JOB{number:011d}" for number in range(600)]
    queue.enqueue_many([NewJob(payload="old", id=job_id) for job_id in ids[::3]])
    answers = queue.enqueue_many([NewJob(payload="new", id=job_id) for job_id in [*ids, ids[1]]])
    assert [answer.id for answer in answers] == [*ids, ids[1]]
    assert [answer.duplicate for answer in answers] == [number % 3 == 0 for number in range(600)] + [True]
    infos = queue.get_many(ids)
    assert [info and info.payload for info in infos] == [b"new" if number % 3 else b"old" for number in range(600)]
    assert queue.counts().pending == 600


def test_no_jobs_need_no_server(queue: Queue) -> None:
    assert queue.enqueue_many([]) == []
    assert queue.get_many([]) == []
    assert queue.complete_many([]) == []
    assert queue.extend_many([]) == []


# -- the arguments of the other verbs -----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, -1, 1001, True, 1.0, "1", None])
def test_a_claim_of_a_bad_count_is_refused(flat: Queue, count: Any) -> None:
    flat.enqueue("x")
    with pytest.raises(InvalidArgument, match="count"):
        flat.claim(count)
    assert flat.counts().pending == 1


@pytest.mark.parametrize("lease", [0, -1, math.nan, math.inf, True, "30", None])
def test_a_bad_lease_is_refused(flat: Queue, lease: Any) -> None:
    flat.enqueue("x")
    with pytest.raises(InvalidArgument, match="lease"):
        flat.claim(lease=lease)
    assert flat.counts().pending == 1
    job = flat.claim().jobs[0]
    for verb in (lambda: flat.extend(job, lease=lease), lambda: flat.extend_many([job], lease=lease)):
        with pytest.raises(InvalidArgument, match="lease"):
            verb()


@pytest.mark.parametrize(
    "arguments",
    [{"delay": -1}, {"delay": math.nan}, {"delay": True}, {"max_retries": -1}, {"max_retries": 1.5}, {"payload": {}}],
)
def test_a_retry_with_bad_arguments_changes_nothing(flat: Queue, arguments: dict[str, Any]) -> None:
    flat.enqueue("x")
    job = flat.claim().jobs[0]
    with pytest.raises(InvalidArgument):
        flat.retry(job, "error", **arguments)
    assert flat.state(job.id) is State.ACTIVE


@pytest.mark.parametrize("job_id", ["", "USR0KHTOWnGLuC", JOB + "x", JOB + "\n", None])
def test_no_verb_sends_a_malformed_id(flat: Queue, job_id: Any) -> None:
    job = Job(job_id, b"", 1)
    for verb in (
        lambda: flat.complete(job),
        lambda: flat.retry(job),
        lambda: flat.release(job),
        lambda: flat.extend(job),
        lambda: flat.state(job_id),
        lambda: flat.get(job_id),
    ):
        with pytest.raises(InvalidId):
            verb()


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "5", None])
def test_upkeep_with_a_bad_limit_is_refused(flat: Queue, limit: Any) -> None:
    for verb in (flat.promote, flat.reap, lambda value: flat.sweep_stalled(limit=value)):
        with pytest.raises(InvalidArgument, match="limit"):
            verb(limit)
