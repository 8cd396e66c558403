"""Two processes with a table, and the workers that the tests of this directory, not of those below, run under."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pairs import CLOCKS, Pair
from support.workers import choose

from echomq_tasks.connection import Connection

#: The modules whose tests run under Dramatiq's worker and under ours; the others run under Dramatiq's ...
BOTH_WORKERS = set("actor broker_idle broker_leases flow_actors results_backend results_faults".split())
#: ... as do those of what only Dramatiq's has: a prefetch, consumers, and a thread that tells one end each, ...
INTO_DRAMATIQS = {
    "test_a_consumer_that_closes_gives_its_token_back",
    "test_a_settlement_under_an_old_token_is_refused_by_the_server_and_logged",
    "test_an_end_that_cannot_be_told_does_not_take_others_along",
    "test_dramatiqs_prefetch_setting_is_honoured",
}
#: ... and those which run long and show what both have in common.
IN_COMMON = {
    "test_a_job_that_computes_without_a_pause_keeps_its_lease",
    "test_a_time_limit_ends_a_wait_inside_of_an_actor",
    "test_all_jobs_of_a_process_are_renewed_in_one_call_a_beat",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the workers."""
    if metafunc.definition.path.parent == Path(__file__).parent:
        choose(metafunc, BOTH_WORKERS, INTO_DRAMATIQS | IN_COMMON)


@pytest.fixture
def pair(standalone: Connection) -> Iterator[Pair]:
    """Two processes with one table; the clock of the one that holds its values is hours ahead."""
    made = Pair(standalone)
    yield made
    made.close()


@pytest.fixture
def two(standalone: Connection) -> Iterator[Pair]:
    """Two processes with one table, whose clocks agree."""
    made = Pair(standalone, CLOCKS["agree"])
    yield made
    made.close()
