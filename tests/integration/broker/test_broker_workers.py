"""Workers: pause and resume, stop, several of them, several queues."""

from __future__ import annotations

import threading
from collections.abc import Callable

import dramatiq
import pytest
from dramatiq import Worker
from support.eventually import eventually

from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.brokers.dramatiq.slots import Slots


@pytest.fixture(autouse=True)
def _quick_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that was paused is opened again after this many seconds."""
    monkeypatch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 0.05)


def test_two_workers_of_one_broker_and_queue_run_each_message_once(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    seen: list[int] = []
    record = dramatiq.actor(actor_name="record")(seen.append)
    for number in range(100):
        record.send(number)
    make_worker(broker)
    make_worker(broker)
    finish(broker)
    assert sorted(seen) == list(range(100))


def test_two_brokers_share_a_queue(
    make_broker: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    one, two = make_broker(), make_broker()
    met = threading.Barrier(2, timeout=10)
    meet = dramatiq.actor(actor_name="meet", broker=one, max_retries=0)(lambda: met.wait() and None)
    dramatiq.actor(actor_name="meet", broker=two, max_retries=0)(lambda: met.wait() and None)
    meet.send()
    meet.send()
    # One thread each: the barrier opens only when both brokers run one.
    make_worker(one, threads=1)
    make_worker(two, threads=1)
    finish(one)
    assert not met.broken
    assert one.get_queue_message_counts("default") == (0, 0, 0)


def test_a_worker_serves_all_declared_queues(broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]) -> None:
    seen: list[str] = []
    actors = [
        dramatiq.actor(actor_name=name, queue_name=name)(lambda name=name: seen.append(name))
        for name in ("a", "b", "c")
    ]
    for actor in actors * 5:
        actor.send()
    finish(broker, "a", "b", "c")
    assert sorted(seen) == sorted("abc" * 5)


def test_a_worker_with_a_list_of_queues_leaves_the_others_alone(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    seen: list[str] = []
    mine = dramatiq.actor(actor_name="mine", queue_name="mine")(lambda: seen.append("mine"))
    other = dramatiq.actor(actor_name="other", queue_name="other")(lambda: seen.append("other"))
    worker = make_worker(broker, queues={"mine"})
    other.send()
    mine.send()
    finish(broker, "mine")
    assert set(worker.consumers) == {"mine"}
    assert seen == ["mine"]
    assert broker.get_queue_message_counts("other") == (1, 0, 0)


def test_a_paused_worker_takes_nothing_and_a_resumed_one_goes_on(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    seen: list[int] = []
    record = dramatiq.actor(actor_name="record")(seen.append)
    record.send(1)
    finish(broker)
    worker.pause()
    record.send(2)
    # Pause came back, so nobody is in next() any more: what is sent now stays where it is.
    assert broker.get_queue_message_counts("default") == (1, 0, 0)
    assert seen == [1]
    worker.resume()
    finish(broker)
    assert seen == [1, 2]


def test_pausing_twice_and_resuming_twice_is_fine(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    seen: list[int] = []
    record = dramatiq.actor(actor_name="record")(seen.append)
    for number in range(2):
        worker.pause()
        record.send(number)
        worker.resume()
    worker.resume()
    finish(broker)
    assert sorted(seen) == [0, 1]


def test_stop_waits_for_running_jobs(broker: EchoMQBroker, make_worker: Callable[..., Worker]) -> None:
    started, go, ended = threading.Event(), threading.Event(), threading.Event()

    @dramatiq.actor
    def slow() -> None:
        started.set()
        go.wait(10)
        ended.set()

    worker = make_worker(broker)
    slow.send()
    started.wait(10)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    eventually(lambda: not worker.workers[0].running, message="the stop is under way")
    go.set()
    stopping.join(10)
    assert ended.is_set()
    assert broker.queue("default").counts().completed == 1


def test_stop_gives_back_what_never_started(broker: EchoMQBroker, make_worker: Callable[..., Worker]) -> None:
    never = dramatiq.actor(actor_name="never")(lambda: None)
    worker = make_worker(broker, threads=2)
    # Its threads rest while its consumer goes on: two jobs lie in its hands and nobody starts them.
    for thread in worker.workers:
        thread.pause()
    for thread in worker.workers:
        thread.paused_event.wait(10)
    jobs = [never.send().job_id for _ in range(4)]  # type: ignore[attr-defined]
    eventually(lambda: broker.queue("default").counts().active == 2, message="two jobs are claimed")
    worker.stop()
    assert broker.get_queue_message_counts("default") == (4, 0, 0)
    assert broker.queue("default").counts().active == 0
    for job in broker.queue("default").get_many(jobs):
        assert job is not None
        assert (job.failures, job.stalled, job.last_error) == (0, 0, None)


def test_a_worker_that_follows_a_stopped_one_takes_over(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    seen: list[int] = []
    record = dramatiq.actor(actor_name="record")(seen.append)
    for number in range(30):
        record.send(number)
    for _ in range(3):
        make_worker(broker, threads=1).stop()
        assert broker.queue("default").counts().active == 0
    make_worker(broker)
    finish(broker)
    assert sorted(seen) == list(range(30))


def test_a_stopped_worker_takes_nothing_of_a_queue_that_is_declared_later(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    real = Slots.take

    def take(slots: Slots, wanted: int) -> int:
        taken = real(slots, wanted)
        looks.append(taken)
        return taken

    stopped = make_worker(broker)
    stopped.stop()
    monkeypatch.setattr(Slots, "take", take)
    ran = threading.Event()
    # Declared and sent before its consumer could look: Dramatiq adds one to the stopped worker, too.
    late = dramatiq.actor(actor_name="late", queue_name="late")(ran.set)
    late.send()
    try:
        # Its own places, and those of the worker.
        eventually(lambda: len(looks) >= 6)
        assert not any(looks)
        counts = broker.queue("late").counts()
        assert (counts.pending, counts.active) == (1, 0)
        make_worker(broker)
        assert ran.wait(10)
    finally:
        stopped.consumers["late"].stop()
        stopped.consumers["late"].join()
        stopped.consumers["late"].close()


def test_worker_join_waits_for_what_was_taken(broker: EchoMQBroker, worker: Worker) -> None:
    seen: list[int] = []
    record = dramatiq.actor(actor_name="record")(seen.append)
    for number in range(10):
        record.send(number)
    broker.join("default", timeout=20_000)
    worker.join()
    assert sorted(seen) == list(range(10))


def test_a_worker_holds_no_more_jobs_than_it_has_threads(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    go, started = threading.Event(), threading.Semaphore(0)

    def wait() -> None:
        started.release()
        go.wait(20)

    actors = [dramatiq.actor(actor_name=name, queue_name=name)(wait) for name in ("a", "b")]
    for actor in actors * 5:
        actor.send()
    make_worker(broker, threads=2)
    for _ in range(2):
        assert started.acquire(timeout=10)
    assert sum(broker.queue(name).counts().active for name in ("a", "b")) == 2
    go.set()
    finish(broker, "a", "b")
