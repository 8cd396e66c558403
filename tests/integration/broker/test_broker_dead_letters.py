"""Dead letters: payloads that are no message, actors that nobody knows, and what the morgue tells of them."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
from dramatiq import Worker
from dramatiq.middleware import CurrentMessage

from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.identity import minted_at_ms
from echomq_tasks.queue import JobInfo, NewJob, State

UNREADABLE: list[tuple[str, bytes, str]] = [
    ("empty", b"", "cannot be decoded"),
    ("not utf-8", b"\xff\xfe\x00", "cannot be decoded"),
    ("not json", b"{'a': 1}", "cannot be decoded"),
    ("cut short", b'{"actor_name": "f", "args": [', "cannot be decoded"),
    ("a pickle", pickle.dumps({"actor_name": "f", "args": ()}), "cannot be decoded"),
    ("too deep", b"[" * 100_000, "cannot be decoded"),
    ("a list", b"[1, 2]", "is a list, not a message object"),
    ("a number", b"7", "is a int, not a message object"),
    ("null", b"null", "is a NoneType, not a message object"),
    ("a text", b'"hello"', "is a str, not a message object"),
    ("no actor", b'{"args": []}', "names no actor"),
    ("an empty object", b"{}", "names no actor"),
    ("a numeric actor", b'{"actor_name": 5, "args": []}', "actor_name is a int"),
    ("args no list", b'{"actor_name": "f", "args": "abc"}', "args is a str"),
    ("args an object", b'{"actor_name": "f", "args": {"a": 1}}', "args is a dict"),
    ("kwargs a list", b'{"actor_name": "f", "args": [], "kwargs": [1]}', "kwargs is a list"),
    ("options a text", b'{"actor_name": "f", "args": [], "options": "x"}', "options is a str"),
    ("message_id a number", b'{"actor_name": "f", "args": [], "message_id": 1}', "message_id is a int"),
    ("timestamp a text", b'{"actor_name": "f", "args": [], "message_timestamp": "now"}', "message_timestamp is a str"),
]


@pytest.mark.parametrize(("payload", "why"), [row[1:] for row in UNREADABLE], ids=[row[0] for row in UNREADABLE])
def test_a_payload_that_is_no_message_goes_to_dead_and_the_worker_goes_on(
    broker: EchoMQBroker,
    worker: Worker,
    finish: Callable[..., None],
    dead_jobs: Callable[..., list[JobInfo]],
    payload: bytes,
    why: str,
) -> None:
    ran = threading.Event()
    f = dramatiq.actor(actor_name="f")(lambda *args: ran.set())
    job_id = broker.queue("default").enqueue(payload).id
    f.send()
    finish(broker)
    assert ran.is_set()
    (dead,) = dead_jobs(broker)
    assert (dead.id, dead.payload) == (job_id, payload)
    assert dead.last_error is not None
    assert dead.last_error.startswith("DecodeError: ")
    assert why in dead.last_error


def test_many_unreadable_payloads_take_no_place_from_others(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    seen: list[int] = []
    record = dramatiq.actor(actor_name="record")(seen.append)
    for number in range(20):
        broker.queue("default").enqueue_many([NewJob(payload=b"\xff")] * 5)
        record.send(number)
    make_worker(broker, threads=1)
    finish(broker)
    assert seen == list(range(20))
    assert broker.get_queue_message_counts("default") == (0, 0, 100)


def test_a_consumer_without_a_worker_passes_over_unreadable_payloads(broker: EchoMQBroker) -> None:
    broker.declare_queue("default")
    broker.queue("default").enqueue(b"\xff")
    message = broker.enqueue(dramatiq.Message("default", "f", (), {}, {}))
    consumer = broker.consume("default", timeout=5000)
    assert next(consumer) == message
    consumer.close()
    assert broker.get_queue_message_counts("default")[2] == 1


def test_a_message_for_an_unknown_actor_goes_to_dead(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None], dead_jobs: Callable[..., list[JobInfo]]
) -> None:
    ran = threading.Event()
    f = dramatiq.actor(actor_name="f")(ran.set)
    sent: Any = broker.enqueue(dramatiq.Message("default", "nobody", (), {}, {}))
    f.send()
    finish(broker)
    assert ran.is_set()
    (dead,) = dead_jobs(broker)
    assert dead.id == sent.job_id
    assert dead.last_error is not None
    assert dead.last_error.startswith("ActorNotFound: nobody")


def test_actor_name_and_args_are_enough(broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]) -> None:
    broker.add_middleware(CurrentMessage())
    seen: list[Any] = []
    dramatiq.actor(actor_name="f")(lambda *args: seen.append((args, CurrentMessage.get_current_message())))
    job_id = broker.queue("default").enqueue('{"actor_name": "f", "args": [1, "zwei"]}').id
    finish(broker)
    ((args, message),) = seen
    assert args == (1, "zwei")
    assert message.message_id == message.job_id == job_id
    assert message.message_timestamp == minted_at_ms(job_id)
    assert (message.queue_name, message.kwargs, message.options) == ("default", {}, {})


@pytest.mark.parametrize(
    "payload",
    [
        '{"actor_name": "f"}',
        '{"actor_name": "f", "args": null, "kwargs": null, "options": null, "message_id": null}',
        '{"actor_name": "f", "args": [], "queue_name": "elsewhere"}',
        '{"actor_name": "f", "args": [], "queue_name": 5, "unknown": {"field": 1}}',
        '  {"actor_name":"f","args":[],"kwargs":{}}\n',
    ],
)
def test_what_another_language_may_send_runs(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None], payload: str
) -> None:
    ran = threading.Event()
    dramatiq.actor(actor_name="f")(ran.set)
    broker.queue("default").enqueue(payload)
    finish(broker)
    assert ran.is_set()
    assert broker.get_queue_message_counts("default") == (0, 0, 0)


def test_a_foreign_payload_that_fails_is_retried_with_its_id(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    broker.add_middleware(CurrentMessage())
    seen: list[Any] = []

    @dramatiq.actor(min_backoff=1, max_backoff=1)
    def f() -> None:
        seen.append(CurrentMessage.get_current_message())
        if len(seen) == 1:
            raise RuntimeError("once")

    job_id = broker.queue("default").enqueue('{"actor_name": "f", "args": []}').id
    finish(broker)
    assert [message.message_id for message in seen] == [job_id, job_id]


def test_the_dead_are_browsed_newest_first_and_tell_what_happened(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    @dramatiq.actor(max_retries=0)
    def bad(number: int) -> None:
        raise ValueError(f"number {number}")

    jobs = [bad.send(number).job_id for number in range(3)]  # type: ignore[attr-defined]
    make_worker(broker, threads=1)
    finish(broker)
    queue = broker.queue("default")
    assert queue.browse(State.DEAD) == jobs[::-1]
    dead = queue.get(jobs[1])
    assert dead is not None
    assert dead.state is State.DEAD
    assert dead.last_error is not None
    head, *tail = dead.last_error.splitlines()
    assert head == "ValueError: number 1"
    assert "in bad" in "".join(tail)
    assert 'raise ValueError(f"number {number}")' in "".join(tail)


def test_a_huge_error_is_cut_to_its_tail(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None], dead_jobs: Callable[..., list[JobInfo]]
) -> None:
    @dramatiq.actor(max_retries=0)
    def deep(n: int) -> None:
        if n == 0:
            raise ValueError("x" * 1_000_000)
        deep.fn(n - 1)

    deep.send(200)
    finish(broker)
    (dead,) = dead_jobs(broker)
    assert dead.last_error is not None
    assert dead.last_error.startswith("ValueError: xxx")
    assert len(dead.last_error) < 20_000
    assert "raise ValueError" in dead.last_error


def test_an_actor_called_with_wrong_arguments_fails_like_any_other(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None], dead_jobs: Callable[..., list[JobInfo]]
) -> None:
    @dramatiq.actor(max_retries=0)
    def one(x: int) -> None: ...

    one.send_with_options(args=(1, 2))
    finish(broker)
    (dead,) = dead_jobs(broker)
    assert dead.last_error is not None
    assert dead.last_error.startswith("TypeError: ")
