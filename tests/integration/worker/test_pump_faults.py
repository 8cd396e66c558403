"""Faults in the pump's own work: ends that are refused, jobs that cannot be accepted, hooks that exit, no server."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from chaos.crew import PATIENCE
from dramatiq import Middleware
from support.eventually import eventually
from support.servers import ServerProcess

from echomq_tasks.brokers.dramatiq import intake
from echomq_tasks.brokers.dramatiq.intake import Intake
from echomq_tasks.connection import Connection
from echomq_tasks.errors import ServerUnavailable
from echomq_tasks.queue import Complete, Job, NewJob
from echomq_tasks.queue.spot import Spot
from echomq_tasks.worker import Worker

Shops = Callable[..., Any]
#: Well formed, but of another kind: the server refuses it, and the whole call with it.
NO_JOB = "XXX00000000000"


@pytest.fixture
def shop(open_shop: Shops, standalone: Connection) -> Any:
    return open_shop(connection=standalone)


def idle(worker: Worker) -> bool:
    """Whether nothing is held."""
    places = all(pool.free == pool.capacity for pool in worker._pump._pools)  # noqa: SLF001
    return places and not worker.broker.leases.holding  # type: ignore[attr-defined]


# -- ends that are refused ------------------------------------------------------------------------------------------


def test_an_end_that_the_server_refuses_leaves_no_others_waiting(
    shop: Any, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    waiting: list[int] = []
    shop.actor(waiting.append, queue_name)
    worker = Worker(shop.broker, worker_threads=4)
    hand_in = worker._processing._ended  # noqa: SLF001
    spoilt: list[str] = []

    def spoil(run: Any, waits: bool) -> None:
        if run.args[0] == 100:
            spoilt.append(run.job_id)
            run.outcome = Complete(dataclasses.replace(run.job, id=NO_JOB))
        waiting.append(len(worker._pump.lines[queue_name].unsettled))  # noqa: SLF001
        hand_in(run, waits)

    worker._processing._ended = spoil  # noqa: SLF001
    made = shop.actor(lambda number: None, queue_name, "spoil")
    shop.broker.enqueue_many([made.message(number) for number in range(1500)])
    worker.start()
    shop.workers.append(worker)
    eventually(lambda: shop.queue(queue_name).counts().completed == 1499, PATIENCE)
    assert max(waiting) <= worker.worker_threads
    assert caplog.text.count("cannot be told: it runs again when its lease ends") == 1
    eventually(lambda: idle(worker))
    assert [job.id for job in shop.queue(queue_name).get_many(spoilt)] == spoilt, "its lease brings it back"


def test_a_refusal_that_the_server_refuses_takes_no_others_along(
    shop: Any, queue_name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuse = Intake._refusal  # noqa: SLF001

    def spoil(self: Intake, job: Job, fault: str) -> Any:
        return refuse(self, dataclasses.replace(job, id=NO_JOB) if job.payload == b"spoil" else job, fault)

    monkeypatch.setattr(Intake, "_refusal", spoil)
    shop.actor(lambda: None, queue_name)
    queue = shop.queue(queue_name)
    queue.enqueue_many([NewJob(payload=payload) for payload in ("no json", "spoil", "no json")])
    worker = shop.work(threads=4)
    eventually(lambda: queue.counts().dead == 2)
    eventually(lambda: idle(worker))
    eventually(lambda: f"The end of job {NO_JOB}" in caplog.text)


def test_a_refusal_that_cannot_be_sent_takes_no_ends_along(
    shop: Any, queue_name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuse = Intake._refusal  # noqa: SLF001

    def spoil(self: Intake, job: Job, fault: str) -> Any:
        return dataclasses.replace(refuse(self, job, fault), delay=-1.0)

    monkeypatch.setattr(Intake, "_refusal", spoil)
    run = shop.actor(lambda: None, queue_name)
    queue = shop.queue(queue_name)
    queue.enqueue("no json")
    for _ in range(5):
        run.send()
    worker = shop.work(threads=4)
    eventually(lambda: queue.counts().completed == 5)
    eventually(lambda: idle(worker))
    eventually(lambda: "cannot be told" in caplog.text)


# -- jobs that cannot be accepted -----------------------------------------------------------------------------------


def test_jobs_that_an_error_keeps_from_being_accepted_are_given_back_and_run(
    shop: Any, queue_name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    decode, calls = intake.decode, Counter[str]()

    def fail_once(job: Job, name: str) -> Any:
        calls["all"] += 1
        if calls["all"] == 3:
            raise RuntimeError("no such luck")
        return decode(job, name)

    monkeypatch.setattr(intake, "decode", fail_once)
    ran: list[int] = []
    run = shop.actor(ran.append, queue_name)
    shop.broker.enqueue_many([run.message(number) for number in range(8)])
    worker = shop.work(threads=8)
    shop.finished(queue_name)
    assert sorted(ran) == list(range(8))
    assert "The worker's pump failed; it goes on." in caplog.text
    eventually(lambda: idle(worker))


def test_jobs_of_which_no_lease_can_be_kept_are_given_back_and_run_once(
    shop: Any, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, failures = shop.broker.leases.hold, ["can't start new thread"]

    def fail_once(deliveries: Any) -> None:
        if failures:
            raise RuntimeError(failures.pop())
        hold(deliveries)

    monkeypatch.setattr(shop.broker.leases, "hold", fail_once)
    ran: list[int] = []
    run = shop.actor(ran.append, queue_name)
    shop.broker.enqueue_many([run.message(number) for number in range(8)])
    worker = shop.work(threads=4)
    shop.finished(queue_name)
    assert sorted(ran) == list(range(8))
    eventually(lambda: idle(worker))


def test_an_error_that_stays_costs_a_try_now_and_then_and_no_job(
    shop: Any, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, broken, tries = intake.decode, threading.Event(), []
    broken.set()

    def fail(job: Job, name: str) -> Any:
        if broken.is_set():
            tries.append(job.id)
            raise RuntimeError("no such luck")
        return decode(job, name)

    monkeypatch.setattr(intake, "decode", fail)
    ran: list[int] = []
    shop.actor(ran.append, queue_name).send(1)
    worker = shop.work(threads=1)
    outage = worker._pump._outage  # noqa: SLF001
    eventually(lambda: outage._pause >= 0.4, PATIENCE)  # noqa: SLF001
    assert len(tries) < 10
    broken.clear()
    shop.finished(queue_name)
    assert ran == [1]


# -- hooks that exit ------------------------------------------------------------------------------------------------


def test_a_hook_that_exits_is_told_of_and_what_runs_is_finished(
    shop: Any, queue_name: str, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    class Exits(Middleware):
        def after_consumer_thread_boot(self, broker: Any, thread: Any) -> None:
            if thread.queue_name != queue_name:
                sys.exit(3)

    shop.broker.add_middleware(Exits())
    started = threading.Semaphore(0)

    def run() -> None:
        started.release()
        gate.wait(PATIENCE)

    send = shop.actor(run, queue_name).send
    worker = Worker(shop.broker, worker_threads=1)
    called: list[Any] = []
    worker.on_broken(lambda: called.append(worker.broken))
    worker.start()
    shop.workers.append(worker)
    send()
    send()
    assert started.acquire(timeout=PATIENCE)
    shop.actor(run, f"{queue_name}-late", "late")
    eventually(lambda: called)
    assert isinstance(called[0], SystemExit)
    told = [record.levelname for record in caplog.records if "SystemExit in a hook ends" in record.message]
    assert told == ["CRITICAL"]
    gate.set()
    eventually(lambda: not worker._pump.is_alive())  # noqa: SLF001
    counts = shop.queue(queue_name).counts()
    assert (counts.completed, counts.active, counts.pending) == (1, 0, 1)
    assert len(called) == 1


def test_a_hook_that_exits_while_a_thread_boots_ends_the_claiming(
    shop: Any, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Exits(Middleware):
        def after_worker_thread_boot(self, broker: Any, thread: Any) -> None:
            sys.exit(3)

    shop.broker.add_middleware(Exits())
    send = shop.actor(lambda: None, queue_name).send
    worker = Worker(shop.broker, worker_threads=2)
    called: list[Any] = []
    worker.on_broken(lambda: called.append(worker.broken))
    worker.start()
    shop.workers.append(worker)
    eventually(lambda: not worker._pump.is_alive())  # noqa: SLF001
    assert isinstance(called[0], SystemExit)
    assert "SystemExit in a hook ends the worker" in caplog.text
    send()
    assert shop.queue(queue_name).counts().pending == 1


# -- no server ------------------------------------------------------------------------------------------------------


def test_a_stop_waits_for_no_server_to_give_back_what_comes_back_by_itself(
    open_shop: Shops, own_server: ServerProcess, queue_name: str, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    shop = open_shop(url=own_server.url)
    send = shop.actor(lambda: None, queue_name).send
    worker = shop.work(threads=2)
    eventually(lambda: queue_name in worker._pump.lines)  # noqa: SLF001
    # Nobody is woken, and nobody is still awake: what is claimed lies there.
    eventually(lambda: len(worker._crew._asleep) == worker.worker_threads)  # noqa: SLF001
    monkeypatch.setattr(worker._crew, "push", worker._crew.ready.extend)  # noqa: SLF001
    send()
    send()
    eventually(lambda: shop.queue(queue_name).counts().active == 2)
    own_server.kill()
    worker.stop(timeout=600_000)
    assert not worker._pump.is_alive()  # noqa: SLF001
    assert "2 jobs could not be given back" in caplog.text


def test_ends_that_the_server_was_not_told_of_are_counted(
    open_shop: Shops, own_server: ServerProcess, queue_name: str, gate: threading.Event
) -> None:
    shop = open_shop(url=own_server.url)
    started = threading.Semaphore(0)

    def run() -> None:
        started.release()
        gate.wait(PATIENCE)

    send = shop.actor(run, queue_name).send
    worker = shop.work(threads=2)
    send()
    send()
    for _ in range(2):
        assert started.acquire(timeout=PATIENCE)
    own_server.kill()
    assert worker.untold == 2, "they run"
    gate.set()
    eventually(lambda: not worker._crew.running)  # noqa: SLF001
    assert worker.abandon(timeout=100) == 0
    assert worker.untold == 2
    shop.workers.clear()


def test_a_place_that_the_server_closes_while_there_is_no_room_wakes_nobody_again_and_again(
    open_shop: Shops, standalone: Connection, queue_name: str, gate: threading.Event
) -> None:
    shop = open_shop(connection=standalone)
    send = shop.actor(gate.wait, queue_name).send
    worker = shop.work(threads=1)
    lookout = worker._pump._lookout  # noqa: SLF001
    eventually(lambda: lookout.at)
    (spot,) = lookout._standing._spots  # type: ignore[union-attr]  # noqa: SLF001
    send(PATIENCE)
    eventually(lambda: worker._crew.running and not lookout.at)  # noqa: SLF001
    standalone.client.client_kill_filter(_id=spot._client_id)  # noqa: SLF001
    eventually(lambda: lookout._watched == ())  # noqa: SLF001
    gate.set()
    eventually(lambda: lookout.at == [queue_name], message="it stands again")


def test_a_place_that_cannot_be_taken_once_is_taken_soon_after(
    open_shop: Shops, standalone: Connection, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = open_shop(connection=standalone)
    ran = threading.Event()
    send = shop.actor(ran.set, queue_name).send
    worker = shop.work(threads=1)
    lookout = worker._pump._lookout  # noqa: SLF001
    eventually(lambda: lookout.at)
    worker._pump.lines[queue_name].quiet_beat = 3600.0  # noqa: SLF001
    take, failures = Spot.stand, [ServerUnavailable("no more clients")]

    def fail_once(self: Spot) -> None:
        if failures:
            self.close()
            raise failures.pop()
        take(self)

    monkeypatch.setattr(Spot, "stand", fail_once)
    standalone.client.client_kill_filter(_id=lookout._standing._spots[0]._client_id)  # type: ignore[union-attr]  # noqa: SLF001
    eventually(lambda: not failures)
    eventually(lambda: lookout.at, message="it stands again")
    send()
    assert ran.wait(PATIENCE)
