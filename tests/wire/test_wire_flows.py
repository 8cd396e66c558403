"""Flows that another runtime laid out: what our queue tells their parents, byte by byte."""

from __future__ import annotations

import pytest
from wire.handwriting import Wire

from echomq_tasks.queue import Job, Queue, Verdict

PARENT, CHILD = "JOB0NgWEfAEJ0P", "JOB0NgWEfAEJ0C"


def child_of(wire: Wire, **fields: str) -> Job:
    """A child that waits, with a parent that waits for it in the same queue."""
    wire.do("HSET", f"job:{PARENT}", "state", "awaiting_children", "attempts", 0, "payload", "parent")
    wire.do("SET", f"job:{PARENT}:dependencies", 1)
    wire.do("HSET", f"job:{CHILD}", "state", "active", "attempts", 1, "payload", "child", "parent", PARENT)
    for name, value in fields.items():
        wire.do("HSET", f"job:{CHILD}", name, value)
    wire.do("ZADD", "active", 4_000_000_000_000, CHILD)
    return Job(CHILD, b"child", 1)


def test_the_last_child_makes_its_parent_pending_and_leaves_its_result(queue: Queue, wire: Wire) -> None:
    assert queue.complete(child_of(wire), b"\x00\xff") is Verdict.OK
    assert wire.everything() == {
        f"job:{PARENT}": {"state": "pending", "attempts": "0", "payload": "parent"},
        f"job:{PARENT}:dependencies": "0",
        f"job:{PARENT}:processed": {CHILD: b"\x00\xff"},
        "pending": {PARENT: 0},
        "metrics:completed": {"count": "1"},
        "wake": ["1"],
    }


def test_a_parent_queue_that_is_this_queue_is_the_same_flow(queue: Queue, wire: Wire) -> None:
    queue.complete(child_of(wire, parent_queue=queue.name), "r")
    assert wire.read(f"job:{PARENT}:processed") == {CHILD: "r"}
    assert wire.read("flow:outbox") is None


@pytest.mark.parametrize("policy", [None, "fp"])
def test_a_dead_child_kills_its_parent_by_default(queue: Queue, wire: Wire, policy: str | None) -> None:
    child = child_of(wire, **({"parent_policy": policy} if policy else {}))
    assert queue.retry(child, "boom", max_retries=0) is Verdict.DEAD
    assert wire.read("dead") == {CHILD: 0, PARENT: 0}
    assert wire.read(f"job:{PARENT}:failed") == {CHILD: "boom"}
    parent = wire.row(PARENT)
    assert parent["state"] == "dead"
    assert CHILD in parent["last_error"]
    assert "boom" in parent["last_error"]
    assert wire.read("metrics:failed") == {"count": "2"}


def test_a_dead_child_of_the_other_policy_counts_as_satisfied(queue: Queue, wire: Wire) -> None:
    child = child_of(wire, parent_policy="id")
    assert queue.retry(child, "boom", max_retries=0) is Verdict.DEAD
    assert wire.read("dead") == {CHILD: 0}
    assert wire.read("pending") == {PARENT: 0}
    assert wire.read(f"job:{PARENT}:unsuccessful") == {CHILD: "boom"}
    assert wire.read(f"job:{PARENT}:failed") is None
    assert wire.row(PARENT)["state"] == "pending"


def test_a_stalled_child_tells_its_parent_too(queue: Queue, wire: Wire) -> None:
    child_of(wire)
    wire.expire(CHILD)
    assert queue.sweep_stalled(max_stalled=1).dead == (CHILD,)
    assert wire.read(f"job:{PARENT}:failed") == {CHILD: "stalled"}
    assert wire.read("dead") == {CHILD: 0, PARENT: 0}


def test_a_completion_for_another_queue_goes_to_our_own_outbox_joined_by_nul(queue: Queue, wire: Wire) -> None:
    child = child_of(wire, parent_queue="elsewhere")
    before = wire.row(PARENT)
    assert queue.complete(child, b"re\x00sult") is Verdict.OK
    assert wire.read("flow:outbox") == [f"elsewhere\x00{PARENT}\x00{CHILD}\x00re\x00sult"]
    assert wire.row(PARENT) == before
    assert wire.read(f"job:{PARENT}:dependencies") == "1"


@pytest.mark.parametrize(("policy", "written"), [(None, "fp"), ("fp", "fp"), ("id", "id")])
def test_a_failure_for_another_queue_goes_to_the_outbox_with_its_policy(
    queue: Queue, wire: Wire, policy: str | None, written: str
) -> None:
    fields = {"parent_queue": "elsewhere"} | ({"parent_policy": policy} if policy else {})
    assert queue.retry(child_of(wire, **fields), "bo\x00om", max_retries=0) is Verdict.DEAD
    assert wire.read("flow:outbox") == [f"\x00fail\x00elsewhere\x00{PARENT}\x00{CHILD}\x00{written}\x00bo\x00om"]
    assert wire.read("dead") == {CHILD: 0}


def test_outbox_entries_are_appended_in_order(queue: Queue, wire: Wire) -> None:
    wire.do("RPUSH", "flow:outbox", "older")
    queue.complete(child_of(wire, parent_queue="elsewhere"))
    assert wire.read("flow:outbox") == ["older", f"elsewhere\x00{PARENT}\x00{CHILD}\x00"]


def test_a_parent_that_is_gone_takes_nothing_and_stops_nothing(queue: Queue, wire: Wire) -> None:
    child = child_of(wire)
    wire.do("DEL", f"job:{PARENT}")
    wire.do("DEL", f"job:{PARENT}:dependencies")
    assert queue.complete(child, "r") is Verdict.OK
    assert wire.everything() == {"metrics:completed": {"count": "1"}}


def test_a_failed_child_that_is_retried_tells_nobody(queue: Queue, wire: Wire) -> None:
    child = child_of(wire)
    assert queue.retry(child, "boom", delay=60, max_retries=3) is Verdict.SCHEDULED
    assert wire.read(f"job:{PARENT}:dependencies") == "1"
    assert wire.row(PARENT)["state"] == "awaiting_children"
    assert wire.read(f"job:{PARENT}:failed") is None
