"""Repeats (wire §6): registering, firing each occurrence once, missed ones, limits, cancelling."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.proxy import DroppingProxy
from wire.handwriting import Wire

from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import EchoMQError, InvalidArgument, InvalidName, ServerUnavailable
from echomq_tasks.identity import group_id
from echomq_tasks.queue import Queue, Repeat, Unique
from echomq_tasks.queue.cron import is_run, next_run, parse
from echomq_tasks.scripts import load_scripts

LANE = "GRP0NgWEfAEJfs"
JOB, OTHER_JOB = "JOB0NgWEfAEJfs", "JOB0NgWEfAEJft"
HOUR, DAY = 3_600_000, 86_400_000


def score(wire: Wire, name: str = "r") -> int | None:
    found = wire.do("ZSCORE", "repeat", name)
    return None if found is None else int(float(found))


def stand_at(wire: Wire, ms: float, name: str = "r") -> None:
    """Let a registration's next run be at this instant."""
    assert wire.do("ZADD", "repeat", "XX", ms, name) == 0


def foreign(wire: Wire, name: str = "r", *, at: float = 1, **fields: str | int) -> None:
    """A registration as another runtime, or a hand, writes it."""
    if fields:
        wire.do("HSET", f"repeat:{name}", *(word for field in fields.items() for word in field))
    wire.do("ZADD", "repeat", at, name)


def yearly(wire: Wire) -> tuple[str, int]:
    """An expression that occurs once a year, and its last occurrence, which is 40 days ago."""
    day = datetime.fromtimestamp(wire.now_ms() / 1000, UTC) - timedelta(days=40)
    expression = f"0 12 {min(day.day, 28)} {day.month} *"
    last = next_run(parse(expression), wire.now_ms() - 80 * DAY)
    assert last is not None
    assert last < wire.now_ms() - 20 * DAY
    return expression, last


# -- registering --------------------------------------------------------------------------------------------------


def test_a_plain_registration_is_what_every_runtime_reads(queue: Queue, wire: Wire) -> None:
    before = wire.now_ms()
    assert queue.repeat("r", "p", every=60) is True
    assert wire.read("repeat:r") == {"every_ms": "60000", "template": "p"}
    assert before + 60_000 <= (score(wire) or 0) <= wire.now_ms() + 60_000
    assert set(wire.everything()) == {"repeat", "repeat:r", "wake"}


def test_the_first_run_of_an_interval_may_be_sooner_or_later(queue: Queue, wire: Wire) -> None:
    before = wire.now_ms()
    queue.repeat("soon", "p", every=60, first_in=0)
    queue.repeat("late", "p", every=0.001, first_in=500.5)
    assert before <= (score(wire, "soon") or 0) <= wire.now_ms()
    assert before + 500_500 <= (score(wire, "late") or 0) <= wire.now_ms() + 500_500


def test_a_cron_registration_has_its_additive_fields_and_the_distance_of_its_next_two_runs(
    queue: Queue, wire: Wire
) -> None:
    queue.repeat(
        "r", b"\xff\x00", cron=" 0 9  * * * ", tz="Europe/Athens", limit=3, catch_up=False, priority=-2, group="acme"
    )
    run = score(wire)
    cron = parse("0 9 * * *", "Europe/Athens")
    assert run is not None
    assert is_run(cron, run)
    assert run > wire.now_ms() - 60_000
    following = next_run(cron, run)
    assert following is not None
    row = wire.read("repeat:r")
    assert row.pop("template") == b"\xff\x00"
    assert row == {
        "every_ms": str(following - run),
        "cron": "0 9 * * *",
        "tz": "Europe/Athens",
        "limit": "3",
        "catch_up": "0",
        "priority": "-2",
        "group": group_id("acme"),
        "group_name": "acme",
    }


def test_the_name_of_a_lane_is_there_with_each_job_that_waits_in_it(queue: Queue, wire: Wire) -> None:
    queue.repeat("r", "p", every=60, first_in=0, group="acme")
    for _ in range(2):
        stand_at(wire, 1)
        assert len(queue.fire_repeats()) == 1
        assert wire.read("gnames") == {group_id("acme"): "acme"}
        for job in queue.claim(5):
            queue.complete(job)
    queue.cancel_repeat("r")
    assert wire.read("gnames") is None


def test_registering_again_changes_nothing_and_says_so(queue: Queue, wire: Wire) -> None:
    queue.repeat("r", "p", every=60)
    before = wire.dumps()
    assert queue.repeat("r", "p", every=60) is False
    assert queue.repeat("r", "q", every=5, limit=1, priority=3, group="g") is False
    assert queue.repeat("r", "q", cron="* * * * *", tz="Europe/Athens") is False
    assert queue.repeat("r", "p", every=60, replace=True) is False
    assert wire.dumps() == before


def test_a_registration_of_another_runtime_is_there_too(queue: Queue, wire: Wire) -> None:
    foreign(wire, at=wire.now_ms() + HOUR, every_ms=60_000, template="theirs")
    before = wire.dumps()
    assert queue.repeat("r", "ours", every=60) is False
    assert queue.repeat("r", "theirs", every=60, replace=True) is False
    assert wire.dumps() == before


@pytest.mark.parametrize("half", ["name", "hash", "no template", "no interval", "another type"])
def test_registering_over_half_a_registration_makes_it_whole(queue: Queue, wire: Wire, half: str) -> None:
    if half == "name":
        foreign(wire)
    elif half == "hash":
        wire.do("HSET", "repeat:r", "every_ms", 5, "template", "old", "limit", 1)
    elif half == "no template":
        foreign(wire, every_ms=5)
    elif half == "no interval":
        foreign(wire, template="old", every_ms="soon")
    else:
        wire.do("SET", "repeat:r", "no hash")
        foreign(wire)
    assert queue.repeat("r", "p", every=60)
    assert wire.read("repeat:r") == {"every_ms": "60000", "template": "p"}
    assert (score(wire) or 0) > wire.now_ms()


def test_only_a_run_that_becomes_the_earliest_wakes_a_worker(queue: Queue, wire: Wire) -> None:
    seen = []
    for name, every in (("a", 100), ("b", 200), ("c", 50), ("b", 20)):
        queue.repeat(name, "p", every=every, replace=True)
        seen.append(wire.wakes())
    assert seen == [1, 1, 2, 3]
    queue.repeat("b", "another payload", every=20, replace=True)
    assert wire.wakes() == 3


# -- replacing ----------------------------------------------------------------------------------------------------

CHANGES: list[dict[str, Any]] = [
    {"payload": "q"}, {"limit": 9}, {"catch_up": False}, {"priority": 4}, {"group": "acme"}, {"unique": Unique("k")},
]  # fmt: skip


@pytest.mark.parametrize("times", [{"every": 60}, {"cron": "0 9 * * *", "tz": "Europe/Athens"}], ids=["every", "cron"])
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_changed_definition_keeps_its_next_run_and_its_count(
    queue: Queue, wire: Wire, times: dict[str, Any], change: dict[str, Any]
) -> None:
    same: dict[str, Any] = {"name": "r", "payload": "p", "limit": 5, **times}
    queue.repeat(**same)
    run, every_ms = score(wire), wire.read("repeat:r")["every_ms"]
    wire.do("HSET", "repeat:r", "fired", 2)
    assert queue.repeat(**{**same, **change}, replace=True) is True
    (kept,) = queue.repeats()
    assert (score(wire), wire.read("repeat:r")["every_ms"], kept.fired) == (run, every_ms, 2)
    expected = {"payload": b"p", "limit": 5, "catch_up": True, "priority": 0, "group": None, "unique": None} | change
    if "group" in change:
        expected["group"] = group_id("acme")
    if "payload" in change:
        expected["payload"] = b"q"
    assert {name: getattr(kept, name) for name in expected} == expected
    assert queue.repeat(**{**same, **change}, replace=True) is False
    # And back: what is left out is taken off.
    assert queue.repeat("r", "p", **times, replace=True) is True
    assert set(wire.read("repeat:r")) == {"template", "every_ms", "fired", *(times if "cron" in times else ())}


def test_a_cron_that_is_overdue_keeps_its_run_and_the_distance_to_the_next_when_its_payload_changes(
    queue: Queue, wire: Wire
) -> None:
    queue.repeat("r", "p", cron="0 0 1 * *")
    stand_at(wire, 1_700_000_000_000)
    wire.do("HSET", "repeat:r", "every_ms", 1234)
    assert queue.repeat("r", "q", cron="0 0 1 * *", replace=True)
    assert score(wire) == 1_700_000_000_000
    assert wire.read("repeat:r")["every_ms"] == "1234"


def test_another_interval_expression_or_zone_gets_another_next_run(queue: Queue, wire: Wire) -> None:
    changes: list[dict[str, Any]] = [
        {"every": 60},
        {"every": 90},
        {"cron": "0 9 1 1 *"},
        {"cron": "0 9 1 1 *", "tz": "Asia/Tokyo"},
        {"cron": "30 9 1 1 *", "tz": "Asia/Tokyo"},
        {"every": 60},
    ]
    seen = set()
    for change in changes:
        assert queue.repeat("r", "p", **change, replace=True) is True
        assert set(wire.read("repeat:r")) == {"every_ms", "template", *(("cron", "tz") if "cron" in change else ())}
        assert wire.read("repeat:r").get("tz") == ("UTC" if len(change) == 1 and "cron" in change else change.get("tz"))
        seen.add(score(wire))
    assert len(seen) >= 5


# -- firing -------------------------------------------------------------------------------------------------------


def test_nothing_due_is_nothing_done(queue: Queue, wire: Wire) -> None:
    assert queue.fire_repeats() == []
    queue.repeat("r", "p", every=60)
    before = wire.dumps()
    assert queue.fire_repeats() == []
    assert wire.dumps() == before


def test_a_due_repeat_admits_a_job_as_an_admission_would(queue: Queue, wire: Wire) -> None:
    queue.repeat("flat", b"\xff", every=60, first_in=0)
    wire.do("DEL", "wake")
    (fired,) = queue.fire_repeats()
    assert wire.row(fired) == {"state": "pending", "attempts": "0", "payload": b"\xff"}
    assert wire.read("pending") == {fired: 0}
    assert wire.wakes() == 1
    assert wire.read("repeat:flat")["fired"] == "1"
    queue.repeat("lane", "p", every=60, first_in=0, group=LANE, priority=7)
    wire.do("DEL", "wake")
    (in_lane,) = queue.fire_repeats()
    assert wire.row(in_lane) == {
        "state": "pending", "attempts": "0", "payload": "p", "priority": "7", "group": LANE,
    }  # fmt: skip
    assert wire.read(f"g:{LANE}:pending") == {in_lane: 7}
    assert wire.ring() == [LANE]
    assert wire.wakes() == 1
    assert {(job.payload, job.group) for job in queue.claim(5)} == {(b"\xff", None), (b"p", LANE)}


def test_a_paused_lane_or_one_at_its_limit_takes_the_job_and_stays_out_of_the_ring(queue: Queue, wire: Wire) -> None:
    wire.do("SADD", "paused", LANE)
    queue.repeat("r", "p", every=60, first_in=0, group=LANE)
    (fired,) = queue.fire_repeats()
    assert wire.ids(f"g:{LANE}:pending") == [fired]
    assert wire.ring() == []


def test_many_due_repeats_fire_in_one_call_the_longest_due_first(queue: Queue, wire: Wire) -> None:
    for number in range(5):
        queue.repeat(f"r{number}", str(number), every=3600)
        stand_at(wire, wire.now_ms() - 1000 + number, f"r{number}")
    first, second = queue.fire_repeats(2)
    assert [wire.row(job)["payload"] for job in (first, second)] == ["0", "1"]
    assert [wire.row(job)["payload"] for job in queue.fire_repeats()] == ["2", "3", "4"]
    assert queue.fire_repeats() == []


@pytest.mark.parametrize("missed", [0, 1, 7, 100_000])
def test_an_interval_fires_once_for_all_it_missed_and_stays_on_its_grid(queue: Queue, wire: Wire, missed: int) -> None:
    queue.repeat("r", "p", every=60)
    stood = wire.now_ms() - missed * 60_000 - 1234
    stand_at(wire, stood)
    assert len(queue.fire_repeats()) == 1
    run = score(wire)
    assert run is not None
    assert (run - stood) % 60_000 == 0
    assert run - 60_000 <= wire.now_ms() < run
    assert queue.fire_repeats() == []
    assert queue.counts().pending == 1


def test_a_cron_fires_once_for_all_it_missed_and_the_distance_is_rewritten(queue: Queue, wire: Wire) -> None:
    queue.repeat("r", "p", cron="0 0 1 * *")  # months differ in length
    cron = parse("0 0 1 * *")
    stood = next_run(cron, wire.now_ms() - 200 * DAY)
    assert stood is not None
    stand_at(wire, stood)
    wire.do("HSET", "repeat:r", "every_ms", 1)
    assert len(queue.fire_repeats()) == 1
    run = score(wire)
    assert run == next_run(cron, wire.now_ms())
    assert run is not None
    following = next_run(cron, run)
    assert following is not None
    assert wire.read("repeat:r")["every_ms"] == str(following - run)
    assert queue.fire_repeats() == []


@pytest.mark.parametrize("catch_up", [True, False])
def test_a_missed_cron_occurrence_fires_late_only_with_catch_up(queue: Queue, wire: Wire, catch_up: bool) -> None:
    expression, last = yearly(wire)
    queue.repeat("r", "p", cron=expression, catch_up=catch_up)
    coming = score(wire)
    stand_at(wire, last)
    assert len(queue.fire_repeats()) == int(catch_up)
    assert score(wire) == coming
    assert queue.counts().pending == int(catch_up)
    (repeat,) = queue.repeats()
    assert repeat.fired == int(catch_up)


@pytest.mark.parametrize("catch_up", [True, False])
@pytest.mark.parametrize(("late", "in_time"), [(3_000, True), (1_800_000, False)])
def test_a_missed_interval_fires_late_only_with_catch_up(
    queue: Queue, wire: Wire, catch_up: bool, late: int, in_time: bool
) -> None:
    queue.repeat("r", "p", every=3600, catch_up=catch_up)
    stood = wire.now_ms() - 5 * HOUR - late
    stand_at(wire, stood)
    assert len(queue.fire_repeats()) == int(catch_up or in_time)
    assert score(wire) == stood + 6 * HOUR


def test_without_catch_up_the_last_of_the_missed_ones_fires_when_it_is_hardly_late(queue: Queue, wire: Wire) -> None:
    queue.repeat("r", "p", cron="* * * * * *", catch_up=False)
    stand_at(wire, wire.now_ms() // 1000 * 1000 - DAY)
    assert len(queue.fire_repeats()) == 1


def test_without_catch_up_a_run_that_is_seconds_late_fires(queue: Queue, wire: Wire) -> None:
    at = datetime.fromtimestamp(wire.now_ms() // 1000 - 2, UTC)
    queue.repeat(
        "r", "p", cron=f"{at.second} {at.minute} {at.hour} {at.day} {at.month} *" if at.day < 29 else "* * * * * *",
        catch_up=False,
    )  # fmt: skip
    stand_at(wire, round(at.timestamp() * 1000))
    assert len(queue.fire_repeats()) == 1


def test_a_run_that_is_not_due_by_the_server_s_clock_does_not_fire_whatever_a_worker_saw(
    queue: Queue, wire: Wire
) -> None:
    """As when the clock is put back between a look and its fire."""
    queue.repeat("r", "p", every=60)
    run = score(wire)
    assert run is not None
    before = wire.dumps()
    assert queue.run("repeat_fire", "me", "1.1", JOB, "r", run, run + 60_000, "") == [0]
    assert wire.dumps() == before


@pytest.mark.parametrize("off", [-60_000, -1, 1, 60_000])
def test_a_run_that_is_no_longer_where_a_worker_saw_it_does_not_fire_though_it_is_due(
    queue: Queue, wire: Wire, off: int
) -> None:
    """As when a worker is held up between its look and its fire, and others have fired or registered meanwhile."""
    queue.repeat("r", "p", every=60)
    stands = wire.now_ms() - HOUR
    stand_at(wire, stands)
    before = wire.dumps()
    assert queue.run("repeat_fire", "me", "1.1", JOB, "r", stands + off, stands + 60_000, "") == [0]
    assert queue.run("repeat_skip", "r", stands + off, stands + 60_000, "") == [0]
    assert wire.dumps() == before


def test_after_a_clock_that_was_put_back_an_occurrence_that_has_fired_does_not_fire_again(
    queue: Queue, wire: Wire
) -> None:
    queue.repeat("r", "p", every=60, first_in=0)
    assert len(queue.fire_repeats()) == 1
    run = score(wire)
    assert run is not None
    # To the server of an earlier hour the next run is further off, which is all that it sees.
    stand_at(wire, run + HOUR)
    assert queue.fire_repeats() == []
    assert score(wire) == run + HOUR


def test_a_job_id_that_has_a_row_is_not_overwritten(queue: Queue, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.enqueue("precious", id=JOB)
    queue.repeat("a", "p", every=60, first_in=0)
    queue.repeat("b", "q", every=60, first_in=0)
    minted = iter([JOB, OTHER_JOB, JOB, "JOB0NgWEfAEJfu"])
    monkeypatch.setattr(queue.scripts.mint, "mint", lambda kind: next(minted))
    assert sorted(queue.fire_repeats()) == [OTHER_JOB, "JOB0NgWEfAEJfu"]
    assert wire.row(JOB)["payload"] == "precious"
    assert queue.counts().pending == 3
    assert [repeat.fired for repeat in queue.repeats()] == [1, 1]


def test_an_occurrence_fires_once_however_many_workers_race_for_it(
    connection: Connection, queue: Queue, wire: Wire
) -> None:
    queue.repeat("r", "p", every=3600)
    others = [connect(connection.config.address) for _ in range(8)]
    try:
        queues = [Queue(queue.name, other) for other in others]
        for number in range(1, 16):
            stand_at(wire, wire.now_ms() - number)
            start = threading.Barrier(8)

            def fire(one: Queue, start: threading.Barrier = start) -> list[str]:
                start.wait(10)
                return one.fire_repeats()

            with ThreadPoolExecutor(8) as pool:
                fired = [job for jobs in pool.map(fire, queues) for job in jobs]
            assert len(fired) == 1
            assert queue.counts().pending == number
            assert fired[0] in wire.ids("pending")
        assert wire.read("repeat:r")["fired"] == "15"
    finally:
        for other in others:
            other.close()


# -- limits and cancelling ----------------------------------------------------------------------------------------


def test_the_registration_goes_with_its_last_job(queue: Queue, wire: Wire) -> None:
    queue.repeat("r", "p", every=3600, first_in=0, limit=3)
    for left in (2, 1, 0):
        assert len(queue.fire_repeats()) == 1
        assert bool(queue.repeats()) == bool(left)
        if left:
            stand_at(wire, wire.now_ms())
    assert (wire.read("repeat"), wire.read("repeat:r")) == (None, None)
    assert queue.counts().pending == 3


def test_a_limit_lowered_below_what_has_fired_ends_it_without_a_job(queue: Queue, wire: Wire) -> None:
    queue.repeat("r", "p", every=3600, first_in=0)
    wire.do("HSET", "repeat:r", "fired", 5)
    assert queue.repeat("r", "p", every=3600, limit=3, replace=True)
    assert queue.fire_repeats() == []
    assert queue.repeats() == []
    assert queue.counts().unfinished == 0


def test_cancelling_leaves_the_jobs_and_nothing_else(queue: Queue, wire: Wire) -> None:
    queue.repeat("r", "p", every=60, first_in=0)
    queue.repeat("other", "p", every=60)
    (fired,) = queue.fire_repeats()
    assert queue.cancel_repeat("r") is True
    assert queue.cancel_repeat("r") is False
    assert queue.cancel_repeat("never") is False
    assert wire.ids("repeat") == ["other"]
    assert wire.read("repeat:r") is None
    assert wire.ids("pending") == [fired]
    assert queue.repeat("r", "p", every=60) is True


def test_a_repeat_cancelled_between_the_look_and_the_fire_does_not_fire(queue: Queue, wire: Wire) -> None:
    queue.repeat("r", "p", every=60, first_in=0)
    seen = score(wire)
    assert seen is not None
    queue.cancel_repeat("r")
    before = wire.dumps()
    assert queue.run("repeat_fire", "me", "1.1", JOB, "r", seen, seen + 60_000, "") == [-1]
    assert queue.run("repeat_skip", "r", seen, seen + 60_000, 5) == [0]
    assert queue.run("repeat_skip", "r", "no number", seen + 60_000, 5) == [0]
    assert wire.dumps() == before


def test_a_cancel_that_races_with_fires_wins_or_comes_after_one_job(
    connection: Connection, queue: Queue, wire: Wire
) -> None:
    with connect(connection.config.address) as other:
        rival = Queue(queue.name, other)
        for _ in range(30):
            queue.repeat("r", "p", every=0.001, first_in=0)
            start = threading.Barrier(2)

            def cancel(start: threading.Barrier = start) -> bool:
                start.wait(10)
                return rival.cancel_repeat("r")

            with ThreadPoolExecutor(1) as pool:
                cancelled = pool.submit(cancel)
                start.wait(10)
                fired = queue.fire_repeats()
                assert cancelled.result(10) is True
            assert sorted(fired) == wire.ids("pending")
            assert (wire.read("repeat"), wire.read("repeat:r")) == (None, None)
            queue.drain()


# -- what others leave --------------------------------------------------------------------------------------------


def test_another_runtime_s_registration_is_fired_by_us(queue: Queue, wire: Wire) -> None:
    stood = wire.now_ms() - 90_000
    foreign(wire, at=stood, every_ms=60_000, template="theirs")
    (fired,) = queue.fire_repeats()
    assert wire.row(fired)["payload"] == "theirs"
    assert score(wire) == stood + 120_000
    assert wire.read("repeat:r") == {"every_ms": "60000", "template": "theirs", "fired": "1"}


def test_an_interval_and_a_score_with_fractions_are_read(queue: Queue, wire: Wire) -> None:
    foreign(wire, at=wire.now_ms() - 500.25, every_ms="60000.5", template="theirs")
    assert len(queue.fire_repeats()) == 1
    assert (score(wire) or 0) > wire.now_ms()


def test_an_interval_that_another_runtime_fired_goes_on_where_that_left_it(queue: Queue, wire: Wire) -> None:
    queue.repeat("r", "p", every=60)
    stood = wire.now_ms() - 60_000 - 100
    stand_at(wire, stood)
    wire.do("ZINCRBY", "repeat", 60_000, "r")  # what another runtime does when it fires
    assert len(queue.fire_repeats()) == 1
    assert score(wire) == stood + 120_000


def test_a_cron_that_another_runtime_fired_once_stands_on_an_occurrence(queue: Queue, wire: Wire) -> None:
    queue.repeat("r", "p", cron="0 0 1 * *")
    every_ms, run = int(wire.read("repeat:r")["every_ms"]), score(wire)
    assert run is not None
    assert is_run(parse("0 0 1 * *"), run + every_ms)


def test_a_cron_moved_off_its_occurrences_by_another_runtime_is_put_back_without_a_job(
    queue: Queue, wire: Wire
) -> None:
    queue.repeat("r", "p", cron="0 0 1 * *")
    coming = score(wire)
    stand_at(wire, wire.now_ms() - 1)
    wire.do("HSET", "repeat:r", "every_ms", 7)
    assert queue.fire_repeats() == []
    assert score(wire) == coming
    assert int(wire.read("repeat:r")["every_ms"]) >= 28 * DAY
    assert queue.counts().unfinished == 0


@pytest.mark.parametrize("at", ["-inf", -1e300, -5.5, 0])
@pytest.mark.parametrize("cron", [None, "0 0 1 1 *"], ids=["every", "cron"])
def test_a_score_from_nowhere_does_not_loop_hot(queue: Queue, wire: Wire, at: str | float, cron: str | None) -> None:
    queue.repeat("r", "p", cron=cron) if cron else queue.repeat("r", "p", every=60)
    wire.do("ZADD", "repeat", at, "r")
    assert len(queue.fire_repeats()) <= 1
    assert (score(wire) or 0) > wire.now_ms()
    assert queue.fire_repeats() == []


SPOILT: dict[str, Callable[[Wire], None]] = {
    "no template": lambda wire: foreign(wire, every_ms=60_000),
    "no interval": lambda wire: foreign(wire, template="p"),
    "an interval that is a word": lambda wire: foreign(wire, template="p", every_ms="often"),
    "no bytes for an interval": lambda wire: foreign(wire, template="p", every_ms=""),
    "interval 0": lambda wire: foreign(wire, template="p", every_ms=0),
    "interval below 0": lambda wire: foreign(wire, template="p", every_ms=-5),
    "an endless interval": lambda wire: foreign(wire, template="p", every_ms="inf"),
    "no number": lambda wire: foreign(wire, template="p", every_ms="nan"),
    "a bad expression": lambda wire: foreign(wire, template="p", every_ms=5, cron="whenever"),
    "an expression of bytes": lambda wire: wire.do(
        "HSET", "repeat:r", "template", "p", "every_ms", 5, "cron", b"\xff * * * *"
    ) and foreign(wire),
    "an expression that never occurs": lambda wire: foreign(wire, template="p", every_ms=5, cron="0 0 */5 2 MON#5"),
    "an unknown zone": lambda wire: foreign(wire, template="p", every_ms=5, cron="* * * * *", tz="Mars/Olympus"),
    "a zone of bytes": lambda wire: wire.do(
        "HSET", "repeat:r", "template", "p", "every_ms", 5, "cron", "* * * * *", "tz", b"\xff"
    ) and foreign(wire),
    "a bad group": lambda wire: foreign(wire, template="p", every_ms=5, group="acme"),
    "another type": lambda wire: wire.do("SET", "repeat:r", "no hash") and foreign(wire),
}  # fmt: skip


@pytest.mark.parametrize("kind", SPOILT)
def test_a_spoilt_registration_is_told_left_alone_for_an_hour_and_stops_nobody(
    queue: Queue, wire: Wire, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    SPOILT[kind](wire)
    foreign(wire, "good", at=2, every_ms=60_000, template="good")
    with caplog.at_level(logging.ERROR):
        (fired,) = queue.fire_repeats()
    assert wire.row(fired)["payload"] == "good"
    assert abs((score(wire) or 0) - wire.now_ms() - HOUR) < 60_000
    (told,) = [record.getMessage() for record in caplog.records]
    assert queue.name in told
    assert "'r'" in told
    assert "cancel it" in told
    assert queue.fire_repeats() == []
    assert len(caplog.records) == 1
    # Listed all the same, unless there is nothing to show, and mended by registering it again.
    assert {repeat.name for repeat in queue.repeats()} >= {"good"}
    assert queue.repeat("r", "p", every=60, replace=True)
    assert wire.read("repeat:r")["every_ms"] == "60000"


def test_limits_counts_and_priorities_that_are_no_numbers_count_as_none(queue: Queue, wire: Wire) -> None:
    foreign(wire, every_ms=60_000, template="p", limit="few", fired="some", priority="high")
    (repeat,) = queue.repeats()
    assert (repeat.limit, repeat.fired, repeat.priority) == (None, 0, 0)
    (fired,) = queue.fire_repeats()
    assert wire.read("pending") == {fired: 0}
    assert wire.read("repeat:r")["fired"] == "1"


@pytest.mark.parametrize("ttl", ["1e300", "-5", "0", "soon", ""])
def test_a_lifetime_of_its_unique_key_that_is_none_stops_nobody(queue: Queue, wire: Wire, ttl: str) -> None:
    foreign(wire, every_ms=60_000, template="p", dedup="key", unique="done", ttl=ttl)
    foreign(wire, "good", at=2, every_ms=60_000, template="good")
    fired = queue.fire_repeats()
    assert [wire.row(job)["payload"] for job in fired] == ["p", "good"]
    assert queue.fire_repeats() == []
    assert wire.read("de:key") is None


def test_a_name_without_a_registration_is_dropped_and_told(
    queue: Queue, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    foreign(wire, "orphan")
    with caplog.at_level(logging.ERROR):
        assert queue.fire_repeats() == []
    assert wire.read("repeat") is None
    assert "'orphan'" in caplog.text
    assert queue.repeats() == []


def test_a_name_registered_again_since_it_was_seen_without_is_not_dropped(queue: Queue, wire: Wire) -> None:
    foreign(wire, every_ms=60_000, template="p")
    assert queue.run("repeat_skip", "r", 1, "", "") == [0]
    assert wire.ids("repeat") == ["r"]


def test_a_name_that_ours_could_not_have_is_fired_too(queue: Queue, wire: Wire) -> None:
    foreign(wire, "their own: name", every_ms=60_000, template="theirs")
    (fired,) = queue.fire_repeats()
    assert wire.row(fired)["payload"] == "theirs"
    assert [repeat.name for repeat in queue.repeats()] == ["their own: name"]


# -- listing ------------------------------------------------------------------------------------------------------


def test_repeats_are_listed_in_the_order_of_their_next_runs(queue: Queue, wire: Wire) -> None:
    queue.repeat("b", "p", every=60, limit=2, catch_up=False, priority=1, group="acme")
    queue.repeat("a", "q", cron="0 9 1 1 *", tz="Europe/Athens")
    queue.repeat("c", "r", every=0.001, first_in=0)
    stand_at(wire, 4_000_000_000_000, "a")
    stand_at(wire, 1_700_000_000_001, "c")
    c, b, a = queue.repeats()
    utc = datetime(2023, 11, 14, 22, 13, 20, 1000, tzinfo=UTC)
    assert c == Repeat("c", utc, 0.001, None, "UTC", None, 0, True, 0, None, None, None, b"r")
    assert (b.name, b.every, b.limit, b.catch_up, b.priority) == ("b", 60.0, 2, False, 1)
    assert b.group == group_id("acme")
    assert (a.name, a.every, a.cron, a.tz, a.payload) == ("a", None, "0 9 1 1 *", "Europe/Athens", b"q")
    assert a.next_run.utcoffset() == timedelta(0)


def test_what_bounds_its_jobs_is_listed(queue: Queue, wire: Wire) -> None:
    unique = Unique("k", "start", 2.5)
    queue.repeat("r", "p", every=60, group=LANE, group_limit=3, unique=unique)
    (repeat,) = queue.repeats()
    assert (repeat.group, repeat.group_limit, repeat.unique) == (LANE, 3, unique)
    assert queue.repeat("r", "p", every=60, group=LANE, group_limit=3, unique=unique, replace=True) is False
    assert queue.repeat("r", "p", every=60, group=LANE, group_limit=4, unique=unique, replace=True) is True
    for field, spoilt in (("group_limit", "many"), ("unique", "for ever"), ("ttl", "nan")):
        wire.do("HSET", "repeat:r", field, spoilt)
        (repeat,) = queue.repeats()
        assert (repeat.group_limit is None) == (wire.read("repeat:r")["group_limit"] == "many")
        assert (repeat.unique is None) == (field != "group_limit")


def test_each_run_brings_the_limit_of_its_lane_and_the_life_of_its_key(queue: Queue, wire: Wire) -> None:
    queue.repeat("r", "p", every=60, first_in=0, group=LANE, group_limit=1, unique=Unique("k", "start", 5))
    (job_id,) = queue.fire_repeats()
    assert wire.row(job_id) == {
        "state": "pending", "attempts": "0", "payload": "p", "group": LANE, "group_limit": "1", "dedup": "k",
        "unique": "start", "ttl": "5000",
    }  # fmt: skip
    assert queue.lane(LANE).info().limit == 1
    (first,) = queue.claim(5)
    stand_at(wire, 1)
    assert len(queue.fire_repeats()) == 1
    assert len(queue.claim(5)) == 0
    queue.complete(first)
    assert len(queue.claim(5)) == 1


def test_a_limit_that_was_set_by_hand_is_not_overruled_by_a_run(queue: Queue, wire: Wire) -> None:
    queue.repeat("r", "p", every=60, first_in=0, group=LANE, group_limit=1)
    assert len(queue.fire_repeats()) == 1
    queue.lane(LANE).limit(5)
    stand_at(wire, 1)
    assert len(queue.fire_repeats()) == 1
    assert queue.lane(LANE).info().limit == 5


@pytest.mark.parametrize("limit", ["many", "0", "-1", "inf", "nan", ""])
def test_a_limit_that_is_none_stops_no_run(queue: Queue, wire: Wire, limit: str) -> None:
    queue.repeat("r", "p", every=60, first_in=0, group=LANE)
    wire.do("HSET", "repeat:r", "group_limit", limit)
    (job_id,) = queue.fire_repeats()
    assert "group_limit" not in wire.row(job_id)
    assert queue.lane(LANE).info().limit is None


@pytest.mark.parametrize(("at", "year"), [("inf", 9999), ("-inf", 1), (1e300, 9999), (-1e300, 1)])
def test_a_score_outside_of_all_years_is_listed(queue: Queue, wire: Wire, at: str | float, year: int) -> None:
    foreign(wire, at=at, every_ms=1, template="p")  # type: ignore[arg-type]
    (repeat,) = queue.repeats()
    assert repeat.next_run.year == year


def test_draining_keeps_the_repeats(queue: Queue, wire: Wire) -> None:
    queue.repeat("r", "p", every=60, first_in=0)
    queue.fire_repeats()
    assert queue.drain("pending", "lanes", "scheduled", "dead", "active") == 1
    assert [repeat.name for repeat in queue.repeats()] == ["r"]


# -- refused before a byte is sent --------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], type[EchoMQError], str]] = [
    ({}, InvalidArgument, "either every= or cron="),
    ({"every": 1, "cron": "* * * * *"}, InvalidArgument, "either every= or cron="),
    ({"every": 0}, InvalidArgument, "from 0.001 up"),
    ({"every": 0.0009}, InvalidArgument, "from 0.001 up"),
    ({"every": -1}, InvalidArgument, "every is a number of seconds"),
    ({"every": float("nan")}, InvalidArgument, "every is a number of seconds"),
    ({"every": float("inf")}, InvalidArgument, "every is a number of seconds"),
    ({"every": True}, InvalidArgument, "every is a number of seconds"),
    ({"every": "60"}, InvalidArgument, "every is a number of seconds"),
    ({"every": 1, "first_in": -1}, InvalidArgument, "first_in is a number of seconds"),
    ({"every": 1, "tz": "Europe/Athens"}, InvalidArgument, "tz= belongs to cron="),
    ({"cron": "* * * * *", "first_in": 1}, InvalidArgument, "first_in= belongs to every="),
    ({"cron": "* * * *"}, InvalidArgument, "Wrong number of fields"),
    ({"cron": 5}, InvalidArgument, "a text"),
    ({"cron": "* * * * *", "tz": "Europe/Atens"}, InvalidArgument, "did you mean 'Europe/Athens'"),
    ({"cron": "0 0 */5 2 MON#5"}, InvalidArgument, "does not occur"),
    ({"every": 1, "limit": 0}, InvalidArgument, "limit is a whole number from 1"),
    ({"every": 1, "limit": 1.5}, InvalidArgument, "limit"),
    ({"every": 1, "priority": "high"}, InvalidArgument, "priority"),
    ({"every": 1, "group": ""}, InvalidName, "group"),
    ({"every": 1, "group_limit": 2}, InvalidArgument, "give group="),
    ({"every": 1, "group": "g", "group_limit": 0}, InvalidArgument, "group_limit"),
    ({"every": 1, "group": "g", "group_limit": 1.5}, InvalidArgument, "group_limit"),
    ({"every": 1, "catch_up": "no"}, InvalidArgument, "catch_up"),
    ({"every": 1, "replace": 1}, InvalidArgument, "replace"),
    ({"every": 1, "payload": 5}, InvalidArgument, "payload"),
    ({"every": 1, "payload": "\ud800"}, InvalidArgument, "surrogate"),
    ({"every": 1, "name": ""}, InvalidName, "repeat name"),
    ({"every": 1, "name": "a b"}, InvalidName, "repeat name"),
    ({"every": 1, "name": "a" * 129}, InvalidName, "repeat name"),
    ({"every": 1, "name": "a:b"}, InvalidName, "repeat name"),
    ({"every": 1, "name": None}, InvalidName, "repeat name"),
]


@pytest.mark.parametrize(("arguments", "kind", "match"), REFUSED, ids=[str(case[0]) for case in REFUSED])
def test_what_is_wrong_is_refused_before_a_byte_is_sent(
    server: Any, queue_name: str, arguments: dict[str, Any], kind: type[EchoMQError], match: str
) -> None:
    with DroppingProxy(server.port) as proxy, connect(proxy.url) as connection:
        queue = Queue(queue_name, connection)
        before = proxy.counts.commands
        with pytest.raises(kind, match=match):
            queue.repeat(**{"name": "r", "payload": "p", **arguments})
        assert proxy.counts.commands == before


@pytest.mark.parametrize("limit", [0, -1, 1001, 1.5, None, True])
def test_a_wrong_number_to_look_at_is_refused(queue: Queue, limit: Any) -> None:
    with pytest.raises(InvalidArgument, match="limit"):
        queue.fire_repeats(limit)


def test_a_wrong_name_to_cancel_is_refused(queue: Queue) -> None:
    with pytest.raises(InvalidName, match="repeat name"):
        queue.cancel_repeat("a b")


# -- a reply that is lost -----------------------------------------------------------------------------------------


@pytest.fixture
def behind(proxy: DroppingProxy, standalone: Connection, queue_name: str) -> Any:
    """A queue behind a proxy, whose scripts are loaded, so that a fault meets the call."""
    with connect(proxy.url, timeout=10) as connection:
        queue = Queue(queue_name, connection)
        queue.repeat("warm", "p", every=60, first_in=0)
        queue.fire_repeats()
        queue.cancel_repeat("warm")
        queue.drain()
        yield queue
        queue.scripts.close()


def lose(proxy: DroppingProxy, what: str, script: str, times: int = 1) -> None:
    (proxy.drop_reply if what == "reply" else proxy.drop_request)(load_scripts()[script].sha.encode(), times)


@pytest.mark.parametrize("what", ["request", "reply"])
@pytest.mark.parametrize("limit", [None, 1])
def test_a_fire_whose_answer_was_lost_is_one_job_and_answers_its_id(
    behind: Queue, proxy: DroppingProxy, standalone: Connection, what: str, limit: int | None
) -> None:
    wire = Wire(standalone, behind.name)
    behind.repeat("r", "p", every=60, first_in=0, limit=limit)
    lose(proxy, what, "repeat_fire")
    fired = behind.fire_repeats()
    assert proxy.counts.dropped_replies + proxy.counts.dropped_requests == 1
    assert len(fired) == 1
    assert wire.ids("pending") == fired
    assert [repeat.fired for repeat in behind.repeats()] == ([] if limit else [1])


@pytest.mark.parametrize("what", ["request", "reply"])
def test_a_fire_that_failed_twice_says_so_and_the_occurrence_fires_once(
    behind: Queue, proxy: DroppingProxy, standalone: Connection, what: str
) -> None:
    wire = Wire(standalone, behind.name)
    behind.repeat("r", "p", every=60, first_in=0)
    lose(proxy, what, "repeat_fire", times=2)
    with pytest.raises(ServerUnavailable):
        behind.fire_repeats()
    behind.fire_repeats()
    assert len(wire.ids("pending")) == 1
    assert wire.read("repeat:r")["fired"] == "1"
    # The next occurrence is not taken for the one whose answer was lost.
    stand_at(wire, wire.now_ms())
    assert len(behind.fire_repeats()) == 1
    assert len(wire.ids("pending")) == 2


@pytest.mark.parametrize("what", ["request", "reply"])
@pytest.mark.parametrize("times", [{"every": 60}, {"cron": "0 9 * * *"}], ids=["every", "cron"])
def test_a_registration_whose_answer_was_lost_still_knows_that_it_was_its_own(
    behind: Queue, proxy: DroppingProxy, what: str, times: dict[str, Any]
) -> None:
    lose(proxy, what, "repeat_register")
    assert behind.repeat("r", "p", **times) is True
    assert behind.repeat("r", "p", **times) is False
    lose(proxy, what, "repeat_cancel")
    assert behind.cancel_repeat("r") is True
    assert behind.cancel_repeat("r") is False
    assert proxy.counts.dropped_replies + proxy.counts.dropped_requests == 2


def test_a_skip_whose_answer_was_lost_moves_once(behind: Queue, proxy: DroppingProxy, standalone: Connection) -> None:
    wire = Wire(standalone, behind.name)
    behind.repeat("r", "p", every=3600, catch_up=False)
    stood = wire.now_ms() - 5 * HOUR - HOUR // 2
    stand_at(wire, stood)
    behind.run("repeat_skip", "nobody", 1, 2, "")
    lose(proxy, "reply", "repeat_skip")
    assert behind.fire_repeats() == []
    assert proxy.counts.dropped_replies == 1
    assert score(wire) == stood + 6 * HOUR
