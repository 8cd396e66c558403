"""What is told of code that holds up the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from chaos.crew import PATIENCE
from dramatiq.middleware import AsyncIO
from support.eventually import eventually

from echomq_tasks.connection import Connection

WATCH = "echomq_tasks.worker.holdups.LoopWatch"


@pytest.fixture(params=[[], [AsyncIO()]], ids=["its own loop", "AsyncIO's"])
def shop(
    open_shop: Callable[..., Any],
    standalone: Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> Any:
    monkeypatch.setattr("echomq_tasks.worker.holdups._BEAT", 0.02)
    monkeypatch.setattr("echomq_tasks.worker.holdups._PATIENCE", 0.2)
    caplog.set_level(logging.INFO, WATCH)
    return open_shop(connection=standalone, middleware=request.param)


def told(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == WATCH and each.levelno == level]


def hold_up(until: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE
    while not until() and time.monotonic() < give_up:
        time.sleep(0.001)


def test_a_job_that_blocks_is_named_once_with_the_place_and_its_end_is_told(
    shop: Any, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()

    async def blocker(name: str) -> None:
        hold_up(release.is_set)

    async def neighbour() -> None:
        await asyncio.sleep(0)

    message = shop.actor(blocker, queue_name, "blocker").send("ada")
    worker = shop.work(threads=1)
    eventually(lambda: told(caplog, logging.WARNING))
    shop.actor(neighbour, queue_name, "neighbour").send()
    watch = worker._tasks._watch  # noqa: SLF001
    looks: list[bool] = []
    is_on = watch._is_on  # noqa: SLF001
    watch._is_on = lambda thread: looks.append(True) or is_on(thread)  # noqa: SLF001
    # So long that it would be told again.
    eventually(lambda: len(looks) > 20)
    release.set()
    shop.finished(queue_name)
    eventually(lambda: told(caplog, logging.INFO))
    (warning,) = told(caplog, logging.WARNING)
    assert warning.startswith(f"blocker('ada') ({message.job_id}) holds up the event loop, for ")
    place = warning.splitlines()[1:]
    assert "in blocker" in place[0]
    assert any("time.sleep(0.001)" in line or "until()" in line or "PATIENCE" in line for line in place)
    assert not any("asyncio" in line or "run.py" in line for line in place)
    (info,) = told(caplog, logging.INFO)
    assert info.startswith("The event loop goes on, which was held up for at least ")
    worker.stop()
    assert not watch.is_alive()


def test_a_task_that_a_job_made_is_named_by_its_function(
    shop: Any, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def helper() -> None:
        hold_up(lambda: bool(told(caplog, logging.WARNING)))

    async def run() -> None:
        await asyncio.gather(helper(), asyncio.sleep(0))

    shop.actor(run, queue_name).send()
    shop.work(threads=1)
    shop.finished(queue_name)
    (warning,) = told(caplog, logging.WARNING)
    assert "helper() holds up the event loop" in warning.splitlines()[0]


def test_a_worker_with_coroutines_that_wait_and_threads_that_compute_tells_nothing(
    shop: Any, queue_name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echomq_tasks.worker.holdups._PATIENCE", PATIENCE)
    looks = threading.Semaphore(0)
    seen = 0

    async def wait() -> None:
        nonlocal seen
        while seen < 30:
            seen += looks.acquire(blocking=False)
            await asyncio.sleep(0.001)

    def compute() -> None:
        hold_up(lambda: seen >= 30 or not sum(range(1000)))

    for function in (wait, compute):
        shop.actor(function, queue_name, function.__name__).send()
    worker = shop.work(threads=1)
    look = worker._tasks._watch._look  # noqa: SLF001
    worker._tasks._watch._look = lambda thread: (look(thread), looks.release())  # noqa: SLF001
    shop.finished(queue_name)
    assert seen >= 30, "it was looked at again and again"
    assert told(caplog, logging.WARNING) == []


def test_a_loop_is_looked_at_while_something_runs_there_and_left_alone_in_between(
    shop: Any, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echomq_tasks.worker.interrupts._LOOK", 0.01)
    looks: list[Any] = []

    async def run() -> None:
        before = len(looks)
        await asyncio.to_thread(eventually, lambda: len(looks) > before + 1)

    made = shop.actor(run, queue_name)
    worker = shop.work(threads=1)
    watch = worker._tasks._watch  # noqa: SLF001
    watch._look = looks.append  # noqa: SLF001
    for _ in range(3):
        made.send()
        shop.finished(queue_name)
        eventually(lambda: watch._watched() is None and not watch._asked.is_set())  # noqa: SLF001
    assert looks
