"""Who is given the places of a worker, and when: long jobs beside short ones, equal queues, a quiet one, slow hooks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from chaos.crew import PATIENCE
from dramatiq import Middleware
from support.eventually import eventually

from echomq_tasks import signals
from echomq_tasks.connection import Connection

Shops = Callable[..., Any]


@pytest.fixture
def shop(open_shop: Shops, standalone: Connection) -> Any:
    return open_shop(connection=standalone)


def test_short_jobs_are_told_and_go_on_in_the_one_place_that_long_ones_leave(
    shop: Any, queue_name: str, gate: threading.Event
) -> None:
    wait = shop.actor(lambda: gate.wait(PATIENCE) and None, queue_name, "wait")
    quick = shop.actor(lambda: None, queue_name, "quick")
    # Behind so many short ones, the long ones are claimed by a worker that waits for half of its places.
    sent = [quick.message()] * 400 + [wait.message()] * 7 + [quick.message()] * 400
    shop.broker.enqueue_many([message.copy() for message in sent])
    shop.work(threads=8)
    eventually(lambda: shop.queue(queue_name).counts().completed == 800, PATIENCE)
    assert shop.queue(queue_name).counts().active == 7
    gate.set()
    shop.finished(queue_name)


@pytest.mark.parametrize("threads", [1, 8])
def test_two_backlogged_queues_have_the_same_share(shop: Any, queue_name: str, threads: int) -> None:
    order: list[str] = []

    def run(name: str) -> None:
        time.sleep(0.02)
        order.append(name)

    names = [f"{queue_name}-{letter}" for letter in "ab"]
    for name in names:
        made = shop.actor(run, name, name)
        shop.broker.enqueue_many([made.message(name) for _ in range(200)])
    shop.work(threads=threads)
    eventually(lambda: len(order) >= 20 * min(threads, 4), PATIENCE)
    seen = order[: 20 * min(threads, 4)]
    for name in names:
        assert seen.count(name) > len(seen) / 3, seen


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_queue_that_was_empty_is_given_the_next_free_place_beside_a_backlog(
    shop: Any, queue_name: str, kind: str
) -> None:
    ran: list[int] = []
    picked_up = threading.Event()
    bulk_name, urgent_name = f"{queue_name}-bulk", f"{queue_name}-urgent"

    def run(number: int) -> None:
        time.sleep(0.02)
        ran.append(number)

    async def run_apart() -> None:
        picked_up.set()

    bulk = shop.actor(run, bulk_name, "bulk")
    urgent = shop.actor(picked_up.set if kind == "threads" else run_apart, urgent_name, "urgent")
    shop.broker.enqueue_many([bulk.message(number) for number in range(600)])
    shop.work(threads=4)
    eventually(lambda: len(ran) > 20)
    for _ in range(3):
        picked_up.clear()
        before = len(ran)
        urgent.send()
        assert picked_up.wait(PATIENCE)
        assert len(ran) - before < 60


@pytest.mark.parametrize("how", ["hook", "signal"])
def test_a_thread_that_is_still_told_of_an_end_has_no_place_for_another_job(
    shop: Any, open_shop: Shops, standalone: Connection, queue_name: str, gate: threading.Event, how: str
) -> None:
    told = threading.Semaphore(0)

    def dawdle(*args: Any, **options: Any) -> None:
        told.release()
        gate.wait(PATIENCE)

    class Slow(Middleware):
        def after_ack(self, broker: Any, message: Any) -> None:
            dawdle()

    ran: list[str] = []
    send = shop.actor(lambda number: ran.append("slow"), queue_name).send
    other = open_shop(connection=standalone)
    other.actor(lambda number: ran.append("idle"), queue_name)
    listening = signals.completed.connected_to(dawdle) if how == "signal" else None
    if listening is not None:
        listening.__enter__()
    else:
        shop.broker.add_middleware(Slow())
    try:
        worker = shop.work(threads=2)
        for number in range(2):
            send(number)
        for _ in range(2):
            assert told.acquire(timeout=PATIENCE)
        for number in range(2):
            send(number)
        if listening is not None:
            # It is the process's; the other worker would be as slow.
            listening.__exit__(None, None, None)
            listening = None
        other.work(threads=2)
        eventually(lambda: len(ran) == 4, PATIENCE)
        assert ran == ["slow", "slow", "idle", "idle"]
    finally:
        if listening is not None:
            listening.__exit__(None, None, None)
        gate.set()
    eventually(lambda: all(pool.free == pool.capacity for pool in worker._pump._pools))  # noqa: SLF001
    send(4)
    shop.finished(queue_name)
