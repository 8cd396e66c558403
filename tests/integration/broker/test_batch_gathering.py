"""Gathering a batch: leases, places, other jobs, and workers that pause, stop and share."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dramatiq
import pytest
from dramatiq import Worker
from support.eventually import eventually

from echomq_tasks import actor
from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.brokers.dramatiq.batches import Batch
from echomq_tasks.queue import Queue, State

FOREVER = 60.0


@pytest.fixture(autouse=True)
def _quick_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that was paused is opened again after this many seconds."""
    monkeypatch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 0.05)


def declare(calls: list[list[Any]], **options: Any) -> Any:
    """A batch actor that notes its calls."""
    return actor(actor_name="index", **{"batch": 100, "batch_wait": FOREVER, **options})(calls.append)


def attempts(queue: Queue) -> dict[str, int]:
    """How often each waiting job was claimed."""
    rows = queue.get_many(queue.browse(State.PENDING))
    return {row.id: row.attempts for row in rows if row is not None}


def items(batch: Any) -> list[Any]:
    """What the members of a batch carry."""
    assert isinstance(batch, Batch)
    return [member.args[0] for member in batch.members]


def test_one_place_is_enough_for_a_full_batch(broker: EchoMQBroker) -> None:
    index = declare([], batch=50)
    for number in range(120):
        index.send(number)
    consumer = broker.consume("default", prefetch=1, timeout=50)
    first = next(consumer)
    assert items(first) == list(range(50))
    # The place is taken until the batch has ended.
    assert next(consumer) is None
    assert broker.queue("default").counts().active == 50
    consumer.ack(first)
    second = next(consumer)
    assert items(second) == list(range(50, 100))
    consumer.nack(second)
    counts = broker.queue("default").counts()
    assert (counts.completed, counts.dead, counts.pending) == (50, 50, 20)
    consumer.close()


def test_next_waits_no_longer_than_its_timeout_while_a_batch_gathers(broker: EchoMQBroker) -> None:
    index = declare([], batch=2)
    index.send(1)
    consumer = broker.consume("default", prefetch=4, timeout=50)
    # Each of these would take a minute.
    assert [next(consumer) for _ in range(4)] == [None] * 4
    assert broker.queue("default").counts().active == 1
    index.send(2)
    assert items(eventually(lambda: next(consumer))) == [1, 2]
    consumer.close()


@pytest.mark.parametrize("crowded", [False, True])
def test_one_next_waits_until_the_batch_is_due(broker: EchoMQBroker, crowded: bool) -> None:
    index = declare([], batch_wait=0.05)
    plain = dramatiq.actor(actor_name="plain")(lambda: None)
    index.send(1)
    # With these, it waits for a free place; without them, for a token of the server.
    for _ in range(2 * crowded):
        plain.send()
    # The first would end at the next look at the queue, in five seconds, and the second with the test's own time.
    consumer = broker.consume("default", prefetch=2, timeout=600_000 if crowded else 2000)
    if crowded:
        delivery = next(consumer)
        assert delivery is not None
        assert delivery.actor_name == "plain"
    assert items(next(consumer)) == [1]
    consumer.close()


def test_a_batch_that_is_given_back_frees_its_place(broker: EchoMQBroker) -> None:
    index = declare([], batch=3)
    for number in range(3):
        index.send(number)
    consumer = broker.consume("default", prefetch=1, timeout=2000)
    batch = next(consumer)
    assert items(batch) == [0, 1, 2]
    consumer.requeue(iter([batch]))
    assert broker.leases.holding == 0
    assert items(next(consumer)) == [0, 1, 2]
    consumer.close()


def test_jobs_that_came_for_nothing_are_given_back_at_once_and_only_once(broker: EchoMQBroker) -> None:
    index = declare([])
    plain = dramatiq.actor(actor_name="plain")(lambda number: None)
    index.send(0)
    for number in range(6):
        plain.send(number)
    consumer = broker.consume("default", prefetch=2, timeout=50)
    delivery = next(consumer)
    assert delivery is not None
    assert delivery.args == (0,)
    assert next(consumer) is None
    queue = broker.queue("default")
    assert (queue.counts().active, queue.counts().pending) == (2, 5)
    assert set(attempts(queue).values()) == {1}
    # What waits behind them is not looked at again and again.
    index.send(1)
    assert [next(consumer) for _ in range(3)] == [None] * 3
    assert sorted(attempts(queue).values()) == [0, 1, 1, 1, 1, 1]
    consumer.requeue([delivery])
    consumer.close()
    assert (queue.counts().active, queue.counts().pending) == (0, 8)


def test_a_backlog_of_other_jobs_is_left_alone_but_for_a_few(broker: EchoMQBroker) -> None:
    index = declare([], batch=1000)
    plain = dramatiq.actor(actor_name="plain")(lambda number: None)
    index.send(0)
    broker.enqueue_many([plain.message(number) for number in range(500)])
    consumer = broker.consume("default", prefetch=2, timeout=50)
    delivery = next(consumer)
    assert [next(consumer) for _ in range(3)] == [None] * 3
    queue = broker.queue("default")
    rows = queue.get_many(queue.browse(State.PENDING, count=1000))
    assert len(rows) == 499
    assert sum(row.attempts for row in rows if row is not None) <= 8
    assert delivery is not None
    consumer.requeue([delivery])
    consumer.close()


def test_a_batch_asks_for_more_each_time_while_all_that_comes_is_its_own(
    broker: EchoMQBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    real = Queue.claim

    def claim(queue: Queue, number: int, **options: Any) -> Any:
        asked.append(number)
        return real(queue, number, **options)

    monkeypatch.setattr(Queue, "claim", claim)
    index = declare([], batch=300)
    plain = dramatiq.actor(actor_name="plain")(lambda: None)
    broker.enqueue_many([index.message(number) for number in range(600)])
    consumer = broker.consume("default", prefetch=1, timeout=2000)
    for start in (0, 300):
        batch = next(consumer)
        assert items(batch) == list(range(start, start + 300))
        consumer.ack(batch)
    # The second knows how the first one fared.
    assert asked == [1, 8, 16, 32, 64, 128, 51, 1, 299]
    # And a job of another actor makes it begin anew.
    asked.clear()
    for item in (0, None, 1, 2):
        plain.send() if item is None else index.send(item)
    batch = next(consumer)
    assert items(batch) == [0, 1, 2]
    consumer.ack(batch)
    delivery = next(consumer)
    assert delivery is not None
    assert delivery.actor_name == "plain"
    consumer.ack(delivery)
    broker.enqueue_many([index.message(number) for number in range(300)])
    assert len(items(next(consumer))) == 300
    assert asked[:2] == [1, 299]
    assert asked[-7:] == [1, 8, 16, 32, 64, 128, 51]
    consumer.close()


def test_a_batch_that_nobody_can_join_starts_at_once(broker: EchoMQBroker) -> None:
    index = declare([])
    plain = dramatiq.actor(actor_name="plain")(lambda number: None)
    for number in range(4):
        index.send(number)
    plain.send(4)
    index.send(5)
    # Its only place is the batch's: what waits behind could not run for a minute, and nothing could join.
    consumer = broker.consume("default", prefetch=1, timeout=5000)
    batch = next(consumer)
    assert items(batch) == [0, 1, 2, 3, 5]
    consumer.ack(batch)
    delivery = next(consumer)
    assert delivery is not None
    assert delivery.args == (4,)
    consumer.ack(delivery)
    consumer.close()


def test_a_batch_that_others_wait_behind_still_takes_what_free_places_bring(broker: EchoMQBroker) -> None:
    index = declare([], batch=3)
    plain = dramatiq.actor(actor_name="plain")(lambda number: None)
    index.send(0)
    for number in range(3):
        plain.send(number)
    consumer = broker.consume("default", prefetch=2, timeout=50)
    delivery = next(consumer)
    assert delivery is not None
    assert (delivery.actor_name, delivery.args) == ("plain", (0,))
    queue = broker.queue("default")
    assert (queue.counts().active, queue.counts().pending) == (2, 2)
    for number in (1, 2):
        consumer.ack(delivery)
        delivery = eventually(lambda: next(consumer))
        assert delivery.args == (number,)
    consumer.ack(delivery)
    index.send(1)
    index.send(2)
    assert items(eventually(lambda: next(consumer))) == [0, 1, 2]
    consumer.close()


def test_other_jobs_run_while_a_batch_gathers(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    calls: list[list[int]] = []
    seen: list[int] = []
    index = declare(calls, batch=2)
    plain = dramatiq.actor(actor_name="plain")(seen.append)
    index.send(0)
    make_worker(broker, threads=2)
    for number in range(200):
        plain.send(number)
    eventually(lambda: len(seen) == 200)
    assert calls == []
    index.send(1)
    finish(broker)
    assert calls == [[0, 1]]
    assert sorted(seen) == list(range(200))


def test_batches_of_several_actors_gather_apart(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    calls: list[tuple[str, list[int]]] = []
    actors = [
        actor(actor_name=name, batch=10, batch_wait=FOREVER)(lambda numbers, name=name: calls.append((name, numbers)))
        for name in ("a", "b", "c")
    ]
    for number in range(20):
        for each in actors:
            each.send(number)
    make_worker(broker, threads=4)
    finish(broker)
    for name in ("a", "b", "c"):
        assert sorted(numbers for called, numbers in calls if called == name) == [
            list(range(10)),
            list(range(10, 20)),
        ]


def test_mixed_work_on_one_thread_all_runs_once(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    calls: list[list[int]] = []
    seen: list[int] = []
    # Were each batch's time waited for, this would take half an hour.
    index = declare(calls, batch=7)
    plain = dramatiq.actor(actor_name="plain")(seen.append)
    for number in range(300):
        (index if number % 3 else plain).send(number)
    plain.send(300)
    make_worker(broker, threads=1)
    finish(broker)
    assert sorted(seen) == list(range(0, 301, 3))
    assert Counter(number for call in calls for number in call) == Counter(n for n in range(300) if n % 3)
    assert 1 < max(map(len, calls)) <= 7


def test_two_workers_run_each_member_once(
    make_broker: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    calls: list[list[int]] = []
    brokers = [make_broker(), make_broker()]
    actors = [
        actor(actor_name="index", broker=broker, batch=20, batch_wait=0.02)(lambda numbers: calls.append(numbers))
        for broker in brokers
    ]
    for broker in brokers:
        make_worker(broker, threads=2)
    for number in range(500):
        actors[number % 2].send(number)
    finish(brokers[0])
    assert sorted(number for call in calls for number in call) == list(range(500))
    assert max(map(len, calls)) <= 20


def test_members_keep_their_leases_while_they_wait_for_others(
    make_broker: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    calls: list[list[int]] = []
    lease = timedelta(seconds=1.5)
    broker = make_broker(lease=lease.total_seconds())
    index = declare(calls, batch=2)
    first = index.send(1)
    make_worker(broker, threads=2)
    # A second worker would take the job over when its lease ended.
    make_worker(broker, threads=2)
    queue = broker.queue("default")
    eventually(lambda: queue.counts().active == 1)
    begun = queue.get(first.job_id)
    assert begun is not None

    def outlasted() -> bool:
        info = queue.get(first.job_id)
        assert info is not None
        assert (info.state, info.attempts, info.stalled) == (State.ACTIVE, 1, 0)
        return info.due >= begun.due + lease  # type: ignore[operator]

    eventually(outlasted, 20, "renewed for another lease")
    index.send(2)
    index.send(3)
    eventually(lambda: calls != [])
    assert len(calls[0]) == 2


def test_what_was_lost_while_it_waited_is_left_to_its_other_run(
    make_broker: Callable[..., EchoMQBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_broker(lease=0.2)
    monkeypatch.setattr(broker.leases, "_run", lambda stop: None)
    index = declare([], batch=3)
    index.send(0)
    consumer = broker.consume("default", prefetch=1, timeout=50)
    assert next(consumer) is None
    queue = broker.queue("default")
    taken = eventually(lambda: (queue.sweep_stalled(max_stalled=5), queue.claim(1, lease=60))[1].jobs)
    index.send(1)
    index.send(2)
    batch = eventually(lambda: next(consumer))
    assert items(batch) == [0, 1, 2]
    assert not broker.leases.still_held(batch.members[0])
    broker.emit_before("process_message", batch)
    assert batch.args == ([1, 2],)
    broker.emit_after("process_message", batch, result=None)
    consumer.ack(batch)
    counts = queue.counts()
    assert (counts.completed, counts.active) == (2, 1)
    assert queue.complete(taken[0]) == "ok"
    consumer.close()


def test_a_paused_worker_gives_an_open_batch_back_and_a_resumed_one_gathers_it(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    calls: list[list[int]] = []
    index = declare(calls, batch=2)
    index.send(1)
    eventually(lambda: broker.queue("default").counts().active == 1)
    worker.pause()
    eventually(lambda: broker.get_queue_message_counts("default") == (1, 0, 0))
    assert calls == []
    worker.resume()
    index.send(2)
    finish(broker)
    assert calls == [[1, 2]]


def test_a_worker_that_stops_gives_an_open_batch_back_before_its_last_job_has_ended(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], gate: threading.Event
) -> None:
    calls: list[list[int]] = []
    index = declare(calls)
    started = threading.Event()
    long = dramatiq.actor(actor_name="long")(lambda: (started.set(), gate.wait(30)) and None)
    queue = broker.queue("default")
    worker = make_worker(broker)
    long.send()
    message = index.send(1)
    eventually(lambda: started.is_set() and queue.counts().active == 2)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    # Other workers can have it at once: the running job ends much later.
    eventually(lambda: queue.counts().pending == 1)
    assert queue.counts().active == 1
    gate.set()
    stopping.join(20)
    assert not stopping.is_alive()
    info = queue.get(message.job_id)
    assert info is not None
    assert (info.state, info.failures, info.stalled) == (State.PENDING, 0, 0)
    assert calls == []
    assert broker.leases.holding == 0


def test_a_batch_that_no_thread_has_started_goes_back_when_the_worker_stops(
    broker: EchoMQBroker, make_worker: Callable[..., Worker]
) -> None:
    calls: list[list[int]] = []
    index = declare(calls, batch=3)
    worker = make_worker(broker, threads=2)
    queue = broker.queue("default")
    for thread in worker.workers:
        thread.pause()
    for thread in worker.workers:
        thread.paused_event.wait(10)
    for number in range(3):
        index.send(number)
    eventually(lambda: worker.work_queue.qsize() == 1)
    assert queue.counts().active == 3
    worker.stop()
    counts = queue.counts()
    assert (counts.pending, counts.active, counts.failed) == (3, 0, 0)
    assert calls == []
    assert broker.leases.holding == 0


def test_a_worker_whose_prefetch_is_one_runs_batches(
    broker: EchoMQBroker,
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dramatiq.worker.QUEUE_PREFETCH", 1)
    calls: list[list[int]] = []
    index = declare(calls, batch=10)
    for number in range(30):
        index.send(number)
    make_worker(broker, threads=4)
    finish(broker)
    assert calls == [list(range(start, start + 10)) for start in (0, 10, 20)]


def test_the_largest_batch_is_gathered_and_settled(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    calls: list[list[int]] = []
    index = declare(calls, batch=1000)
    broker.enqueue_many([index.message(number) for number in range(2000)])
    make_worker(broker, threads=1)
    finish(broker)
    assert calls == [list(range(1000)), list(range(1000, 2000))]
    assert broker.queue("default").counts().completed == 2000


@pytest.mark.parametrize("delay", [0, 0.4], ids=["before it opens", "while it is open"])
def test_members_that_were_retried_do_not_join_nor_close_an_open_batch(broker: EchoMQBroker, delay: float) -> None:
    index = declare([], batch=4)
    index.send("again")
    queue = broker.queue("default")
    queue.retry(queue.claim(1).jobs[0], "failed", delay=delay)
    index.send(0)
    index.send(1)
    consumer = broker.consume("default", prefetch=4, timeout=50)
    alone = eventually(lambda: next(consumer))
    assert items(alone) == ["again"]
    index.send(2)
    assert [next(consumer) for _ in range(2)] == [None, None]
    index.send(3)
    assert items(eventually(lambda: next(consumer))) == [0, 1, 2, 3]
    consumer.close()


def test_what_workers_died_with_again_and_again_runs_with_nothing_beside_it(broker: EchoMQBroker) -> None:
    index = declare([], batch=3)
    plain = dramatiq.actor(actor_name="plain")(lambda: None)
    queue = broker.queue("default")
    suspects = [index.send(number).job_id for number in range(2)]
    for stalled in (1, 2):
        queue.claim(2, lease=0.001)
        eventually(lambda stalled=stalled: (queue.sweep_stalled(max_stalled=5), _stalls(queue) == {stalled})[1])
    plain.send()
    consumer = broker.consume("default", prefetch=8, timeout=50)
    first = eventually(lambda: next(consumer))
    assert [member.job_id for member in first.members] == suspects[:1]
    # Free threads or not, the other suspect and the innocent one wait.
    assert next(consumer) is None
    assert (queue.counts().active, queue.counts().pending) == (1, 2)
    consumer.ack(first)
    second = eventually(lambda: next(consumer))
    assert [member.job_id for member in second.members] == suspects[1:]
    assert next(consumer) is None
    consumer.ack(second)
    assert eventually(lambda: next(consumer)).actor_name == "plain"
    consumer.close()


def _stalls(queue: Queue) -> set[int]:
    rows = queue.get_many(queue.browse(State.PENDING))
    return {row.stalled for row in rows if row is not None}


def test_without_batch_actors_a_claim_asks_for_free_places_only(
    broker: EchoMQBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    real = Queue.claim
    monkeypatch.setattr(
        Queue, "claim", lambda queue, count=1, **options: asked.append(count) or real(queue, count, **options)
    )
    plain = dramatiq.actor(actor_name="plain")(lambda: None)
    for _ in range(5):
        plain.send()
    consumer = broker.consume("default", prefetch=3, timeout=50)
    deliveries = [next(consumer) for _ in range(3)]
    assert next(consumer) is None
    assert asked == [3]
    consumer.requeue(deliveries)
    consumer.close()
