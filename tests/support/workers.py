"""The workers that tests run under: Dramatiq's and ours, which promise the same."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

import dramatiq
import pytest

from echomq_tasks.worker import Worker

WORKERS: dict[str, Any] = {"dramatiq": dramatiq.Worker, "own": Worker}


def chosen() -> Any:
    """The class of worker that a test has chosen for the processes that it starts, in ``CHAOS_WORKER``."""
    return WORKERS[os.environ.get("CHAOS_WORKER", "dramatiq")]


def places(worker_kind: str, queues: int) -> int:
    """How many connections of a worker wait for jobs of so many queues of one server: of ours, one for all of them."""
    return queues if worker_kind == "dramatiq" else 1


def choose(metafunc: pytest.Metafunc, both: Collection[str], but: Collection[str]) -> None:
    """Run a test that takes a ``worker_kind`` under both workers if its module is among ``both``, but not these.

    One that is parametrized with it has chosen by itself.
    """
    marks = metafunc.definition.iter_markers("parametrize")
    if "worker_kind" in metafunc.fixturenames and not any("worker_kind" in mark.args[0] for mark in marks):
        module = metafunc.module.__name__.rpartition(".")[2].removeprefix("test_")
        under_both = module in both and metafunc.function.__name__ not in but
        metafunc.parametrize("worker_kind", list(WORKERS) if under_both else ["dramatiq"])
