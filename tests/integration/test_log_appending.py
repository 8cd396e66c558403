"""Appending to a log: many writers, none refused, nothing lost or doubled, each one's order kept."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.children import Child
from support.eventually import eventually
from support.proxy import DroppingProxy
from support.servers import ServerProcess
from wire.handwriting import Wire

from echomq_tasks.bus import JsonCodec, Log
from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import InvalidArgument, InvalidName, ServerOutOfMemory, ServerUnavailable, WrongState
from echomq_tasks.identity import Mint, brand
from echomq_tasks.scripts import Scripts, load_scripts

WRITERS, RECORDS = 8, 10_000


def entries(log: Log) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """All entries as they stand there."""
    found: list[tuple[bytes, dict[bytes, bytes]]] = log.connection.client.xrange(log.key)
    return found


def check(log: Log, written: dict[str, list[str]]) -> None:
    """The log holds what the writers wrote, under the ids that they were told, and each one's in its order."""
    found = entries(log)
    places = [tuple(map(int, entry_id.split(b"-"))) for entry_id, _ in found]
    assert places == sorted(set(places))
    ids: dict[str, list[str]] = {writer: [] for writer in written}
    numbers: dict[str, list[int]] = {writer: [] for writer in written}
    for (ms, low), (_, fields) in zip(places, found, strict=True):
        evt = fields[b"id"].decode()
        assert evt == brand("EVT", (ms - 1_704_067_200_000) << 22 | low)
        ids[fields[b"writer"].decode()].append(evt)
        numbers[fields[b"writer"].decode()].append(int(fields[b"n"]))
    assert ids == written
    assert all(found == list(range(len(found))) for found in numbers.values())


def write(url: str, queue: str, writer: str, records: int, clock_ahead: float = 0.0) -> list[str]:
    """A writer with a connection, a node id and a clock of its own."""
    with connect(url) as connection:
        scripts = Scripts.of(connection)
        scripts.mint = Mint(lambda: int(writer) % 1024, clock=lambda: time.time() + clock_ahead)
        log, sizes = Log(queue, "log", connection), random.Random(writer)
        ids: list[str] = []
        while len(ids) < records:
            size = min(sizes.choice((1, 2, 50, 500, 700)), records - len(ids))
            ids += log.append_many([{"writer": writer, "n": str(len(ids) + each)} for each in range(size)])
        return ids


@pytest.mark.slow
def test_eight_processes_append_ten_thousand_each(
    standalone: Connection, server: ServerProcess, queue_name: str
) -> None:
    children = {
        # One clock is an hour ahead, and one is an hour behind.
        str(writer): Child(
            lambda writer=writer: write(
                server.url, queue_name, str(writer), RECORDS, {0: 3600, 1: -3600}.get(writer, 0.0)
            )
        )
        for writer in range(WRITERS)
    }
    written = {writer: child.result(60) for writer, child in children.items()}
    log = Log(queue_name, "log", standalone)
    assert log.length() == WRITERS * RECORDS
    check(log, written)


def test_threads_that_share_a_log_append_on_every_engine(connection: Connection, queue_name: str) -> None:
    log = Log(queue_name, "log", connection)

    def run(writer: str) -> list[str]:
        ids: list[str] = []
        for size in (1, 30, 2, 501, 1, 100):
            ids += log.append_many([{"writer": writer, "n": str(len(ids) + each)} for each in range(size)])
        return ids

    writers = [str(each) for each in range(4)]
    with ThreadPoolExecutor(4) as pool:
        written = dict(zip(writers, pool.map(run, writers), strict=True))
    check(log, written)


def test_two_writers_whose_mints_give_the_same_ids_lose_nothing(connection: Connection, queue_name: str) -> None:
    log = Log(queue_name, "log", connection)
    log.scripts.mint = Mint(lambda: 0, clock=lambda: 1_764_440_000.0)
    first = log.append_many([{"writer": "a", "n": str(each)} for each in range(20)])
    log.scripts.mint = Mint(lambda: 0, clock=lambda: 1_764_440_000.0)
    second = log.append_many([{"writer": "b", "n": str(each)} for each in range(20)])
    check(log, {"a": first, "b": second})


def test_a_mint_at_the_end_of_its_millisecond_goes_on_in_the_next(connection: Connection, queue_name: str) -> None:
    log = Log(queue_name, "log", connection)
    ms = 1_764_440_000_000
    connection.client.xadd(log.key, {"writer": "stranger"}, id=f"{ms}-{2**22 - 3}")
    log.scripts.mint = Mint(lambda: 0, clock=lambda: ms / 1000)
    log.append_many([{"writer": "a", "n": str(each)} for each in range(5)])
    assert [entry_id.decode() for entry_id, _ in entries(log)[1:]] == [
        f"{ms}-{2**22 - 2}", f"{ms}-{2**22 - 1}", f"{ms + 1}-0", f"{ms + 1}-1", f"{ms + 1}-2",
    ]  # fmt: skip


def test_records_larger_than_a_call_come_in_whole_and_in_order(connection: Connection, queue_name: str) -> None:
    log = Log(queue_name, "log", connection)
    sizes = [1, 700_000, 700_000, 3_000_000, 5, 1_048_576, 2]
    log.append_many([{"data": "é" * (size // 2), "n": str(size)} for size in sizes])
    assert [record.fields["n"] for record in log.read()] == [str(size) for size in sizes]
    assert [len(record.fields["data"]) for record in log.read()] == [size // 2 for size in sizes]


def test_a_record_may_have_a_thousand_fields(connection: Connection, queue_name: str) -> None:
    log = Log(queue_name, "log", connection)
    fields = {f"name {number}": f"value {number}" for number in range(1000)}
    log.append(fields)
    (record,) = log.read()
    assert record.fields == fields


def test_values_go_through_the_codec(connection: Connection, queue_name: str) -> None:
    log = Log(queue_name, "log", connection, JsonCodec())
    values = [{"order": 7, "lines": [1.5, None, "é\n"]}, [], "text", None]
    ids = log.append_many(values)
    assert [(record.id, record.value) for record in log.read()] == list(zip(ids, values, strict=True))
    assert Log(queue_name, "log", connection).append({"other": "writer"}) > ids[-1]


# -- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a b", "a:b", "{a}", "a" * 129, None, 7])
def test_a_name_that_the_wire_does_not_allow_is_refused(standalone: Connection, queue_name: str, name: object) -> None:
    with pytest.raises(InvalidName):
        Log(queue_name, name, standalone)  # type: ignore[arg-type]
    with pytest.raises(InvalidName):
        Log(name, "log", standalone)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [{"id": "7"}, {}, {"a": 1}, "ab", None])
def test_one_bad_record_among_many_keeps_all_out(standalone: Connection, queue_name: str, bad: object) -> None:
    log = Log(queue_name, "log", standalone)
    with pytest.raises(InvalidArgument):
        log.append_many([{"a": "b"}, bad])
    assert not standalone.client.exists(log.key)


@pytest.mark.parametrize("bad", [{"a": "b"}, "ab", b"ab"])
def test_a_single_value_is_not_taken_for_many(standalone: Connection, queue_name: str, bad: object) -> None:
    with pytest.raises(InvalidArgument, match=r"append\(\)"):
        Log(queue_name, "log", standalone).append_many(bad)  # type: ignore[arg-type]


def test_nothing_to_append_is_nothing_sent(standalone: Connection, queue_name: str) -> None:
    assert Log(queue_name, "log", standalone).append_many(iter(())) == []
    assert not standalone.client.exists(f"emq:{{{queue_name}}}:stream:log")


def test_a_key_that_is_no_log_is_told_by_every_verb(connection: Connection, queue_name: str) -> None:
    log = Log(queue_name, "log", connection)
    connection.client.set(log.key, "something else")
    tails = [log.tail("head"), log.tail("head", follow=False)]
    verbs: list[Callable[[], object]] = [
        lambda: log.append({"a": "b"}), lambda: list(log.read()), log.length, log.info, log.tail,
        lambda: log.trim(maxlen=1), lambda: log.trim(older_than=1, exact=True), *(tail.__next__ for tail in tails),
    ]  # fmt: skip
    for verb in verbs:
        with pytest.raises(WrongState):
            verb()
    for tail in tails:
        tail.close()
    assert connection.client.get(log.key) == b"something else"


# -- faults ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def faulty(proxy: DroppingProxy, queue_name: str) -> Iterator[Log]:
    with connect(proxy.url) as connection:
        log = Log(queue_name, "log", connection)
        log.append({"warm": "up"})  # loads the script, leases the node id
        yield log


@pytest.mark.parametrize("what", ["reply", "request"])
def test_a_dropped_connection_writes_once_and_answers_as_if_nothing_had_been(
    faulty: Log, proxy: DroppingProxy, what: str
) -> None:
    # Somebody else is ahead, so that the answer is not what was minted.
    faulty.connection.client.xadd(faulty.key, {"a": "stranger"}, id="3000000000000-4194301")
    drop = proxy.drop_reply if what == "reply" else proxy.drop_request
    drop(load_scripts()["log_append"].sha.encode())
    ids = faulty.append_many([{"n": str(each)} for each in range(5)])
    assert proxy.counts.dropped_replies + proxy.counts.dropped_requests == 1
    found = list(faulty.read(after="3000000000000-4194301"))
    assert [record.id for record in found] == ids
    assert [record.stream_id for record in found] == [
        "3000000000000-4194302", "3000000000000-4194303", "3000000000001-0", "3000000000001-1", "3000000000001-2",
    ]  # fmt: skip
    assert [record.fields["n"] for record in found] == list("01234")


def test_a_dropped_reply_in_the_middle_of_many_loses_and_doubles_nothing(faulty: Log, proxy: DroppingProxy) -> None:
    proxy.drop_reply(b"number 700")
    ids = faulty.append_many([{"n": f"number {each}"} for each in range(1300)])
    found = list(faulty.read())[1:]
    assert [record.id for record in found] == ids
    assert [record.fields["n"] for record in found] == [f"number {each}" for each in range(1300)]


def test_what_was_in_before_the_server_went_is_told_and_the_rest_is_there_at_most_once(
    faulty: Log, proxy: DroppingProxy
) -> None:
    proxy.drop_reply(b"number 700", times=2)
    with pytest.raises(ServerUnavailable) as failure:
        faulty.append_many([{"n": f"number {each}"} for each in range(1300)])
    assert len(failure.value.admitted) == 500
    found = list(faulty.read())[1:]
    assert tuple(record.id for record in found[:500]) == failure.value.admitted
    assert [record.fields["n"] for record in found] == [f"number {each}" for each in range(1000)]
    # The next append is another call, not taken for the one that was not answered.
    evt = faulty.append({"n": "next"})
    assert [(record.id, record.fields["n"]) for record in faulty.read(after=found[-1].stream_id)] == [(evt, "next")]


def test_a_call_that_a_later_try_has_overtaken_writes_nothing(standalone: Connection, queue_name: str) -> None:
    scripts, base = Scripts.of(standalone), f"emq:{{{queue_name}}}:".encode()
    record = (1_764_440_000_000, 5, 2, "a", "b")
    first = scripts.call("log_append", base, ("me", "1.2", "log", *record))
    assert scripts.call("log_append", base, ("me", "1.1", "log", *record)) == []
    assert scripts.call("log_append", base, ("me", "1.3", "log", *record)) == first
    assert Log(queue_name, "log", standalone).length() == 1


def test_a_full_server_refuses_an_append_whole_and_lets_a_trim_pass(tmp_path: Path, queue_name: str) -> None:
    with (
        ServerProcess(tmp_path, options=["--maxmemory-policy", "noeviction"]) as full,
        connect(full.url) as connection,
    ):
        log = Log(queue_name, "log", connection)
        log.append_many([{"n": str(each)} for each in range(600)])
        wire = Wire(connection, queue_name)
        before = wire.dumps()
        full.client().config_set("maxmemory", 1)
        with pytest.raises(ServerOutOfMemory, match="maxmemory"):
            log.append_many([{"n": str(each)} for each in range(600)])
        assert wire.dumps() == before
        log.retain(maxlen=300)
        assert log.trim(maxlen=100, exact=True) == 500
        full.client().config_set("maxmemory", 0)
        log.append({"n": "600"})
        assert log.length() == 101


def test_an_append_goes_on_after_the_server_was_killed_and_came_back(
    own_server: ServerProcess, queue_name: str
) -> None:
    with connect(own_server.url) as connection:
        log = Log(queue_name, "log", connection)
        first = log.append({"n": "0"})
        own_server.kill()
        with pytest.raises(ServerUnavailable):
            log.append({"n": "lost"})
        own_server.start()
        second = eventually(lambda: log.append({"n": "1"}))
        assert [(record.id, record.fields["n"]) for record in log.read()] == [(first, "0"), (second, "1")]
