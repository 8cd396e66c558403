"""A job that nobody listens to takes a shorter way through the scripts, and it comes to the same."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
from conformance.scenarios import A, B, C, D
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire.handwriting import Wire

from echomq_tasks.connection import Connection
from echomq_tasks.events import EVENTS, Announcing
from echomq_tasks.queue import Complete, Job, NewJob, Queue, Unique, Verdict

LANE = "GRP0NgWEfAEJfs"
IDS = [f"JOB0NgWEfAE{place:03d}" for place in range(8)]


def a_pair(connection: Connection, queue_name: str) -> tuple[tuple[Queue, Wire], tuple[Queue, Wire]]:
    """A queue that announces nothing of jobs, and one that announces everything."""
    heard = f"{queue_name}.heard"
    return (
        (Queue(queue_name, connection), Wire(connection, queue_name)),
        (Queue(heard, connection, announcing=Announcing(EVENTS)), Wire(connection, heard)),
    )


@pytest.fixture
def pair(connection: Connection, queue_name: str) -> tuple[tuple[Queue, Wire], tuple[Queue, Wire]]:
    """The two on every engine."""
    return a_pair(connection, queue_name)


def still(wire: Wire) -> dict[str, Any]:
    """All keys, without what depends on the instant or is random."""
    found = wire.everything()
    for name, value in found.items():
        if name in ("active", "schedule"):
            found[name] = sorted(value)
    return found


jobs = st.builds(
    NewJob,
    payload=st.sampled_from(["p", '{"actor_name":"a","args":[]}', "x" * 100]),
    id=st.sampled_from(IDS),
    priority=st.sampled_from([0, 0, 0, -3, 7, 2**53]),
    group=st.sampled_from([None, None, None, LANE]),
    delay=st.sampled_from([None, None, None, 600.0]),
    unique=st.sampled_from([None, Unique("k", "start", 60.0), Unique("k", "done", 60.0)]),
)
#: A life of some jobs, over and over, with something else in between.
steps = st.lists(
    st.tuples(
        st.tuples(st.just("enqueue"), st.lists(jobs, min_size=1, max_size=4)),
        st.tuples(st.sampled_from(["pause", "expire", "note", "cancel", "limits", "release"]), st.integers(0, 7)),
        st.tuples(st.just("claim"), st.integers(1, 6)),
        st.tuples(st.sampled_from(["cancel", "note", "expire", "release"]), st.integers(0, 7)),
        st.tuples(st.sampled_from(["complete", "complete", "twice"]), st.integers(1, 6)),
    ),
    min_size=2,
    max_size=5,
)


class Run:
    """One queue, on which steps are done."""

    def __init__(self, queue: Queue, wire: Wire) -> None:
        self.queue, self.wire = queue, wire
        self.held: list[Job] = []

    def do(self, verb: str, what: Any) -> object:
        """Do one step; a number names an id, says yes or no, or is none at all, as the verb needs it."""
        queue = self.queue
        match verb:
            case "enqueue":
                return queue.enqueue_many(what)
            case "claim":
                claimed = queue.claim(what)
                self.held += claimed.jobs
                # Seconds until a scheduled job is due run down meanwhile.
                return claimed.jobs, claimed.look_again is None, claimed.repeats_due, claimed.outbox
            case "complete":
                done, self.held = self.held[:what], self.held[what:]
                return queue.settle([Complete(job) for job in done])
            case "twice":
                done = [*self.held[:2], *self.held[:1], Job(A, b"", 5)]
                self.held = self.held[2:]
                return queue.settle([Complete(job) for job in done])
            case "cancel":
                return queue.cancel(IDS[what])
            case "release":
                return [queue.release(self.held.pop()) for _ in self.held[:1]]
            case "expire":
                self.wire.expire(*self.wire.ids("active"))
                return queue.reap()
            case "pause":
                return queue.pause() if what == 7 else queue.resume()
            case "limits":
                return queue.limit_concurrency(3 if what > 3 else None)
            case _:
                return queue.add_log(IDS[what], "a line")


@given(steps=steps)
@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_what_is_done_and_answered_is_the_same_whether_somebody_listens(
    standalone: Connection, queue_name: str, steps: list[tuple[tuple[str, Any], ...]]
) -> None:
    pair = a_pair(standalone, queue_name)
    for queue, _ in pair:
        queue.pause()
        queue.obliterate(force=True)
    quiet, heard = (Run(*each) for each in pair)
    for verb, what in chain.from_iterable(steps):
        assert quiet.do(verb, what) == heard.do(verb, what), verb
        assert still(quiet.wire) == still(heard.wire), verb


@pytest.fixture(params=["quiet", "heard"])
def either(pair: tuple[tuple[Queue, Wire], tuple[Queue, Wire]], request: pytest.FixtureRequest) -> tuple[Queue, Wire]:
    """One of the two."""
    return pair[request.param == "heard"]


@pytest.mark.parametrize(
    ("spoil", "left"),
    [
        (lambda wire: wire.do("DEL", f"job:{B}"), [A, C, D]),
        (lambda wire: wire.do("HSET", f"job:{B}", "cancel", 1), [A, C, D]),
        (lambda wire: wire.do("HSET", f"job:{B}", "unique", "start", "dedup", "k", "ttl", 9), [A, B, C, D]),
        (lambda wire: wire.do("ZADD", "pending", 0, "JOB0NgWEfAEJ0A:"), [A, B, C, D]),
        (lambda wire: wire.do("ZADD", "pending", -1, "OLD0NgWEfAEJ0A"), [A, B, C, D]),
    ],
    ids=["without a row", "cancelled", "unique until its start", "no id", "of another kind"],
)
def test_a_job_of_which_there_is_more_to_do_changes_neither_order_nor_number_of_the_others(
    either: tuple[Queue, Wire], spoil: Callable[[Wire], Any], left: list[str]
) -> None:
    queue, wire = either
    queue.enqueue_many([NewJob(payload="p", id=job_id) for job_id in (A, B, C, D)])
    spoil(wire)
    assert [job.id for job in queue.claim(4)] == left
    assert wire.ids("active") == left
    assert wire.ids("pending") == []


def test_what_lies_beside_one_row_goes_with_it_and_nothing_of_the_others(either: tuple[Queue, Wire]) -> None:
    queue, wire = either
    queue.enqueue_many([NewJob(payload="p", id=job_id) for job_id in (A, B, C, D)])
    held = queue.claim(3).jobs
    queue.add_log(A, "a line")
    wire.do("SET", f"job:{B}:lock", 1)
    for beside in ("processed", "failed", "unsuccessful"):
        wire.do("HSET", f"job:{C}:{beside}", D, "r")
    wire.do("SET", f"job:{C}:dependencies", 0)
    queue.add_log(D, "stays")
    assert queue.complete_many(held) == [Verdict.OK] * 3
    kept = {name for name in wire.everything() if name.startswith("job:")}
    assert kept == {f"job:{D}", f"job:{D}:logs"}


def test_more_jobs_than_one_command_takes_end_in_one_call(either: tuple[Queue, Wire]) -> None:
    queue, wire = either
    queue.enqueue_many(["p"] * 1_700)
    jobs = [*queue.claim(1000).jobs, *queue.claim(1000).jobs]
    assert set(queue.complete_many(jobs)) == {Verdict.OK}
    assert set(wire.everything()) - {"wake"} == {"metrics:completed"}
    assert wire.read("metrics:completed") == {"count": "1700"}


def test_a_batch_of_plain_and_other_jobs_ends_as_each_of_them_alone(either: tuple[Queue, Wire]) -> None:
    queue, wire = either
    queue.enqueue_many(
        [
            NewJob(payload="p", id=A),
            NewJob(payload="p", id=B, group=LANE),
            NewJob(payload="p", id=C, unique=Unique("k", "done", 60.0)),
            NewJob(payload="p", id=D),
        ]
    )
    held = queue.claim(4).jobs
    assert {job.id for job in held} == {A, B, C, D}
    assert queue.complete_many(held) == [Verdict.OK] * 4
    assert set(wire.everything()) - {"wake", "meta"} == {"metrics:completed"}


def test_a_key_of_another_type_stops_what_needs_it_and_costs_no_other_job_its_end(
    either: tuple[Queue, Wire],
) -> None:
    queue, wire = either
    queue.enqueue_many([NewJob(payload="p", id=A), NewJob(payload="p", id=B)])
    held = queue.claim(2).jobs
    wire.do("HSET", f"job:{B}", "parent", C, "parent_queue", "elsewhere")
    wire.do("SET", "flow:outbox", "no list")
    with pytest.raises(Exception, match="WRONGTYPE"):
        queue.complete_many(held)
    assert (wire.row(A), wire.row(B)["state"]) == ({}, "active")
    wire.do("DEL", "flow:outbox")
    assert queue.complete_many(held) == [Verdict.GONE, Verdict.OK]
    assert wire.read("flow:outbox") == [f"elsewhere\x00{C}\x00{B}\x00"]
