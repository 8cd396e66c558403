"""``echomq cache``: what it lists and shows of cache tables, and clearing one, also for caches that run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.eventually import eventually
from support.proxy import DroppingProxy
from support.servers import ServerProcess
from support.shell import Shell
from support.tables import MINUTE, NEXT, A, B, C, Rows
from support.terminals import CTRL_C, Ended, on_terminal

from echomq_tasks.cache.reports import COUNTERS
from echomq_tasks.cache.store import Store
from echomq_tasks.cache.table import Table
from echomq_tasks.connection import Connection
from echomq_tasks.scripts import load_scripts

ROOT = Path(__file__).parents[3]
PROMPT = "Go on? yes or no: "


@pytest.fixture
def rows(connection: Connection, queue_name: str) -> Rows:
    """The raw keys of the table under test."""
    return Rows(connection, queue_name)


@pytest.fixture
def table(connection: Connection, queue_name: str) -> Iterator[Table]:
    """A cache of it that runs."""
    made = Table(queue_name, "USR", connection)
    yield made
    made.close()


def use(table: Table, *ids: str) -> None:
    """Call for rows, and report that."""
    for row_id in ids:
        table.fetch(row_id, lambda: "v")
    table._parts.reach.reporter.report()  # type: ignore[union-attr]  # noqa: SLF001


def report(rows: Rows, name: str, host: str, pid: int, age: int = 0, kind: str = "USR", **counted: int) -> None:
    """Report as a process of another machine does."""
    fields = dict.fromkeys(COUNTERS, 0) | {"host": host, "pid": pid, "kind": kind} | counted
    rows.do("HSET", "stats", name, f"{rows.now_ms() - age * 1000} {json.dumps(fields)}")


# -- looking ---------------------------------------------------------------------------------------------------------


def test_tables_are_listed_with_what_they_hold_and_what_all_processes_counted(echomq: Shell, rows: Rows) -> None:
    for row_id in (A, B):
        rows.write(row_id, NEXT + "v")
    report(rows, "one", "web1", 7, hits=990, l2_hits=5, loads=5)
    report(rows, "two", "web2", 7, hits=998, coalesced=1, loads=1, errors=1)
    said = echomq("cache")
    assert (said.code, said.err) == (0, "")
    heads, line = said.lines
    assert heads.split() == ["table", "rows", "bytes", "processes", "calls", "hit", "rate", "loads", "errors"]
    name, held, size, processes, *counted = line.split()
    assert (name, held, processes) == (rows.base[5:-2], "2", "2")
    assert int(size) > 30
    assert counted == ["2,000", "99.7%", "6", "1"]


def test_a_hit_rate_is_never_rounded_up_to_all(echomq: Shell, rows: Rows) -> None:
    report(rows, "one", "web1", 7, hits=999_999, loads=1)
    assert echomq("cache").lines[1].split()[5] == "99.9%"
    report(rows, "one", "web1", 7, hits=999_999)
    assert echomq("cache").lines[1].split()[5] == "100.0%"
    report(rows, "one", "web1", 7)
    assert echomq("cache").lines[1].split()[4:6] == ["0", "-"]


def test_a_table_that_is_named_is_shown_with_each_of_its_processes(echomq: Shell, rows: Rows) -> None:
    rows.write(A, NEXT + "v")
    rows.do("SET", f"{B}:flight", f"{NEXT}1000me", "PX", MINUTE)
    report(rows, "idle", "web1", 41, age=130, hits=1, entries=1)
    report(rows, "busy", "web2", 42, hits=7, loads=3, errors=1, stale=2, evictions=4, entries=5, bytes=600)
    said = echomq("cache", rows.base[5:-2])
    assert (said.code, said.err) == (0, "")
    facts = dict(line.strip().rsplit("  ", 1) for line in said.lines[1:] if line.startswith("  "))
    shown = {name.strip(): value.strip() for name, value in facts.items()}
    del shown["bytes"]
    assert shown == {
        "rows": "1", "being loaded": "1", "kind": "USR", "calls": "13", "hit rate": "76.9%", "hits": "8",
        "hits on server": "0", "coalesced": "0", "loads": "3", "errors": "1", "stale": "2", "skipped": "0",
        "evictions": "4",
    }  # fmt: skip
    # The busiest first. How long ago is a matter of the machine, too.
    assert [line.split()[:7] for line in said.lines[-2:]] == [
        ["web2:42", "5", "600", "12", "75.0%", "3", "1"],
        ["web1:41", "1", "0", "1", "100.0%", "0", "0"],
    ]
    assert [line.split()[-3] for line in said.lines[-1:]] == ["2m"]


def test_json_has_all_of_it(echomq: Shell, table: Table) -> None:
    use(table, A, A, B)
    (found,) = echomq("cache", "--json").json
    assert found == {**found, "table": table.name, "rows": 2, "loading": 0, "kinds": ["USR"], "calls": 3, "loads": 2}
    assert found["hit_rate"] == pytest.approx(1 / 3)
    assert found["bytes"] > 0
    (process,) = found["processes"]
    assert process == {**process, "pid": os.getpid(), "hits": 1, "loads": 2, "entries": 2}
    assert set(process) == {"host", "pid", "age", *COUNTERS}
    (named,) = echomq("cache", table.name, table.name, "--json").json
    assert named | {"processes": []} == found | {"processes": []}


def test_a_table_that_no_process_reports_on_is_shown_all_the_same(echomq: Shell, rows: Rows) -> None:
    rows.write(A, NEXT + "v")
    said = echomq("cache", rows.base[5:-2])
    assert said.code == 0
    assert said.lines[-1] == "  no process has used it in the last ten minutes"
    assert echomq("cache").lines[1].split()[3:] == ["0", "0", "-", "0", "0"]
    assert echomq("cache", "--json").json[0]["hit_rate"] is None


def test_without_any_table_it_says_so(echomq: Shell, connection: Connection) -> None:
    said = echomq("cache")
    assert (said.code, said.lines) == (0, ["no cache tables yet: a function with @cached that was called has one"])
    assert echomq("cache", "--json").json == []


def test_a_table_that_is_not_there_is_exit_code_1_and_the_others_are_shown(echomq: Shell, rows: Rows) -> None:
    rows.write(A, NEXT + "v")
    name = rows.base[5:-2]
    said = echomq("cache", name + "x", name)
    assert said.code == 1
    assert said.lines[0] == name
    assert f"there is no cache table {name + 'x'!r}" in said.err
    assert f"did you mean {name!r}?" in said.err
    assert echomq("cache", "nothing-like-it").code == 1


def test_looking_changes_nothing(echomq: Shell, rows: Rows) -> None:
    rows.write(A, NEXT + "v")
    report(rows, "one", "web1", 7)
    before = rows.dumps()
    for words in (["cache"], ["cache", rows.base[5:-2]], ["cache", rows.base[5:-2], "--clear", "--dry-run"]):
        assert echomq(*words).code == 0
    assert rows.dumps() == before


def test_what_a_process_wrote_cannot_drive_the_terminal(echomq: Shell, rows: Rows) -> None:
    report(rows, "one", "evil\x1b[2J\n", 7, hits=1)
    said = echomq("cache", rows.base[5:-2])
    assert said.lines[-1].startswith("evil\\x1b[2J\\n:7 ")


# -- clearing --------------------------------------------------------------------------------------------------------


def test_a_table_is_cleared_on_the_server_and_in_the_processes_that_use_it(
    echomq: Shell, table: Table, connection: Connection
) -> None:
    other = Table(table.name, "USR", connection)
    use(table, A, B, C)
    use(other, A, B, C)
    said = echomq("cache", table.name, "--clear", "--yes")
    assert (said.code, said.err) == (0, "")
    assert said.lines == [
        f"This drops 3 rows of the cache table {table.name},",
        "and what processes hold of it. What is needed again is loaded anew.",
        "Dropped 3 rows.",
    ]
    eventually(lambda: table.stats().entries + other.stats().entries == 0, message="let go of all they held")
    assert table.fetch(A, lambda: "new") == "new"
    assert other.fetch(A, lambda: "newer") == "new"
    other.close()


def test_a_load_that_runs_meanwhile_is_not_kept(echomq: Shell, table: Table) -> None:
    def load() -> str:
        assert echomq("cache", table.name, "--clear", "--yes").code == 0
        return "old"

    assert table.fetch(A, load) == "old"
    assert table.fetch(A, lambda: "new") == "new"


def test_other_tables_are_left_alone_and_rows_of_several_kinds_are_dropped(
    echomq: Shell, rows: Rows, connection: Connection, queue_name: str
) -> None:
    other = Rows(connection, queue_name + "2")
    for each in (rows, other):
        each.write(A, NEXT + "v")
        each.write("ORD0NgWEfAEJ0A", NEXT + "v")
    said = echomq("cache", queue_name, "--clear", "--yes")
    assert said.lines[-1] == "Dropped 2 rows."
    assert rows.frame(A) is None
    assert rows.frame("ORD0NgWEfAEJ0A") is None
    assert other.frame(A) is not None


def test_a_table_without_rows_is_cleared_in_the_processes(echomq: Shell, rows: Rows) -> None:
    report(rows, "one", "web1", 7)
    with rows.listening() as ear:
        assert echomq("cache", rows.base[5:-2], "--clear", "--yes").lines[-1] == "Dropped 0 rows."
        eventually(lambda: any(data.startswith(b"TAG00000000000:") for data in ear.raw()))


def test_a_dry_run_says_the_same_and_drops_nothing(echomq: Shell, table: Table) -> None:
    use(table, A)
    said = echomq("cache", table.name, "--clear", "--dry-run")
    assert (said.code, said.lines[-1]) == (0, "Nothing was changed: this was a dry run.")
    assert table.peek(A) == "v"
    assert echomq("cache", table.name, "--clear", "--yes").lines[:-1] == said.lines[:-1]


def test_without_a_terminal_it_needs_a_yes(echomq: Shell, table: Table) -> None:
    use(table, A)
    said = echomq("cache", table.name, "--clear")
    assert (said.code, said.out) == (2, "")
    assert "--yes" in said.err
    assert table.peek(A) == "v"


@pytest.fixture
def asked(server: ServerProcess, queue_name: str) -> Callable[..., Ended]:
    def ask(*answers: bytes) -> Ended:
        return on_terminal(
            ["-m", "echomq_tasks", "cache", queue_name, "--clear", "--url", server.url],
            prompt=PROMPT,
            answers=answers,
            environ={"PYTHONPATH": str(ROOT), "TERM": "dumb"},
        )

    return ask


@pytest.mark.parametrize(
    ("answers", "code", "kept"), [([b"no\n"], 1, True), ([CTRL_C], 130, True), ([b"maybe\n", b"yes\n"], 0, False)]
)
def test_on_a_terminal_it_asks(
    asked: Callable[..., Ended], standalone: Connection, queue_name: str, answers: list[bytes], code: int, kept: bool
) -> None:
    rows = Rows(standalone, queue_name)
    rows.write(A, NEXT + "v")
    ended = asked(*answers)
    assert (ended.code, rows.frame(A) is not None) == (code, kept), ended.screen
    assert max(map(len, ended.screen.splitlines())) <= 80
    assert "Traceback" not in ended.screen


@pytest.mark.parametrize("named", [False, True])
def test_on_a_terminal_of_80_columns_it_fits(
    server: ServerProcess, standalone: Connection, queue_name: str, named: bool
) -> None:
    name = queue_name + ".a.module.with.quite.a.long.name." + "x" * 60
    rows = Rows(standalone, name)
    rows.write(A, NEXT + "v")
    report(rows, "one", "a-host-with-a-long-name.example.com" + "x" * 60, 1234567, hits=12_345_678, loads=12_345)
    ended = on_terminal(
        ["-m", "echomq_tasks", "cache", *([name] if named else []), "--url", server.url],
        environ={"PYTHONPATH": str(ROOT), "TERM": "dumb", "PYTHONUTF8": "1"},
    )
    assert ended.code == 0
    # The name stands alone on its line there.
    assert [line for line in ended.screen.splitlines() if len(line) > 80 and line != name] == []


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["cache", "--clear"], "--clear takes the one table"),
        (["cache", "a", "b", "--clear"], "--clear takes the one table"),
        (["cache", "a", "--clear", "--json"], "--clear prints no data"),
        (["cache", "a", "--yes"], "go with --clear"),
        (["cache", "--dry-run"], "go with --clear"),
        (["cache", "a b"], "the cache table 'a b' is not allowed"),
        (["cache", "a*", "--clear", "--yes"], "is not allowed"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error_before_the_server_is_asked(
    capsys: pytest.CaptureFixture[str], arguments: list[str], advice: str
) -> None:
    said = Shell("valkey://127.0.0.1:1", capsys)(*arguments)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("echomq cache: ")
    assert advice in said.err


@pytest.mark.parametrize("loses", ["request", "reply"])
def test_a_clearing_that_broke_off_is_one_line_and_the_same_command_goes_on(
    proxy: DroppingProxy, standalone: Connection, queue_name: str, capsys: pytest.CaptureFixture[str], loses: str
) -> None:
    rows, shell = Rows(standalone, queue_name), Shell(proxy.url, capsys)
    for row_id in (A, B):
        rows.write(row_id, NEXT + "v")
    Store(queue_name, "USR", standalone).drop(C)
    script = load_scripts()["cache_drop"].sha.encode()
    (proxy.drop_request if loses == "request" else proxy.drop_reply)(script, times=10)
    said = shell("cache", queue_name, "--clear", "--yes")
    assert said.code == 1
    (line,) = said.err.splitlines()
    assert line.startswith("echomq: ")
    proxy.clear()
    assert shell("cache", queue_name, "--clear", "--yes").code == 0
    assert (rows.frame(A), rows.frame(B)) == (None, None)


def test_a_server_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    said = Shell("valkey://127.0.0.1:1", capsys)("cache")
    assert (said.code, said.out) == (1, "")
    assert len(said.err.splitlines()) == 1
