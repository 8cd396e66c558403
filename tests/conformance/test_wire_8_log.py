"""Wire §8, the retained log: entries as other runtimes write and read them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from conformance.scenarios import scenario
from wire.handwriting import Wire

from echomq_tasks.bus import Log, Record
from echomq_tasks.connection import Connection
from echomq_tasks.errors import WrongState
from echomq_tasks.identity import EPOCH_MS, minted_at_ms, snowflake

OTHER = "EVT000xY9Wvvce"
#: A record of another runtime; the id is the known answer of wire §1.
EVT, STREAM_ID, MS = "EVT000xY9Wvvcd", "1704117200000-1620567", 1_704_117_200_000


@pytest.fixture
def log(connection: Connection, queue_name: str) -> Log:
    return Log(queue_name, "audit", connection)


def write(wire: Wire, stream_id: str, *pairs: str | bytes) -> None:
    """Append an entry with a plain command."""
    wire.do("XADD", "stream:audit", stream_id, *pairs)


def raw(log: Log) -> list[tuple[str, list[str]]]:
    """The entries as they stand there: each its id, and names and values in turn."""
    found = log.connection.client.execute_command("XRANGE", log.key, "-", "+", NEVER_DECODE=True)
    return [
        (entry_id.decode(), [word.decode() for pair in dict(pairs).items() for word in pair])
        if isinstance(pairs, dict)
        else (entry_id.decode(), [word.decode() for word in pairs])
        for entry_id, pairs in found
    ]


# -- retained: the entry --------------------------------------------------------------------------------------------


@scenario(
    "8.01.1", "entry id `<unix ms>-<low 22 bits of the snowflake>`, field `id` = the EVT id, then flat pairs (§2)"
)
def test_an_appended_record_stands_under_its_snowflake_with_its_id_first(log: Log, wire: Wire) -> None:
    first, second = log.append_many([{"event": "paid", "order": "7 é"}, {"b": "", "": "x"}])
    assert raw(log) == [
        (f"{minted_at_ms(first)}-{snowflake(first) & 0x3FFFFF}", ["id", first, "event", "paid", "order", "7 é"]),
        (f"{minted_at_ms(second)}-{snowflake(second) & 0x3FFFFF}", ["id", second, "b", "", "", "x"]),
    ]
    assert abs(minted_at_ms(first) - wire.now_ms()) < 60_000


@scenario("8.01.2", "a record that another runtime wrote is read")
def test_a_record_of_another_runtime_is_read_by_its_id(log: Log, wire: Wire) -> None:
    write(wire, STREAM_ID, "id", EVT, "event", "completed", "job", "JOB0NgWEfAEJfs")
    assert list(log.read()) == [Record(EVT, STREAM_ID, MS / 1000, {"event": "completed", "job": "JOB0NgWEfAEJfs"})]
    assert log.length() == 1


@scenario("8.01.3", "what a hand wrote is read too")
@pytest.mark.parametrize(
    ("stream_id", "pairs", "record"),
    [
        (STREAM_ID, ("a", "b"), Record(EVT, STREAM_ID, MS / 1000, {"a": "b"})),
        (STREAM_ID, ("id", OTHER, "a", "b"), Record(EVT, STREAM_ID, MS / 1000, {"id": OTHER, "a": "b"})),
        (STREAM_ID, ("id", "7"), Record(EVT, STREAM_ID, MS / 1000, {"id": "7"})),
        ("5-1", ("id", "7"), Record(None, "5-1", 0.005, {"id": "7"})),
        (f"{MS}-4194304", ("a", "b"), Record(None, f"{MS}-4194304", MS / 1000, {"a": "b"})),
        (STREAM_ID, (b"\xff", b"a\xfe"), Record(EVT, STREAM_ID, MS / 1000, {"\\xff": "a\\xfe"})),
    ],
    ids=["no id", "the id of another entry", "an id of its own", "before 2024", "more than 22 bits", "no UTF-8"],
)  # fmt: skip
def test_an_entry_that_a_hand_wrote_is_a_record(
    log: Log, wire: Wire, stream_id: str, pairs: tuple[str | bytes, ...], record: Record
) -> None:
    write(wire, stream_id, *pairs)
    assert list(log.read()) == [record]
    with log.tail("head", follow=False) as tail:
        assert list(tail) == [record]


# -- retained: its order --------------------------------------------------------------------------------------------


@scenario("8.02.1", "stream order = id order = mint order")
def test_records_stand_in_the_order_of_their_ids_and_of_their_append(log: Log) -> None:
    ids = [log.append({"n": "0"}), *log.append_many([{"n": str(number)} for number in range(1, 1200)])]
    entries = raw(log)
    assert [pairs[1] for _, pairs in entries] == ids == sorted(set(ids))
    assert [pairs[3] for _, pairs in entries] == [str(number) for number in range(1200)]


# -- retained: many writers -----------------------------------------------------------------------------------------


@scenario("8.03.1", "an id that is not above the stream's top: the next id above it, re-branded; nothing is refused")
@pytest.mark.parametrize(
    ("top", "following", "evt"),
    [
        ("3000000000000-5", "3000000000000-6", "EVT6TWoPf2v422"),
        ("3000000000000-4194303", "3000000000001-0", "EVT6TWoPf3CfA0"),
        ("3000000000000-18446744073709551615", "3000000000001-0", "EVT6TWoPf3CfA0"),
    ],
    ids=["a clock ahead", "an exhausted millisecond", "more than 22 bits"],
)
def test_a_record_goes_above_the_top_whatever_that_is(log: Log, wire: Wire, top: str, following: str, evt: str) -> None:
    write(wire, top, "a", "b")
    assert log.append({"c": "d"}) == evt
    assert raw(log)[1:] == [(following, ["id", evt, "c", "d"])]
    assert snowflake(evt) == (int(following.partition("-")[0]) - EPOCH_MS) << 22 | int(following.partition("-")[2])


@scenario("8.03.2", "a top that is below the minted id leaves the minted id, also one before 2024")
def test_a_top_of_long_ago_changes_no_id(log: Log, wire: Wire) -> None:
    write(wire, "5-99999999999", "a", "b")
    evt = log.append({"c": "d"})
    assert abs(minted_at_ms(evt) - wire.now_ms()) < 60_000


@scenario("8.03.3", "the top is the highest id ever given, also when its entry is gone")
@pytest.mark.parametrize("gone", ["XTRIM", "XDEL"])
def test_a_log_that_was_emptied_gives_no_id_again(log: Log, wire: Wire, gone: str) -> None:
    write(wire, "3000000000000-5", "a", "b")
    wire.do(gone, "stream:audit", *(("MAXLEN", 0) if gone == "XTRIM" else ("3000000000000-5",)))
    assert log.length() == 0
    assert log.append({"c": "d"}) == "EVT6TWoPf2v422"


@scenario("8.03.4", "ids end in 2093: behind a stranger's later one there is none, and nothing is written")
def test_a_log_whose_ids_are_used_up_refuses(log: Log, wire: Wire) -> None:
    write(wire, "3903090455551-4194302", "a", "b")
    assert log.append({"c": "d"}) == "EVTAzL8n0Y58m7"
    before = wire.dumps()
    with pytest.raises(WrongState, match="2093"):
        log.append({"c": "d"})
    assert wire.dumps() == before


# -- retained: read -------------------------------------------------------------------------------------------------


@scenario("8.04.1", "read from an id, an offset or an instant")
def test_a_log_is_read_from_a_record_a_stream_id_or_an_instant(log: Log, wire: Wire) -> None:
    for low, ms in enumerate((MS, MS, MS + 1, MS + 2)):
        write(wire, f"{ms}-{1_620_567 + low}", "n", str(low))

    def read(**where: object) -> list[str]:
        return [record.fields["n"] for record in log.read(**where)]  # type: ignore[arg-type]

    assert read(start=EVT) == read(start=STREAM_ID) == read(start=MS / 1000) == ["0", "1", "2", "3"]
    assert read(after=EVT) == read(after=STREAM_ID) == ["1", "2", "3"]
    assert read(after=MS / 1000) == read(start=(MS + 1) / 1000) == read(start=MS / 1000 + 0.0005) == ["2", "3"]
    assert read(start=datetime.fromtimestamp((MS + 2) / 1000, UTC)) == ["3"]
    assert read(end=EVT) == ["0"]
    assert read(end=MS / 1000) == read(before=(MS + 1) / 1000) == read(before=f"{MS + 1}-0") == ["0", "1"]
    assert read(before=EVT) == read(before=MS / 1000) == read(start=(MS + 3) / 1000) == []
    assert read(after=EVT, before=f"{MS + 2}-{1_620_570}", reverse=True) == ["2", "1"]


# -- retained: trim -------------------------------------------------------------------------------------------------


@scenario("8.05.1", "trim by length or age")
def test_a_log_is_trimmed_exactly_by_length_or_age(log: Log, wire: Wire) -> None:
    now = wire.now_ms()
    for ms in (MS, now - 100_000, now - 50_000, now + 50_000):
        write(wire, f"{ms}-1", "ms", str(ms))
    assert log.trim(maxlen=3, exact=True) == 1
    assert log.trim(older_than=75, exact=True) == 1
    assert [record.fields["ms"] for record in log.read()] == [str(now - 50_000), str(now + 50_000)]


@scenario("8.05.2", "approximate by default")
def test_a_trim_drops_whole_nodes_only_by_default(log: Log) -> None:
    log.append_many([{"n": str(number)} for number in range(450)])
    removed = log.trim(maxlen=220)
    assert 0 < removed <= 230
    assert log.length() == 450 - removed
    assert log.trim(maxlen=220, exact=True) == 230 - removed
    assert next(log.read()).fields == {"n": "230"}
