"""Wire §6, repeats: register, fire, cancel; and cron expressions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from conformance.scenarios import (
    FAR,
    ROW,
    Instant,
    scenario,
)
from wire.handwriting import Wire

from echomq_tasks.connection import Connection
from echomq_tasks.errors import EchoMQError
from echomq_tasks.identity import is_branded
from echomq_tasks.queue import Queue

HOUR = 3_600_000


# -- repeats ------------------------------------------------------------------------------------------------------


def registered(queue: Queue, wire: Wire, by_hand: bool, *, score: int, every_ms: int = HOUR) -> None:
    """A repeat by name `nightly`, by hand as another runtime writes it, or by our verb; no token lies there."""
    if by_hand:
        wire.do("HSET", "repeat:nightly", "every_ms", every_ms, "template", "p")
    else:
        assert queue.repeat("nightly", "p", every=every_ms / 1000)
        wire.do("DEL", "wake")
    wire.do("ZADD", "repeat", score, "nightly")


BOTH = pytest.mark.parametrize("by_hand", [True, False], ids=["raw", "api"])


@scenario("6.15.1", "`register(name, every, template, first_in)`: `every_ms`, `template`, scored by the next run")
@pytest.mark.parametrize("first_in", [None, 0.0, 90.5])
def test_a_registration_is_a_hash_and_a_score(queue: Queue, wire: Wire, first_in: float | None) -> None:
    now = Instant(wire)
    assert queue.repeat("nightly", "p", every=3600, first_in=first_in)
    first = HOUR if first_in is None else round(first_in * 1000)
    assert wire.everything() == {
        "repeat": {"nightly": now + first}, "repeat:nightly": {"every_ms": "3600000", "template": "p"},
        "wake": ["1"],  # the earliest now, so parked workers look at their clock again
    }  # fmt: skip


@scenario("6.15.2", "register is idempotent (exists → nothing changes)")
@BOTH
def test_a_registration_that_exists_stays_as_it_is(queue: Queue, wire: Wire, by_hand: bool) -> None:
    registered(queue, wire, by_hand, score=FAR)
    before = wire.everything()
    assert not queue.repeat("nightly", "p", every=3600)
    assert not queue.repeat("nightly", "another", every=5, first_in=0)
    assert wire.everything() == before


@scenario("6.15.3", "registrations of every runtime are told by name, in the order of their next runs")
@BOTH
def test_registrations_are_listed_by_their_next_run(queue: Queue, wire: Wire, by_hand: bool) -> None:
    registered(queue, wire, by_hand, score=FAR)
    queue.repeat("hourly", "q", every=3600)
    before = wire.everything()
    hourly, nightly = queue.repeats()
    assert (hourly.name, nightly.name, nightly.payload, nightly.every) == ("hourly", "nightly", b"p", 3600)
    assert nightly.next_run == datetime.fromtimestamp(FAR / 1000, tz=UTC)
    assert wire.everything() == before


@scenario("6.16.1", "each due occurrence mints a fresh JOB id, and advances the score")
@BOTH
def test_a_due_occurrence_admits_a_job_and_moves_on_by_its_interval(queue: Queue, wire: Wire, by_hand: bool) -> None:
    due = wire.now_ms() - 1000
    registered(queue, wire, by_hand, score=due)
    (job_id,) = queue.fire_repeats()
    assert is_branded(job_id, "JOB")
    found = wire.everything()
    found["repeat:nightly"].pop("fired", None)
    assert found == {
        f"job:{job_id}": ROW, "pending": {job_id: 0}, "wake": ["1"],
        "repeat": {"nightly": due + HOUR}, "repeat:nightly": {"every_ms": "3600000", "template": "p"},
    }  # fmt: skip
    assert queue.fire_repeats() == []
    wire.do("ZADD", "repeat", due, "nightly")
    (again,) = queue.fire_repeats()
    assert again != job_id


@scenario("6.16.2", "advancing the score decides which of several racing workers fires it, so it fires once")
@BOTH
def test_racing_workers_fire_an_occurrence_once(
    queue: Queue, wire: Wire, connection: Connection, by_hand: bool
) -> None:
    due = wire.now_ms() - 1000
    registered(queue, wire, by_hand, score=due)
    workers = [Queue(queue.name, connection) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        fired = list(threads.map(lambda worker: worker.fire_repeats(), workers))
    assert len([job_id for ids in fired for job_id in ids]) == 1
    assert wire.do("ZCARD", "pending") == 1
    assert wire.read("repeat") == {"nightly": due + HOUR}


@scenario("6.16.3", "an occurrence that another runtime advanced past is not fired")
@BOTH
def test_an_occurrence_that_another_runtime_took_is_not_fired(
    queue: Queue, wire: Wire, by_hand: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    due = wire.now_ms() - 1000
    registered(queue, wire, by_hand, score=due)
    run = queue.run

    def late(script: str, *args: bytes | str | int, **more: Any) -> object:
        if script == "repeat_fire":
            # Between our look and our fire, as it would: it advances the score by every_ms, then admits.
            wire.do("ZADD", "repeat", due + HOUR, "nightly")
        return run(script, *args, **more)

    monkeypatch.setattr(queue, "run", late)
    assert queue.fire_repeats() == []
    monkeypatch.undo()
    assert (wire.read("pending"), wire.read("repeat")) == (None, {"nightly": due + HOUR})


@scenario("6.16.4", "what is not due does not fire, by the server's clock (§4)")
@BOTH
def test_what_is_not_due_does_not_fire(queue: Queue, wire: Wire, by_hand: bool) -> None:
    registered(queue, wire, by_hand, score=wire.now_ms() + 60_000)
    before = wire.everything()
    assert queue.fire_repeats() == []
    assert wire.everything() == before


@scenario("6.17.1", "cancel removes both keys")
@BOTH
def test_a_cancelled_repeat_leaves_neither_key(queue: Queue, wire: Wire, by_hand: bool) -> None:
    registered(queue, wire, by_hand, score=wire.now_ms() - 1000)
    wire.do("HSET", "repeat:other", "every_ms", HOUR, "template", "p")
    wire.do("ZADD", "repeat", FAR, "other")
    assert queue.cancel_repeat("nightly")
    assert wire.everything() == {
        "repeat": {"other": FAR},
        "repeat:other": {"every_ms": str(HOUR), "template": "p"},
    }
    assert not queue.cancel_repeat("nightly")
    assert queue.fire_repeats() == []


@scenario("6.17.2", "cancel, and the jobs that it has fired stay")
@BOTH
def test_jobs_that_a_repeat_has_fired_outlive_it(queue: Queue, wire: Wire, by_hand: bool) -> None:
    registered(queue, wire, by_hand, score=wire.now_ms() - 1000)
    (job_id,) = queue.fire_repeats()
    queue.cancel_repeat("nightly")
    assert wire.everything() == {f"job:{job_id}": ROW, "pending": {job_id: 0}, "wake": ["1"]}


@scenario("6.18.1", "additive: cron expressions with a time zone, beside an `every_ms` that other runtimes advance by")
def test_a_cron_registration_is_scored_by_its_next_occurrence(queue: Queue, wire: Wire) -> None:
    now = wire.now_ms()
    assert queue.repeat("nightly", "p", cron="30 3 * * *", tz="Europe/Athens")
    row = wire.read("repeat:nightly")
    assert (row["cron"], row["tz"], row["template"]) == ("30 3 * * *", "Europe/Athens", "p")
    score = wire.read("repeat")["nightly"]
    local = datetime.fromtimestamp(score / 1000, tz=ZoneInfo("Europe/Athens"))
    assert now < score <= now + 25 * HOUR
    assert (local.hour, local.minute, local.second) == (3, 30, 0)
    following = datetime.fromtimestamp((score + int(row["every_ms"])) / 1000, tz=ZoneInfo("Europe/Athens"))
    assert (following.hour, following.minute) == (3, 30)
    assert 23 * HOUR <= int(row["every_ms"]) <= 25 * HOUR


@scenario("6.18.2", "additive: a due cron occurrence fires once and moves on to the next one")
def test_a_due_cron_occurrence_fires_and_moves_on(queue: Queue, wire: Wire) -> None:
    queue.repeat("yearly", "p", cron="0 0 1 1 *")
    wire.do("DEL", "wake")
    coming = wire.read("repeat")["yearly"]
    last = datetime(datetime.fromtimestamp(coming / 1000, tz=UTC).year - 1, 1, 1, tzinfo=UTC)
    wire.do("ZADD", "repeat", int(last.timestamp() * 1000), "yearly")
    (job_id,) = queue.fire_repeats()
    assert (wire.row(job_id), wire.read("pending"), wire.read("wake")) == (ROW, {job_id: 0}, ["1"])
    assert wire.read("repeat") == {"yearly": coming}
    assert queue.fire_repeats() == []


@scenario("6.18.3", "additive: a cron registration that another runtime moved goes back to its occurrences")
def test_a_cron_registration_moved_off_its_occurrences_is_put_back_without_a_job(queue: Queue, wire: Wire) -> None:
    queue.repeat("yearly", "p", cron="0 0 1 1 *")
    coming = wire.read("repeat")["yearly"]
    wire.do("ZADD", "repeat", wire.now_ms() // 1000 * 1000 - 5000, "yearly")
    assert queue.fire_repeats() == []
    assert (wire.read("repeat"), wire.read("pending")) == ({"yearly": coming}, None)


@scenario("6.18.4", "additive: `limit`: the registration goes with its last occurrence")
@BOTH
def test_a_limited_repeat_goes_with_its_last_occurrence(queue: Queue, wire: Wire, by_hand: bool) -> None:
    if by_hand:
        registered(queue, wire, True, score=1)
        wire.do("HSET", "repeat:nightly", "limit", 2)
    else:
        queue.repeat("nightly", "p", every=3600, first_in=0, limit=2)
    jobs = queue.fire_repeats()
    assert wire.read("repeat") is not None
    wire.do("ZADD", "repeat", 1, "nightly")
    jobs += queue.fire_repeats()
    assert (len(jobs), wire.read("repeat"), wire.read("repeat:nightly")) == (2, None, None)


@scenario("6.18.5", "names: `^[A-Za-z0-9._-]{1,128}$`, checked before any write (§2)")
@pytest.mark.parametrize("name", ["", "a b", "a:b", "x" * 129, "ü", "a\n"])
def test_a_repeat_by_a_name_that_the_wire_does_not_allow_is_refused(queue: Queue, wire: Wire, name: str) -> None:
    with pytest.raises(EchoMQError):
        queue.repeat(name, "p", every=60)
    with pytest.raises(EchoMQError):
        queue.cancel_repeat(name)
    assert wire.everything() == {}
