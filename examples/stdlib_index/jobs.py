"""The jobs. Each may run more than once, so it writes what it found under a fixed name: a second run changes nothing.

Whichever job stores the last result of a package sends the merge; likewise the report. It counts only after its own
result is stored, so one killed between the two comes back, stores the same again, and sends what is still missing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from echomq_tasks import actor
from echomq_tasks.brokers.dramatiq import EchoMQBroker
from stdlib_index.index import Index, index_source, merge

QUEUE = "stdlib_index"
KEEP_S = 3600  # the results expire, so that a run on a server of one's own leaves nothing behind

# The server is the one in EMQ_URL. A short lease brings a killed worker's jobs back soon; live workers renew theirs.
broker = EchoMQBroker(lease=2.0)


def client() -> Any:
    """Return the redis client of the broker's connection, for the results."""
    return broker.connection.client


def table(run: str, name: str) -> str:
    """Return the key of a hash; the braces keep all of a run's keys on one node of a cluster."""
    return f"stdlib_index:{{{run}}}:{name}"


def store(run: str, name: str, field: str, index: Index) -> int:
    """Write one result and return how many there are, atomically: so somebody sees that the last one is there."""
    with client().pipeline(transaction=True) as pipe:
        pipe.hset(table(run, name), field, index.dump())
        pipe.expire(table(run, name), KEEP_S)
        pipe.hlen(table(run, name))
        return int(pipe.execute()[-1])


def load(run: str, name: str) -> list[Index]:
    """Return the results under one name."""
    return [Index.load(text) for text in client().hvals(table(run, name))]


@contextmanager
def noted(run: str, job: str) -> Iterator[None]:
    """Note for the view each start of a job, and which process finished it first."""
    client().hincrby(table(run, "starts"), job, 1)
    client().expire(table(run, "starts"), KEEP_S)
    yield
    client().hsetnx(table(run, "finished"), job, os.getpid())
    client().expire(table(run, "finished"), KEEP_S)


@actor(broker=broker, queue_name=QUEUE)
def index_file(run: str, package: str, file: str, files: int, packages: int) -> None:
    """Index one of the ``files`` of a package, which is one of ``packages``."""
    with noted(run, f"file {file}"):
        if store(run, f"package {package}", file, index_source(file)) == files:
            merge_package.send(run, package, packages)


@actor(broker=broker, queue_name=QUEUE)
def merge_package(run: str, package: str, packages: int) -> None:
    """Merge the files of one package."""
    with noted(run, f"package {package}"):
        if store(run, "packages", package, merge(load(run, f"package {package}"))) == packages:
            write_report.send(run)


@actor(broker=broker, queue_name=QUEUE)
def write_report(run: str) -> None:
    """Merge the packages."""
    with noted(run, "report"):
        store(run, "report", "all", merge(load(run, "packages")))
