"""Actors that repeat: registered by whichever worker serves their queue, fired once whatever the number of workers."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
from dramatiq import Worker
from support.eventually import eventually
from support.servers import ServerProcess
from wire.handwriting import Wire

from echomq_tasks import actor, current_job
from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.brokers.dramatiq.consumer import EchoMQConsumer
from echomq_tasks.brokers.dramatiq.tending import Tending
from echomq_tasks.errors import InvalidArgument, InvalidName, ScriptError, ServerOutOfMemory
from echomq_tasks.queue import Claimed, Queue

MakeBroker = Callable[..., EchoMQBroker]
MakeWorker = Callable[..., Worker]


def test_an_actor_runs_again_and_again_without_being_sent(broker: EchoMQBroker, make_worker: MakeWorker) -> None:
    ids: list[str] = []

    @actor(every=0.05)
    def tick() -> None:
        ids.append(current_job().id)

    make_worker(broker)
    eventually(lambda: len(ids) >= 4)
    assert len(set(ids)) == len(ids)


def test_a_cron_actor_is_registered_for_its_next_occurrence(broker: EchoMQBroker, make_worker: MakeWorker) -> None:
    @actor(cron="0 8 * * MON-FRI", tz="Europe/Athens", catch_up=False, priority=3, group="reports")
    def morning() -> None: ...

    make_worker(broker)
    (found,) = eventually(lambda: broker.queue("default").repeats())
    assert (found.name, found.cron, found.tz, found.catch_up) == ("morning", "0 8 * * MON-FRI", "Europe/Athens", False)
    assert found.priority == 3
    assert found.group is not None
    assert found.group.startswith("GRP")
    assert found.next_run.minute == 0
    assert found.next_run.weekday() < 5


def test_no_worker_no_registration(broker: EchoMQBroker) -> None:
    @actor(every=60)
    def tick() -> None: ...

    assert broker.queue("default").repeats() == []


def test_a_worker_registers_only_what_its_queues_need(broker: EchoMQBroker, make_worker: MakeWorker) -> None:
    @actor(every=60, queue_name="served")
    def served() -> None: ...

    @actor(every=60, queue_name="elsewhere")
    def elsewhere() -> None: ...

    make_worker(broker, queues={"served"})
    eventually(lambda: broker.queue("served").repeats())
    assert broker.queue("elsewhere").repeats() == []


def test_a_changed_interval_replaces_the_old_one_when_a_worker_starts(
    make_broker: MakeBroker, make_worker: MakeWorker
) -> None:
    for every in (3600, 60):
        broker = make_broker()

        @actor(every=every, actor_name="tick", broker=broker)
        def tick() -> None: ...

        worker = make_worker(broker)
        eventually(lambda broker=broker, every=every: [r.every for r in broker.queue("default").repeats()] == [every])
        worker.stop()


def begin(broker: EchoMQBroker) -> EchoMQConsumer:
    """A consumer that has begun to serve the queue."""
    consumer = broker.consume("default", prefetch=1, timeout=10)
    assert next(consumer) is None
    return consumer


@pytest.mark.parametrize("registered", [False, True], ids=["new", "registered"])
def test_a_full_server_is_served_and_the_repeat_comes_when_there_is_room(
    own_server: ServerProcess, make_worker: MakeWorker, make_broker: MakeBroker, registered: bool
) -> None:
    ran: list[int] = []

    def declare(broker: EchoMQBroker) -> Any:
        actor(every=3600, actor_name="tick", broker=broker)(lambda: None)
        return actor(actor_name="work", broker=broker)(ran.append)

    with contextlib.ExitStack() as stack:
        brokers = [EchoMQBroker(own_server.url, lease=0.3) for _ in range(2)]
        for broker in brokers:
            stack.callback(broker.close)
        first, second = brokers
        work = declare(first)
        declare(second)
        if registered:
            begin(first).close()
        for number in range(20):
            work.send(number)
        # One of them was claimed by a worker that died.
        assert len(first.queue("default").claim(1, lease=0.001)) == 1
        own_server.client().config_set("maxmemory", 1)
        stack.callback(own_server.client().config_set, "maxmemory", 0)
        stack.callback(make_worker(second).stop)
        eventually(lambda: sorted(ran) == list(range(20)))
        assert [repeat.name for repeat in second.queue("default").repeats()] == ["tick"] * registered
        own_server.client().config_set("maxmemory", 0)
        eventually(lambda: [repeat.name for repeat in second.queue("default").repeats()] == ["tick"])


def test_one_that_cannot_be_registered_does_not_keep_others_from_it(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = make_broker(lease=0.1)
    for name in ("a", "b", "c"):
        actor(every=60, actor_name=name)(lambda: None)
    real, refused = Queue.repeat, ["b"]

    def repeat(queue: Queue, name: str, *args: Any, **options: Any) -> bool:
        if name in refused:
            raise ServerOutOfMemory("maxmemory")
        return real(queue, name, *args, **options)

    monkeypatch.setattr(Queue, "repeat", repeat)
    consumer = begin(broker)
    names = [repeat.name for repeat in broker.queue("default").repeats()]
    assert sorted(names) == ["a", "c"]
    assert "registering repeats failed and is tried again: maxmemory" in caplog.text
    refused.clear()
    eventually(lambda: next(consumer) is None and len(broker.queue("default").repeats()) == 3)
    consumer.close()


def test_an_actor_that_is_declared_while_its_queue_is_served_repeats(
    make_broker: MakeBroker, make_worker: MakeWorker
) -> None:
    # A short lease makes a short beat.
    broker = make_broker(lease=0.3)
    served, ticked = threading.Event(), threading.Event()

    @actor
    def first() -> None:
        served.set()

    make_worker(broker)
    first.send()
    assert served.wait(10)

    @actor(every=0.05)
    def tick() -> None:
        ticked.set()

    assert ticked.wait(10)


def test_an_actor_that_is_declared_anew_has_its_new_time(make_broker: MakeBroker) -> None:
    broker = make_broker(lease=0.1)
    for every in (60, 30):
        # As in a notebook.
        broker.actors.pop("tick", None)
        actor(every=every, actor_name="tick")(lambda: None)
        consumer = begin(broker)
        eventually(lambda c=consumer, e=every: next(c) is None and broker.queue("default").repeats()[0].every == e)
        consumer.close()


def test_a_consumer_that_is_opened_again_brings_no_cancelled_repeat_back(broker: EchoMQBroker) -> None:
    actor(every=60, actor_name="tick")(lambda: None)
    queue = broker.queue("default")
    begin(broker).close()
    assert queue.cancel_repeat("tick")
    begin(broker).close()
    assert queue.repeats() == []


def test_the_last_process_to_start_wins_whoever_reconnects(make_broker: MakeBroker) -> None:
    old = make_broker()
    actor(every=3600, actor_name="tick", broker=old)(lambda: None)
    begin(old).close()
    new = make_broker()
    actor(every=60, actor_name="tick", broker=new)(lambda: None)
    begin(new).close()
    (there,) = new.queue("default").repeats()
    assert there.every == 60
    begin(old).close()
    assert new.queue("default").repeats() == [there]


def test_the_child_of_a_fork_registers_again(broker: EchoMQBroker) -> None:
    actor(every=60, actor_name="tick")(lambda: None)
    begin(broker).close()
    assert broker.queue("default").cancel_repeat("tick")
    broker._after_fork()  # noqa: SLF001 - what a child does
    begin(broker).close()
    assert len(broker.queue("default").repeats()) == 1


def test_the_runs_of_a_repeat_keep_to_the_limit_of_their_lane(
    broker: EchoMQBroker, make_worker: MakeWorker, gate: threading.Event
) -> None:
    running: list[str] = []

    @actor(every=0.02, group="acme", group_limit=2)
    def slow() -> None:
        running.append(current_job().id)
        gate.wait(20)

    make_worker(broker, threads=8)
    queue = broker.queue("default")
    eventually(lambda: queue.counts().waiting >= 5)
    assert queue.lane("acme").info().limit == 2
    assert len(running) == 2
    (repeat,) = queue.repeats()
    assert repeat.group_limit == 2
    queue.cancel_repeat("slow")


def test_a_claimed_job_is_handed_out_before_a_repeat_is_fired(
    broker: EchoMQBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fired: list[list[str]] = []
    real = Queue.fire_repeats
    monkeypatch.setattr(Queue, "fire_repeats", lambda queue: fired.append(real(queue)))
    work = actor(actor_name="work")(lambda: None)
    queue = broker.queue("default")
    work.send()
    queue.repeat("soon", '{"actor_name":"work","args":[]}', every=3600, first_in=0)
    consumer = broker.consume("default", prefetch=2, timeout=2000)
    delivery = next(consumer)
    assert delivery is not None
    assert fired == []
    # It is told with that claim, and comes before the next.
    run = next(consumer)
    assert run is not None
    assert fired == [[run.job_id]]
    for each in (delivery, run):
        consumer.ack(each)
    consumer.close()


def test_repeats_do_not_wait_for_a_parent_that_cannot_be_told(
    broker: EchoMQBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def deliver(queue: Queue) -> int:
        done.append("deliver")
        raise ScriptError("the parent's queue is spoilt")

    monkeypatch.setattr(Queue, "deliver", deliver)
    monkeypatch.setattr(Queue, "fire_repeats", lambda queue: done.append("fire"))
    tending = Tending(broker, broker.queue("default"), 3600.0)
    tending.on_beat()
    for _ in range(3):
        tending.after_claim(Claimed((), repeats_due=True, outbox=True))
        tending.on_beat()
    assert done == ["fire", "deliver", "fire", "fire"]


def test_eight_workers_fire_each_occurrence_once(make_broker: MakeBroker, make_worker: MakeWorker) -> None:
    ran: list[str] = []
    brokers = [make_broker() for _ in range(8)]
    for broker in brokers:

        @actor(broker=broker, actor_name="count")
        def count() -> None:
            ran.append(current_job().id)

        make_worker(broker, threads=1)
    queue = brokers[0].queue("default")
    payload = '{"actor_name":"count","args":[]}'
    # All of them know when it is due, and none has anything else to do.
    queue.repeat("occurrence", payload, every=0.03, limit=25)
    eventually(lambda: not queue.repeats() and queue.counts().unfinished == 0, timeout=30)
    assert len(ran) == 25
    assert len(set(ran)) == 25
    assert queue.counts().completed == 25


def test_a_missed_occurrence_fires_once_late_or_is_skipped(make_broker: MakeBroker, make_worker: MakeWorker) -> None:
    ran: list[str] = []
    broker = make_broker()

    @actor(every=3600, broker=broker)
    def made_up_for() -> None:
        ran.append("made_up_for")

    @actor(every=3600, catch_up=False, broker=broker)
    def left_out() -> None:
        ran.append("left_out")

    first = make_worker(broker)
    eventually(lambda: len(broker.queue("default").repeats()) == 2)
    first.stop()
    wire = Wire(broker.connection, "default")
    missed = wire.now_ms() - 5 * 3_600_000 - 60_000
    for name in ("made_up_for", "left_out"):
        wire.do("ZADD", "repeat", missed, name)
    make_worker(broker)
    eventually(lambda: min(wire.read("repeat").values()) > wire.now_ms())
    eventually(lambda: broker.queue("default").counts().unfinished == 0)
    assert ran == ["made_up_for"]


def test_a_run_is_left_out_while_the_last_one_goes_on(
    broker: EchoMQBroker, make_worker: MakeWorker, gate: threading.Event
) -> None:
    runs: list[str] = []

    @actor(every=0.05, unique="until_done")
    def slow() -> None:
        runs.append(current_job().id)
        gate.wait(20)

    make_worker(broker)
    eventually(lambda: runs)
    queue = broker.queue("default")
    seen = queue.repeats()[0].next_run
    # Occurrences pass, and each is left out.
    eventually(lambda: (queue.repeats()[0].next_run - seen).total_seconds() > 0.3)
    assert len(runs) == 1
    assert queue.counts().unfinished == 1
    gate.set()
    eventually(lambda: len(runs) >= 2)


def test_an_occurrence_wakes_an_idle_worker_that_learned_of_it_while_parked(
    make_broker: MakeBroker, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Far off, so that it cannot be by its own beat that the worker looks.
    monkeypatch.setattr("echomq_tasks.brokers.dramatiq.consumer._BEAT", 3600.0)
    broker = make_broker(lease=7200)
    ran = threading.Event()

    @actor
    def once() -> None:
        ran.set()

    make_worker(broker, threads=1)
    queue = broker.queue("default")
    queue.repeat("soon", '{"actor_name":"once","args":[]}', every=3600, first_in=0.05)
    assert ran.wait(20)


def test_every_thread_busy_does_not_keep_repeats_from_firing(
    make_broker: MakeBroker, make_worker: MakeWorker, gate: threading.Event
) -> None:
    # A short lease makes a short beat.
    broker = make_broker(lease=0.6)
    started = threading.Event()

    @actor
    def hold() -> None:
        started.set()
        gate.wait(20)

    @actor
    def tick() -> None: ...

    make_worker(broker, threads=1)
    hold.send()
    assert started.wait(10)
    queue = broker.queue("default")
    queue.repeat("tick", '{"actor_name":"tick","args":[]}', every=3600, first_in=0)
    eventually(lambda: queue.counts().waiting == 1)


def test_an_actor_that_cannot_be_registered_is_told_and_the_queue_is_served(
    broker: EchoMQBroker, make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    ran = threading.Event()

    @actor(every=60, group=lambda tenant="": tenant)
    def tick(tenant: str = "") -> None: ...

    @actor
    def other() -> None:
        ran.set()

    with caplog.at_level(logging.ERROR):
        make_worker(broker)
        other.send()
        assert ran.wait(10)
        eventually(lambda: "Actor 'tick' does not repeat" in caplog.text)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"every": 0}, "0.001"),
    ({"every": "60"}, "number of seconds"),
    ({"every": 60, "cron": "* * * * *"}, "either every= or cron="),
    ({"cron": "61 * * * *"}, "61"),
    ({"cron": "* * * * *", "tz": "Europe/Athen"}, "Europe/Athens"),
    ({"every": 60, "tz": "Europe/Athens"}, "belongs to cron"),
    ({"every": 60, "catch_up": "yes"}, "True or False"),
    ({"tz": "Europe/Athens"}, "every= or cron="),
    ({"catch_up": True}, "every= or cron="),
    ({"cron": "0 0 30 2 *"}, "30"),
]


@pytest.mark.parametrize(("options", "said"), BAD, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("decorator", [actor, dramatiq.actor], ids=["ours", "dramatiq's"])
def test_a_malformed_repeat_is_refused_at_decoration(
    broker: EchoMQBroker, decorator: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        decorator(actor_name="wrong", **options)(lambda: None)
    assert not broker.actors


def test_a_function_that_needs_arguments_cannot_repeat(broker: EchoMQBroker) -> None:
    with pytest.raises(InvalidArgument, match=r"called without arguments.*'tenant'.*defaults"):

        @actor(every=60)
        def report(tenant: str) -> None: ...

    @actor(every=60)
    def fine(tenant: str = "all") -> None: ...


@pytest.mark.parametrize("option", ["group", "unique_key"])
def test_a_function_of_the_arguments_must_do_without_them_for_a_repeat(broker: EchoMQBroker, option: str) -> None:
    unique = {"unique": 60} if option == "unique_key" else {}
    with pytest.raises(InvalidArgument, match=rf"given as {option}= is called without.*'tenant'.*defaults"):
        actor(every=60, actor_name="a", **unique, **{option: lambda tenant: tenant})(lambda tenant="all": None)
    assert not broker.actors
    actor(every=60, actor_name="a", **unique, **{option: lambda tenant="all": tenant})(lambda tenant="all": None)
    # It does not say what it takes, so nobody can tell.
    actor(every=60, actor_name="b", **unique, **{option: dict})(lambda: None)


def test_a_batch_actor_cannot_repeat(broker: EchoMQBroker) -> None:
    with pytest.raises(ValueError, match="does not repeat"):

        @actor(every=60, batch=10)
        def many(items: list[int]) -> None: ...


def test_an_actor_name_that_no_registration_can_have_is_refused(broker: EchoMQBroker) -> None:
    with pytest.raises(InvalidName, match="repeat name"):

        @actor(every=60, actor_name="a report")
        def report() -> None: ...
