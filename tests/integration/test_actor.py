"""The package's own actor decorator: Dramatiq's, typed, with this broker as the default one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq import Actor
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import AsyncIO
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend
from support.servers import ServerProcess
from support.workers import WORKERS

from echomq_tasks.actor import actor, get_broker
from echomq_tasks.brokers.dramatiq import EchoMQBroker

Run = Callable[..., None]


@pytest.fixture(autouse=True)
def _no_global_broker() -> Iterator[None]:
    """No broker is set before a test, and the one it sets is gone after it."""
    before, dramatiq.broker.global_broker = dramatiq.broker.global_broker, None
    yield
    dramatiq.broker.global_broker = before


@pytest.fixture
def broker(server: ServerProcess) -> Iterator[EchoMQBroker]:
    server.flush()
    broker = EchoMQBroker(server.url)
    dramatiq.set_broker(broker)
    yield broker
    broker.close()


@pytest.fixture
def run(worker_kind: str) -> Run:
    """Run the jobs of a queue of a broker."""

    def run(broker: EchoMQBroker, queue: str = "default") -> None:
        worker = WORKERS[worker_kind](broker, worker_threads=2, worker_timeout=50)
        worker.start()
        try:
            broker.join(queue, interval=10, timeout=20_000)
        finally:
            worker.stop()

    return run


def test_the_default_broker_is_this_one_and_no_server_is_needed_to_declare() -> None:
    @actor
    def add(x: int, y: int) -> int:
        return x + y

    assert add(1, 2) == 3
    assert isinstance(add.broker, EchoMQBroker)
    assert add.broker is get_broker() is dramatiq.get_broker()


def test_a_broker_that_was_set_stays() -> None:
    stub = StubBroker()
    dramatiq.set_broker(stub)
    assert get_broker() is stub
    assert actor(lambda: None).broker is stub  # type: ignore[arg-type]


def test_a_broker_given_is_used(broker: EchoMQBroker) -> None:
    other = StubBroker()
    f = actor(broker=other)(lambda: None)
    assert f.broker is other
    assert broker.actors == {}


def test_an_actor_runs(broker: EchoMQBroker, run: Run) -> None:
    seen: list[Any] = []

    @actor
    def record(x: int, *, y: str = "y") -> None:
        seen.append((x, y))

    message = record.send(1, y="z")
    assert message.actor_name == "record"
    run(broker)
    assert seen == [(1, "z")]


def test_all_options_reach_the_actor(broker: EchoMQBroker) -> None:
    @actor(queue_name="mail", priority=5, actor_name="send-mail", max_retries=3, time_limit=1000, group="outbox")
    def send_mail() -> None: ...

    assert isinstance(send_mail, Actor)
    assert (send_mail.queue_name, send_mail.priority, send_mail.actor_name) == ("mail", 5, "send-mail")
    assert send_mail.options == {"max_retries": 3, "time_limit": 1000, "group": "outbox"}
    assert broker.get_declared_queues() == {"mail"}


def test_an_async_actor_runs(broker: EchoMQBroker, run: Run) -> None:
    broker.add_middleware(AsyncIO())
    seen: list[int] = []

    @actor
    async def record(x: int) -> None:
        await asyncio.sleep(0)
        seen.append(x)

    record.send(4)
    run(broker)
    assert seen == [4]


def test_an_actor_class_of_ones_own(broker: EchoMQBroker) -> None:
    class Special(Actor[Any, Any]): ...

    @actor(actor_class=Special)
    def f() -> None: ...

    assert isinstance(f, Special)


def test_the_wrapped_function_is_there_unchanged(broker: EchoMQBroker) -> None:
    def f(x: int) -> int:
        return x

    assert actor(f).fn is f


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("max_retires", "did you mean 'max_retries'"),
        ("on_sucess", "did you mean 'on_success'"),
        ("zzzz", "add the middleware that declares it"),
    ],
)
def test_an_unknown_option_is_refused_with_a_hint(broker: EchoMQBroker, option: str, hint: str) -> None:
    with pytest.raises(ValueError, match=f"{option}.*{hint}"):
        actor(**{option: 1})
    assert broker.actors == {}


@pytest.mark.parametrize("option", ["first_in", "limit"])
def test_what_only_a_queues_repeat_has_is_refused_without_a_wrong_hint(broker: EchoMQBroker, option: str) -> None:
    with pytest.raises(ValueError, match=rf"{option}= is of queue\.repeat\(\.\.\.\) only") as refused:
        actor(every=60, **{option: 1})
    assert "did you mean" not in str(refused.value)


def test_the_option_of_a_middleware_is_known_once_it_is_added(broker: EchoMQBroker, run: Run) -> None:
    with pytest.raises(ValueError, match="store_results"):
        actor(store_results=True)
    backend = StubBackend()
    broker.add_middleware(Results(backend=backend))
    f = actor(store_results=True)(lambda: 3)
    message = f.send()
    run(broker)
    assert message.get_result() == 3


@pytest.mark.parametrize("priority", [True, 1.5, "high", None])
def test_a_priority_that_is_no_whole_number_is_refused(broker: EchoMQBroker, priority: Any) -> None:
    with pytest.raises(ValueError, match="priority is a whole number"):
        actor(priority=priority)


@pytest.mark.parametrize("queue_name", ["", "a b", "emq", "1st"])
def test_a_queue_name_that_is_not_allowed_is_refused(broker: EchoMQBroker, queue_name: str) -> None:
    with pytest.raises(ValueError, match=r"(?i)queue name"):
        actor(queue_name=queue_name)(lambda: None)
    assert broker.actors == {}


def test_one_decorator_serves_several_functions(broker: EchoMQBroker) -> None:
    quick = actor(max_retries=1)

    @quick
    def first() -> None: ...

    @quick
    def second() -> None: ...

    assert (first.actor_name, second.actor_name) == ("first", "second")
    assert first.options == second.options == {"max_retries": 1}
