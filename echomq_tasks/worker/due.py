"""Batches that wait for more members in a worker: when they start."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast

from echomq_tasks.brokers.dramatiq.batches import Batch
from echomq_tasks.worker.line import Line
from echomq_tasks.worker.places import FreePlaces


def start_due_batches(lines: Collection[Line], pools: Sequence[FreePlaces], now: float, *, claiming: bool) -> None:
    """Have the batches run whose time has come, and those that wait for others who cannot come."""
    opened = 0
    for line in lines:
        gathering = line.gathering
        if not gathering.opened:
            continue
        if gathering.due <= now and not (line.backlog and gathering.room and claiming):
            for batch in gathering.take_due(now):
                _push(batch)
        opened += gathering.opened
    if opened:
        for pool in pools:
            if not pool.free and opened >= pool.capacity:
                _unstick(lines, pool)


def _unstick(lines: Collection[Line], pool: FreePlaces) -> None:
    """Start batches that wait in all the places there are, when none of them may ask for more."""
    stuck = [(line.gathering, batch) for line in lines for batch in line.gathering.batches if batch.places is pool]
    if len(stuck) >= pool.capacity and not any(batch.room and not batch.crowded for _, batch in stuck):
        # Nobody can join any more, and who waits for them could run.
        for gathering, batch in stuck:
            gathering.close(batch)
            _push(batch)


def _push(batch: Batch) -> None:
    """Have a batch run by those who have a place for it."""
    if (places := batch.places) is not None:
        cast("FreePlaces", places).team.push([batch])
