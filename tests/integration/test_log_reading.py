"""Reading a log page by page, from both ends, while it is written and trimmed; and its retention."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from support.counting import commands
from support.proxy import DroppingProxy
from support.servers import ServerProcess
from wire.handwriting import Wire

from echomq_tasks.bus import JsonCodec, Log, Retention, keep_retention
from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import ConfigError, InvalidArgument, InvalidId, ServerUnavailable, UndecodableRecord
from echomq_tasks.queue import Queue


@pytest.fixture
def log(connection: Connection, queue_name: str) -> Log:
    return Log(queue_name, "log", connection)


@pytest.fixture
def wire(connection: Connection, queue_name: str) -> Wire:
    return Wire(connection, queue_name)


def filled(log: Log, records: int) -> list[str]:
    return log.append_many([{"n": str(each)} for each in range(records)])


def ids(records: Iterator[Any]) -> list[str]:
    return [record.id for record in records]


def test_a_log_that_is_not_there_reads_as_empty(log: Log) -> None:
    assert list(log.read()) == list(log.read(reverse=True)) == []
    assert (log.length(), log.trim(maxlen=0, exact=True), log.retention()) == (0, 0, None)
    assert log.info() == (0, 0, None, "0-0")
    assert not log.connection.client.exists(log.key)


def test_all_of_a_log_is_read_over_many_pages_from_both_ends(log: Log) -> None:
    written = filled(log, 2500)
    assert ids(log.read()) == written
    assert ids(log.read(reverse=True)) == written[::-1]
    assert ids(log.read(start=written[300], end=written[2100])) == written[300:2101]
    assert ids(log.read(after=written[300], before=written[2100], reverse=True)) == written[301:2100][::-1]
    assert ids(log.read(start=written[300], end=written[299])) == []
    assert ids(log.read(after=written[300], before=written[300])) == []


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 450, 9999])
def test_no_more_is_read_than_asked_for(log: Log, count: int) -> None:
    written = filled(log, 450)
    assert ids(log.read(count=count)) == written[:count]
    assert ids(log.read(count=count, reverse=True)) == written[::-1][:count]


def test_the_ends_of_the_range_of_ids_are_places_too(log: Log, wire: Wire) -> None:
    top = f"{2**64 - 1}-{2**64 - 1}"
    wire.do("XADD", "stream:log", "0-1", "a", "first")
    wire.do("XADD", "stream:log", top, "a", "last")
    assert [record.stream_id for record in log.read()] == ["0-1", top]
    assert [record.stream_id for record in log.read(start=top)] == [top]
    assert list(log.read(after=top)) == list(log.read(before="0-1")) == list(log.read(before="0-0")) == []
    assert [record.stream_id for record in log.read(start="0-0", end="0-1", reverse=True)] == ["0-1"]


def test_large_records_come_in_small_pages(standalone: Connection, queue_name: str) -> None:
    log = Log(queue_name, "log", standalone)
    log.append_many([{"data": "x" * 200_000, "n": str(each)} for each in range(130)])
    before = commands(standalone)["xrange"]
    assert [record.fields["n"] for record in log.read()] == [str(each) for each in range(130)]
    # The first page is a hundred; behind it, so many as a megabyte holds, and an empty one.
    assert commands(standalone)["xrange"] - before == 1 + 6 + 1


def test_a_reader_that_stops_fetches_no_further_page(standalone: Connection, queue_name: str) -> None:
    log = Log(queue_name, "log", standalone)
    filled(log, 1000)
    before = commands(standalone)["xrange"]
    assert len(list(islice(log.read(), 100))) == 100
    assert commands(standalone)["xrange"] - before == 1


def test_a_log_that_is_written_and_trimmed_while_it_is_read_repeats_nothing(log: Log) -> None:
    written = filled(log, 400)
    reading = log.read()
    found = ids(islice(reading, 100))
    log.trim(maxlen=250, exact=True)
    late = filled(log, 5)
    assert found + ids(reading) == written[:100] + written[150:] + late


def test_the_info_tells_what_was_there(log: Log) -> None:
    filled(log, 10)
    log.trim(maxlen=4, exact=True)
    kept = [record.stream_id for record in log.read()]
    assert log.info() == (4, 10, kept[0], kept[-1])
    log.trim(maxlen=0, exact=True)
    assert log.info() == (0, 10, None, kept[-1])


def test_a_record_that_the_codec_cannot_read_stops_no_reader(connection: Connection, queue_name: str) -> None:
    log = Log(queue_name, "log", connection, JsonCodec())
    first = log.append([1])
    connection.client.xadd(log.key, {"json": b"\xff{"})
    last = log.append([2])
    records = list(log.read())
    assert [records[0].id, records[2].id] == [first, last]
    assert [records[0].value, records[2].value] == [[1], [2]]
    with pytest.raises(UndecodableRecord):
        _ = records[1].value


@pytest.mark.parametrize(
    "where",
    [
        {"start": "yesterday"}, {"end": "JOB0KHTOWnGLuC"}, {"after": "EVTzzzzzzzzzzz"}, {"before": -1}, {"count": -1},
        {"count": 1.5}, {"start": "0-1", "after": "0-1"}, {"end": "0-1", "before": "0-1"},
    ],
)  # fmt: skip
def test_a_malformed_read_is_refused_before_the_first_record_is_asked_for(log: Log, where: dict[str, Any]) -> None:
    with pytest.raises((InvalidArgument, InvalidId)):
        log.read(**where)


def test_a_read_goes_on_over_a_dropped_connection(proxy: DroppingProxy, queue_name: str) -> None:
    with connect(proxy.url) as connection:
        log = Log(queue_name, "log", connection)
        written = filled(log, 700)
        for fault in (proxy.drop_reply, proxy.drop_request):
            fault(b"XRANGE")
            assert ids(log.read()) == written
        proxy.drop_reply(b"XRANGE", times=2)
        with pytest.raises(ServerUnavailable):
            list(log.read())


def test_a_user_without_the_rights_is_told_so(own_server: ServerProcess, queue_name: str) -> None:
    own_server.client().acl_setuser(
        "blind", enabled=True, passwords=["+p"], keys=["*"], channels=["*"], commands=["+@all", "-xrange", "-xadd"]
    )
    with connect(own_server.url, username="blind", password="p") as connection:
        log = Log(queue_name, "log", connection)
        with pytest.raises(ConfigError, match="ACL"):
            list(log.read())
        with pytest.raises(ConfigError, match="log_append"):
            log.append({"a": "b"})


# -- retention ------------------------------------------------------------------------------------------------------


def test_a_retention_is_text_in_a_hash_until_it_is_removed(log: Log, wire: Wire) -> None:
    log.retain(maxlen=1000, older_than=86_400)
    Log(log.queue, "other", log.connection).retain(older_than=0.5)
    assert wire.everything() == {
        "retention": {"log": "maxlen=1000 older_than_ms=86400000", "other": "older_than_ms=500"}
    }
    assert log.retention() == Retention(1000, 86_400.0)
    log.retain(maxlen=5)
    assert log.retention() == Retention(5)
    log.retain()
    assert log.retention() is None
    assert wire.everything() == {"retention": {"other": "older_than_ms=500"}}


@pytest.mark.parametrize("bounds", [{"maxlen": -1}, {"maxlen": "9"}, {"older_than": 0}, {"older_than": -1}])
def test_a_retention_out_of_range_is_refused(log: Log, wire: Wire, bounds: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        log.retain(**bounds)
    with pytest.raises(InvalidArgument):
        log.trim(**bounds)
    assert wire.everything() == {}


def test_a_trim_that_keeps_everything_is_refused(log: Log) -> None:
    with pytest.raises(InvalidArgument, match="maxlen=1000"):
        log.trim()


def test_writers_keep_a_log_within_its_retention(log: Log) -> None:
    log.retain(maxlen=300)
    for _ in range(10):
        filled(log, 200)
        assert 300 <= log.length() <= 400 or log.info().appended == 200
    log.retain()
    filled(log, 500)
    assert log.length() >= 800


def test_whoever_tends_the_queue_keeps_every_log_within_its_retention(log: Log, wire: Wire) -> None:
    now = wire.now_ms()
    logs = [Log(log.queue, name, log.connection) for name in ("by-length", "by-age", "by-both", "kept")]
    for each in logs:
        for number in range(250):
            wire.do(
                "XADD", f"stream:{each.name}", f"{now - (200_000 if number < 130 else 50_000)}-{number}", "n", number
            )
    logs[0].retain(maxlen=120)
    logs[1].retain(older_than=100)
    logs[2].retain(maxlen=240, older_than=100)
    wire.do("SET", "stream:spoilt", "no log")
    wire.do("HSET", "retention", "spoilt", "maxlen=1", "a:b", "maxlen=1", "kept", "no rule", "absent", "maxlen=5")
    removed = keep_retention(log.scripts, log.base)
    # Whole nodes of a hundred.
    assert [each.length() for each in logs] == [150, 150, 150, 250]
    assert removed == 300
    assert keep_retention(log.scripts, log.base) == 0
    assert wire.do("GET", "stream:spoilt") == "no log"


def test_a_long_log_is_trimmed_in_steps_and_to_its_end(standalone: Connection, queue_name: str) -> None:
    log = Log(queue_name, "log", standalone)
    filled(log, 25_000)
    before = commands(standalone)["xtrim"]
    assert log.trim(maxlen=50, exact=True) == 24_950
    # Ten thousand, ten thousand, the rest but for a part of a node, nothing, and that part.
    assert commands(standalone)["xtrim"] - before == 5
    assert log.length() == 50


def test_an_old_log_is_trimmed_by_age_in_steps_and_to_its_end(standalone: Connection, queue_name: str) -> None:
    log = Log(queue_name, "log", standalone)
    pipeline = standalone.client.pipeline(transaction=False)
    old = int(time.time() * 1000) - 3_600_000
    for number in range(12_345):
        pipeline.xadd(log.key, {"n": number}, id=f"{old}-{number}")
    pipeline.execute()
    (kept,) = filled(log, 1)
    assert log.trim(older_than=60, exact=True) == 12_345
    assert ids(log.read()) == [kept]


def test_a_destroyed_queue_leaves_no_log_and_no_retention(log: Log, wire: Wire) -> None:
    filled(log, 10)
    log.retain(maxlen=5)
    queue = Queue(log.queue, log.connection)
    queue.pause()
    queue.obliterate()
    assert list(wire.keys()) == []
