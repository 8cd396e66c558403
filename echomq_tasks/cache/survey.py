"""Survey: which cache tables a server has, what they hold there, and what the processes that use them have counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import redis
from redis.cluster import RedisCluster

from echomq_tasks.cache.reports import Report, read_reports, total
from echomq_tasks.cache.stats import TableStats
from echomq_tasks.connection import Connection
from echomq_tasks.connection.failures import typed_errors
from echomq_tasks.identity import is_branded
from echomq_tasks.keyspace import cache_base, check_table, stats_key

#: The memory of at most so many rows of a table is asked for; the others are taken to be like them.
_SAMPLE: Final = 100

_KEY = re.compile(rb"ecc:\{([A-Za-z0-9._-]{1,128})\}:(.*)", re.DOTALL)


@dataclass(slots=True)
class TableSurvey:
    """One table as the server shows it.

    Attributes:
      name: the table's.
      rows: how many rows there are, by kind. A scan counts them: what comes and goes meanwhile may be missed.
      loading: how many rows are being loaded just now, or were when their process died.
      bytes: what its rows cost the server, from a sample when there are many; None when it does not say.
      reports: what its processes have counted, the busiest first.
      kinds: the kinds of its ids, as far as keys and reports tell.
    """

    name: str
    rows: Counter[str] = field(default_factory=Counter)
    loading: int = 0
    bytes: int | None = None
    reports: list[Report] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)

    @property
    def stats(self) -> TableStats:
        """The counters of all processes, added up."""
        return total(self.reports)

    @property
    def processes(self) -> int:
        """How many processes have reported."""
        return len({(report.host, report.pid) for report in self.reports})


def survey(connection: Connection, names: Iterable[str] | None = None) -> list[TableSurvey]:
    """Look at the cache tables of a server, by scanning its keys; nothing is written.

    Parameters:
      connection: the server.
      names: only these tables; None for all.

    Returns:
      Those that have a key on the server, by name.

    Raises:
      InvalidName: before a byte is sent.
      ServerError: when the server cannot be asked.
    """
    found: dict[str, TableSurvey] = {}
    samples: dict[str, list[bytes]] = {}
    chosen = None if names is None else [check_table(name) for name in names]
    with typed_errors(connection.config):
        for name, key, suffix in _keys(connection, chosen):
            table = found.setdefault(name, TableSurvey(name))
            row_id, _, beside = suffix.partition(":")
            if not is_branded(row_id) or row_id.startswith("TAG"):
                continue
            table.kinds.add(row_id[:3])
            if not beside:
                table.rows[row_id[:3]] += 1
                sample = samples.setdefault(name, [])
                if len(sample) < _SAMPLE:
                    sample.append(key)
            elif beside == "flight":
                table.loading += 1
        for table in found.values():
            table.bytes = _bytes(connection, table.name, samples.get(table.name, []), table.rows.total())
            table.reports = _reports(connection, table.name)
            table.kinds.update(report.kind for report in table.reports if report.kind != "TAG")
    return [found[name] for name in sorted(found)]


def _keys(connection: Connection, names: list[str] | None) -> Iterator[tuple[str, bytes, str]]:
    client: Any = connection.client
    scans: list[tuple[str, dict[str, Any]]] = [("ecc:{*}:*", {})]
    if names is not None:
        # No table name holds a character that is special to MATCH. A table is one slot, so one node has all of it.
        scans = [(cache_base(name).decode() + "*", _where(connection, name)) for name in dict.fromkeys(names)]
    for match, where in scans:
        for key in client.scan_iter(match=match, count=1000, **where):
            if parts := _KEY.fullmatch(key):
                yield parts[1].decode(), key, parts[2].decode("ascii", "replace")


def _where(connection: Connection, name: str) -> dict[str, Any]:
    client = connection.client
    return {"target_nodes": client.get_node_from_key(cache_base(name))} if isinstance(client, RedisCluster) else {}


def _bytes(connection: Connection, name: str, sample: list[bytes], rows: int) -> int | None:
    if not sample:
        return 0
    client: Any = connection.client
    if isinstance(client, RedisCluster):
        client = client.get_redis_connection(client.get_node_from_key(cache_base(name)))
    with client.pipeline(transaction=False) as asking:
        for key in sample:
            asking.memory_usage(key)
        try:
            # None for a row that has ended since.
            sizes = [size for size in asking.execute() if size is not None]
        except redis.ResponseError:
            # Not every server that speaks the protocol has the command, and not every user may run it.
            return None
    return round(sum(sizes) / len(sizes) * rows) if sizes else 0


def _reports(connection: Connection, name: str) -> list[Report]:
    client: Any = connection.client
    try:
        fields = client.hgetall(stats_key(name))
    except redis.ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        return []
    if not fields:
        return []
    seconds, micros = client.time(**_where(connection, name))
    return read_reports(fields, int(seconds) * 1000 + int(micros) // 1000)
