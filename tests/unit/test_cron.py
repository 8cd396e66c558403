"""When repeats run: tables reasoned out by hand around changes of the clock, and rules that hold for any expression."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echomq_tasks.errors import InvalidArgument
from echomq_tasks.queue.cron import is_run, next_on_grid, next_run, next_runs, parse

HOUR = 3_600_000
ATHENS, NEW_YORK, LORD_HOWE = "Europe/Athens", "America/New_York", "Australia/Lord_Howe"
#: Changes around midnight, of half an hour, of a whole day left out, and twice a year for one month.
ODD = ["UTC", ATHENS, NEW_YORK, LORD_HOWE, "Africa/Cairo", "America/Havana", "Africa/Casablanca", "Pacific/Apia"]


def ms(text: str) -> int:
    """Unix ms of an instant as in ``2026-03-29T00:59Z``."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def runs(expression: str, tz: str, after: str, count: int) -> list[str]:
    """The next occurrences in the zone's own time, with its offset."""
    cron, at, found = parse(expression, tz), ms(after), []
    for _ in range(count):
        following = next_run(cron, at)
        assert following is not None
        at = following
        found.append(datetime.fromtimestamp(at / 1000, cron.zone).isoformat(timespec="minutes"))
    return found


# -- the clock is put forward or back -----------------------------------------------------------------------------
# Athens 2026: on March 29 03:00 becomes 04:00 (01:00Z); on October 25 04:00 becomes 03:00 (01:00Z).
# New York 2026: on March 8 02:00 becomes 03:00 (07:00Z); on November 1 02:00 becomes 01:00 (06:00Z).
# Lord Howe 2026: on October 4 02:00 becomes 02:30 (15:30Z the day before); on April 5 02:00 becomes 01:30 (15:00Z).

TABLE = [
    # A time of day that is skipped runs as the gap ends; the days around it as ever.
    ("30 3 * * *", ATHENS, "2026-03-27T22:00Z", "2026-03-28T03:30+02:00 2026-03-29T04:00+03:00 2026-03-30T03:30+03:00"),
    (
        "30 2 * * *",
        NEW_YORK,
        "2026-03-07T05:00Z",
        "2026-03-07T02:30-05:00 2026-03-08T03:00-04:00 2026-03-09T02:30-04:00",
    ),
    (
        "15 2 * * *",
        LORD_HOWE,
        "2026-10-02T14:00Z",
        "2026-10-03T02:15+10:30 2026-10-04T02:30+11:00 2026-10-05T02:15+11:00",
    ),
    # Several of them in one gap are one run.
    ("0,30 3 * * *", ATHENS, "2026-03-28T22:00Z", "2026-03-29T04:00+03:00 2026-03-30T03:00+03:00"),
    ("0 3,4 * * *", ATHENS, "2026-03-28T22:00Z", "2026-03-29T04:00+03:00 2026-03-30T03:00+03:00"),
    # A time of day that comes twice runs the first time only.
    ("30 3 * * *", ATHENS, "2026-10-24T21:00Z", "2026-10-25T03:30+03:00 2026-10-26T03:30+02:00"),
    ("30 1 * * *", NEW_YORK, "2026-11-01T04:00Z", "2026-11-01T01:30-04:00 2026-11-02T01:30-05:00"),
    ("45 1 * * *", LORD_HOWE, "2026-04-04T13:00Z", "2026-04-05T01:45+11:00 2026-04-06T01:45+10:30"),
    # Asked between the two passes, or within the second one, the answer is the next day.
    ("30 3 * * *", ATHENS, "2026-10-25T00:30Z", "2026-10-26T03:30+02:00"),
    ("30 3 * * *", ATHENS, "2026-10-25T01:10Z", "2026-10-26T03:30+02:00"),
    # The end of the doubled hour comes once.
    ("0 4 * * *", ATHENS, "2026-10-24T21:00Z", "2026-10-25T04:00+02:00 2026-10-26T04:00+02:00"),
    # Anything else goes by the wall: nothing in a gap, twice in what is doubled.
    ("30 * * * *", ATHENS, "2026-03-29T00:00Z", "2026-03-29T02:30+02:00 2026-03-29T04:30+03:00 2026-03-29T05:30+03:00"),
    (
        "*/30 2 * * *",
        NEW_YORK,
        "2026-03-07T05:00Z",
        "2026-03-07T02:00-05:00 2026-03-07T02:30-05:00 2026-03-09T02:00-04:00",
    ),
    (
        "10,40 * * * *",
        LORD_HOWE,
        "2026-10-03T15:00Z",
        "2026-10-04T01:40+10:30 2026-10-04T02:40+11:00 2026-10-04T03:10+11:00",
    ),
    (
        "*/10 3 * * *",
        LORD_HOWE,
        "2026-10-03T13:00Z",
        "2026-10-04T03:00+11:00 2026-10-04T03:10+11:00 2026-10-04T03:20+11:00",
    ),
    ("30 * * * *", ATHENS, "2026-10-25T00:00Z", "2026-10-25T03:30+03:00 2026-10-25T03:30+02:00 2026-10-25T04:30+02:00"),
    (
        "0 * * * *",
        NEW_YORK,
        "2026-11-01T04:30Z",
        "2026-11-01T01:00-04:00 2026-11-01T01:00-05:00 2026-11-01T02:00-05:00",
    ),
    (
        "45 * * * *",
        LORD_HOWE,
        "2026-04-04T14:00Z",
        "2026-04-05T01:45+11:00 2026-04-05T01:45+10:30 2026-04-05T02:45+10:30",
    ),
    (
        "*/20 2 * * *",
        LORD_HOWE,
        "2026-04-04T13:00Z",
        "2026-04-05T02:00+10:30 2026-04-05T02:20+10:30 2026-04-05T02:40+10:30",
    ),
    # Six fields too, even when they name a time of day.
    ("0 30 3 * * *", ATHENS, "2026-03-28T22:00Z", "2026-03-30T03:30+03:00 2026-03-31T03:30+03:00"),
    (
        "0 30 3 * * *",
        ATHENS,
        "2026-10-24T21:00Z",
        "2026-10-25T03:30+03:00 2026-10-25T03:30+02:00 2026-10-26T03:30+02:00",
    ),
    # Found from far off, with another change of the clock in between.
    ("0 0 3 25 10 *", ATHENS, "2026-01-01T00:00Z", "2026-10-25T03:00+03:00 2026-10-25T03:00+02:00"),
    # Leap days, and a century without one.
    ("0 12 29 2 *", "UTC", "2026-01-01T00:00Z", "2028-02-29T12:00+00:00 2032-02-29T12:00+00:00"),
    ("0 12 29 2 *", NEW_YORK, "2095-01-01T00:00Z", "2096-02-29T12:00-05:00 2104-02-29T12:00-05:00"),
    ("0 0 * 2 MON#5", "UTC", "2026-01-01T00:00Z", "2044-02-29T00:00+00:00 2072-02-29T00:00+00:00"),
    ("0 0 L 2 *", "UTC", "2027-01-01T00:00Z", "2027-02-28T00:00+00:00 2028-02-29T00:00+00:00"),
    # Days: with two of them fixed, either is enough; with a star in one, both must fit.
    (
        "0 9 13 * FRI",
        "UTC",
        "2026-11-10T00:00Z",
        "2026-11-13T09:00+00:00 2026-11-20T09:00+00:00 2026-11-27T09:00+00:00",
    ),
    ("0 9 */13 * FRI", "UTC", "2026-04-30T00:00Z", "2026-05-01T09:00+00:00 2026-08-14T09:00+00:00"),
]


@pytest.mark.parametrize(("expression", "tz", "after", "expected"), TABLE)
def test_the_occurrences_are_those_of_the_table(expression: str, tz: str, after: str, expected: str) -> None:
    wanted = expected.split()
    assert runs(expression, tz, after, len(wanted)) == wanted


def test_the_second_field_comes_first_when_there_are_six() -> None:
    cron, start = parse("*/20 * * * * *"), ms("2026-01-01T00:00Z")
    assert next_runs(cron, start) == (start + 20_000, 20_000)
    assert next_runs(cron, start + 40_000) == (start + 60_000, 20_000)


def test_the_distance_to_the_run_after_it_follows_the_clock_on_the_wall() -> None:
    cron = parse("0 9 * * *", ATHENS)
    assert next_runs(cron, ms("2026-03-27T12:00Z")) == (ms("2026-03-28T07:00Z"), 23 * HOUR)
    assert next_runs(cron, ms("2026-10-23T12:00Z")) == (ms("2026-10-24T06:00Z"), 25 * HOUR)


def test_an_occurrence_is_strictly_after_and_to_the_second() -> None:
    cron, noon = parse("0 12 * * *"), ms("2026-01-01T12:00Z")
    assert next_run(cron, noon - 1) == noon
    assert next_run(cron, noon - 999) == noon
    assert next_run(cron, noon) == noon + 24 * HOUR
    assert next_run(cron, noon + 1) == noon + 24 * HOUR


@pytest.mark.parametrize("off", [-1000, -1, 1, 999, 1000, 60_000, 0.5])
def test_what_is_beside_an_occurrence_is_none(off: float) -> None:
    cron, noon = parse("0 12 * * *", ATHENS), ms("2026-01-01T10:00Z")
    assert is_run(cron, noon)
    assert not is_run(cron, noon + off)


@pytest.mark.parametrize("score", [0, -1, -(2.0**53), 2.0**53, 1e308, float("inf"), float("-inf"), float("nan")])
def test_a_score_from_nowhere_is_no_occurrence(score: float) -> None:
    assert not is_run(parse("* * * * * *"), score)


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "Wrong number of fields"),
        ("* * * *", "Wrong number of fields"),
        ("* * * * * * *", "Wrong number of fields"),
        ("@daily", "Wrong number of fields"),
        ("60 * * * *", "Bad minute"),
        ("* 24 * * *", "Bad hour"),
        ("* * 0 * *", "Bad day-of-month"),
        ("* * 31 2 *", "Bad day-of-month"),
        ("* * * 13 *", "Bad month"),
        ("* * * * 8", "Bad day-of-week"),
        ("60 * * * * *", "Bad second"),
        ("5-1 * * * *", "Bad minute"),
        ("*/0 * * * *", "Bad minute"),
        ("1, * * * *", "Bad minute"),
        ("\x00 * * * *", "Bad minute"),
        ("٣ * * * *", "Bad minute"),
        ("9" * 900 + " * * * *", "Bad minute"),
    ],
)
def test_a_wrong_expression_is_refused_with_the_parser_s_reason(expression: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{reason}.*five fields.*six"):
        parse(expression)


@pytest.mark.parametrize("expression", [None, 5, b"* * * * *", "9" * 5000 + " * * * *", ["*"] * 5])
def test_what_is_no_text_or_too_long_is_refused(expression: object) -> None:
    with pytest.raises(InvalidArgument, match="a text of at most"):
        parse(expression)  # type: ignore[arg-type]


def test_an_expression_that_never_occurs_is_refused() -> None:
    # The fifth Monday of a February is its 29th, which is none of every fifth day.
    never = parse("0 0 */5 2 MON#5")
    assert next_run(never, ms("2026-01-01T00:00Z")) is None
    with pytest.raises(InvalidArgument, match=r"does not occur.*50 years"):
        next_runs(never, ms("2026-01-01T00:00Z"))


@pytest.mark.parametrize(
    ("tz", "hint"),
    [
        ("Europe/Atens", "did you mean 'Europe/Athens'"),
        ("europe/athens", "did you mean 'Europe/Athens'"),
        ("Amercia/New_York", "did you mean 'America/New_York'"),
        ("qqqqqqqqqqqq", "use a name as 'Europe/Athens'"),
        ("America", "no time zone 'America'"),
        ("../../etc/passwd", "no time zone"),
        ("/etc/localtime", "no time zone"),
        ("", "no time zone ''"),
        ("a\x00b", "no time zone"),
        ("\ud800", "no time zone"),
        ("x" * 5000, "no time zone"),
        (None, "no time zone None"),
        (2, "no time zone 2"),
    ],
)
def test_an_unknown_time_zone_is_refused_with_the_one_that_was_meant(tz: object, hint: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse("* * * * *", tz)  # type: ignore[arg-type]
    assert hint in str(refused.value)


def test_white_space_between_fields_does_not_make_another_expression() -> None:
    assert parse("  0\t9 *  * MON-FRI\n") == parse("0 9 * * MON-FRI")


# -- any expression, any zone, any instant ------------------------------------------------------------------------

instants = st.integers(ms("2006-01-01T00:00Z"), ms("2040-01-01T00:00Z"))
#: One instant in two is close to a change of some zone's clock.
CHANGES = [
    ms(text)
    for text in (
        "2026-03-29T01:00Z", "2026-10-25T01:00Z", "2026-03-08T07:00Z", "2026-11-01T06:00Z", "2026-10-03T15:30Z",
        "2026-04-04T15:00Z", "2026-04-23T22:00Z", "2026-10-29T21:00Z", "2026-03-08T05:00Z", "2011-12-30T10:00Z",
    )
]  # fmt: skip
near_changes = st.builds(lambda change, off: change + off, st.sampled_from(CHANGES), st.integers(-30 * HOUR, 3 * HOUR))


def field(least: int, most: int) -> st.SearchStrategy[str]:
    value = st.integers(least, most)
    return st.one_of(
        st.just("*"),
        value.map(str),
        st.integers(1, 31).map(lambda step: f"*/{step}"),
        st.lists(value, min_size=2, max_size=4).map(lambda values: ",".join(map(str, values))),
        st.tuples(value, value).map(lambda pair: f"{min(pair)}-{max(pair)}"),
    )


five = st.tuples(field(0, 59), field(0, 23), field(1, 28), field(1, 12), field(0, 7)).map(" ".join)
six = st.tuples(field(0, 59), five).map(" ".join)


@settings(deadline=None, max_examples=300)
@given(st.one_of(five, six), st.sampled_from(ODD), st.one_of(instants, near_changes))
def test_the_next_occurrence_is_later_never_skips_one_and_is_one(expression: str, tz: str, after: int) -> None:
    cron = parse(expression, tz)
    run = next_run(cron, after)
    if run is None:
        return
    assert run > after
    assert run % 1000 == 0
    assert is_run(cron, run)
    # From anywhere on the way it is the same one: nobody finds an earlier or a later one by looking at another time.
    for part in (1, 2, 3):
        assert next_run(cron, after + (run - after) * part // 4) == run
    assert next_run(cron, run - 1) == run


@settings(deadline=None, max_examples=150)
@given(
    st.one_of(st.just("*"), st.integers(1, 30).map(lambda step: f"*/{step}")),
    st.sets(st.integers(0, 23), min_size=1),
    st.sampled_from(ODD),
    near_changes,
)
def test_on_the_wall_an_occurrence_is_the_first_minute_that_reads_so(
    minutes: str, hours: set[int], tz: str, after: int
) -> None:
    step = int(minutes[2:] or 1)
    zone = ZoneInfo(tz)
    instant = datetime.fromtimestamp(after // 60_000 * 60, UTC)
    while True:
        instant += timedelta(minutes=1)
        wall = instant.astimezone(zone)
        if wall.minute % step == 0 and wall.hour in hours:
            break
    cron = parse(f"{minutes} {','.join(map(str, hours))} * * *", tz)
    assert next_run(cron, after) == round(instant.timestamp() * 1000)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 59), st.integers(0, 23), st.sampled_from([ATHENS, NEW_YORK, LORD_HOWE]), near_changes)
def test_a_time_of_day_runs_once_on_each_date(minute: int, hour: int, tz: str, after: int) -> None:
    cron = parse(f"{minute} {hour} * * *", tz)
    dates = []
    for _ in range(4):
        run = next_run(cron, after)
        assert run is not None
        after = run
        dates.append(datetime.fromtimestamp(run / 1000, cron.zone).date())
    assert dates == [dates[0] + timedelta(days=days) for days in range(4)]


@given(st.integers(-(2**52), 2**52), st.integers(1, 2**45), st.integers(0, 2**50))
def test_an_interval_stays_on_its_grid(run: int, every: int, late: int) -> None:
    now = run + late
    following = next_on_grid(run, every, now)
    assert (following - run) % every == 0
    assert following - every <= now < following


def test_an_expression_that_only_names_skipped_hours_never_occurs_and_says_so() -> None:
    # The second Sunday of March is when New York skips the hour after two.
    cron = parse("*/30 2 * 3 SUN#2", NEW_YORK)
    assert next_run(cron, 1_795_000_000_000) is None
    with pytest.raises(InvalidArgument, match="does not occur"):
        next_runs(cron, 1_795_000_000_000)
