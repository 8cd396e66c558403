"""What a message of our actor sends, and that all who handle it know it by one id."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import dramatiq
import pytest
from dramatiq import Message, Worker, group, pipeline
from dramatiq.encoder import PickleEncoder
from dramatiq.errors import ConnectionClosed
from dramatiq.middleware import CurrentMessage
from dramatiq.results import Results
from support.eventually import eventually

from echomq_tasks import flow
from echomq_tasks.actor import actor
from echomq_tasks.brokers.dramatiq import EchoMQBroker, job_id
from echomq_tasks.errors import ServerUnavailable
from echomq_tasks.identity import minted_at_ms
from echomq_tasks.queue import State
from echomq_tasks.results import EchoMQBackend
from echomq_tasks.scripts import Scripts

Make = Callable[..., Worker]


class Echo:
    """An actor that notes the messages it runs with, and fails the first `faults` times."""

    def __init__(self, broker: EchoMQBroker) -> None:
        self.seen: list[Message[Any]] = []
        self.faults = 0
        broker.add_middleware(CurrentMessage())
        broker.add_middleware(Results(backend=EchoMQBackend(broker=broker), store_results=True))

        @actor(broker=broker, max_retries=3, min_backoff=1, max_backoff=1)
        def echo(*args: Any, **kwargs: Any) -> Any:
            current = CurrentMessage.get_current_message()
            assert current is not None
            self.seen.append(current)
            if len(self.seen) <= self.faults:
                raise RuntimeError("not yet")
            return args[-1] if args else kwargs

        self.actor = echo


@pytest.fixture
def echo(broker: EchoMQBroker) -> Echo:
    return Echo(broker)


@pytest.fixture
def pickled() -> Iterator[None]:
    """Dramatiq's global encoder is pickle's for the length of a test."""
    before = dramatiq.get_encoder()
    dramatiq.set_encoder(PickleEncoder())
    yield
    dramatiq.set_encoder(before)


def payload(broker: EchoMQBroker, message: Message[Any]) -> bytes:
    row = broker.queue("default").get(job_id(message))
    assert row is not None
    return row.payload


def run(echo: Echo, make_worker: Make, count: int = 1) -> list[Message[Any]]:
    make_worker(echo.actor.broker)
    eventually(lambda: len(echo.seen) >= count, timeout=20)
    echo.actor.broker.join("default", timeout=20_000)
    assert len(echo.seen) == count
    return echo.seen


def test_only_what_cannot_be_filled_in_is_sent_and_the_row_stays_compact(broker: EchoMQBroker, echo: Echo) -> None:
    message = echo.actor.send(x=1, y=2)
    assert payload(broker, message) == b'{"actor_name":"echo","args":[],"kwargs":{"x":1,"y":2}}'
    assert broker.client.object("encoding", f"emq:{{default}}:job:{message.job_id}") == b"listpack"


def test_sender_and_worker_know_it_by_its_job_id_and_the_time_of_that(
    broker: EchoMQBroker, echo: Echo, make_worker: Make
) -> None:
    sent = [echo.actor.send(1), *broker.enqueue_many([echo.actor.message(2), echo.actor.message(k=3)])]
    sent.append(echo.actor.send_with_options(args=(4,), delay=1, tenant="acme"))
    seen = sorted(run(echo, make_worker, 4), key=lambda message: message.message_id)
    for message, received in zip(sent, seen, strict=True):
        assert message.message_id == job_id(message) == received.message_id
        assert message.message_timestamp == minted_at_ms(job_id(message)) == received.message_timestamp
        assert received == message
        assert pickle.loads(pickle.dumps(message)) == message


def test_results_are_found_by_every_copy_of_the_message(echo: Echo, make_worker: Make) -> None:
    before = echo.actor.message(5)
    twin = before.copy()
    children = group([before, echo.actor.message(6)]).run()
    piped = pipeline([echo.actor.message(7), echo.actor.message(8)]).run()
    make_worker(echo.actor.broker)
    assert list(children.get_results(block=True, timeout=20_000)) == [5, 6]
    assert list(piped.get_results(block=True, timeout=20_000)) == [7, 7]
    assert twin.get_result() == 5
    assert Message(**dataclasses.asdict(children.children[1])).get_result() == 6


def test_an_id_that_was_read_before_stays_and_travels(broker: EchoMQBroker, echo: Echo, make_worker: Make) -> None:
    message = echo.actor.message(1)
    known = UUID(message.message_id)
    assert broker.enqueue(message) is message
    assert payload(broker, message) == message.encode()
    (received,) = run(echo, make_worker)
    assert UUID(received.message_id) == UUID(message.message_id) == known
    assert received.message_timestamp == message.message_timestamp


def test_a_hook_that_reads_the_id_before_it_is_sent_reads_the_one_that_stays(broker: EchoMQBroker, echo: Echo) -> None:
    told: list[str] = []

    class Watch(dramatiq.Middleware):
        def before_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
            told.append(message.message_id)

        after_enqueue = before_enqueue

    broker.add_middleware(Watch())
    message = echo.actor.send(1)
    assert told == [message.message_id] * 2
    assert payload(broker, message) == message.encode()


def test_a_message_that_is_sent_again_is_another_job_of_one_id(
    broker: EchoMQBroker, echo: Echo, make_worker: Make
) -> None:
    first = echo.actor.send(1)
    again = broker.enqueue(first)
    assert job_id(again) != job_id(first) == first.message_id == again.message_id
    assert payload(broker, again) == first.encode()
    assert [message.message_id for message in run(echo, make_worker, 2)] == [first.message_id] * 2


def test_a_retry_keeps_the_payload_short_and_the_id_the_same(
    broker: EchoMQBroker, echo: Echo, make_worker: Make
) -> None:
    echo.faults = 1
    message = echo.actor.send(1)
    rows: list[bytes] = []

    class Look(dramatiq.Middleware):
        def before_process_message(self, broker: Any, message: Any) -> None:
            rows.append(payload(broker, message))

    broker.add_middleware(Look())
    runs = run(echo, make_worker, 2)
    assert [each.message_id for each in runs] == [message.message_id] * 2
    assert [each.message_timestamp for each in runs] == [message.message_timestamp] * 2
    assert rows[0] == b'{"actor_name":"echo","args":[1]}'
    assert rows[1].startswith(b'{"actor_name":"echo","args":[1],"options":{')
    assert b"message_id" not in rows[1]


def test_a_duplicate_has_an_id_of_its_own(broker: EchoMQBroker, echo: Echo) -> None:
    first = echo.actor.send_with_options(args=(1,), unique="until_done")
    second = echo.actor.send_with_options(args=(1,), unique="until_done")
    assert (second.duplicate, second.job_id) == (True, first.job_id)
    assert UUID(second.message_id).version == 4


def test_a_flow_is_known_by_the_ids_of_its_jobs(broker: EchoMQBroker, echo: Echo, make_worker: Make) -> None:
    tree = flow(echo.actor.message(1), [echo.actor.message(2), echo.actor.message(3)]).run()
    sent = list(tree)
    assert payload(broker, sent[1]) == b'{"actor_name":"echo","args":[2]}'
    assert sorted(each.message_id for each in run(echo, make_worker, 3)) == sorted(each.message_id for each in sent)
    assert [each.message_id for each in sent] == [job_id(each) for each in sent]
    assert tree.get_result() == 1


def test_other_encoders_are_given_all_fields(
    broker: EchoMQBroker, echo: Echo, pickled: None, make_worker: Make
) -> None:
    message = echo.actor.send(1)
    assert payload(broker, message) == message.encode()
    (received,) = run(echo, make_worker)
    assert received == message


def test_a_message_of_dramatiqs_own_actor_is_sent_whole(broker: EchoMQBroker) -> None:
    plain = dramatiq.actor(actor_name="plain", broker=broker)(lambda: None)
    message = plain.send()
    assert UUID(message.message_id).version == 4
    assert payload(broker, message) == message.encode()


def test_a_broker_that_does_not_trim_sends_whole_messages_with_random_ids(
    make_broker: Callable[..., EchoMQBroker], make_worker: Make
) -> None:
    broker = make_broker(trim_messages=False)
    echo = Echo(broker)
    echo.faults = 1
    sent = [echo.actor.send(1), *broker.enqueue_many([echo.actor.message(2)]), *flow(echo.actor.message(3), []).run()]
    for message in sent:
        assert UUID(message.message_id).version == 4
        assert payload(broker, message) == message.encode()
    runs = run(echo, make_worker, 4)
    assert {each.message_id for each in runs} == {message.message_id for message in sent}


def test_a_broker_that_does_not_trim_completes_what_one_that_does_has_sent_when_it_is_retried(
    make_broker: Callable[..., EchoMQBroker], make_worker: Make
) -> None:
    known = Echo(make_broker()).actor.send(1)
    broker = make_broker(trim_messages=False)
    echo = Echo(broker)
    echo.faults = 1
    rows: list[bytes] = []

    class Look(dramatiq.Middleware):
        def before_process_message(self, broker: Any, message: Any) -> None:
            rows.append(payload(broker, message))

    broker.add_middleware(Look())
    assert [each.message_id for each in run(echo, make_worker, 2)] == [known.message_id] * 2
    assert [b"message_id" in row for row in rows] == [False, True]


def test_a_callback_is_named_and_one_that_is_none_is_refused(broker: EchoMQBroker, echo: Echo) -> None:
    message = echo.actor.message_with_options(args=(1,), on_success=echo.actor)
    assert message.options == {"on_success": "echo"}
    with pytest.raises(TypeError, match="must be an Actor"):
        echo.actor.send_with_options(on_failure=5)


def test_two_tries_at_a_server_whose_answer_was_lost_are_one_message(
    broker: EchoMQBroker, echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Scripts.attempt

    def lost(self: Scripts, calls: Any, *, repeat: bool = True) -> Any:
        replies = attempt(self, calls, repeat=repeat)
        if calls[0].name == "job_enqueue":
            raise ServerUnavailable("no answer came")
        return replies

    messages = [echo.actor.message(1), echo.actor.message(2)]
    with monkeypatch.context() as patched:
        patched.setattr(Scripts, "attempt", lost)
        with pytest.raises(ConnectionClosed):
            broker.enqueue_many(messages)
        with pytest.raises(ConnectionClosed):
            broker.enqueue(single := echo.actor.message(3))
    queue = broker.queue("default")
    first = queue.browse(State.PENDING)
    assert sorted(message.message_id for message in (*messages, single)) == sorted(first)
    again = broker.enqueue_many([*messages, single])
    assert {job_id(message) for message in again}.isdisjoint(first)
    for message in again:
        assert payload(broker, message) == message.encode()
        assert message.message_timestamp == minted_at_ms(message.message_id)
