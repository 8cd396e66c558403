"""The command's tables, durations and gates, without a server."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq_tasks.cli import arguments, terminal
from echomq_tasks.cli.metrics import escape_label


@given(st.text())
def test_what_is_cleaned_is_one_printable_line(text: str) -> None:
    cleaned = terminal.clean(text)
    assert cleaned.isprintable()
    assert len(cleaned.splitlines()) <= 1
    assert terminal.clean(cleaned) == cleaned
    if text.isprintable():
        assert cleaned == text


@given(st.text())
def test_lines_that_are_cleaned_are_printable_each(text: str) -> None:
    assert all(line.isprintable() for line in terminal.clean_lines(text).split("\n"))


@given(st.text(alphabet=st.characters(codec="utf-8")).map(terminal.clean), st.integers(1, 40))
def test_a_shortened_text_fits_and_says_that_it_was_cut(text: str, most: int) -> None:
    short = terminal.shorten(text, most)
    assert terminal.width(short) <= most
    assert short == text or (short.endswith("…") and text.startswith(short[:-1]))


@given(st.text(alphabet=st.characters(codec="utf-8")).map(terminal.clean), st.integers(1, 40))
def test_a_text_whose_end_is_kept_is_cut_in_the_middle(text: str, most: int) -> None:
    short = terminal.shorten(text, most, keep_end=True)
    assert terminal.width(short) <= most
    assert short == text or any(
        each == "…" and text.startswith(short[:place]) and text.endswith(short[place + 1 :])
        for place, each in enumerate(short)
    )


def test_names_that_begin_alike_are_told_apart(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "columns", lambda: 20)
    rows = [("myapp.catalogue.prices.one_of", "99.9%"), ("myapp.catalogue.prices.all_of", None), ("b", "0.0%")]
    terminal.print_table(("table", "rate"), rows, flexible=(0,), keep_ends=True)
    assert capsys.readouterr().out.splitlines() == [
        "table           rate", "myap…s.one_of  99.9%", "myap…s.all_of      -", "b               0.0%",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.25, "250ms"), (1, "1s"), (90, "1m 30s"), (600, "10m"), (3601, "1h"), (86_400, "1d"),
     (90_000, "1d 1h"), (86_400 * 400 + 60, "400d"), (59.9, "59s"), (-1, "0ms")],
)  # fmt: skip
def test_a_duration_is_shown_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert terminal.for_how_long(seconds) == text


def test_a_table_puts_numbers_on_the_right_and_dashes_for_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("日本", 1234, None, True), ("b", 5, 7, False)]
    assert terminal.print_table(("name", "count", "limit", "on"), rows, flexible=()) == 2
    assert capsys.readouterr().out.splitlines() == [
        "name  count  limit  on", "日本  1,234      -  yes", "b         5      7  no",
    ]  # fmt: skip


def test_a_table_is_cut_on_a_terminal_only(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("a" * 60, "b" * 60)] * 300
    terminal.print_table(("x", "y"), iter(rows), flexible=(1, 0))
    assert {len(line) for line in capsys.readouterr().out.splitlines()[1:]} == {122}
    monkeypatch.setattr(terminal, "columns", lambda: 80)
    assert terminal.print_table(("x", "y"), iter(rows), flexible=(1, 0)) == 300
    lines = capsys.readouterr().out.splitlines()
    assert {len(line) for line in lines[1:]} == {80}
    assert lines[1].startswith("a" * 60 + "  b")


def test_a_list_of_json_is_json_with_any_number_of_values(capsys: pytest.CaptureFixture[str]) -> None:
    for values in ([], [1], [{"a": [1]}, None, "x"]):
        terminal.print_json_list(iter(values))
        assert json.loads(capsys.readouterr().out) == values


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("0", 0), ("1.5", 1.5), ("10m", 600), ("2h", 7200), ("7d", 604_800), ("0.5d", 43_200), ("3s", 3)],
)
def test_durations_that_are_understood(text: str, seconds: float) -> None:
    assert arguments.duration(text) == seconds


@pytest.mark.parametrize(
    ("gate", "text"),
    [
        *((arguments.duration, text) for text in ("", "m", "-1", "1w", "1 m", "1h30m", "nan", "1e5", "٣", "9" * 400)),
        *((arguments.window, text) for text in ("0", "0.0001", "soon")),
        *((arguments.ceiling, text) for text in ("0", "-1", "1_000", " 1", "٣", "", "9" * 30, str(2**53 + 1))),
        *((arguments.weight, text) for text in ("0", "1001", "x")),
        *((arguments.count, text) for text in ("0", "none", "1.0")),
        *((arguments.queue_name, text) for text in ("", "a b", "emq", "x" * 129, "{q}", "a\n")),
        *((arguments.job_id, text) for text in ("", "JOB", "EVT0KHTOWnGLuC", "job0KHTOWnGLuC", "JOB0KHTOWnGLuC\n")),
        *((arguments.repeat_name, text) for text in ("", "a b", "x" * 129)),
        *((arguments.lane_name, text) for text in ("", "\udc80")),
        (arguments.text_to_find, ""),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_with_a_reason(gate: Callable[[str], object], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        gate(text)
    assert str(refused.value)


def test_the_gates_let_good_words_through() -> None:
    assert arguments.ceiling("none") is arguments.weight("None") is None
    assert (arguments.ceiling("12"), arguments.weight("1000"), arguments.count("3")) == (12, 1000, 3)
    assert arguments.queue_name("mail.out-1_x") == "mail.out-1_x"
    assert arguments.job_id("JOB0KHTOWnGLuC") == "JOB0KHTOWnGLuC"
    assert arguments.lane_name("Zoë, Ltd.") == "Zoë, Ltd."
    assert arguments.repeat_name("nightly") == "nightly"


@given(st.text())
def test_a_label_is_escaped_so_that_it_can_be_read_back(value: str) -> None:
    escaped = escape_label(value)
    assert "\n" not in escaped
    read, rest = "", iter(escaped)
    for each in rest:
        if each == "\\":
            read += {"\\": "\\", "n": "\n", '"': '"'}[next(rest)]
        else:
            assert each != '"'
            read += each
    assert read == value
