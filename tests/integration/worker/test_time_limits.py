"""Time limits of plain actors where nobody has emitted ``process_boot``, as in a script or a test."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
from chaos.crew import PATIENCE
from dramatiq import Middleware
from dramatiq.middleware import TimeLimit

from echomq_tasks.connection import Connection
from echomq_tasks.worker import Worker


class Boots(Middleware):
    """Notes each ``process_boot``."""

    def __init__(self) -> None:
        self.count = 0

    def after_process_boot(self, broker: Any) -> None:
        self.count += 1


class OwnLimit(TimeLimit):
    """One with a hook of its own, which starts the timer as the stock one does."""

    def after_process_boot(self, broker: Any) -> None:
        super().after_process_boot(broker)


@pytest.fixture
def limit(request: pytest.FixtureRequest) -> TimeLimit:
    kind: type[TimeLimit] = getattr(request, "param", TimeLimit)
    return kind(interval=10)


@pytest.fixture
def boots() -> Boots:
    return Boots()


@pytest.fixture
def shop(open_shop: Callable[..., Any], standalone: Connection, limit: TimeLimit, boots: Boots) -> Any:
    return open_shop(connection=standalone, middleware=[limit, boots])


def is_cut_short(shop: Any, queue_name: str) -> bool:
    """Whether a job that does not end by itself is ended by its time limit."""
    ended: list[str] = []

    def run() -> None:
        give_up = time.monotonic() + PATIENCE
        try:
            while time.monotonic() < give_up:
                time.sleep(0.001)
        except BaseException as error:
            ended.append(type(error).__name__)
            raise

    shop.actor(run, queue_name, f"run-{threading.get_ident()}-{time.monotonic_ns()}", time_limit=30).send()
    shop.finished(queue_name)
    return ended == ["TimeLimitExceeded"]


@pytest.mark.parametrize(
    ("limit", "kind"), [(TimeLimit, Worker), (OwnLimit, Worker), (TimeLimit, dramatiq.Worker)], indirect=["limit"]
)
def test_a_worker_that_is_started_by_hand_sees_to_time_limits_and_calls_no_other_boot_hook(
    shop: Any, queue_name: str, boots: Boots, kind: Any
) -> None:
    worker = kind(shop.broker, worker_threads=1, worker_timeout=100)
    shop.workers.append(worker)
    worker.start()
    assert is_cut_short(shop, queue_name)
    assert boots.count == 0


# A hook of one's own is called as often as it is emitted.
@pytest.mark.parametrize(
    ("limit", "emitted"), [(TimeLimit, "before"), (TimeLimit, "after"), (OwnLimit, "before")], indirect=["limit"]
)
def test_an_emitted_process_boot_and_a_second_worker_start_no_timer_twice(
    shop: Any, queue_name: str, limit: TimeLimit, boots: Boots, caplog: pytest.LogCaptureFixture, emitted: str
) -> None:
    if emitted == "before":
        shop.broker.emit_after("process_boot")
    first = shop.work(threads=1)
    timer = limit.manager
    first.stop()
    shop.work(threads=1)
    if emitted == "after":
        shop.broker.emit_after("process_boot")
    assert limit.manager is timer
    assert is_cut_short(shop, queue_name)
    assert boots.count == 1
    assert not [record for record in caplog.records if record.levelname == "CRITICAL"]


def test_a_fork_has_a_timer_of_its_own(shop: Any, limit: TimeLimit) -> None:
    shop.work(threads=1).stop()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            was_alive = limit.manager.is_alive()
            shop.broker.emit_after("process_boot")
            code = 0 if limit.manager.is_alive() and not was_alive and limit.manager.interval == 0.01 else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
