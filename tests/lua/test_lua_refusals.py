"""A refusal changes nothing: every key of the server is compared before and after, as the server serializes it."""

from __future__ import annotations

import pytest
from script_cases import ABSENT, CASES, EXTRAS, FLAT, IN_LANE, NEW, WITH_IDS, WITH_TOKENS, Case, fill, key_of, replaced
from wire.handwriting import Wire, text

from echomq_tasks.connection import Connection
from echomq_tasks.errors import StaleToken, WrongKind
from echomq_tasks.queue import Complete, Job, Queue, Release, Retry, Verdict
from echomq_tasks.scripts import Scripts

NOT_JOBS = ["USR0NgWEfAEJfs", "JOB0NgWEfAEJf", "JOB0NgWEfAEJfsX", "job0NgWEfAEJfs", ""]


def call(connection: Connection, wire: Wire, name: str, args: list[str | int]) -> object:
    return text(Scripts.of(connection).call(name, key_of(name, wire).encode(), args))


def entries(case: Case) -> int:
    assert case.ids is not None
    return (len(case.args) - case.ids[0]) // case.ids[1]


@pytest.mark.parametrize("bad", NOT_JOBS)
@pytest.mark.parametrize("name", WITH_IDS)
def test_an_id_of_another_kind_is_refused_before_any_write_wherever_it_stands(
    connection: Connection, wire: Wire, name: str, bad: str
) -> None:
    fill(wire)
    before = wire.dumps()
    for entry in range(1 if name == "job_state" else entries(CASES[name])):
        with pytest.raises(WrongKind, match="is not a JOB id"):
            call(connection, wire, name, replaced(CASES[name], entry, 0, bad))
    assert wire.dumps() == before


@pytest.mark.parametrize("token", [0, 2, 999, ""])
@pytest.mark.parametrize("name", WITH_TOKENS)
def test_a_token_that_is_not_the_rows_changes_nothing(
    connection: Connection, wire: Wire, name: str, token: str | int
) -> None:
    case = CASES[name]
    assert case.token is not None
    fill(wire)
    before = wire.dumps()
    args = list(case.args)
    for entry in range(entries(case)):
        args[case.ids[0] + entry * case.ids[1] + case.token] = token  # type: ignore[index]
    assert call(connection, wire, name, args) == ["stale"] * entries(case)
    assert wire.dumps() == before


@pytest.mark.parametrize("name", WITH_TOKENS)
def test_a_stale_token_in_a_batch_does_not_stop_the_others(connection: Connection, wire: Wire, name: str) -> None:
    case = CASES[name]
    assert case.token is not None
    fill(wire)
    row = wire.client.dump(f"{wire.base}job:{FLAT}")
    verdicts = call(connection, wire, name, replaced(case, 0, case.token, 9))
    assert isinstance(verdicts, list)
    assert verdicts[0] == "stale"
    assert "stale" not in verdicts[1:]
    assert wire.client.dump(f"{wire.base}job:{FLAT}") == row
    assert wire.row(IN_LANE) == {} or wire.row(IN_LANE)["state"] != "active" or name == "job_extend"


@pytest.mark.parametrize("name", WITH_TOKENS)
def test_a_job_that_is_gone_changes_nothing(connection: Connection, wire: Wire, name: str) -> None:
    case = CASES[name]
    assert case.ids is not None
    fill(wire)
    before = wire.dumps()
    args = list(case.args[: case.ids[0] + case.ids[1]])
    args[case.ids[0]] = ABSENT
    assert call(connection, wire, name, args) == ["stale" if name == "job_retry" else "gone"]
    assert wire.dumps() == before


@pytest.mark.parametrize(("payload", "verdict"), [("p", 0), ("another", -1)])
def test_an_id_that_has_a_row_is_a_duplicate_and_changes_nothing(
    connection: Connection, wire: Wire, payload: str, verdict: int
) -> None:
    fill(wire)
    before = wire.dumps()
    for mode in ("now", "in", "at"):
        assert call(
            connection, wire, "job_enqueue", ["me", mode, FLAT, payload, mode, 1, 5, "GRP0NgWEfAEJfs", EXTRAS]
        ) == [verdict]
    assert wire.dumps() == before


def test_one_id_twice_in_a_batch_is_admitted_once(connection: Connection, wire: Wire) -> None:
    args: list[str | int] = ["me", 1, NEW, "p", "now", 0, 0, "", "", NEW, "p", "now", 0, 0, "", ""]
    assert call(connection, wire, "job_enqueue", args) == [1, 0]
    assert wire.ids("pending") == [NEW]


def test_a_stale_settlement_is_an_exception_alone_and_a_verdict_in_a_batch(
    connection: Connection, wire: Wire, queue_name: str
) -> None:
    fill(wire)
    before = wire.dumps()
    queue, stale = Queue(queue_name, connection), Job(FLAT, b"p", 2)
    for settle in (queue.complete, queue.retry, queue.release, queue.extend):
        with pytest.raises(StaleToken, match=rf"{FLAT}.*token 2"):
            settle(stale)
    assert queue.settle([Complete(stale), Retry(stale), Release(stale)]) == [Verdict.STALE] * 3
    assert queue.complete_many([stale, Job(ABSENT, b"", 1)]) == [Verdict.STALE, Verdict.GONE]
    assert queue.extend_many([stale, Job(ABSENT, b"", 1)]) == [stale, Job(ABSENT, b"", 1)]
    assert wire.dumps() == before
