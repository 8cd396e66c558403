"""Results of actors on our backend: Dramatiq's contract under a real worker, on every engine."""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dramatiq
import pytest
from dramatiq import Message, Worker, group, pipeline
from dramatiq.encoder import PickleEncoder
from dramatiq.errors import DecodeError
from dramatiq.results import ResultFailure, ResultMissing, Results, ResultTimeout
from support.children import in_child
from support.counting import blocked, commands
from support.eventually import eventually
from support.servers import ServerProcess
from support.workers import WORKERS
from wire.handwriting import Wire

from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import ConfigError, InvalidArgument, InvalidId, InvalidName
from echomq_tasks.identity import group_id, is_branded
from echomq_tasks.queue import Queue
from echomq_tasks.results import EchoMQBackend, result_id

JOB = "JOB0NgWEfAEJ0A"
#: Milliseconds; far more than any wait here takes when all is well.
LONG = 20_000


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as executor:
        yield executor


@pytest.fixture
def broker(connection: Connection) -> Iterator[EchoMQBroker]:
    """A broker that is Dramatiq's global one until the test ends."""
    before = dramatiq.broker.global_broker
    made = EchoMQBroker(connection=connection)
    dramatiq.set_broker(made)
    yield made
    dramatiq.broker.global_broker = before
    made.close()


@pytest.fixture
def backend(broker: EchoMQBroker) -> EchoMQBackend:
    made = EchoMQBackend(broker=broker)
    broker.add_middleware(Results(backend=made))
    return made


@pytest.fixture
def worker(broker: EchoMQBroker, backend: EchoMQBackend, worker_kind: str) -> Iterator[Worker]:
    made: Worker = WORKERS[worker_kind](broker, worker_threads=4, worker_timeout=50)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def declare(queue_name: str, backend: EchoMQBackend) -> Callable[..., Any]:
    """Declare an actor that stores its results."""

    def declare(body: Callable[..., Any], **options: Any) -> Any:
        settings = {"queue_name": queue_name, "actor_name": "f", "store_results": True, "max_retries": 0, **options}
        return dramatiq.actor(body, **settings)

    return declare


@pytest.fixture
def message(queue_name: str) -> Message[Any]:
    """A message that is never sent."""
    return Message(queue_name, "f", (), {}, {})


@pytest.fixture
def wire(connection: Connection, queue_name: str) -> Wire:
    return Wire(connection, queue_name)


def results(wire: Wire) -> list[str]:
    return [key for key in wire.keys() if key.endswith(":result")]


# -- what Dramatiq documents ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [{"sum": 3}, None, 0, "", [], False, "é\x00", [None]])
def test_a_result_comes_back_as_it_was(worker: Worker, backend: EchoMQBackend, declare: Any, value: Any) -> None:
    message = declare(lambda: value).send()
    assert message.get_result(block=True, timeout=LONG) == value
    assert message.get_result() == value
    assert backend.get_result(message) == value
    assert backend.get_result(message, block=True, timeout=0) == value


def test_a_result_waited_for_before_it_is_there_comes_at_once_to_everybody(
    worker: Worker, connection: Connection, declare: Any, gate: threading.Event, pool: ThreadPoolExecutor
) -> None:
    message = declare(lambda: gate.wait(20) and "through the gate").message()
    before = len(blocked(connection))
    waiting = [pool.submit(message.get_result, block=True, timeout=LONG) for _ in range(16)]
    eventually(lambda: len(blocked(connection)) >= before + 16)
    assert commands(connection)["blmove"] > 0
    dramatiq.get_broker().enqueue(message)
    gate.set()
    assert [wait.result(20) for wait in waiting] == ["through the gate"] * 16


def test_a_result_that_is_not_there_is_missing_or_late(worker: Worker, declare: Any) -> None:
    message = declare(lambda: 1).send_with_options(delay=60_000)
    with pytest.raises(ResultMissing):
        message.get_result()
    for timeout in (0, -5, 1, 30):
        with pytest.raises(ResultTimeout):
            message.get_result(block=True, timeout=timeout)


def test_a_wait_without_a_time_is_dramatiqs_ten_seconds(
    backend: EchoMQBackend, declare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("echomq_tasks.results.backend.Results.result", lambda *_, timeout: asked.append(timeout))
    message = declare(lambda: 1).message()
    for options in ({"block": True}, {"block": True, "timeout": 1500}, {"timeout": 1500}, {}):
        with pytest.raises((ResultTimeout, ResultMissing)):
            backend.get_result(message, **options)
    assert asked == [10.0, 1.5, 0, 0]


def test_a_failure_is_stored_once_the_retries_are_used_up(worker: Worker, declare: Any) -> None:
    runs: list[int] = []

    def bad() -> None:
        runs.append(1)
        raise ValueError("boom")

    message = declare(bad, max_retries=2, min_backoff=1, max_backoff=1).send()
    with pytest.raises(ResultFailure, match="actor raised ValueError: boom") as caught:
        message.get_result(block=True, timeout=LONG)
    assert (caught.value.orig_exc_type, caught.value.orig_exc_msg, len(runs)) == ("ValueError", "boom", 3)


def test_an_expected_exception_and_a_message_too_old_are_failures(worker: Worker, declare: Any) -> None:
    def bad() -> None:
        raise KeyError("known")

    with pytest.raises(ResultFailure, match="KeyError"):
        declare(bad, throws=KeyError).send().get_result(block=True, timeout=LONG)
    old = declare(lambda: 1, actor_name="old", max_age=1000).message().copy(message_timestamp=0)
    dramatiq.get_broker().enqueue(old)
    with pytest.raises(ResultFailure, match="age limit"):
        old.get_result(block=True, timeout=LONG)


def test_a_result_is_kept_for_its_time_and_no_key_is_kept_for_ever(worker: Worker, wire: Wire, declare: Any) -> None:
    default = declare(lambda: 1, actor_name="default").send()
    own = declare(lambda: 1, actor_name="own", result_ttl=5_000).send()
    for message in (default, own):
        message.get_result(block=True, timeout=LONG)
    assert len(results(wire)) == 2
    kept = {key: wire.do("PTTL", key) for key in results(wire)}
    assert 590_000 < kept[f"job:{result_id(default.message_id)}:result"] <= 600_000
    assert 0 < kept[f"job:{result_id(own.message_id)}:result"] <= 5_000
    unset = declare(lambda: 1, actor_name="unset", result_ttl=None).send()
    unset.get_result(block=True, timeout=LONG)
    assert 590_000 < wire.do("PTTL", f"job:{result_id(unset.message_id)}:result") <= 600_000
    gone = declare(lambda: 1, actor_name="gone", result_ttl=0).send()
    dramatiq.get_broker().join(default.queue_name)
    eventually(lambda: f"job:{result_id(gone.message_id)}:result" not in results(wire))


def test_a_forgotten_result_leaves_nothing(worker: Worker, backend: EchoMQBackend, wire: Wire, declare: Any) -> None:
    message = declare(lambda: 1).send()
    assert message.get_result(block=True, timeout=LONG) == 1
    assert backend.forget_result(message)
    assert not backend.forget_result(message)
    assert results(wire) == []
    with pytest.raises(ResultMissing):
        message.get_result()


def test_a_time_limit_ends_a_wait_inside_of_an_actor(
    worker: Worker, declare: Any, connection: Connection, queue_name: str
) -> None:
    queue = Queue(queue_name, connection)
    dramatiq.get_broker().emit_after("process_boot")  # as the command line does: it starts the clock of time limits
    message = declare(lambda: queue.result(JOB, timeout=15), time_limit=200).send()
    with pytest.raises(ResultFailure, match="TimeLimitExceeded"):
        message.get_result(block=True, timeout=LONG)
    assert queue.result(JOB) is None
    queue.store_result(JOB, "x")
    assert queue.result(JOB, timeout=LONG) == b"x"


# -- groups and pipelines ------------------------------------------------------------------------------------------


def test_a_group_has_the_results_of_its_children(worker: Worker, declare: Any) -> None:
    double = declare(lambda x: x * 2)
    run = group([double.message(number) for number in range(8)]).run()
    assert list(run.get_results(block=True, timeout=LONG)) == [0, 2, 4, 6, 8, 10, 12, 14]
    assert run.completed
    assert run.completed_count == 8
    run.wait(timeout=LONG)


def test_a_group_that_lasts_too_long_ends_with_a_timeout(worker: Worker, declare: Any, gate: threading.Event) -> None:
    slow = declare(lambda: gate.wait(20))
    run = group([slow.message(), slow.message()]).run()
    with pytest.raises(ResultTimeout):
        list(run.get_results(block=True, timeout=50))
    with pytest.raises(ResultMissing):
        list(run.get_results())
    gate.set()
    assert list(run.get_results(block=True, timeout=LONG)) == [True, True]


def test_a_pipeline_has_the_result_of_each_step(worker: Worker, declare: Any) -> None:
    add = declare(lambda x, y: x + y)
    pipe = pipeline([add.message(1, 2), add.message(3), add.message(4)]).run()
    assert pipe.get_result(block=True, timeout=LONG) == 10
    assert list(pipe.get_results(block=True, timeout=LONG)) == [3, 6, 10]
    assert pipe.completed
    nested = group([add.message(1, 1) | add.message(2), add.message(5, 5)]).run()
    assert list(nested.get_results(block=True, timeout=LONG)) == [4, 10]


# -- under which id ------------------------------------------------------------------------------------------------


def test_the_id_of_a_result_is_the_messages_own_or_one_that_only_its_text_decides() -> None:
    assert result_id(JOB) == JOB
    # The known answer of a group's name, in another kind.
    assert result_id("acme") == "JOB" + group_id("acme")[3:]
    assert result_id("6f3c") != result_id("6f3d")
    for text in ("", "EVT000xY9Wvvcd", "JOBzzzzzzzzzzz", "é", "x" * 10_000):
        assert is_branded(result_id(text), "JOB")
    for bad in ("\ud800", None, 7):
        with pytest.raises(InvalidId, match="message id"):
            result_id(bad)  # type: ignore[arg-type]


def test_a_message_put_together_by_hand_finds_its_result(worker: Worker, backend: EchoMQBackend, declare: Any) -> None:
    sent = declare(lambda: 4).send()
    twin: Message[int] = Message(**dataclasses.asdict(sent))
    assert twin.get_result(backend=backend, block=True, timeout=LONG) == 4
    for name in (sent.queue_name, sent.queue_name + ".DQ", sent.queue_name + ".XQ"):
        only: Message[int] = Message(name, "another", (), {}, {}, message_id=sent.message_id)
        assert backend.get_result(only) == 4


def test_a_job_of_another_runtime_has_its_result_under_its_own_id(
    worker: Worker, backend: EchoMQBackend, declare: Any, broker: EchoMQBroker, wire: Wire, queue_name: str
) -> None:
    declare(lambda x: x + 1)
    queue = broker.queue(queue_name)
    job_id = queue.enqueue('{"actor_name": "f", "args": [6]}').id
    assert queue.result(job_id, timeout=LONG / 1000) == b"7"
    message: Message[int] = Message(queue_name, "f", (), {}, {}, message_id=job_id)
    assert backend.get_result(message) == 7
    assert backend.build_message_key(message) == f"{wire.base}job:{job_id}:result"
    assert wire.do("PTTL", f"job:{job_id}:result") > 0


def test_a_queue_that_the_wire_does_not_allow_is_refused(backend: EchoMQBackend) -> None:
    message: Message[Any] = Message("no spaces", "f", (), {}, {})
    for call in (backend.get_result, backend.build_message_key, backend.forget_result):
        with pytest.raises(InvalidName, match="no spaces"):
            call(message)


# -- what cannot be stored -----------------------------------------------------------------------------------------


def test_a_result_that_cannot_be_encoded_is_told_to_who_stores_it_and_to_who_waits(
    worker: Worker, backend: EchoMQBackend, declare: Any
) -> None:
    message = declare(lambda: object()).send()
    with pytest.raises(ResultFailure, match=r"JSONEncoder cannot encode the result of f, a object: .*encoder="):
        message.get_result(block=True, timeout=LONG)
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidArgument, match="cannot encode the result of f, a list"):
        backend.store_result(message, loop, 1000)


def test_a_result_too_large_for_any_server_is_told_to_both(message: Message[Any], broker: EchoMQBroker) -> None:
    class Huge(PickleEncoder):
        def encode(self, data: Any) -> bytes:
            return bytes((512 << 20) + 1) if data == "huge" else super().encode(data)

    backend = EchoMQBackend(broker=broker, encoder=Huge())
    with pytest.raises(InvalidArgument, match="512 MB at most"):
        backend.store_result(message, "huge", 1000)
    with pytest.raises(ResultFailure, match="512 MB at most"):
        backend.get_result(message)


def test_results_may_be_pickled_and_a_wrong_encoder_says_so(message: Message[Any], broker: EchoMQBroker) -> None:
    backend = EchoMQBackend(broker=broker, encoder=PickleEncoder())
    backend.store_result(message, {1, 2}, 60_000)
    assert backend.get_result(message) == {1, 2}
    with pytest.raises(DecodeError):
        EchoMQBackend(broker=broker).get_result(message)


def test_a_subclass_may_change_how_results_are_unwrapped(message: Message[Any], broker: EchoMQBroker) -> None:
    class Shouting(EchoMQBackend):
        def unwrap_result(self, res: Any) -> Any:
            return f"{res}!"

    backend = Shouting(broker=broker)
    backend.store_result(message, "hey", 60_000)
    assert backend.get_result(message) == "hey!"


# -- connecting ----------------------------------------------------------------------------------------------------


def test_nothing_connects_before_it_is_needed_and_closing_is_not_the_end(
    server: ServerProcess, message: Message[Any]
) -> None:
    before = server.client().info("stats")["total_connections_received"]
    lazy = EchoMQBroker(server.url)
    own, ours = EchoMQBackend(server.url, timeout=3), EchoMQBackend(broker=lazy)
    assert server.client().info("stats")["total_connections_received"] == before
    own.close()
    own.store_result(message, 1, 60_000)
    assert ours.get_result(message) == 1
    assert own.connection.config.timeout == 3
    assert ours.connection is lazy.connection
    first = own.connection
    for each in (own, own, lazy, ours):
        each.close()
    assert own.get_result(message) == ours.get_result(message) == 1
    assert own.connection is not first
    assert ours.connection is lazy.connection
    own.close()
    lazy.close()


def test_a_connection_that_was_given_stays_open(server: ServerProcess, message: Message[Any]) -> None:
    with connect(server.url) as connection:
        backend = EchoMQBackend(connection=connection)
        backend.close()
        assert backend.connection is connection
        backend.store_result(message, 1, 60_000)
        assert Queue(message.queue_name, connection).result(result_id(message.message_id)) == b"1"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"url": "valkey://x", "connection": "c"}, "one of broker=, connection="),
        ({"broker": "b", "connection": "c"}, "one of broker=, connection="),
        ({"broker": "b", "host": "h"}, "one of broker=, connection="),
        ({"namespace": "mine"}, "namespace has no meaning here"),
        ({"brokr": "b"}, "broker"),
        ({"url": "http://x"}, "http"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        EchoMQBackend(**options)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_stores_what_its_parent_waits_for(
    server: ServerProcess, message: Message[Any], pool: ThreadPoolExecutor
) -> None:
    backend = EchoMQBackend(server.url)
    with pytest.raises(ResultMissing):
        backend.get_result(message)
    waiting = pool.submit(backend.get_result, message, block=True, timeout=LONG)
    eventually(lambda: blocked(backend.connection))

    def child() -> Any:
        backend.store_result(message, "from the child", 60_000)
        return backend.get_result(message, block=True, timeout=LONG)

    assert in_child(child) == waiting.result(20) == "from the child"
    backend.close()
