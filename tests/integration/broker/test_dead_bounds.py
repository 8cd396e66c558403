"""How long and how many dead messages a broker's workers keep, and their second life."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
from chaos.crew import PATIENCE
from dramatiq import Worker
from support.eventually import eventually

from echomq_tasks import actor
from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.errors import ConfigError, InvalidArgument
from echomq_tasks.queue import State


def bury(broker: EchoMQBroker, number: int, *, age: float | None = 0.0) -> list[str]:
    """Dead messages of actor ``work``, dead for ``age`` seconds; answers their ids, oldest first."""
    queue = broker.queue("default")
    payload = json.dumps({"actor_name": "work", "args": [], "options": {"retries": 9, "traceback": "old"}})
    ids = [queue.new_id() for _ in range(number)]
    now = queue.run("queue_clock")
    with broker.client.pipeline(transaction=False) as pipe:
        for job_id in ids:
            row: dict[str, Any] = {"state": "dead", "attempts": 1, "payload": payload, "last_error": "boom"}
            if age is not None:
                row["died"] = int(now - age * 1000)
            pipe.hset(f"emq:{{default}}:job:{job_id}", mapping=row)
            pipe.zadd("emq:{default}:dead", {job_id: 0})
        pipe.execute()
    return ids


def dead(broker: EchoMQBroker) -> list[str]:
    return broker.queue("default").browse(State.DEAD, count=10_000)[::-1]


def declare() -> None:
    @actor(actor_name="work")
    def work() -> None: ...


def test_a_worker_drops_the_oldest_dead_messages_when_there_are_too_many(
    make_broker: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker]
) -> None:
    broker = make_broker(dead_max=5)
    declare()
    ids = bury(broker, 12)
    make_worker(broker)
    eventually(lambda: dead(broker) == ids[7:], PATIENCE)


def test_a_worker_drops_those_that_have_been_dead_for_too_long(
    make_broker: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], caplog: pytest.LogCaptureFixture
) -> None:
    broker = make_broker(dead_ttl=100.0)
    declare()
    old, young, foreign = bury(broker, 3, age=101), bury(broker, 3, age=1), bury(broker, 2, age=None)
    with caplog.at_level(logging.INFO, "echomq_tasks"):
        make_worker(broker)
        eventually(lambda: dead(broker) == young + foreign, PATIENCE)
        eventually(lambda: "3 dead jobs were dropped" in caplog.text, PATIENCE)
    for job_id in old:
        assert not broker.client.exists(f"emq:{{default}}:job:{job_id}")


@pytest.mark.parametrize("age", [101, 1])
def test_more_than_one_step_of_them_are_looked_at_to_the_end(
    make_broker: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], age: float
) -> None:
    # A short lease makes the beat short, of which one step is taken each.
    broker = make_broker(dead_ttl=100.0, dead_max=1400, lease=0.2)
    declare()
    ids = bury(broker, 1500, age=age) + bury(broker, 1, age=101)
    make_worker(broker)
    # Those that are too many are the oldest; of what is left the last one is too old.
    expected = [] if age == 101 else ids[101:1500]
    eventually(lambda: dead(broker) == expected, PATIENCE)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_a_full_step_is_followed_by_the_next_without_waiting_for_a_beat(
    make_broker: Callable[..., EchoMQBroker], monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    # Neither a beat, nor the worker that wants its thread back, is what ends a wait here.
    monkeypatch.setattr("echomq_tasks.brokers.dramatiq.consumer._BEAT", 3600.0)
    broker = make_broker(dead_max=10, dead_ttl=None, lease=7200)
    work = dramatiq.actor(actor_name="work")(lambda: None)
    consumer = broker.consume("default", prefetch=1, timeout=3_600_000)
    work.send()
    first = next(consumer)
    assert first is not None
    ids = bury(broker, 2600)
    # The first step found nothing.
    consumer._tending._trimming.due = 0.0  # noqa: SLF001 - in place of a minute
    if not busy:
        consumer.ack(first)
    following: list[Any] = []
    waiting = threading.Thread(target=lambda: following.append(next(consumer)), daemon=True)
    waiting.start()
    eventually(lambda: dead(broker) == ids[-10:], PATIENCE)
    assert following == []
    work.send()
    consumer.ack(first)
    waiting.join(PATIENCE)
    consumer.ack(following[0])
    consumer.close()


def test_without_bounds_all_stay(
    make_broker: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_broker(dead_ttl=None, dead_max=None, lease=0.2)
    trimmed: list[Any] = []
    monkeypatch.setattr("echomq_tasks.queue.Queue.trim_dead", lambda *args, **bounds: trimmed.append(bounds))

    @actor
    def probe() -> None: ...

    ids = bury(broker, 3, age=10**9)
    worker = make_worker(broker)
    for _ in range(3):
        probe.send()
        broker.join("default", timeout=20_000)
    worker.stop()
    assert trimmed == []
    assert dead(broker) == ids


def test_a_week_and_a_hundred_thousand_are_kept_by_default(
    broker: EchoMQBroker, make_worker: Callable[..., Worker]
) -> None:
    assert broker.dead_ttl == 7 * 86_400
    assert broker.dead_max == 100_000
    declare()
    bury(broker, 1, age=7 * 86_400 + 1)
    kept = bury(broker, 1, age=7 * 86_400 - 100)
    make_worker(broker)
    eventually(lambda: dead(broker) == kept, PATIENCE)


@pytest.mark.parametrize(
    ("option", "value"),
    [("dead_ttl", bad) for bad in (0, -1, True, "60", float("nan"), float("inf"), [], 10**11)]
    + [("dead_max", bad) for bad in (0, -1, 1.5, True, "60", float("nan"), [], 10**11)],
)
def test_a_bound_that_is_none_is_refused_when_the_broker_is_made(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=option):
        EchoMQBroker("valkey://127.0.0.1:1/0", **{option: value})


@pytest.mark.parametrize("option", ["dead_message_ttl", "dead_tll", "dead_maximum"])
def test_an_option_of_another_name_is_refused(option: str) -> None:
    with pytest.raises(ConfigError, match=option):
        EchoMQBroker("valkey://127.0.0.1:1/0", **{option: 60})


def test_messages_live_again_with_all_of_their_retries(
    make_broker: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    broker, runs = make_broker(), []

    @actor(max_retries=2, min_backoff=1, max_backoff=2)
    def work() -> None:
        runs.append(1)
        raise RuntimeError("no luck")

    first, second, third = bury(broker, 3)
    assert broker.retry_dead("default", limit=1) == 1
    assert broker.reprocess("default", first)
    assert dead(broker) == [second]
    make_worker(broker)
    finish(broker)
    # Each once, and two retries each: what was left of the first life counted nothing.
    assert len(runs) == 6
    assert dead(broker) == [first, second, third]


def test_conditions_are_those_of_the_queue(broker: EchoMQBroker) -> None:
    bury(broker, 2, age=1000)
    assert broker.retry_dead("default", actor="nobody") == 0
    assert broker.retry_dead("default", error="bang") == 0
    assert broker.retry_dead("default", older_than=2000) == 0
    assert broker.retry_dead("default", actor="work", error="oo", older_than=500) == 2
    with pytest.raises(InvalidArgument):
        broker.retry_dead("default", actor="")


def test_a_payload_that_is_no_message_keeps_its_bytes(broker: EchoMQBroker) -> None:
    (job_id,) = bury(broker, 1)
    broker.client.hset(f"emq:{{default}}:job:{job_id}", "payload", b"\xff no message")
    assert broker.retry_dead("default") == 1
    assert broker.client.hget(f"emq:{{default}}:job:{job_id}", "payload") == b"\xff no message"
