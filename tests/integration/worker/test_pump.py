"""The pump: it claims for free threads only, settles while all are busy, and stands at the wake keys only with room."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import pytest
from chaos.crew import PATIENCE
from support.counting import blocked
from support.eventually import eventually

from echomq_tasks import actor
from echomq_tasks.connection import Connection
from echomq_tasks.keyspace import queue_key
from echomq_tasks.queue import Complete, State

Shops = Callable[..., Any]


@pytest.fixture
def shop(open_shop: Shops, connection: Connection) -> Any:
    return open_shop(connection=connection)


def test_jobs_run_once_each_on_every_engine(shop: Any, queue_name: str) -> None:
    ran: list[int] = []
    run = shop.actor(ran.append, queue_name)
    shop.broker.enqueue_many([run.message(number) for number in range(300)])
    shop.work(threads=4)
    shop.finished(queue_name)
    assert sorted(ran) == list(range(300))
    assert shop.queue(queue_name).counts().completed == 300


def test_an_end_is_told_while_all_threads_are_busy(shop: Any, queue_name: str, gate: threading.Event) -> None:
    wait = shop.actor(lambda: gate.wait(PATIENCE) and None, queue_name, "wait")
    quick = shop.actor(lambda: None, queue_name, "quick")
    for message in (wait, quick, wait, quick):
        message.send()
    shop.work(threads=2)
    # The first of the quick ones makes room for the second of the slow ones.
    eventually(lambda: (lambda c: (c.completed, c.active, c.pending) == (1, 2, 1))(shop.queue(queue_name).counts()))
    gate.set()
    shop.finished(queue_name)


def test_no_more_is_claimed_than_there_are_threads_for(shop: Any, queue_name: str, gate: threading.Event) -> None:
    names = [f"{queue_name}-{number}" for number in range(3)]
    started = threading.Semaphore(0)

    def wait() -> None:
        started.release()
        gate.wait(PATIENCE)

    actors = [shop.actor(wait, name, name) for name in names]
    for each in actors * 4:
        each.send()
    shop.work(threads=3)
    for _ in range(3):
        assert started.acquire(timeout=PATIENCE)
    counts = [shop.queue(name).counts() for name in names]
    assert sum(each.active for each in counts) == 3
    assert [each.active for each in counts] == [1, 1, 1], "each queue has its share"
    gate.set()
    shop.finished(*names)


def test_a_full_queue_starves_no_other(shop: Any, queue_name: str) -> None:
    order: list[str] = []
    greedy = shop.actor(lambda: order.append("greedy"), f"{queue_name}-a", "greedy")
    modest = [shop.actor(lambda n=n: order.append("modest"), f"{queue_name}-{n}", n) for n in ("b", "c", "d")]
    shop.broker.enqueue_many([greedy.message() for _ in range(400)])
    for each in modest:
        each.send()
    # One place for four queues.
    shop.work(threads=1)
    shop.finished(*(f"{queue_name}-{n}" for n in "abcd"))
    assert "modest" not in order[200:]


def test_one_blpop_stands_for_all_queues_of_a_server(shop: Any, connection: Connection, queue_name: str) -> None:
    before = len(blocked(connection))
    ran: list[str] = []
    names = [f"{queue_name}-{number}" for number in range(4)]
    actors = [shop.actor(lambda name=name: ran.append(name), name, name) for name in names]
    shop.work(threads=2)
    stand = len(names) if connection.is_cluster else 1
    eventually(lambda: len(blocked(connection)) - before == stand, PATIENCE)
    for name, each in zip(names, actors, strict=True):
        each.send()
        eventually(lambda name=name: name in ran, PATIENCE)  # type: ignore[misc]
    eventually(lambda: len(blocked(connection)) - before == stand, PATIENCE)
    # One that is declared later joins them.
    late = shop.actor(lambda: ran.append("late"), f"{queue_name}-late", "late")
    late.send()
    eventually(lambda: "late" in ran, PATIENCE)


def test_the_blpop_is_taken_back_when_there_is_no_room(
    shop: Any, connection: Connection, queue_name: str, gate: threading.Event
) -> None:
    wait = shop.actor(lambda: gate.wait(PATIENCE) and None, queue_name)
    shop.work(threads=2)
    eventually(lambda: len(blocked(connection)) == 1, PATIENCE)
    wait.send()
    eventually(lambda: shop.queue(queue_name).counts().active == 1)
    eventually(lambda: len(blocked(connection)) == 1, PATIENCE, "there is room for one more")
    wait.send()
    eventually(lambda: shop.queue(queue_name).counts().active == 2)
    eventually(lambda: not blocked(connection), PATIENCE)
    wait.send()
    assert connection.client.llen(queue_key(queue_name, "wake")) == 1, "the token is for another worker"
    gate.set()
    shop.finished(queue_name)
    eventually(lambda: len(blocked(connection)) == 1, PATIENCE)


def test_a_token_that_came_to_a_full_worker_goes_to_one_with_room(
    shop: Any, open_shop: Shops, connection: Connection, queue_name: str, gate: threading.Event
) -> None:
    ran: list[str] = []

    def work(who: str) -> Callable[[str], None]:
        def run(kind: str) -> None:
            if kind == "long":
                gate.wait(PATIENCE)
            ran.append(who)

        return run

    other = open_shop(connection=connection)
    first, _ = shop.actor(work("full"), queue_name), other.actor(work("idle"), queue_name)
    shop.work(threads=1)
    first.send("long")
    eventually(lambda: shop.queue(queue_name).counts().active == 1)
    eventually(lambda: not blocked(connection), PATIENCE)
    other.work(threads=1)
    for number in range(1, 11):
        first.send("short")
        eventually(lambda number=number: len(ran) == number, PATIENCE)  # type: ignore[misc]
    assert set(ran) == {"idle"}
    gate.set()
    shop.finished(queue_name)


def test_a_paused_queue_rests_and_the_others_go_on(shop: Any, queue_name: str) -> None:
    ran: list[str] = []
    resting, running = f"{queue_name}-a", f"{queue_name}-b"
    a = shop.actor(lambda: ran.append("a"), resting, "a")
    b = shop.actor(lambda: ran.append("b"), running, "b")
    shop.work(threads=2)
    shop.queue(resting).pause()
    for _ in range(5):
        a.send()
        b.send()
    shop.finished(running)
    assert ran == ["b"] * 5
    shop.queue(resting).resume()
    shop.finished(resting)
    assert sorted(ran) == ["a"] * 5 + ["b"] * 5


def test_a_delayed_job_runs_when_it_is_due(shop: Any, queue_name: str) -> None:
    ran = threading.Event()
    late = shop.actor(ran.set, queue_name)
    shop.work(threads=1)
    eventually(lambda: shop.workers[0].consumers[queue_name].look_at > 0)
    late.send_with_options(delay=150)
    assert ran.wait(4), "long before the next look of a quiet worker"


def test_what_was_claimed_and_not_started_goes_back_when_the_worker_stops(
    shop: Any, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = shop.actor(lambda: None, queue_name, "never")
    options = {"broker": shop.broker, "queue_name": f"{queue_name}-batch", "actor_name": "batched"}
    batched = actor(batch=10, batch_wait=60.0, **options)(lambda numbers: None)
    worker = shop.work(threads=3)
    # Nobody is woken, and nobody is still awake: what is claimed lies there.
    eventually(lambda: len(worker._crew._asleep) == worker.worker_threads)  # noqa: SLF001
    monkeypatch.setattr(worker._crew, "push", worker._crew.ready.extend)  # noqa: SLF001
    ids = [never.send().job_id for _ in range(2)]
    member = batched.send(1).job_id
    eventually(lambda: shop.queue(queue_name).counts().active == 2)
    eventually(lambda: shop.queue(f"{queue_name}-batch").counts().active == 1)
    worker.stop()
    for name, mine in ((queue_name, ids), (f"{queue_name}-batch", [member])):
        counts = shop.queue(name).counts()
        assert (counts.active, counts.pending) == (0, len(mine))
        for info in shop.queue(name).get_many(mine):
            assert (info.failures, info.stalled, info.state) == (0, 0, State.PENDING)
    eventually(lambda: shop.broker.leases.holding == 0)


def test_ends_of_which_one_cannot_be_sent_are_told_but_for_that_one(
    open_shop: Shops, standalone: Connection, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop = open_shop(connection=standalone, lease=0.5)
    gate, runs = threading.Event(), []

    def run(number: int) -> None:
        runs.append(number)
        gate.wait(PATIENCE)

    send = shop.actor(run, queue_name).send
    worker = shop.work(threads=4)
    for number in range(4):
        send(number)
    eventually(lambda: len(runs) == 4)
    hand_in = worker._processing._ended  # noqa: SLF001

    def spoil(run: Any, waits: bool) -> None:
        if run.args[0] == 2 and runs.count(2) == 1:
            # The server refuses this one, and with it the whole call.
            run.outcome = Complete(dataclasses.replace(run.job, id="XXX00000000000"))
        hand_in(run, waits)

    worker._processing._ended = spoil  # noqa: SLF001
    gate.set()
    shop.finished(queue_name)
    assert sorted(runs) == [0, 1, 2, 2, 3]
    assert "cannot be told: it runs again when its lease ends" in caplog.text
    eventually(lambda: shop.broker.leases.holding == 0)
