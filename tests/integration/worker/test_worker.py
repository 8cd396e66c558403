"""The worker's outside: what it refuses, pausing, joining, stopping, giving back, forks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from chaos.crew import PATIENCE
from dramatiq import Middleware
from dramatiq.brokers.stub import StubBroker
from dramatiq.errors import ConnectionFailed
from support.eventually import eventually

from echomq_tasks import current_job, signals
from echomq_tasks.connection import Connection
from echomq_tasks.errors import ConfigError
from echomq_tasks.worker import Worker


@pytest.fixture
def shop(open_shop: Callable[..., Any], standalone: Connection) -> Any:
    return open_shop(connection=standalone)


def test_another_broker_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="or use dramatiq"):
        Worker(StubBroker())


@pytest.mark.parametrize("options", [{"worker_threads": 0}, {"worker_threads": "8"}, {"async_concurrency": True}])
def test_numbers_out_of_range_are_refused(shop: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        Worker(shop.broker, **options)


def test_one_queue_name_in_place_of_a_set_is_refused(shop: Any) -> None:
    with pytest.raises(ConfigError, match="not one name"):
        Worker(shop.broker, queues="mail")


def test_a_worker_serves_the_queues_that_it_was_given(shop: Any, queue_name: str) -> None:
    ran: list[str] = []
    mine = shop.actor(lambda: ran.append("mine"), queue_name, "mine")
    other = shop.actor(lambda: ran.append("other"), f"{queue_name}-other", "other")
    worker = shop.work(queues={queue_name})
    other.send()
    mine.send()
    shop.finished(queue_name)
    assert ran == ["mine"]
    assert set(worker.consumers) == {queue_name}


def test_a_paused_worker_gives_back_what_has_not_started_and_a_resumed_one_goes_on(
    shop: Any, queue_name: str, gate: threading.Event
) -> None:
    started, ran = threading.Event(), list[int]()

    def run(number: int) -> None:
        started.set()
        gate.wait(PATIENCE)
        ran.append(number)

    actor = shop.actor(run, queue_name)
    worker = shop.work(threads=1)
    actor.send(0)
    assert started.wait(PATIENCE)
    pausing = threading.Thread(target=worker.pause)
    pausing.start()
    eventually(lambda: not worker._pump.claiming)  # noqa: SLF001
    actor.send(1)
    gate.set()
    pausing.join(PATIENCE)
    counts = shop.queue(queue_name).counts()
    assert (counts.active, counts.pending, counts.completed) == (0, 1, 1)
    worker.resume()
    shop.finished(queue_name)
    assert ran == [0, 1]


def test_join_waits_for_what_runs_and_for_its_end(shop: Any, queue_name: str) -> None:
    go, started = threading.Event(), threading.Event()

    def run() -> None:
        started.set()
        go.wait(PATIENCE)

    shop.actor(run, queue_name).send()
    worker = shop.work()
    assert started.wait(PATIENCE)
    threading.Timer(0.05, go.set).start()
    worker.join()
    assert shop.queue(queue_name).counts().completed == 1


def test_a_stop_that_has_no_more_time_leaves_the_job_to_its_end(
    shop: Any, queue_name: str, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    started = threading.Event()

    def run() -> None:
        started.set()
        gate.wait(PATIENCE)

    shop.actor(run, queue_name).send()
    worker = shop.work(threads=1)
    assert started.wait(PATIENCE)
    worker.stop(timeout=50)
    assert "1 job still runs" in caplog.text
    assert shop.queue(queue_name).counts().active == 1
    gate.set()
    shop.finished(queue_name)
    assert shop.queue(queue_name).counts().completed == 1


def test_what_runs_is_given_back_at_once_and_loses_no_retry(
    shop: Any, open_shop: Callable[..., Any], standalone: Connection, queue_name: str, gate: threading.Event
) -> None:
    runs: list[tuple[str, int, int]] = []

    def run(who: str) -> Callable[[], None]:
        def body() -> None:
            runs.append((who, current_job().attempt, current_job().failures))
            if who == "first":
                gate.wait(PATIENCE)

        return body

    message = shop.actor(run("first"), queue_name).send()
    worker = shop.work(threads=1)
    eventually(lambda: runs)
    assert worker.abandon() == 1
    info = shop.queue(queue_name).get(message.job_id)
    assert (info.state, info.failures, info.stalled) == ("pending", 0, 0)
    other = open_shop(connection=standalone)
    other.actor(run("second"), queue_name)
    other.work(threads=1)
    other.finished(queue_name)
    gate.set()
    eventually(lambda: not any(thread.is_alive() for thread in worker.workers))
    assert runs == [("first", 1, 0), ("second", 2, 0)]
    assert shop.queue(queue_name).counts().completed == 1
    assert worker.abandon() == 1, "a second time changes nothing"


def test_a_stopped_worker_takes_nothing_of_a_queue_that_is_declared_later(shop: Any, queue_name: str) -> None:
    shop.actor(lambda: None, queue_name, "early")
    worker = shop.work()
    worker.stop()
    late = shop.actor(lambda: None, f"{queue_name}-late", "late")
    late.send()
    assert set(worker.consumers) == {queue_name}
    assert not any(isinstance(each, type(worker._declared)) for each in shop.broker.middleware)  # noqa: SLF001
    assert shop.queue(f"{queue_name}-late").counts().pending == 1


def test_workers_of_one_broker_side_by_side_and_after_one_that_gave_all_back_bring_no_warning(
    shop: Any, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[int] = []
    shop.actor(lambda: ran.append(1), queue_name)
    first, second = shop.work(threads=1), shop.work(threads=1)
    first.abandon()
    third = shop.work(threads=1)
    late = shop.actor(lambda: ran.append(2), f"{queue_name}-late", "late")
    assert [set(each.consumers) for each in (first, second, third)] == [
        {queue_name}, {queue_name, f"{queue_name}-late"}, {queue_name, f"{queue_name}-late"},
    ]  # fmt: skip
    late.send()
    shop.finished(f"{queue_name}-late")
    assert ran == [2]
    assert "same type twice" not in caplog.text


def test_a_with_block_starts_the_worker_and_stops_it_also_when_it_raises(shop: Any, queue_name: str) -> None:
    ran: list[str] = []
    threads: list[threading.Thread] = []
    actor = shop.actor(ran.append, queue_name)

    def block() -> None:
        with Worker(shop.broker, worker_threads=1) as worker:
            threads.extend(worker.workers)
            actor.send("ran")
            shop.finished(queue_name)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    assert ran == ["ran"]
    assert [thread.is_alive() for thread in threads] == [False]


@pytest.mark.parametrize("end", ["stop", "abandon"])
def test_a_with_block_in_which_the_worker_was_stopped_does_not_stop_it_again(
    shop: Any, queue_name: str, end: str
) -> None:
    ends: list[Any] = []

    class Ends(Middleware):
        def after_worker_shutdown(self, broker: Any, worker: Any) -> None:
            ends.append(worker)

    shop.broker.add_middleware(Ends())
    with Worker(shop.broker, worker_threads=1) as worker:
        getattr(worker, end)(timeout=20_000)
    assert ends == ([worker] if end == "stop" else [])


@pytest.mark.parametrize(("before", "told"), [("start", "was started before"), ("stop", "was told to stop before")])
def test_a_second_start_is_refused_with_what_to_do_and_changes_nothing(
    shop: Any, queue_name: str, before: str, told: str
) -> None:
    boots: list[Any] = []

    class Boots(Middleware):
        def before_worker_boot(self, broker: Any, worker: Any) -> None:
            boots.append(worker)

    shop.broker.add_middleware(Boots())
    ran: list[str] = []
    actor = shop.actor(ran.append, queue_name)
    worker = shop.work(threads=1)
    if before == "stop":
        worker.stop()
    with pytest.raises(RuntimeError, match=rf"{told}.*make another Worker\(broker\)"):
        worker.start()
    assert boots == [worker]
    assert len(worker.workers) == 1
    if before == "start":
        actor.send("goes on")
        shop.finished(queue_name)
        assert ran == ["goes on"]


def test_a_start_that_the_server_refuses_can_be_tried_again(
    shop: Any, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    shop.actor(ran.append, queue_name).send("ran")
    worker = Worker(shop.broker, worker_threads=1)
    shop.workers.append(worker)

    def refuse() -> None:
        raise ConnectionFailed("too old")

    with monkeypatch.context() as patch:
        patch.setattr(shop.broker, "_refuse_to_boot_in_vain", refuse)
        with pytest.raises(ConnectionFailed):
            worker.start()
    worker.start()
    shop.finished(queue_name)
    assert ran == ["ran"]


def test_the_hooks_of_threads_are_called_in_these_threads(shop: Any, queue_name: str) -> None:
    seen: list[tuple[str, bool]] = []

    class Boots(Middleware):
        def after_worker_thread_boot(self, broker: Any, thread: Any) -> None:
            seen.append(("boot", thread is threading.current_thread()))

        def before_worker_thread_shutdown(self, broker: Any, thread: Any) -> None:
            seen.append(("shutdown", thread is threading.current_thread()))

        def after_consumer_thread_boot(self, broker: Any, thread: Any) -> None:
            seen.append((f"boot {thread.queue_name}", True))

        def before_consumer_thread_shutdown(self, broker: Any, thread: Any) -> None:
            seen.append((f"shutdown {thread.queue_name}", True))

    shop.broker.add_middleware(Boots())
    shop.actor(lambda: None, queue_name).send()
    worker = shop.work(threads=2)
    shop.finished(queue_name)
    worker.stop()
    assert sorted(seen) == sorted(
        [("boot", True)] * 2
        + [("shutdown", True)] * 2
        + [(f"boot {queue_name}", True), (f"shutdown {queue_name}", True)]
    )


def test_hooks_and_signals_of_an_end_come_after_the_verdict_in_the_thread_that_ran_it(
    shop: Any, queue_name: str
) -> None:
    seen: list[tuple[str, int, int]] = []
    threads: list[int] = []

    def note(what: str) -> None:
        seen.append((what, threading.get_ident(), shop.queue(queue_name).counts().completed))

    class After(Middleware):
        def before_ack(self, broker: Any, message: Any) -> None:
            note("before")

        def after_ack(self, broker: Any, message: Any) -> None:
            note("after")

    shop.broker.add_middleware(After())
    heard: Any = lambda sender, event: note("signal")  # noqa: E731
    with signals.completed.connected_to(heard):
        shop.actor(lambda: threads.append(threading.get_ident()), queue_name).send()
        shop.work(threads=3)
        eventually(lambda: len(seen) == 3)
    assert [(what, completed) for what, _, completed in seen] == [("before", 0), ("signal", 1), ("after", 1)]
    assert {ident for _, ident, _ in seen} == set(threads)


def test_a_job_that_forks_and_does_not_exit_runs_no_job_of_its_parent(
    shop: Any, queue_name: str, tmp_path: Any
) -> None:
    log = tmp_path / "log"

    def run(number: int) -> None:
        if number == 0:
            os.fork()
        with log.open("a") as file:
            file.write(f"{os.getpid()} {number}\n")

    actor = shop.actor(run, queue_name, max_retries=0)
    shop.broker.enqueue_many([actor.message(number) for number in range(40)])
    shop.work(threads=4)
    shop.finished(queue_name)

    def reaped() -> bool:
        # The child's only thread was that of the worker, which ends, and the process with it.
        pid, status = os.waitpid(-1, os.WNOHANG)
        return pid != 0 and status == 0

    eventually(reaped, PATIENCE)
    lines = [line.split() for line in log.read_text().splitlines()]
    mine = [int(number) for pid, number in lines if int(pid) == os.getpid()]
    assert sorted(mine) == list(range(40))
    assert [number for pid, number in lines if int(pid) != os.getpid()] == ["0"]
