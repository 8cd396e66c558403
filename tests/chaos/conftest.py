"""Apps that are closed in order, and a Dramatiq that does not wait for seconds after a broken connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import dramatiq.worker
import pytest
from chaos.crew import App, Record, hiring


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dramatiq.worker, "CONSUMER_RESTART_DELAY_SECS", 0.05)
    monkeypatch.setattr(dramatiq.worker, "POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.1)


@pytest.fixture
def record() -> Record:
    """What ran."""
    return Record()


@pytest.fixture
def make_app(queue_name: str) -> Iterator[Callable[..., App]]:
    """Make an app on a server: ``make_app(url, body, **options of the broker)``."""
    with hiring(queue_name) as make:
        yield make
