"""The end of a batch: one round trip, and what becomes of it when the server does not take it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import dramatiq
import pytest
from dramatiq import Broker, Middleware, Worker
from dramatiq.errors import ConnectionClosed
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend
from failing_actors import QUICK
from support.eventually import eventually
from support.proxy import DroppingProxy

from echomq_tasks import actor
from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.brokers.dramatiq.delivery import lease_end
from echomq_tasks.errors import BatchError, ConfigError, ScriptError, ServerOutOfMemory, ServerUnavailable
from echomq_tasks.queue import Queue, Release, Settlement
from echomq_tasks.scripts.loader import load_scripts

FOREVER = 60.0


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dramatiq.worker.POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.05)
    monkeypatch.setattr("echomq_tasks.worker.outage._MOST", 0.05)


class Settled:
    """Notes what each call to the server settles; ``trouble`` may raise in its stead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[list[Settlement]] = []
        self.trouble: Callable[[int, Sequence[Settlement]], None] = lambda call, settlements: None
        real = Queue.settle_calls

        def settle(queue: Queue, settlements: Sequence[Settlement], **how: Any) -> Any:
            if not all(isinstance(each, Release) for each in settlements):
                self.calls.append(list(settlements))
                self.trouble(len(self.calls), settlements)
            return real(queue, settlements, **how)

        monkeypatch.setattr(Queue, "settle_calls", settle)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> Settled:
    return Settled(monkeypatch)


class Ends(Middleware):
    """Counts the hooks that follow a settlement, by the argument of the message."""

    def __init__(self) -> None:
        self.acked: Counter[Any] = Counter()
        self.nacked: Counter[Any] = Counter()

    def after_ack(self, broker: Broker, message: Any) -> None:
        self.acked[message.args[0]] += 1

    def after_nack(self, broker: Broker, message: Any) -> None:
        self.nacked[message.args[0]] += 1


def test_all_members_are_settled_in_one_call_each_as_it_ended(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None], settled: Settled
) -> None:
    @actor(batch=100, batch_wait=FOREVER, min_backoff=600_000, max_retries=1)
    def index(numbers: list[int]) -> None:
        raise BatchError({number: RuntimeError("again") for number in range(0, 100, 2)})

    messages = [index.send(number) for number in range(100)]
    make_worker(broker)
    queue = broker.queue("default")
    # One pipeline, and in it a script for each way to end.
    eventually(lambda: (queue.counts().completed, queue.counts().scheduled) == (50, 50))
    assert [len(call) for call in settled.calls] == [100]
    info = queue.get(messages[0].job_id)
    assert info is not None
    assert (info.failures, info.last_error and info.last_error[:19]) == (1, "RuntimeError: again")


@pytest.mark.parametrize("error", [ServerUnavailable("away"), ServerOutOfMemory("full"), ConfigError("no rights")])
def test_an_end_that_the_server_does_not_take_is_repeated_until_it_does(
    broker: EchoMQBroker,
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    settled: Settled,
    error: Exception,
) -> None:
    ends = Ends()
    broker.add_middleware(ends)

    def trouble(call: int, settlements: Sequence[Settlement]) -> None:
        if call <= 2:
            raise error

    settled.trouble = trouble
    calls: list[list[int]] = []

    @actor(batch=3, batch_wait=FOREVER, max_retries=0)
    def index(numbers: list[int]) -> None:
        calls.append(numbers)
        raise BatchError({1: RuntimeError("bad")})

    for number in range(3):
        index.send(number)
    worker = make_worker(broker)
    finish(broker)
    worker.stop()
    assert calls == [[0, 1, 2]]
    assert len(settled.calls) == 3
    assert (dict(ends.acked), dict(ends.nacked)) == ({0: 1, 2: 1}, {1: 1})
    counts = broker.queue("default").counts()
    assert (counts.completed, counts.dead) == (2, 1)


def test_an_answer_that_is_lost_settles_nothing_twice(proxy: DroppingProxy, make_worker: Callable[..., Worker]) -> None:
    broker = EchoMQBroker(proxy.url)
    ends = Ends()
    broker.add_middleware(ends)
    index = actor(broker=broker, batch=20, batch_wait=FOREVER)(_noting([]))
    for number in range(20):
        index.send(number)
    proxy.drop_reply(load_scripts()["job_complete"].sha.encode(), times=3)
    worker = make_worker(broker)
    broker.join("default", interval=10, timeout=20_000)
    worker.stop()
    assert proxy.counts.dropped_replies == 3
    counts = broker.queue("default").counts()
    assert (counts.completed, counts.dead, counts.unfinished) == (20, 0, 0)
    assert ends.acked == dict.fromkeys(range(20), 1)
    broker.close()


def _noting(calls: list[list[int]]) -> Callable[[list[int]], None]:
    def index(numbers: list[int]) -> None:
        calls.append(numbers)

    return index


def test_what_was_settled_before_the_connection_broke_is_not_settled_again(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None], settled: Settled
) -> None:
    ends = Ends()
    broker.add_middleware(ends)

    def trouble(call: int, settlements: Sequence[Settlement]) -> None:
        if call == 2:
            raise ServerUnavailable("away")

    settled.trouble = trouble
    # More than the server is asked to settle at once.
    index = actor(batch=600, batch_wait=FOREVER)(_noting([]))
    broker.enqueue_many([index.message(number) for number in range(600)])
    worker = make_worker(broker)
    finish(broker)
    worker.stop()
    done = Counter(each.job.id for number, call in enumerate(settled.calls) if number != 1 for each in call)
    assert len(settled.calls) == 4
    assert len(done) == 600
    assert set(done.values()) == {1}
    assert ends.acked == dict.fromkeys(range(600), 1)


def test_a_member_whose_follow_up_cannot_be_sent_keeps_the_others_from_nothing(
    broker: EchoMQBroker,
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = [True]
    real = Queue.enqueue_many

    def enqueue_many(queue: Queue, jobs: Any) -> Any:
        if full[0] and b"told" in next(iter(jobs)).payload:
            raise ServerOutOfMemory("full")
        return real(queue, jobs)

    told: list[int] = []
    actor(actor_name="told")(lambda message, result: told.append(message["args"][0]))
    index = actor(actor_name="index", batch=4, batch_wait=FOREVER)(_noting([]))
    for number in range(4):
        index.send_with_options(args=(number,), **({"on_success": "told"} if number in (1, 2) else {}))
    monkeypatch.setattr(Queue, "enqueue_many", enqueue_many)
    make_worker(broker)
    queue = broker.queue("default")
    eventually(lambda: queue.counts().completed == 2)
    assert queue.counts().active == 2
    full[0] = False
    finish(broker)
    assert sorted(told) == [1, 2]
    assert queue.counts().completed == 6


def test_a_member_whose_end_cannot_be_told_takes_no_other_along(
    make_broker: Callable[..., EchoMQBroker],
    make_worker: Callable[..., Worker],
    settled: Settled,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = make_broker(lease=0.5)
    ends = Ends()
    broker.add_middleware(ends)
    index = actor(actor_name="index", batch=5, batch_wait=FOREVER)(_noting(calls := []))
    messages = [index.send(number) for number in range(5)]
    refused = messages[3].job_id

    def trouble(call: int, settlements: Sequence[Settlement]) -> None:
        # While it is in its first run: alone it can be settled.
        if any(each.job.id == refused and each.job.stalled == 0 for each in settlements):
            raise ScriptError("a row that cannot be read")

    settled.trouble = trouble
    make_worker(broker)
    queue = broker.queue("default")
    eventually(lambda: queue.counts().completed == 4)
    assert re.search(f"The end of job {refused} .*cannot be told", caplog.text)
    eventually(lambda: queue.counts().completed == 5, message="it runs again, alone")
    assert calls == [[0, 1, 2, 3, 4], [3]]
    eventually(lambda: ends.acked == dict.fromkeys(range(5), 1))
    assert broker.leases.holding == 0


def test_an_exception_thrown_into_the_settlement_leaves_no_lease_and_no_place_behind(
    broker: EchoMQBroker, settled: Settled
) -> None:
    class Thrown(BaseException): ...

    def trouble(call: int, settlements: Sequence[Settlement]) -> None:
        if call == 1:
            raise Thrown

    settled.trouble = trouble
    index = actor(actor_name="index", batch=2, batch_wait=FOREVER)(_noting([]))
    for number in range(4):
        index.send(number)
    consumer = broker.consume("default", prefetch=1, timeout=50)
    first = eventually(lambda: next(consumer))
    with pytest.raises(Thrown):
        consumer.ack(first)
    assert broker.leases.holding == 0
    second = eventually(lambda: next(consumer), message="its place is free again")
    consumer.ack(second)
    # Once it is given up, it is not settled any more.
    consumer.ack(first)
    assert len(settled.calls) == 2
    consumer.close()


def test_a_batch_is_settled_once_and_by_any_consumer(broker: EchoMQBroker, settled: Settled) -> None:
    index = actor(actor_name="index", batch=2, batch_wait=FOREVER)(_noting([]))
    index.send(0)
    index.send(1)
    one = broker.consume("default", timeout=50)
    batch = eventually(lambda: next(one))
    one.close()
    other = broker.consume("default", timeout=50)
    other.ack(batch)
    other.ack(batch)
    other.nack(batch)
    other.requeue([batch])
    assert len(settled.calls) == 1
    assert broker.queue("default").counts().completed == 2
    other.close()


def test_an_unreachable_server_is_reported_to_the_worker_in_its_own_words(
    broker: EchoMQBroker, settled: Settled
) -> None:
    def trouble(call: int, settlements: Sequence[Settlement]) -> None:
        if call == 1:
            raise ServerUnavailable("away")

    settled.trouble = trouble
    index = actor(actor_name="index", batch=2, batch_wait=FOREVER)(_noting([]))
    index.send(0)
    index.send(1)
    consumer = broker.consume("default", timeout=50)
    batch = eventually(lambda: next(consumer))
    with pytest.raises(ConnectionClosed):
        consumer.ack(batch)
    consumer.ack(batch)
    assert broker.queue("default").counts().completed == 2
    consumer.close()


def test_late_ends_of_lost_members_report_nothing_and_the_others_are_told(
    make_broker: Callable[..., EchoMQBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_broker(lease=0.2)
    monkeypatch.setattr(broker.leases, "_run", lambda stop: None)
    backend = StubBackend()
    broker.add_middleware(Results(backend=backend, store_results=True))
    index = actor(actor_name="index", batch=2, batch_wait=FOREVER)(_noting([]))
    messages = [index.send(number) for number in range(2)]
    consumer = broker.consume("default", prefetch=1, timeout=50)
    batch = eventually(lambda: next(consumer))
    broker.emit_before("process_message", batch)
    queue = broker.queue("default")
    queue.extend(batch.members[1].job, lease=60)
    (taken,) = eventually(lambda: (queue.sweep_stalled(max_stalled=5), queue.claim(2, lease=60))[1].jobs)
    assert taken.id == messages[0].job_id
    broker.emit_after("process_message", batch, result=["zero", "one"])
    consumer.ack(batch)
    with pytest.raises(dramatiq.results.ResultMissing):
        messages[0].get_result()
    assert messages[1].get_result() == "one"
    counts = queue.counts()
    assert (counts.completed, counts.active) == (1, 1)
    consumer.close()


def test_a_silent_server_is_asked_once_for_all_members(
    make_broker: Callable[..., EchoMQBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_broker(lease=0.2)
    asked: list[int] = []

    def renew(deliveries: list[Any]) -> None:
        asked.append(len(deliveries))
        raise ServerUnavailable("away")

    monkeypatch.setattr(broker.leases, "_run", lambda stop: None)
    monkeypatch.setattr(broker.leases, "_renew", renew)
    index = actor(actor_name="index", batch=50, batch_wait=FOREVER, **QUICK)(_noting([]))
    broker.enqueue_many([index.message(number) for number in range(50)])
    consumer = broker.consume("default", prefetch=1, timeout=50)
    batch = eventually(lambda: next(consumer))
    broker.emit_before("process_message", batch)
    eventually(lambda: all(member.held_until < lease_end(0) for member in batch.members))
    broker.emit_after("process_message", batch, result=None)
    assert asked == [1]
    consumer.ack(batch)
    assert broker.queue("default").counts().completed == 50
    consumer.close()
