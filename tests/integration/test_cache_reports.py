"""What a process counts of a table reaches the server, is read there with what others said, and goes with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.children import in_child
from support.eventually import eventually
from support.servers import ServerProcess
from support.tables import MINUTE, NEXT, A, B, C, Rows

from echomq_tasks.cache import beat, reports
from echomq_tasks.cache.claims import Follow
from echomq_tasks.cache.reports import KEPT_MS, Reporter, read_reports
from echomq_tasks.cache.store import Store
from echomq_tasks.cache.survey import TableSurvey, survey
from echomq_tasks.cache.table import Table
from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import InvalidName, ServerUnavailable
from echomq_tasks.keyspace import stats_key
from echomq_tasks.scripts import Scripts


@pytest.fixture
def table(connection: Connection, queue_name: str) -> Iterator[Table]:
    made = Table(queue_name, "USR", connection)
    yield made
    made.close()


@pytest.fixture
def rows(connection: Connection, queue_name: str) -> Rows:
    return Rows(connection, queue_name)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the beat beat all the time."""
    monkeypatch.setattr(beat, "EVERY", 0.01)


def reporter(table: Table) -> Reporter:
    """A table's own."""
    found = table._parts.reach.reporter  # type: ignore[union-attr]  # noqa: SLF001
    assert isinstance(found, Reporter)
    return found


def load(table: Table, *ids: str) -> None:
    for row_id in ids:
        table.fetch(row_id, lambda: "v")


def text(**changes: Any) -> bytes:
    """A report as it stands on the server."""
    fields = dict.fromkeys(reports.COUNTERS, 1) | {"host": "far", "pid": 7, "kind": "USR"} | changes
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


# -- telling ---------------------------------------------------------------------------------------------------------


def test_a_table_that_is_used_reports_by_itself(table: Table, connection: Connection, often: None) -> None:
    load(table, A, A, A, B)

    def told() -> TableSurvey | None:
        # It may report in the middle of that, too.
        found = survey(connection, [table.name])
        return found[0] if found and found[0].reports and found[0].stats == table.stats() else None

    seen = eventually(told)
    assert (seen.rows, seen.loading, seen.processes) == ({"USR": 2}, 0, 1)
    (report,) = seen.reports
    assert (report.pid, report.kind) == (os.getpid(), "USR")
    assert (report.stats.hits, report.stats.loads, report.stats.entries) == (2, 2, 2)
    load(table, A, C)
    assert eventually(told).stats.loads == 3


def test_nothing_is_told_while_nothing_has_changed_but_that_it_is_still_there(
    table: Table, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(table, A)
    one = reporter(table)
    assert one.report()
    assert not one.report()
    monkeypatch.setattr(reports, "STILL_THERE", 0.0)
    assert one.report()
    assert rows.left("stats") > KEPT_MS - MINUTE


def test_a_table_that_nobody_has_used_yet_has_no_thread_and_says_nothing(table: Table, connection: Connection) -> None:
    assert table.stats().loads == 0
    assert survey(connection, [table.name]) == []
    assert table._parts.reach.shared.beat._thread is None  # type: ignore[union-attr]  # noqa: SLF001


def test_two_tables_of_one_name_in_a_process_are_two_reports_of_one_process(
    table: Table, connection: Connection
) -> None:
    other = Table(table.name, "USR", connection)
    load(table, A)
    load(other, A, A)
    assert reporter(table).report()
    assert reporter(other).report()
    (seen,) = survey(connection, [table.name])
    assert (len(seen.reports), seen.processes) == (2, 1)
    assert (seen.stats.loads, seen.stats.l2_hits, seen.stats.hits) == (1, 1, 1)
    other.close()


def test_a_forked_child_reports_for_itself(table: Table, standalone: Connection) -> None:
    mine = Table(table.name, "USR", standalone)
    load(mine, A)
    assert reporter(mine).report()

    def child() -> bool:
        load(mine, A, B)
        return reporter(mine).report()

    assert in_child(child)
    (seen,) = survey(standalone, [table.name])
    assert seen.processes == 2
    assert sorted((report.stats.loads, report.pid == os.getpid()) for report in seen.reports) == [(1, False), (1, True)]
    mine.close()


def test_a_closed_table_reports_no_more_until_it_is_used_again(
    table: Table, connection: Connection, rows: Rows, often: None
) -> None:
    load(table, A)
    eventually(lambda: rows.read("stats"))
    table.close()
    shared = table._parts.reach.shared  # type: ignore[union-attr]  # noqa: SLF001
    eventually(lambda: shared.beat._thread is None)  # noqa: SLF001
    rows.do("DEL", "stats")
    load(table, B)
    eventually(lambda: rows.read("stats"))


def test_closing_the_connection_ends_the_thread(server: ServerProcess, queue_name: str) -> None:
    def beats() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "echomq-cache-beat"}

    before = beats()
    with connect(server.url) as connection:
        table = Table(queue_name, "USR", connection)
        load(table, A)
        assert len(beats() - before) == 1
    assert beats() - before == set()
    table.close()


def test_closing_the_connection_reports_what_was_counted_last(connection: Connection, queue_name: str) -> None:
    with Connection(connection.config) as mine:
        # Made before the cache's own, so that it is closed before, too.
        mine.companion(Scripts)
        table = Table(queue_name, "USR", mine)
        load(table, A, A, B)
    (seen,) = survey(connection, [queue_name])
    assert (seen.stats.loads, seen.stats.hits) == (2, 1)
    assert not Scripts.of(mine)._idle  # noqa: SLF001 - nothing else tells what is open
    table.close()


def test_closing_a_table_reports_what_was_counted_last(table: Table, connection: Connection) -> None:
    load(table, A, A, B)
    table.close()
    (seen,) = eventually(lambda: [each for each in survey(connection, [table.name]) if each.reports])
    assert (seen.stats.loads, seen.stats.hits) == (2, 1)
    reach = table._parts.reach  # noqa: SLF001
    assert reach is not None
    assert not reach._ear.hears  # type: ignore[union-attr]  # noqa: SLF001 - a report opens nothing


def test_a_process_that_lives_for_a_moment_only_is_counted(server: ServerProcess, queue_name: str) -> None:
    program = f"""
from echomq_tasks import cached
@cached(name={queue_name!r})
def double(x): return 2 * x
print([double(x) for x in (1, 2, 1)])
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "EMQ_URL": server.url},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ended.stdout, ended.stderr) == ("[2, 4, 2]\n", "")
    with connect(server.url) as connection:
        (seen,) = survey(connection, [queue_name])
    assert (seen.processes, seen.stats.loads, seen.stats.hits) == (1, 2, 1)


def test_a_process_whose_server_hangs_ends_all_the_same(own_server: ServerProcess, queue_name: str) -> None:
    program = f"""
from echomq_tasks import cached
@cached(name={queue_name!r})
def double(x): return 2 * x
print(double(1), flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "EMQ_URL": f"{own_server.url}?timeout=3600"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "2\n"
        with own_server.hung():
            assert process.communicate("\n", timeout=60)[0] == ""
    assert process.returncode == 0


def test_a_user_who_may_not_report_has_a_cache_all_the_same(
    own_server: ServerProcess, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    own_server.client().execute_command(*"ACL SETUSER silent on >secret ~* &* +@all -hset".split())
    with connect(f"valkey://silent:secret@127.0.0.1:{own_server.port}") as connection:
        table = Table(queue_name, "USR", connection)
        load(table, A)
        reporter(table).report()
        load(table, B)
        assert (table.stats().away, table.stats().skipped) == (False, 0)
        table.close()
    assert own_server.client().info("stats")["acl_access_denied_cmd"] >= 1
    assert caplog.records == []


def test_a_server_that_is_away_is_not_tried_for_a_report(
    own_server: ServerProcess, queue_name: str, often: None, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(own_server.url, connect_timeout=1.0) as connection:
        table = Table(queue_name, "USR", connection)
        load(table, A)
        rows = Rows(connection, queue_name)
        eventually(lambda: rows.read("stats"))
        own_server.kill()
        load(table, B)
        assert table.stats().away
        assert not reporter(table).report()
        own_server.start()
        own_server.flush()
        # It comes back with somebody who needs it, and then it is told.
        eventually(lambda: (load(table, C), table.invalidate(C)) and not table.stats().away)
        eventually(lambda: rows.read("stats"))
        table.close()
    assert not [record for record in caplog.records if record.exc_info]


def test_a_full_server_is_told_nothing_and_that_is_no_news(
    own_server: ServerProcess, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(own_server.url) as connection:
        table = Table(queue_name, "USR", connection)
        load(table, A)
        own_server.client().config_set("maxmemory", 1)
        reporter(table).report()
        assert not table.stats().away
        assert caplog.records == []
        assert not Rows(connection, queue_name).read("stats")
        table.close()


def test_a_foreign_key_in_the_place_of_the_reports_is_told_once_and_left_alone(
    table: Table, rows: Rows, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    load(table, A)
    rows.do("SET", "stats", "mine")
    assert not reporter(table).report()
    assert not reporter(table).report()
    assert len(caplog.records) == 1
    assert rows.read("stats") == "mine"
    (seen,) = survey(connection, [table.name])
    assert (seen.reports, seen.rows.total()) == ([], 1)


def test_the_reports_of_processes_that_ended_go_when_another_one_reports(
    table: Table, rows: Rows, connection: Connection
) -> None:
    now = rows.now_ms()
    for name, at in (("ended", now - KEPT_MS - 1000), ("resting", now - KEPT_MS + MINUTE), ("junk", "x")):
        rows.do("HSET", "stats", name, f"{at} ".encode() + text())
    load(table, A)
    assert reporter(table).report()
    fields = rows.read("stats")
    assert "resting" in fields
    assert len(fields) == 2


# -- reading ---------------------------------------------------------------------------------------------------------


def test_what_is_no_report_is_left_out() -> None:
    bad = [
        b"", b" ", b"12", b"x " + text(), b"1000 ", b"1000 [", b"1000 []", b"1000 null", b"1000 " + b"[" * 100_000,
        b"1000 " + text(hits=None), b"1000 " + text(hits=-1), b"1000 " + text(hits=1.5), b"1000 " + text(hits=True),
        b"1000 " + text(loads="3"), b"1000 " + text(bytes=2**60), b"1000 " + text(pid=None), b"1000 " + text(host=None),
        b"1000 " + text(kind="usr"), b"1000 " + text(kind=3), b"1000 \xff" + text(), b"9" * 5000 + b" " + text(),
    ]  # fmt: skip
    assert [value[:40] for value in bad if read_reports({b"f": value}, 2000)] == []
    assert len(read_reports(dict(enumerate([*bad, b"1000 " + text()])), 2000)) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("at", "age"), [(1_000_000, 0.0), (998_500, 1.5), (1_000_500, 0.0), (1_000_000 - KEPT_MS, None)]
)
def test_the_age_of_a_report_is_by_the_servers_clock(at: int, age: float | None) -> None:
    found = read_reports({b"f": b"%d " % at + text()}, 1_000_000)
    assert [report.age for report in found] == ([] if age is None else [age])


def test_a_survey_tells_rows_flights_and_other_keys_apart(connection: Connection, queue_name: str) -> None:
    store, rows = Store(queue_name, "USR", connection), Rows(connection, queue_name)
    rows.write(A, NEXT + "v")
    rows.write("ORD0NgWEfAEJ0A", NEXT + "v")
    rows.write("TAG0NgWEfAEJ0A", NEXT + "v")
    rows.write("no id", "v")
    store.claim(B, "me", MINUTE)
    store.drop(C)
    store.drop_tag("a tag")
    assert isinstance(store.claim(B, "you", MINUTE), Follow)
    (seen,) = survey(connection, [queue_name])
    assert (seen.rows, seen.loading, seen.kinds) == ({"USR": 1, "ORD": 1}, 1, {"ORD", "USR"})
    assert seen.bytes is not None
    assert seen.bytes > 0


def test_a_survey_of_all_finds_every_table_and_nothing_else(connection: Connection, queue_name: str) -> None:
    names = [f"{queue_name}.{number}" for number in range(3)]
    for name in names:
        Rows(connection, name).write(A, NEXT + "v")
    client: Any = connection.client
    for key in ("ecc:{}:x", "ecc:{a b}:x", f"ecc:{queue_name}:x", "ecc:{a}", f"emq:{{{queue_name}}}:pending"):
        client.set(key, "v")
    found = survey(connection)
    assert [table.name for table in found] == names
    assert survey(connection, [names[1], names[1], "nobody"]) == [found[1]]
    with pytest.raises(InvalidName):
        survey(connection, ["a*"])


def test_the_memory_of_many_rows_is_taken_from_a_sample(connection: Connection, queue_name: str) -> None:
    rows = Rows(connection, queue_name)
    for number in range(250):
        rows.write(f"USR0NgWEfA{number:04}", NEXT + "v" * 100)
    client: Any = connection.client
    one = client.memory_usage(rows.base + "USR0NgWEfA0001")
    (seen,) = survey(connection, [queue_name])
    assert seen.rows.total() == 250
    # Servers round the same row to one of a few sizes.
    assert seen.bytes is not None
    assert 0.8 < seen.bytes / (250 * one) < 1.25


def test_a_survey_without_a_server_says_so(own_server: ServerProcess) -> None:
    with connect(own_server.url, connect_timeout=1.0) as connection:
        own_server.kill()
        with pytest.raises(ServerUnavailable):
            survey(connection)


def test_the_key_is_the_one_of_the_keyspace(table: Table, connection: Connection) -> None:
    load(table, A)
    reporter(table).report()
    client: Any = connection.client
    assert client.exists(stats_key(table.name))
