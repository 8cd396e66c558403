"""Unique jobs: who holds a key until when, for how long at the latest, and what one that is refused learns."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest
from conformance.scenarios import A, B, C, D
from support.proxy import DroppingProxy
from wire.handwriting import Wire

from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import EchoMQError, InvalidArgument, InvalidName, WrongState
from echomq_tasks.queue import Admission, Cancellation, Discard, Enqueued, Job, NewJob, Queue, State, Unique, Verdict
from echomq_tasks.scripts import load_scripts

Mode = Literal["done", "start", "window"]
MODES: list[Mode] = ["done", "start", "window"]
KEY, DE = "mail.ada", "de:mail.ada"
LANE, OTHER = "GRP0NgWEfAEJ0x", "GRP0NgWEfAEJ0y"
TTL = 1000.0
#: How far a time to live may have run down while a test took its course, ms.
SLACK = 200_000

Turn = Callable[[Queue, Wire], object]


def claimed(queue: Queue) -> Job:
    (job,) = queue.claim()
    assert job.id == A
    return job


def _dead(queue: Queue, wire: Wire) -> None:
    assert queue.retry(claimed(queue), "boom", max_retries=0) is Verdict.DEAD


def _reaped(queue: Queue, wire: Wire) -> None:
    claimed(queue)
    wire.expire(A)
    assert queue.reap() == 1


def _stalled_to_dead(queue: Queue, wire: Wire) -> None:
    claimed(queue)
    wire.expire(A)
    assert queue.sweep_stalled(max_stalled=1).dead == (A,)


def _cancelled_then_failed(queue: Queue, wire: Wire) -> None:
    job = claimed(queue)
    assert queue.cancel(A) is Cancellation.REQUESTED
    assert queue.retry(job, "boom") is Verdict.CANCELLED


def _cancelled_then_dropped(queue: Queue, wire: Wire) -> None:
    job = claimed(queue)
    queue.cancel(A)
    queue.release(job)
    assert not queue.claim()


def _reprocessed(queue: Queue, wire: Wire) -> None:
    _dead(queue, wire)
    assert queue.reprocess(A) is Verdict.OK


def _purged(queue: Queue, wire: Wire) -> None:
    _dead(queue, wire)
    assert queue.purge_dead() == 1


def _retried_and_done(queue: Queue, wire: Wire) -> None:
    assert queue.retry(claimed(queue), "boom") is Verdict.SCHEDULED
    assert queue.complete(claimed(queue)) is Verdict.OK


def _in_lane(queue: Queue, wire: Wire) -> None:
    queue.lane(LANE).move(A)


def _lane_drained(queue: Queue, wire: Wire) -> None:
    queue.lane(LANE).move(A)
    assert queue.drain("lanes") == 1


#: What becomes of the holder, and in which modes it holds the key then.
TURNS: dict[str, tuple[Turn, set[str]]] = {
    "waiting": (lambda queue, wire: None, {"done", "start", "window"}),
    "in a lane": (_in_lane, {"done", "start", "window"}),
    "active": (lambda queue, wire: claimed(queue), {"done", "window"}),
    "asked to stop": (lambda queue, wire: (claimed(queue), queue.cancel(A)), {"done", "window"}),
    "retried": (lambda queue, wire: queue.retry(claimed(queue), delay=60), {"done", "start", "window"}),
    "released": (lambda queue, wire: queue.release(claimed(queue)), {"done", "start", "window"}),
    "reaped": (_reaped, {"done", "start", "window"}),
    "completed": (lambda queue, wire: queue.complete(claimed(queue)), {"window"}),
    "retried and completed": (_retried_and_done, {"window"}),
    "dead": (_dead, set()),
    "stalled to dead": (_stalled_to_dead, set()),
    "reprocessed": (_reprocessed, {"done", "start"}),
    "purged": (_purged, set()),
    "removed": (lambda queue, wire: queue.remove(A), set()),
    "cancelled": (lambda queue, wire: queue.cancel(A), set()),
    "asked to stop and failed": (_cancelled_then_failed, set()),
    "asked to stop and given back": (_cancelled_then_dropped, set()),
    "discarded": (lambda queue, wire: queue.settle([Discard(claimed(queue))]), set()),
    "drained": (lambda queue, wire: queue.drain(), set()),
    "drained in a lane": (_lane_drained, set()),
    "drained while active": (lambda queue, wire: (claimed(queue), queue.drain("active")), set()),
}


def admit(queue: Queue, wire: Wire, mode: Mode, *, by_hand: bool) -> None:
    """Job A with the key, as our verb admits it, or as a runtime that writes plain commands does."""
    if not by_hand:
        assert not queue.enqueue("p", id=A, unique=Unique(KEY, mode, TTL)).duplicate
        return
    ttl = int(TTL * 1000)
    row = ("state", "pending", "attempts", 0, "payload", "p", "dedup", KEY, "unique", mode, "ttl", ttl)
    wire.do("HSET", f"job:{A}", *row)
    wire.do("ZADD", "pending", 0, A)
    wire.do("SET", DE, A, "PX", int(TTL * 1000))


def offer(queue: Queue, mode: Mode = "done", **more: Any) -> Enqueued:
    return queue.enqueue("p", unique=Unique(KEY, mode, TTL), **more)


def assert_key_of(wire: Wire, holder: str, ttl: float = TTL) -> None:
    assert wire.read(DE) == holder
    assert ttl * 1000 - SLACK < int(wire.do("PTTL", DE)) <= ttl * 1000


@pytest.mark.parametrize("by_hand", [True, False], ids=["raw", "api"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("turn", TURNS)
def test_the_key_is_held_until_it_should_be_and_is_free_from_then_on(
    queue: Queue, wire: Wire, turn: str, mode: Mode, by_hand: bool
) -> None:
    happen, held_in = TURNS[turn]
    admit(queue, wire, mode, by_hand=by_hand)
    happen(queue, wire)
    # Values and not dumps: reading a large hash may change the order in which it is serialized.
    before = wire.everything()
    if mode in held_in:
        assert_key_of(wire, A)
        assert offer(queue, mode) == Enqueued(A, Admission.DUPLICATE)
        assert wire.everything() == before
    else:
        assert wire.read(DE) is None
        answer = offer(queue, mode)
        assert answer.admission is Admission.ENQUEUED
        assert answer.id != A
        assert_key_of(wire, answer.id)


@pytest.mark.parametrize("mode", MODES)
def test_a_job_that_waits_for_its_time_holds_the_key(queue: Queue, wire: Wire, mode: Mode) -> None:
    assert offer(queue, mode, id=A, delay=60).admission is Admission.SCHEDULED
    before = wire.dumps()
    assert offer(queue, mode) == Enqueued(A, Admission.DUPLICATE)
    assert offer(queue, mode, delay=60, group="acme", group_limit=1) == Enqueued(A, Admission.DUPLICATE)
    assert wire.dumps() == before
    wire.come_due(A)
    assert queue.promote() == 1
    assert offer(queue, mode).duplicate


def test_the_row_names_the_key_and_until_when(queue: Queue, wire: Wire) -> None:
    offer(queue, "start", id=A)
    row = {"state": "pending", "attempts": "0", "payload": "p", "dedup": KEY, "unique": "start"}
    assert wire.row(A) == row | {"ttl": str(int(TTL * 1000))}


@pytest.mark.parametrize(("mode", "waits"), [("done", True), ("start", True), ("window", False)])
@pytest.mark.parametrize("how", ["delay", "datetime", "unix"])
def test_the_time_a_job_waits_for_is_added_to_the_keys_but_not_to_a_windows(
    queue: Queue, wire: Wire, mode: Mode, waits: bool, how: str
) -> None:
    in_an_hour = wire.now_ms() / 1000 + 3600
    more: dict[str, Any] = {
        "delay": {"delay": 3600},
        "datetime": {"at": datetime.fromtimestamp(in_an_hour, tz=UTC)},
        "unix": {"at": in_an_hour},
    }[how]
    offer(queue, mode, id=A, **more)
    assert_key_of(wire, A, TTL + 3600 * waits)


def test_a_run_at_that_has_passed_takes_nothing_from_the_keys_time(queue: Queue, wire: Wire) -> None:
    offer(queue, id=A, at=datetime.now(UTC) - timedelta(days=1))
    assert_key_of(wire, A)


@pytest.mark.parametrize("mode", MODES)
def test_a_key_that_has_run_out_is_free_and_its_next_holder_keeps_it_from_the_first(
    queue: Queue, wire: Wire, mode: Mode
) -> None:
    offer(queue, mode, id=A)
    job = claimed(queue)
    # As the server does when its time is over.
    wire.do("DEL", DE)
    assert offer(queue, mode, id=B).admission is Admission.ENQUEUED
    assert queue.complete(job) is Verdict.OK
    assert_key_of(wire, B)


@pytest.mark.parametrize("turn", [name for name, (_, held) in TURNS.items() if not held or "completed" in name])
def test_the_end_of_a_job_leaves_a_key_that_points_at_another(queue: Queue, wire: Wire, turn: str) -> None:
    admit(queue, wire, "done", by_hand=False)
    wire.do("SET", DE, D, "PX", int(TTL * 1000))
    TURNS[turn][0](queue, wire)
    assert_key_of(wire, D)


def test_a_dead_job_stays_dead_while_another_one_holds_its_key(queue: Queue, wire: Wire) -> None:
    admit(queue, wire, "done", by_hand=False)
    _dead(queue, wire)
    assert offer(queue, id=B).admission is Admission.ENQUEUED
    before = wire.dumps()
    with pytest.raises(WrongState, match=f"{A} stays dead while {B} holds its unique key"):
        queue.reprocess(A)
    assert queue.retry_dead() == 0
    assert wire.dumps() == before
    queue.remove(B)
    assert queue.retry_dead() == 1
    assert_key_of(wire, A)


def test_of_many_dead_with_one_key_one_lives_again(queue: Queue, wire: Wire) -> None:
    for _ in range(3):
        offer(queue)
        queue.retry(queue.claim().jobs[0], max_retries=0)
    assert queue.retry_dead() == 1
    assert (queue.counts().pending, queue.counts().dead) == (1, 2)


def test_one_that_may_wait_beside_the_one_that_runs_keeps_its_key_through_that_ones_retries(
    queue: Queue, wire: Wire
) -> None:
    offer(queue, "start", id=A)
    job = claimed(queue)
    assert not offer(queue, "start", id=B, delay=3600).duplicate
    queue.retry(job)
    assert queue.complete(claimed(queue)) is Verdict.OK
    assert_key_of(wire, B, TTL + 3600)
    assert offer(queue, "start", id=C) == Enqueued(B, Admission.DUPLICATE)


@pytest.mark.parametrize("newcomer", MODES)
def test_how_long_the_key_is_held_is_the_holders_to_say(queue: Queue, wire: Wire, newcomer: Mode) -> None:
    offer(queue, "done", id=A)
    claimed(queue)
    before = wire.dumps()
    assert offer(queue, newcomer) == Enqueued(A, Admission.DUPLICATE)
    assert wire.dumps() == before


@pytest.mark.parametrize("mode", ["done", "start"])
@pytest.mark.parametrize("state", ["gone", "dead", "active", "pending", "awaiting_children"])
def test_a_holder_that_another_runtime_ended_or_started_without_letting_go_is_no_obstacle(
    queue: Queue, wire: Wire, mode: Mode, state: str
) -> None:
    wire.do("SET", DE, A, "PX", 60_000)
    if state != "gone":
        wire.do("HSET", f"job:{A}", "state", state, "attempts", 0, "payload", "p")
    free = state in ("gone", "dead") or (state == "active" and mode == "start")
    answer = offer(queue, mode)
    if free:
        assert answer.admission is Admission.ENQUEUED
        assert_key_of(wire, answer.id)
    else:
        assert answer == Enqueued(A, Admission.DUPLICATE)


def test_a_window_stays_closed_though_its_job_is_gone_unless_nothing_would_ever_open_it(
    queue: Queue, wire: Wire
) -> None:
    wire.do("SET", DE, A, "PX", 60_000)
    assert offer(queue, "window") == Enqueued(A, Admission.DUPLICATE)
    wire.do("PERSIST", DE)
    answer = offer(queue, "window")
    assert answer.admission is Admission.ENQUEUED
    assert_key_of(wire, answer.id)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["RPUSH", "SADD", "HSET", "ZADD"])
def test_a_key_of_a_wrong_type_is_replaced(queue: Queue, wire: Wire, mode: Mode, kind: str) -> None:
    wire.do(kind, DE, *([1] * (2 if kind in ("HSET", "ZADD") else 1)))
    assert not offer(queue, mode, id=A).duplicate
    assert_key_of(wire, A)


def test_a_key_whose_type_was_changed_stops_no_end(queue: Queue, wire: Wire) -> None:
    offer(queue, id=A)
    wire.do("DEL", DE)
    wire.do("RPUSH", DE, A)
    assert queue.complete(claimed(queue)) is Verdict.OK
    assert wire.read(DE) == [A]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", ["", "1", "JOB", "a b", b"\xff\xfe", f"{A}:logs", "EVT0NgWEfAEJ0A", "JOB0NgWEf EJ0A"])
def test_what_is_no_job_id_holds_no_key(queue: Queue, wire: Wire, mode: Mode, value: str | bytes) -> None:
    wire.do("SET", DE, value, "PX", 60_000)
    assert not offer(queue, mode, id=A).duplicate
    assert_key_of(wire, A)


@pytest.mark.parametrize("name", ["a b", "x" * 256, "", "é", "a\nb"])
def test_a_key_name_in_a_row_that_the_wire_does_not_allow_is_left_alone(queue: Queue, wire: Wire, name: str) -> None:
    queue.enqueue("p", id=A)
    wire.do("HSET", f"job:{A}", "dedup", name, "unique", "done")
    wire.do("SET", f"de:{name}", A)
    assert queue.complete(claimed(queue)) is Verdict.OK
    assert wire.read(f"de:{name}") == A


def test_an_own_id_sent_twice_is_the_jobs_duplicate_whatever_its_key(queue: Queue, wire: Wire) -> None:
    assert not offer(queue, id=A).duplicate
    before = wire.dumps()
    assert offer(queue, id=A) == Enqueued(A, Admission.DUPLICATE)
    assert queue.enqueue("p", id=A, unique=Unique("another")) == Enqueued(A, Admission.DUPLICATE)
    assert wire.dumps() == before


def test_keys_exclude_within_one_queue_only(queue: Queue, wire: Wire, connection: Connection) -> None:
    offer(queue, id=A)
    assert not offer(Queue(f"{queue.name}.other", connection), id=B).duplicate
    assert not queue.enqueue("p", unique=Unique("mail.bob")).duplicate


def test_duplicates_within_one_call_name_the_first_of_them(queue: Queue, wire: Wire) -> None:
    def job(key: str, **more: Any) -> NewJob:
        return NewJob(payload="p", unique=Unique(key, ttl=TTL), **more)

    first, second, other, third, plain = queue.enqueue_many(
        [job(KEY, id=A), job(KEY), job("mail.bob", id=B, group=LANE), job(KEY, delay=9), NewJob(payload="p", id=C)]
    )
    assert (first, other, plain) == tuple(Enqueued(job_id, Admission.ENQUEUED) for job_id in (A, B, C))
    assert second == third == Enqueued(A, Admission.DUPLICATE)
    assert sorted(key for key in wire.keys() if key.startswith("job:")) == [f"job:{job_id}" for job_id in (A, B, C)]
    assert wire.read("schedule") is None


def test_a_thousand_jobs_of_ten_keys_leave_ten_however_the_call_is_cut(queue: Queue) -> None:
    answers = queue.enqueue_many(NewJob(payload="p", unique=Unique(f"key{number % 10}")) for number in range(1000))
    assert [answer.duplicate for answer in answers] == [False] * 10 + [True] * 990
    assert all(answer.id == answers[place % 10].id for place, answer in enumerate(answers))
    assert queue.counts().pending == 10


@pytest.mark.parametrize("mode", MODES)
def test_a_call_sent_again_after_its_answer_was_lost_gets_the_answer_it_had(
    proxy: DroppingProxy, queue_name: str, mode: Mode
) -> None:
    with connect(proxy.url) as connection:
        queue = Queue(queue_name, connection)
        sha = load_scripts()["job_enqueue"].sha.encode()
        offer(queue, mode, id=A)
        proxy.drop_reply(sha)
        jobs = [NewJob(payload="p", unique=Unique(key, mode)) for key in ("fresh", KEY, "fresh")]
        fresh, held, again = queue.enqueue_many(jobs)
        assert proxy.counts.dropped_replies == 1
        assert fresh.admission is Admission.ENQUEUED
        assert held == Enqueued(A, Admission.DUPLICATE)
        assert again == Enqueued(fresh.id, Admission.DUPLICATE)
        assert queue.counts().pending == 2


def test_an_answer_that_was_lost_stands_though_the_holder_ended_meanwhile(queue: Queue, wire: Wire) -> None:
    offer(queue, id=A)
    call = ["caller", "1.1", B, "p", "now", 0, 0, "", json.dumps({"dedup": KEY, "unique": "done", "ttl": 60_000})]
    assert queue.run("job_enqueue", *call) == [A.encode()]
    queue.complete(claimed(queue))
    call[1] = "1.2"
    assert queue.run("job_enqueue", *call) == [A.encode()]
    assert queue.state(B) is State.ABSENT


@pytest.mark.parametrize("mode", MODES)
def test_of_sixteen_that_race_for_a_key_one_gets_it(connection: Connection, queue: Queue, mode: Mode) -> None:
    for round_number in range(10):
        start = threading.Barrier(16)
        unique = Unique(f"race.{round_number}", mode)

        def race(start: threading.Barrier = start, unique: Unique = unique) -> Enqueued:
            start.wait()
            return queue.enqueue("p", unique=unique)

        with ThreadPoolExecutor(16) as pool:
            answers = [each.result() for each in [pool.submit(race) for _ in range(16)]]
        (winner,) = (answer for answer in answers if not answer.duplicate)
        assert {answer.id for answer in answers} == {winner.id}
    assert queue.counts().pending == 10


def test_racing_producers_and_a_worker_never_have_two_of_a_key_at_once(connection: Connection, queue: Queue) -> None:
    over, admitted, failures = threading.Event(), [], []

    def produce() -> None:
        try:
            while not over.is_set():
                answer = offer(queue)
                if not answer.duplicate:
                    admitted.append(answer.id)
        except EchoMQError as error:
            failures.append(error)

    threads = [threading.Thread(target=produce) for _ in range(6)]
    for thread in threads:
        thread.start()
    done: list[str] = []
    try:
        while len(done) < 150 and not failures:
            jobs = queue.claim(10).jobs
            assert len(jobs) <= 1
            for job in jobs:
                assert queue.complete(job) is Verdict.OK
                done.append(job.id)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert failures == []
    done += [job.id for job in queue.claim(10)]
    assert sorted(done) == sorted(admitted)


BAD_KEYS: list[Any] = ["", "a b", "x" * 256, "a/b", "a\n", "ä", "a\0b", None, b"bytes", 7, "{tag}"]


@pytest.mark.parametrize("key", BAD_KEYS, ids=repr)
def test_a_key_that_the_wire_does_not_allow_is_refused_before_a_byte(queue: Queue, wire: Wire, key: Any) -> None:
    with pytest.raises(InvalidName):
        queue.enqueue_many([NewJob(payload="good"), NewJob(payload="p", unique=Unique(key))])
    assert wire.dumps() == {}


@pytest.mark.parametrize(
    "unique",
    [
        Unique("k", "forever"),  # type: ignore[arg-type]
        Unique("k", ["done"]),  # type: ignore[arg-type]
        Unique("k", ttl=0),
        Unique("k", ttl=-1),
        Unique("k", ttl=float("nan")),
        Unique("k", ttl=float("inf")),
        Unique("k", ttl=True),
        Unique("k", ttl="9"),  # type: ignore[arg-type]
        "k",
        {"key": "k"},
    ],
    ids=repr,
)
def test_a_malformed_uniqueness_is_refused_before_a_byte(queue: Queue, wire: Wire, unique: Any) -> None:
    with pytest.raises(InvalidArgument):
        queue.enqueue("p", unique=unique)
    assert wire.dumps() == {}


@pytest.mark.parametrize("key", ["a", "x" * 255, "A-z.0_9", "-", "..."])
def test_every_key_that_the_wire_allows_excludes(queue: Queue, wire: Wire, key: str) -> None:
    queue.enqueue("p", id=A, unique=Unique(key, ttl=0.5 + TTL))
    assert queue.enqueue("p", unique=Unique(key)).id == A
    assert queue.complete(claimed(queue)) is Verdict.OK
    assert set(wire.keys()) <= {"metrics:completed", "wake"}


def test_the_longest_time_to_live_and_the_last_run_at_fit_together(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p", id=A, delay=250_000_000_000, unique=Unique(KEY, ttl=250_000_000_000))
    assert int(wire.do("PTTL", DE)) > 499_999_999_000_000
