"""The server may forget scripts at any time: a call loads what is missing and goes on, alone and in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from script_cases import CASES, fill, key_of
from wire.handwriting import Wire, text

from echomq_tasks.connection import Connection
from echomq_tasks.queue import Admission, Complete, Queue, Release, Retry, Verdict
from echomq_tasks.scripts import Call, Scripts
from echomq_tasks.scripts.loader import load_scripts


def forget(connection: Connection) -> None:
    connection.client.script_flush()  # on every node of a cluster
    shas = [script.sha for script in load_scripts().values()]
    assert not any(connection.client.script_exists(*shas))


@pytest.mark.parametrize("name", CASES)
def test_a_single_call_survives_a_forgotten_script(connection: Connection, wire: Wire, name: str) -> None:
    fill(wire, CASES[name])
    forget(connection)
    reply = text(Scripts.of(connection).call(name, key_of(name, wire).encode(), CASES[name].args))
    assert reply == CASES[name].reply or CASES[name].reply is None


def test_a_batch_survives_and_runs_each_call_once_in_order(connection: Connection, wire: Wire) -> None:
    fill(wire)
    forget(connection)
    key = wire.base.encode()
    calls = [Call(name, key, CASES[name].args) for name in ("job_reap", "queue_counts", "job_promote", "queue_counts")]
    reaped, first, promoted, second = Scripts.of(connection).batch(calls)
    assert (reaped, promoted) == (1, 1)
    # The reaped job waits in its lane, whose count went down; then the due job waits too.
    assert first[:4] == [1, 2, 2, 1]
    assert second[:4] == [2, 2, 2, 0]


def test_a_batch_with_one_script_missing_loads_that_one(connection: Connection, wire: Wire) -> None:
    fill(wire)
    scripts, key = Scripts.of(connection), wire.base.encode()
    forget(connection)
    scripts.call("queue_counts", key)
    counts, state = scripts.batch([Call("queue_counts", key, ()), Call("job_state", key, CASES["job_state"].args)])
    assert (counts[0], state) == (1, b"pending")


def test_a_turn_settles_and_claims_after_the_server_forgot_everything(
    connection: Connection, wire: Wire, queue_name: str
) -> None:
    queue = Queue(queue_name, connection)
    queue.enqueue_many(["a", "b", "c", "d"])
    first, second, third = queue.claim(3).jobs
    forget(connection)
    turn = queue.turn([Complete(first), Retry(second, "boom", delay=60), Release(third)], 5)
    assert turn.verdicts == (Verdict.OK, Verdict.SCHEDULED, Verdict.OK)
    assert [job.payload for job in turn.claimed] == [b"c", b"d"]
    assert queue.counts().completed == 1


def test_a_forgotten_script_in_the_middle_of_a_bulk_admission_loses_and_doubles_nothing(
    connection: Connection, queue_name: str
) -> None:
    queue = Queue(queue_name, connection)
    queue.enqueue("first")
    forget(connection)
    assert len({answer.id for answer in queue.enqueue_many([str(number) for number in range(700)])}) == 700
    assert queue.counts().pending == 701


def test_a_script_that_is_flushed_after_each_load_runs_all_the_same(
    connection: Connection, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = Scripts.of(connection)

    def in_vain(names: Sequence[str], keys: Sequence[bytes]) -> list[Any]:
        return []

    monkeypatch.setattr(scripts, "_loads", in_vain)
    forget(connection)
    queue = Queue(queue_name, connection)
    assert queue.enqueue("p").admission is Admission.ENQUEUED
    assert len(queue.claim()) == 1
