"""Arguments of every odd kind are refused by a clear error, before a byte is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conformance.scenarios import A, B, C
from wire.handwriting import Wire

from echomq_tasks.errors import InvalidArgument, ServerUnavailable
from echomq_tasks.queue import Complete, Discard, Flow, Job, NewJob, Queue, Release, Retry, State, Unique, Verdict

HUGE = 10**5000
SETTLEMENTS: dict[str, Callable[[Any], Any]] = {
    "complete": Complete,
    "retry": Retry,
    "release": Release,
    "discard": Discard,
}


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("token", [HUGE, -1, None, True, 1.5, "1", "\udc80", [], Unprintable()], ids=lambda _: "token")
@pytest.mark.parametrize("how", SETTLEMENTS)
def test_a_token_that_is_none_settles_nothing(queue: Queue, wire: Wire, how: str, token: Any) -> None:
    queue.enqueue("p", id=A)
    queue.claim()
    before = wire.dumps()
    with pytest.raises(InvalidArgument, match="a token is a whole number"):
        queue.settle([SETTLEMENTS[how](Job(A, b"p", token))])
    with pytest.raises(InvalidArgument, match="a token is a whole number"):
        queue.extend(Job(A, b"p", token))
    assert wire.dumps() == before


@pytest.mark.parametrize("job", [None, "JOB0NgWEfAEJ0A", {"id": A}, object()])
def test_what_is_no_job_is_not_settled(queue: Queue, job: Any) -> None:
    for call in (queue.complete, queue.release, queue.retry, queue.extend):
        with pytest.raises(InvalidArgument, match="a Job, not"):
            call(job)


@pytest.mark.parametrize("value", [HUGE, -HUGE, Unprintable()], ids=["huge", "-huge", "unprintable"])
def test_a_value_that_cannot_be_printed_is_refused_all_the_same(queue: Queue, wire: Wire, value: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: queue.enqueue("p", priority=value),
        lambda: queue.enqueue("p", delay=value),
        lambda: queue.enqueue("p", group="g", group_limit=value),
        lambda: queue.enqueue("p", unique=Unique("k", ttl=value)),
        lambda: queue.repeat("r", "p", every=value),
        lambda: queue.repeat("r", "p", every=1, limit=value),
        lambda: queue.limit_rate(value),
        lambda: queue.limit_concurrency(value),
        lambda: queue.lane("g").weight(value),
        lambda: queue.claim(value),
        lambda: queue.update_progress(A, value),
        lambda: queue.promote(value),
        lambda: queue.trim_dead(most=value),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument):
            call()
    assert wire.everything() == {}


@pytest.mark.parametrize("flow", [Flow(b"p"), Flow(NewJob(payload="p"), None), Flow(NewJob(payload="p"), 7)])  # type: ignore[arg-type]
def test_a_flow_of_other_things_is_refused(queue: Queue, wire: Wire, flow: Flow) -> None:
    with pytest.raises(InvalidArgument):
        queue.add_flow(flow)
    assert wire.everything() == {}


@pytest.mark.parametrize("verb", ["promote", "reap", "sweep_stalled"])
def test_one_call_of_upkeep_takes_ten_thousand_at_most(queue: Queue, verb: str) -> None:
    call = getattr(queue, verb)
    with pytest.raises(InvalidArgument, match="from 1 to 10000"):
        call(limit=10_001)


def test_a_limit_of_any_size_is_kept_to_the_digit(queue: Queue, wire: Wire) -> None:
    for limit in (10**14 + 1, 2**53 - 1):
        queue.enqueue("p", group="acme", group_limit=limit)
        assert queue.lane("acme").info().limit == limit
        assert list(wire.read("glimit").values()) == [str(limit)]


def test_what_is_no_id_among_the_dead_hides_nobody(queue: Queue, wire: Wire) -> None:
    for number in range(450):
        wire.do("ZADD", "dead", 0, f"zzz{number:05}")
    wire.do("HSET", f"job:{A}", "state", "dead", "attempts", 1, "payload", "p")
    wire.do("ZADD", "dead", 0, A)
    assert [job.id for job in queue.dead()] == [A]
    assert queue.retry_dead() == 1


def test_a_child_that_has_ended_is_not_admitted_again_while_its_flow_is_added_again(queue: Queue) -> None:
    # More than one script call takes, so that it lands by level.
    children = [NewJob(payload="p", id=queue.new_id()) for _ in range(5_001)]
    flow = Flow(NewJob(payload="p", id=A), children)
    queue.add_flow(flow)
    ended = [job.id for job in queue.claim(50)]
    queue.complete_many([Job(job_id, b"p", 1) for job_id in ended])
    assert queue.add_flow(flow).duplicate
    assert {queue.state(job_id) for job_id in ended} == {State.ABSENT}
    # As one that ends between the look and the sending.
    entry = ["me", "1.1", ended[0], "p", "now", 0, 0, "", f'{{"parent":"{A}","policy":"fp"}}']
    assert queue.scripts.call("job_enqueue", queue.base, entry) == [-2]
    assert queue.state(ended[0]) is State.ABSENT


def test_a_second_life_whose_answer_was_lost_is_told_as_such(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.enqueue("p", id=B)
    assert queue.retry(queue.claim().jobs[0], max_retries=0) is Verdict.DEAD
    asked: list[bool] = []
    call = queue.scripts.call

    def lost(name: str, *args: Any, repeat: bool = True, **more: Any) -> Any:
        asked.append(repeat)
        call(name, *args, repeat=repeat, **more)
        raise ServerUnavailable("the connection dropped")

    monkeypatch.setattr(queue.scripts, "call", lost)
    with pytest.raises(ServerUnavailable):
        queue.reprocess(B)
    assert asked == [False]
    monkeypatch.undo()
    assert queue.state(B) is State.PENDING
    assert queue.state(C) is State.ABSENT
