"""A Dramatiq that does not wait for seconds after a broken connection, and the worker that a test runs."""

from __future__ import annotations

import dramatiq.worker
import pytest

#: The modules whose tests run under Dramatiq's worker and under ours; the others run under Dramatiq's ...
BOTH_WORKERS = {"test_chaos_kill", "test_chaos_network", "test_chaos_server", "test_chaos_stop"}
#: ... as do those which look into it.
INTO_DRAMATIQS = {
    "test_claimed_jobs_that_no_thread_had_started_come_back_at_once",
    "test_jobs_that_could_not_be_given_back_come_back_with_their_lease",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the workers."""
    module = metafunc.module.__name__.rpartition(".")[2]
    both = module in BOTH_WORKERS and metafunc.function.__name__ not in INTO_DRAMATIQS
    metafunc.parametrize("worker_kind", ["dramatiq", "own"] if both else ["dramatiq"])


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch, worker_kind: str) -> None:
    monkeypatch.setattr(dramatiq.worker, "CONSUMER_RESTART_DELAY_SECS", 0.05)
    monkeypatch.setattr(dramatiq.worker, "POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.1)
    # Of the apps in this process and of the processes that a test starts.
    monkeypatch.setenv("CHAOS_WORKER", worker_kind)
