"""What is said of leases that are not renewed."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from support.eventually import eventually

from echomq_tasks.brokers.dramatiq import leases
from echomq_tasks.brokers.dramatiq.delivery import lease_end
from echomq_tasks.errors import ServerUnavailable
from echomq_tasks.queue import Renewal


def test_the_warning_counts_those_jobs_whose_leases_are_not_renewed_and_no_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def held(number: int) -> Any:
        job_id = f"JOB{number}"
        about = {"queue": "q", "job": job_id, "job_id": job_id, "actor_name": "run"}
        return SimpleNamespace(**about, held_until=lease_end(0.05), lost=False, settling=False)

    lost, *away, well = deliveries = [held(number) for number in range(4)]

    def extend_all(jobs: Any, *, lease: float) -> Renewal:
        unknown = [each.job for each in away]
        return Renewal((lost.job,), tuple(unknown), ServerUnavailable("its node is away"))

    monkeypatch.setattr(leases, "extend_all", extend_all)
    keeper = leases.LeaseKeeper(0.06, lambda delivery: None)
    keeper.hold(deliveries)
    try:
        eventually(lambda: any("not renewed" in text for text in caplog.messages))
    finally:
        keeper.stop()
    (warning,) = [text for text in caplog.messages if "not renewed" in text]
    assert warning.startswith("The leases of 2 of 4 jobs that this process holds")
    assert warning.endswith("its node is away")
    assert lost.lost
    assert well.held_until > max(each.held_until for each in away)
    assert {each.levelno for each in caplog.records} == {logging.WARNING}
