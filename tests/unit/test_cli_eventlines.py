"""Events as lines: whatever they say, they are one printable line that fits and stands below the one before."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq_tasks.bus import Gap
from echomq_tasks.cli.eventlines import Lines, json_line, wants_colours
from echomq_tasks.cli.terminal import width
from echomq_tasks.events import EVENTS, QUEUE_EVENTS, WORKER_EVENTS, Event

NOON = datetime.now().replace(hour=12, minute=0, second=1, microsecond=5000)
NAMES = st.sampled_from(sorted(EVENTS))
FIELDS = st.dictionaries(
    st.sampled_from(["at", "job", "actor", "attempt", "duration_ms", "delay_ms", "error", "message", "progress", "x"]),
    st.text() | st.integers(-(10**20), 10**20).map(str) | st.floats().map(str),
)


def event(name: str, queue: str = "mail", **more: str) -> Event:
    at = {"at": f"{NOON.timestamp() * 1000:.0f}"}
    return Event.of({"event": name, **at, **more}, queue)


def shown(item: Event | Gap, most: int | None = None, *, coloured: bool = False) -> str:
    (line,) = Lines(coloured=coloured).lines(item, most)
    return line


def plain(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


@given(NAMES | st.text(min_size=1), FIELDS, st.integers(1, 200) | st.none())
def test_whatever_an_event_says_it_is_one_printable_line_that_fits(
    name: str, fields: dict[str, str], most: int | None
) -> None:
    each = Event.of({"event": name, **fields}, "mail")
    coloured = list(Lines(coloured=True).lines(each, most))
    lines = list(Lines(coloured=False).lines(each, most))
    # The first of two is the day.
    assert 1 <= len(lines) <= 2
    for line in lines:
        assert line.isprintable()
        assert most is None or width(line) <= most
    # Without a time, each has that of its printing.
    assert each.at is None or [plain(line) for line in coloured] == lines
    assert json.loads(json_line(each)) == each.fields()
    assert json_line(each).isascii()


@pytest.mark.parametrize("most", [None, 80, 120])
def test_columns_stand_below_each_other(most: int | None) -> None:
    lines = Lines(coloured=False)
    events = (
        event("started", "a-rather-long-name", actor="build_the_quarterly_report", job="JOB0KHTOWnGLuC", attempt="1"),
        event("worker_stopping", worker="host:1"),
        event("completed", actor="send", job="JOB0KHTOWnGLuD", attempt="12", duration_ms="1234"),
        event("failed", "日本", actor="send", job="JOB0KHTOWnGLuE", attempt="1", error="E", message="why\nmore"),
    )
    made = [line for each in events for line in lines.lines(each, most)]

    def place(line: str, text: str) -> int:
        return width(line[: line.index(text)])

    assert {place(made[number], "JOB") for number in (0, 2, 3)} == {place(made[0], "JOB")}
    assert made[2].endswith(" #12 1.2s" if most == 80 else "  #12  1.2s")
    assert made[3].endswith("E: why")
    # Behind a name that is too long, the columns are found again.
    assert place(made[1], "worker=") == place(made[3], "E: why")


def test_a_name_that_is_too_long_for_the_terminal_is_cut_and_the_error_has_room() -> None:
    line = shown(
        event("retried", "reports.nightly.europe", actor="build_the_quarterly_report", job="JOB0KHTOWnGLuC",
              attempt="3", delay_ms="5000", error="TimeoutError", message="no answer"), 80,
    )  # fmt: skip
    assert "report… build_th… JOB0KHTOWnGLuC #3 in 5s TimeoutError:" in line
    assert "build_the_quarterly_report" in shown(event("started", actor="build_the_quarterly_report"), 120)


@pytest.mark.parametrize("most", [None, 120])
def test_what_has_room_has_milliseconds(most: int | None) -> None:
    line = shown(event("started"), most)
    assert line.startswith("12:00:01.005 " if most else f"{NOON:%Y-%m-%d} 12:00:01.005 ")
    assert shown(event("started"), 80).startswith("12:00:01 ")


def test_another_day_is_told_ahead_of_its_first_event() -> None:
    lines = Lines(coloured=False)
    old = NOON - timedelta(days=3)
    at = f"{old.timestamp() * 1000:.0f}"
    first = list(lines.lines(event("started", at=at), 80))
    assert first[0] == f"--- {old:%Y-%m-%d} ---"
    assert len(first) == 2
    assert len(list(lines.lines(event("completed", at=at), 80))) == 1
    assert next(iter(lines.lines(event("started"), 80))) == f"--- {NOON:%Y-%m-%d} ---"
    assert len(list(Lines(coloured=False).lines(event("started", at=at), None))) == 1


def test_events_are_coloured_by_what_they_say() -> None:
    def colour(name: str) -> str | None:
        matched = re.search(rf"\x1b\[(\d+)m{name}\x1b\[0m", shown(event(name), 80, coloured=True))
        return matched and matched[1]

    assert colour("failed") == "31"
    assert {colour(name) for name in ("retried", "stalled", "lease_lost")} == {"33"}
    assert colour("completed") == "32"
    assert {colour(name) for name in (*WORKER_EVENTS, *QUEUE_EVENTS)} == {"36"}
    assert colour("started") is None


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_are_for_terminals_that_have_them(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert not wants_colours()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert wants_colours()
    monkeypatch.setenv("NO_COLOR", "")
    assert wants_colours()
    monkeypatch.setenv(name, value)
    assert not wants_colours()


def test_a_gap_says_why_since_when_and_of_what() -> None:
    since = NOON.timestamp()
    line = shown(Gap("reconnected", since, ("mail",), ("report.*",)), 120)
    assert line.split(maxsplit=2)[1:] == ["gap", "reconnected: events since 12:00:01 may be missing of mail, report.*"]
    assert shown(Gap("overflow", None, ("mail",), lost=1200)).endswith("overflow: 1,200 events dropped of mail")
    assert "of all queues" in shown(Gap("moved", since, ("mail",), ("*",)))
    day = NOON - timedelta(days=2)
    assert f" since {day:%Y-%m-%d} 12:00:01 " in shown(Gap("trimmed", day.timestamp(), ("mail",)))


def test_a_gap_as_json_is_flat_strings() -> None:
    before = time.time()
    gap = json.loads(json_line(Gap("overflow", 1700000000.5, ("a", "b"), ("c.*",), 3)))
    assert int(gap.pop("at")) >= int(before * 1000)
    assert gap == {
        "event": "gap", "reason": "overflow", "since": "1700000000500", "queues": "a,b", "patterns": "c.*", "lost": "3",
    }  # fmt: skip
    assert json.loads(json_line(Gap("moved"))).keys() == {"event", "at", "reason"}


def test_an_event_without_a_time_has_that_of_its_record_or_now() -> None:
    record = Event("paid", "mail", id="EVT0KHTOWnGLuC")
    assert shown(record).startswith("20")
    assert "-" * 8 not in shown(Event("paid", "mail"), 80)
    assert shown(event("paid", at="9e15"), 80).startswith("-------- paid")
