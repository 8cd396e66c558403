"""``echomq cache``: the cache tables of a server, what their processes have counted, and clearing one."""

from __future__ import annotations

import argparse
import difflib
from typing import TYPE_CHECKING, Any

from echomq_tasks.cache.reports import COUNTERS, Report, calls
from echomq_tasks.cache.stats import TableStats
from echomq_tasks.cache.store import Store
from echomq_tasks.cache.survey import TableSurvey, survey
from echomq_tasks.cli.arguments import add_asking, add_command, add_server, table_name
from echomq_tasks.cli.terminal import (
    agreed,
    cannot_ask,
    for_how_long,
    note,
    print_facts,
    print_json,
    print_table,
    stopped,
)
from echomq_tasks.connection import Connection, connect

if TYPE_CHECKING:
    from argparse import _SubParsersAction

#: For a table of which nothing tells its kind: what all caches are told to let go of is told under any.
_ANY_KIND = "FUN"


def add(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = add_command(
        commands,
        "cache",
        run,
        summary="list cache tables with their hit rates, or clear one",
        description="List the cache tables of the server: how many rows they have there and what those cost, and what "
        "the processes that use them have counted since they started. A table that is named is shown with each of its "
        "processes. With --clear its rows are dropped, on the server and in all processes, after a question.",
        epilog="It scans all keys. A process reports every few seconds and when it ends, and counts for ten minutes "
        "more. Tables without a server (l2=False) are not seen.",
    )
    command.add_argument("tables", metavar="TABLE", nargs="*", type=table_name, help="show only these, in detail")
    command.add_argument("--clear", action="store_true", help="drop all rows of one table, everywhere")
    add_asking(command)
    add_server(command, json=True)


def run(options: argparse.Namespace) -> int:
    """List tables or clear one; answers the exit code."""
    if options.clear and len(options.tables) != 1:
        options.parser.error("--clear takes the one table that is to be cleared")
    if options.clear and options.json:
        options.parser.error("--clear prints no data: leave --json out")
    if (options.dry_run or options.yes) and not options.clear:
        options.parser.error("--dry-run and --yes go with --clear: without it nothing is changed")
    if options.clear and cannot_ask(options):
        return 2
    with connect(options.url) as connection:
        if not options.tables:
            return _list(options, survey(connection))
        found = survey(connection, options.tables)
        missing = [name for name in dict.fromkeys(options.tables) if name not in {table.name for table in found}]
        if missing:
            _note_missing(connection, missing)
        if options.clear:
            return _clear(options, connection, found[0]) if found else 1
        if options.json:
            print_json([_json(table) for table in found])
        else:
            for place, table in enumerate(found):
                _show(table, first=place == 0)
        return int(bool(missing))


def _list(options: argparse.Namespace, tables: list[TableSurvey]) -> int:
    if options.json:
        print_json([_json(table) for table in tables])
    elif tables:
        rows = [
            (table.name, table.rows.total(), table.bytes, table.processes, *_rates(table.stats)) for table in tables
        ]
        heads = ("table", "rows", "bytes", "processes", "calls", "hit rate", "loads", "errors")
        print_table(heads, rows, flexible=(0,), keep_ends=True)
    else:
        print("no cache tables yet: a function with @cached that was called has one")
    return 0


def _rates(stats: TableStats) -> tuple[int, str | None, int, int]:
    asked = calls(stats)
    return asked, _rate(stats) if asked else None, stats.loads, stats.errors


def _rate(stats: TableStats) -> str:
    # Not rounded up: 100 % is to mean that nothing was loaded.
    return f"{int(stats.hit_rate * 1000) / 10:.1f}%"


def _show(table: TableSurvey, *, first: bool) -> None:
    stats = table.stats
    print(table.name if first else f"\n{table.name}")
    facts: list[tuple[str, object]] = [
        ("rows", table.rows.total()),
        ("being loaded", table.loading),
        ("bytes", table.bytes),
        ("kind", ", ".join(sorted(table.kinds)) or None),
    ]
    if table.reports:
        asked = calls(stats)
        facts += [
            ("calls", asked),
            ("hit rate", _rate(stats) if asked else None),
            ("hits", stats.hits),
            ("hits on server", stats.l2_hits),
            ("coalesced", stats.coalesced),
            ("loads", stats.loads),
            ("errors", stats.errors),
            ("stale", stats.stale),
            ("skipped", stats.skipped),
            ("evictions", stats.evictions),
        ]
    print_facts((f"  {name}", value) for name, value in facts)
    if not table.reports:
        print("  no process has used it in the last ten minutes")
        return
    print()
    heads = ("process", "entries", "bytes", "calls", "hit rate", "loads", "errors", "told")
    print_table(heads, [_process(report) for report in table.reports], flexible=(0,), keep_ends=True)


def _process(report: Report) -> tuple[Any, ...]:
    held = report.stats.entries, report.stats.bytes
    return f"{report.host}:{report.pid}", *held, *_rates(report.stats), f"{for_how_long(report.age)} ago"


def _json(table: TableSurvey) -> dict[str, Any]:
    # What each process holds adds up to nothing that is anywhere.
    summed = {name: getattr(table.stats, name) for name in COUNTERS if name not in ("entries", "bytes")}
    return {
        "table": table.name,
        "rows": table.rows.total(),
        "loading": table.loading,
        "bytes": table.bytes,
        "kinds": sorted(table.kinds),
        "calls": calls(table.stats),
        "hit_rate": table.stats.hit_rate if calls(table.stats) else None,
        **summed,
        "processes": [
            {
                "host": report.host,
                "pid": report.pid,
                "age": report.age,
                **{name: getattr(report.stats, name) for name in COUNTERS},
            }
            for report in table.reports
        ],
    }


def _note_missing(connection: Connection, missing: list[str]) -> None:
    others = [table.name for table in survey(connection)]
    for name in missing:
        near = difflib.get_close_matches(name, others, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "`echomq cache` lists those that are there"
        note(f"there is no cache table {name!r} on {connection.config.address}: {hint}")


def _clear(options: argparse.Namespace, connection: Connection, table: TableSurvey) -> int:
    print(f"This drops {_rows(table.rows.total())} of the cache table {table.name},")
    print("and what processes hold of it. What is needed again is loaded anew.")
    if not agreed(options):
        return stopped(options)
    dropped = sum(Store(table.name, kind, connection).clear() for kind in sorted(table.kinds) or [_ANY_KIND])
    print(f"Dropped {_rows(dropped)}.")
    return 0


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"
