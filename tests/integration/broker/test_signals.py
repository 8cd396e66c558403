"""Signals: a process is told of what it learns, after the verdict, and at no risk to a job."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq import Worker
from failing_actors import QUICK
from support.eventually import eventually
from support.proxy import DroppingProxy
from wire.handwriting import Wire

from echomq_tasks import actor, current_job, flow, signals
from echomq_tasks.brokers.dramatiq import EchoMQBroker, signalling
from echomq_tasks.brokers.dramatiq.tending import Tending
from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import BatchError
from echomq_tasks.events import Event
from echomq_tasks.queue import NewJob, Queue, handle
from echomq_tasks.scripts import load_scripts

MakeBroker = Callable[..., EchoMQBroker]
MakeWorker = Callable[..., Worker]
Finish = Callable[..., None]


class Received:
    """Receives every signal, and keeps who sent what."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, Event]] = []
        self._lock = threading.Lock()
        for signal in signals.namespace.values():
            signal.connect(self.take)

    def take(self, sender: Any, event: Event) -> None:
        with self._lock:
            self.sent.append((sender, event))

    def stop(self) -> None:
        for signal in signals.namespace.values():
            signal.disconnect(self.take)

    def names(self, job_id: str | None = None) -> list[str]:
        """Their names since the last call; those of one job, when it is given, and the others are left."""
        with self._lock:
            mine = [each for each in self.sent if job_id is None or each[1].job == job_id]
            self.sent = [each for each in self.sent if not any(each is one for one in mine)]
        return [event.event for _, event in mine]

    def of(self, *names: str) -> list[tuple[Any, Event]]:
        """Those of these names."""
        return [each for each in self.sent if each[1].event in names]


@pytest.fixture
def received() -> Iterator[Received]:
    every = Received()
    yield every
    every.stop()
    assert not any(signal.receivers for signal in signals.namespace.values()), "a test left a receiver behind"


@pytest.fixture
def run(make_worker: MakeWorker, finish: Finish) -> Callable[[EchoMQBroker], Worker]:
    """Run what was sent in one thread, and stop: a second one could start a job before the first tells of its retry."""

    def work(broker: EchoMQBroker) -> Worker:
        worker = make_worker(broker, threads=1)
        finish(broker)
        worker.stop()
        return worker

    return work


Run = Callable[[EchoMQBroker], Worker]


# -- what is told --------------------------------------------------------------------------------------------------


def test_the_actor_sends_what_happens_to_its_messages(broker: EchoMQBroker, received: Received, run: Run) -> None:
    @dramatiq.actor  # signals need no middleware
    def work(x: int) -> None:
        current_job().progress("half")

    message = work.send(1)
    worker = run(broker)
    jobs = [(sender, event) for sender, event in received.sent if event.job is not None]
    assert [event.event for _, event in jobs] == ["enqueued", "started", "progress", "completed"]
    for sender, event in jobs:
        assert sender is work
        assert (event.queue, event.job, event.actor) == ("default", message.job_id, "work")  # type: ignore[attr-defined]
        assert event.at is not None
        assert event.attempt == (0 if event.event == "enqueued" else 1)
        assert event.progress == ("half" if event.event == "progress" else None)
        assert (event.duration is not None) == (event.event == "completed")
    workers = [(sender, event) for sender, event in received.sent if event.job is None]
    assert [event.event for _, event in workers] == ["worker_started", "worker_stopping", "worker_stopped"]
    assert {sender for sender, _ in workers} == {worker}
    assert {event.queue for _, event in workers} == {"default"}


def test_a_retry_and_a_death_tell_of_the_error(broker: EchoMQBroker, received: Received, run: Run) -> None:
    @actor(max_retries=1, **QUICK)
    def work() -> None:
        raise ValueError("no \ud800")

    message = work.send()
    run(broker)
    (_, retried), (_, failed) = received.of("retried", "failed")
    assert received.names(message.job_id) == ["enqueued", "started", "retried", "started", "failed"]
    assert (retried.attempt, failed.attempt) == (1, 2)
    assert retried.delay in (0.001, 0.002)
    assert failed.delay is None
    for event in (retried, failed):
        assert (event.error, event.message) == ("ValueError", "no \ud800")
        assert event.duration is not None


def test_a_delayed_message_is_scheduled_however_it_is_delayed(broker: EchoMQBroker, received: Received) -> None:
    work = actor(lambda: None, actor_name="work")
    for options in ({"delay": 90_000}, {"eta": 4_000_000_000_000}, {"delay": 0}):
        work.send_with_options(**options)
    assert [(event.event, event.delay) for _, event in received.sent] == [
        ("scheduled", 90.0), ("scheduled", None), ("enqueued", None),
    ]  # fmt: skip


def test_each_message_of_many_and_of_a_flow_is_enqueued(broker: EchoMQBroker, received: Received) -> None:
    work = actor(lambda x: None, actor_name="work")
    sent = broker.enqueue_many([work.message(x) for x in range(3)])
    tree = flow(work.message(0), [work.message(1), work.message(2)])
    tree.run()
    assert len({event.job for _, event in received.sent}) == 6
    assert {event.job for _, event in received.sent} >= {message.job_id for message in sent}  # type: ignore[attr-defined]
    assert received.names() == ["enqueued"] * 6


def test_a_duplicate_is_not_enqueued(broker: EchoMQBroker, received: Received) -> None:
    work = actor(lambda: None, actor_name="work", unique="until_done")
    for _ in range(2):
        work.send()
    assert received.names() == ["enqueued"]


def test_a_job_that_is_cancelled_while_it_runs(broker: EchoMQBroker, received: Received, run: Run) -> None:
    @actor
    def work() -> None:
        broker.queue("default").cancel(current_job().id)
        current_job().checkpoint()

    message = work.send()
    run(broker)
    assert received.names(message.job_id) == ["enqueued", "started", "cancelled"]


def test_each_member_of_a_batch_ends_on_its_own(broker: EchoMQBroker, received: Received, run: Run) -> None:
    @actor(batch=3, batch_wait=5, max_retries=0)
    def index(numbers: list[int]) -> None:
        raise BatchError({1: ValueError("no")})

    ids = [index.send(number).job_id for number in range(3)]
    run(broker)
    ends = ["completed", "failed", "completed"]
    assert [received.names(job_id) for job_id in ids] == [["enqueued", "started", end] for end in ends]


def test_a_member_that_is_given_back_has_not_ended(broker: EchoMQBroker, received: Received) -> None:
    @actor(batch=2, batch_wait=0)
    def index(numbers: list[int]) -> None: ...

    index.send(1)
    consumer = broker.consume("default", timeout=100)
    batch = eventually(lambda: next(consumer))
    broker.emit_before("process_message", batch)
    # Torn away before its hooks were told how it ended.
    consumer.ack(batch)
    consumer.close()
    assert received.names() == ["enqueued", "started"]
    assert broker.queue("default").counts().waiting == 1


def test_what_no_actor_here_is_known_for_is_sent_by_nobody(
    broker: EchoMQBroker, received: Received, run: Run, standalone: Connection
) -> None:
    queue = broker.queue("default")
    actor(lambda: None, actor_name="work")
    refused = queue.enqueue(b"no message").id
    run(broker)
    (sender, failed) = received.of("failed")[0]
    assert sender is None
    assert (failed.job, failed.attempt) == (refused, 1)
    assert failed.message is not None
    assert failed.message.startswith("DecodeError")


def test_a_sweep_and_a_repeat_tell_of_their_jobs(
    broker: EchoMQBroker, received: Received, standalone: Connection
) -> None:
    queue, wire = broker.queue("default"), Wire(standalone, "default")
    broker.max_stalled = 2
    first, second = queue.enqueue("p"), queue.enqueue("q")
    wire.do("HSET", f"job:{second.id}", "stalled", 1)
    queue.claim(2)
    wire.expire(first.id, second.id)
    queue.repeat("tick", "p", every=3600, first_in=0)
    tending = Tending(broker, queue, 60.0)
    tending.on_beat()
    assert [(event.event, event.job, event.error) for _, event in received.sent] == [
        ("stalled", first.id, None), ("failed", second.id, "stalled"),
    ]  # fmt: skip
    received.names()
    tending.after_claim(queue.claim())
    tending.on_beat()
    ((sender, event),) = received.sent
    assert sender is None
    assert (event.event, queue.get(str(event.job)).payload) == ("enqueued", b"p")  # type: ignore[union-attr]


def test_what_a_hand_does_is_sent_by_nobody_and_once(broker: EchoMQBroker, received: Received) -> None:
    queue = broker.queue("default")
    ids = [
        answer.id for answer in queue.enqueue_many([*["p"] * 3, NewJob("p", group="acme"), NewJob("p", group="acme")])
    ]
    assert received.names() == [], "a job is enqueued by its message"
    lane = queue.lane("acme")
    for _ in range(2):
        queue.pause()
        lane.pause()
        queue.cancel(ids[0])
        queue.remove(ids[1])
    for _ in range(2):
        queue.resume()
        lane.resume()
        lane.drain()
    queue.retry(queue.claim().jobs[0], "boom", max_retries=0)
    queue.reprocess(ids[2])
    queue.retry(queue.claim().jobs[0], "boom", max_retries=0)
    assert queue.retry_dead() == 1
    queue.retry(queue.claim().jobs[0], "boom", max_retries=0)
    assert queue.purge_dead() == 1
    queue.enqueue("p")
    for _ in range(2):
        queue.drain()
    assert {sender for sender, _ in received.sent} == {None}
    group = lane.group
    assert [(event.event, event.job, dict(event.more)) for _, event in received.sent] == [
        ("paused", None, {}), ("paused", None, {"group": group}), ("cancelled", ids[0], {}), ("removed", ids[1], {}),
        ("resumed", None, {}), ("resumed", None, {"group": group}), ("drained", None, {"jobs": "2", "group": group}),
        ("enqueued", ids[2], {}), ("enqueued", ids[2], {}), ("removed", ids[2], {}), ("drained", None, {"jobs": "1"}),
    ]  # fmt: skip


# -- after the verdict ---------------------------------------------------------------------------------------------


@pytest.fixture
def lost(make_broker: MakeBroker, standalone: Connection) -> Iterator[tuple[EchoMQBroker, Any, Any]]:
    """A broker, its consumer and a delivery whose lease another worker's claim has taken over."""
    old, new = (make_broker() for _ in range(2))
    for each in (old, new):
        actor(lambda: None, actor_name="work", broker=each)
    message = old.get_actor("work").send()
    first, second = (each.consume("default", timeout=100) for each in (old, new))
    late = eventually(lambda: next(first))
    Wire(standalone, "default").expire(message.job_id)  # type: ignore[attr-defined]
    eventually(lambda: next(second))
    yield old, first, late
    first.close()
    second.close()


@pytest.mark.parametrize("end", ["ack", "nack"])
def test_an_end_that_the_server_refuses_sends_nothing(
    lost: tuple[EchoMQBroker, Any, Any], received: Received, end: str
) -> None:
    _, consumer, late = lost
    getattr(consumer, end)(late)
    assert received.names() == []


@pytest.mark.parametrize("end", ["ack", "nack"])
def test_a_lost_lease_is_told_once_and_its_end_is_not(
    lost: tuple[EchoMQBroker, Any, Any], received: Received, end: str
) -> None:
    broker, consumer, late = lost
    for _ in range(2):
        broker.leases.ask([late])
    ((sender, event),) = received.sent
    assert sender is broker.get_actor("work")
    assert (event.event, event.job, event.actor, event.attempt) == ("lease_lost", late.job_id, "work", 1)
    getattr(consumer, end)(late)
    assert received.names() == ["lease_lost"]


def test_progress_of_a_job_that_is_gone_is_not_told(broker: EchoMQBroker, received: Received, run: Run) -> None:
    @actor
    def work() -> None:
        broker.queue("default").drain("active")
        current_job().progress(1)

    message = work.send()
    run(broker)
    assert received.names(message.job_id) == ["enqueued", "started"]


def test_an_end_whose_answer_was_lost_is_told_at_most_once(
    proxy: DroppingProxy, received: Received, make_worker: MakeWorker, finish: Finish
) -> None:
    broker = EchoMQBroker(proxy.url)

    @actor(broker=broker, max_retries=0)
    def work(fails: bool) -> None:
        if fails:
            raise ValueError

    with connect(proxy.url) as warm:
        for script in load_scripts().values():
            warm.client.script_load(script.text)
    for script, fails in (("job_complete", False), ("job_retry", True)):
        proxy.drop_reply(load_scripts()[script].sha.encode())
        message = work.send(fails)
        worker = make_worker(broker, threads=1)
        finish(broker)
        worker.stop()
        # That a completion finds its job gone says nothing of who completed it.
        assert received.names(message.job_id) == ["enqueued", "started"] + ["failed"] * fails
    assert proxy.counts.dropped_replies == 2
    broker.close()


# -- receivers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, asyncio.CancelledError])
def test_a_receiver_that_raises_is_logged_and_harms_neither_the_job_nor_the_others(
    broker: EchoMQBroker,
    received: Received,
    run: Run,
    caplog: pytest.LogCaptureFixture,
    error: type[BaseException],
) -> None:
    def broken(sender: Any, event: Event) -> None:
        raise error(f"cannot take {event.event}")

    async def later(sender: Any, event: Event) -> None: ...

    def deaf() -> None: ...

    ran: list[int] = []

    @actor(max_retries=0)
    def work(x: int) -> None:
        current_job().progress(x)
        ran.append(x)

    for signal in signals.namespace.values():
        for receiver in (broken, later, deaf):
            signal.connect(receiver)
    try:
        message = work.send(1)
        with caplog.at_level(logging.ERROR, "echomq_tasks.signals"):
            run(broker)
            broker.queue("default").pause()
    finally:
        for signal in signals.namespace.values():
            for receiver in (broken, later, deaf):
                signal.disconnect(receiver)
    assert ran == [1]
    assert broker.queue("default").counts().completed == 1
    assert received.names(message.job_id) == ["enqueued", "started", "progress", "completed"]
    for name in ("enqueued", "started", "progress", "completed", "worker_started", "worker_stopped", "paused"):
        assert f"{error.__name__}: cannot take {name}" in caplog.text
        records = [record for record in caplog.records if f"A receiver of the signal {name!r} failed" in record.message]
        assert len(records) == 3
    assert "for an async one use bus.on()" in caplog.text


def test_without_receivers_nothing_is_made(broker: EchoMQBroker, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(*args: Any, **more: Any) -> Any:
        raise AssertionError("made for nobody")

    for module in (signalling, handle):
        monkeypatch.setattr(module, "Event", unwanted)
    monkeypatch.setattr(signals, "send", unwanted)

    @actor(max_retries=1, **QUICK)
    def work(fails: bool) -> None:
        current_job().progress(1)
        if fails:
            raise ValueError

    for fails in (False, True):
        work.send(fails)
    run(broker)
    broker.queue("default").pause()
    broker.queue("default").purge_dead()
    counts = broker.queue("default").counts()
    assert (counts.completed, counts.failed, counts.unfinished) == (1, 1, 0)


def test_one_signals_receivers_cost_the_others_nothing(
    broker: EchoMQBroker, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr(
        signalling, "Event", lambda name, *args, **more: made.append(name) or Event(name, *args, **more)
    )
    work = actor(lambda: None, actor_name="work")
    got: list[Event] = []
    with signals.completed.connected_to(lambda sender, event: got.append(event)):
        work.send()
        run(broker)
    assert made == ["completed"]
    assert [event.event for event in got] == ["completed"]


def test_a_receiver_hears_the_actor_that_it_was_connected_to(broker: EchoMQBroker, run: Run) -> None:
    mine, other = (actor(lambda: None, actor_name=name) for name in ("mine", "other"))
    got: list[Any] = []

    def hear(sender: Any, event: Event) -> None:
        got.append((sender, event.actor))

    signals.completed.connect(hear, sender=mine)
    for each in (mine, other):
        each.send()
    run(broker)
    signals.completed.disconnect(hear)
    assert got == [(mine, "mine")]
    assert not signals.completed.receivers


def test_a_receiver_that_nobody_holds_goes(broker: EchoMQBroker) -> None:
    def connect_one() -> None:
        def hear(sender: Any, event: Event) -> None:
            raise AssertionError("it is gone")

        signals.enqueued.connect(hear)

    connect_one()
    gc.collect()
    assert not signals.enqueued.receivers
    actor(lambda: None, actor_name="work").send()


def test_a_muted_signal_is_not_sent(broker: EchoMQBroker, received: Received) -> None:
    work = actor(lambda: None, actor_name="work")
    with signals.enqueued.muted():
        work.send()
    work.send()
    assert received.names() == ["enqueued"]


def test_a_receiver_may_send_messages_of_its_own(
    broker: EchoMQBroker, received: Received, make_worker: MakeWorker
) -> None:
    @actor
    def first() -> None: ...

    @actor
    def then() -> None: ...

    def go_on(sender: Any, event: Event) -> None:
        then.send()

    with signals.completed.connected_to(go_on, sender=first):
        first.send()
        make_worker(broker)
        # In either order: the second job may be done before this receiver is called of the first.
        eventually(lambda: {sender for sender, _ in received.of("completed")} == {first, then})


def test_a_queue_of_ones_own_tells_too(standalone: Connection, queue_name: str, received: Received) -> None:
    queue = Queue(queue_name, standalone)
    queue.pause()
    ((_, event),) = received.sent
    assert (event.event, event.queue) == ("paused", queue_name)
