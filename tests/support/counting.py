"""What a server was asked to do, by its own count."""

from __future__ import annotations

from collections import Counter
from typing import Any

from echomq_tasks.connection import Connection


def nodes(connection: Connection) -> list[Any]:
    """A client for each server of the connection."""
    client: Any = connection.client
    if connection.is_cluster:
        return [client.get_redis_connection(node) for node in client.get_primaries()]
    return [client]


def commands(connection: Connection) -> Counter[str]:
    """How often each command ran since the server started, also inside of scripts; what asks for this is left out."""
    total: Counter[str] = Counter()
    for node in nodes(connection):
        for name, stats in node.info("commandstats").items():
            if (command := name.removeprefix("cmdstat_")) not in ("info", "client|list"):
                total[command] += stats["calls"]
    return total


def connections(connection: Connection) -> int:
    """How many connections were ever made."""
    return sum(node.info("stats")["total_connections_received"] for node in nodes(connection))


def blocked(connection: Connection) -> list[str]:
    """The ids of the clients that stand in a blocking command."""
    return [
        entry["id"] for node in nodes(connection) for entry in node.client_list() if "b" in entry["flags"]
    ]  # fmt: skip
