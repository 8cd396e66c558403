"""A Dramatiq that does not wait for seconds after a broken connection, and the worker that a test runs."""

from __future__ import annotations

import dramatiq.worker
import pytest
from support.workers import choose

#: The modules whose tests run under Dramatiq's worker and under ours; the others run under Dramatiq's ...
BOTH_WORKERS = {f"chaos_{fault}" for fault in "batches delays flows forks kill network payloads server stop".split()}
#: ... as do those which look into it.
INTO_DRAMATIQS = {
    "test_claimed_jobs_that_no_thread_had_started_come_back_at_once",
    "test_jobs_that_could_not_be_given_back_come_back_with_their_lease",
}
#: These run long, and under ours a longer one has all their faults.
LONG = {"test_two_parents_whose_facts_die_at_one_point_both_run_once"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the workers."""
    choose(metafunc, BOTH_WORKERS, INTO_DRAMATIQS | LONG)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch, worker_kind: str) -> None:
    monkeypatch.setattr(dramatiq.worker, "CONSUMER_RESTART_DELAY_SECS", 0.05)
    monkeypatch.setattr(dramatiq.worker, "POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.1)
    # Of the apps in this process and of the processes that a test starts.
    monkeypatch.setenv("CHAOS_WORKER", worker_kind)
