"""Actors on the broker: every way to declare one and every way to send to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dramatiq
import pytest
from dramatiq import Actor, GenericActor, Worker
from dramatiq.errors import ActorNotFound
from dramatiq.middleware import AsyncIO
from support.eventually import eventually

from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.errors import InvalidName
from echomq_tasks.queue import State


def test_an_actor_runs_with_the_arguments_it_was_sent(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    seen: list[Any] = []

    @dramatiq.actor
    def record(*args: Any, **kwargs: Any) -> None:
        seen.append((args, kwargs))

    record.send(1, "zwei", [3, None], four={"five": 5.5}, emoji="🦊")
    finish(broker)
    assert seen == [((1, "zwei", [3, None]), {"four": {"five": 5.5}, "emoji": "🦊"})]


def test_an_actor_called_directly_runs_here_and_sends_nothing(broker: EchoMQBroker) -> None:
    @dramatiq.actor
    def add(x: int, y: int) -> int:
        return x + y

    assert add(1, 2) == 3
    assert broker.get_queue_message_counts("default") == (0, 0, 0)


def test_many_messages_each_run_once(broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]) -> None:
    seen: list[int] = []

    @dramatiq.actor
    def record(number: int) -> None:
        seen.append(number)

    for number in range(200):
        record.send(number)
    finish(broker)
    assert sorted(seen) == list(range(200))


def test_one_thread_runs_messages_in_the_order_they_were_sent(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    seen: list[int] = []

    @dramatiq.actor
    def record(number: int) -> None:
        seen.append(number)

    for number in range(50):
        record.send(number)
    make_worker(broker, threads=1)
    finish(broker)
    assert seen == list(range(50))


def test_send_with_options_takes_args_kwargs_and_options(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    seen: list[Any] = []

    @dramatiq.actor
    def record(x: int, y: int) -> None:
        seen.append((x, y))

    message = record.send_with_options(args=(1,), kwargs={"y": 2}, max_retries=7, tenant="acme")
    finish(broker)
    assert seen == [(1, 2)]
    assert message.options == {"max_retries": 7, "tenant": "acme"}


@pytest.mark.parametrize("delay", [300, 300.0, timedelta(milliseconds=300)])
def test_send_with_options_delays_by_milliseconds_or_a_timedelta(broker: EchoMQBroker, delay: Any) -> None:
    @dramatiq.actor
    def later() -> None: ...

    message = later.send_with_options(delay=delay)
    job = broker.queue("default").get(message.job_id)  # type: ignore[attr-defined]
    assert job is not None
    assert job.state is State.SCHEDULED
    assert job.due is not None
    # The server's clock and this process's are one machine's; the id was minted before the script ran.
    assert 0 <= (job.due - job.minted).total_seconds() - 0.3 < 10


def test_an_option_that_no_middleware_declares_is_refused(broker: EchoMQBroker) -> None:
    with pytest.raises(ValueError, match="undefined: max_retires"):
        dramatiq.actor(max_retires=3)(lambda: None)


@pytest.mark.parametrize("name", ["", "1st", "with space", "a/b", "emq{}", "ünï"])
def test_a_queue_name_dramatiq_does_not_allow_is_refused(broker: EchoMQBroker, name: str) -> None:
    with pytest.raises(ValueError, match="Queue names"):
        dramatiq.actor(queue_name=name, actor_name="f")(lambda: None)


@pytest.mark.parametrize("name", ["emq", "q" * 129])
def test_a_queue_name_the_wire_does_not_allow_is_refused(broker: EchoMQBroker, name: str) -> None:
    with pytest.raises(InvalidName):
        dramatiq.actor(queue_name=name, actor_name="f")(lambda: None)
    assert name not in broker.get_declared_queues()


@pytest.mark.parametrize("name", ["a", "_private", "Some.Queue-1_x", "q" * 128])
def test_an_actor_runs_on_any_queue_the_wire_allows(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None], name: str
) -> None:
    ran = threading.Event()
    dramatiq.actor(queue_name=name, actor_name="f")(ran.set).send()
    finish(broker, name)
    assert ran.is_set()


def test_an_actor_name_of_ones_own_is_what_the_message_carries(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    ran = threading.Event()

    @dramatiq.actor(actor_name="billing.send-invoice")
    def anything() -> None:
        ran.set()

    assert anything.send().actor_name == "billing.send-invoice"
    finish(broker)
    assert ran.is_set()
    assert broker.get_declared_actors() == {"billing.send-invoice"}


def test_an_actor_name_is_taken_once(broker: EchoMQBroker) -> None:
    dramatiq.actor(actor_name="f")(lambda: None)
    with pytest.raises(ValueError, match="already registered"):
        dramatiq.actor(actor_name="f")(lambda: None)


def test_get_actor_answers_the_actor_or_raises(broker: EchoMQBroker) -> None:
    f = dramatiq.actor(actor_name="f")(lambda: None)
    assert broker.get_actor("f") is f
    with pytest.raises(ActorNotFound):
        broker.get_actor("g")


def test_a_class_based_actor_inherits_its_options_and_runs(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    seen: list[str] = []

    class Base(GenericActor):
        class Meta:
            abstract = True
            queue_name = "tasks"
            max_retries = 2

        def perform(self, name: str) -> None:
            seen.append(f"{type(self).__name__} {name}")

    class Greet(Base): ...

    class Wave(Base): ...

    Greet.send("Ada")
    Wave.send("Bob")
    finish(broker, "tasks")
    assert sorted(seen) == ["Greet Ada", "Wave Bob"]
    assert Greet.options == {"max_retries": 2}


def test_a_custom_actor_class_is_used(broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]) -> None:
    class Loud(Actor[Any, Any]):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*(str(arg).upper() for arg in args), **kwargs)

    seen: list[str] = []
    say = dramatiq.actor(actor_class=Loud, actor_name="say")(seen.append)
    assert isinstance(say, Loud)
    say.send("hello")
    finish(broker)
    assert seen == ["HELLO"]


def test_an_async_actor_runs_on_the_event_loop_thread(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    broker.add_middleware(AsyncIO())
    seen: list[int] = []

    @dramatiq.actor
    async def double(x: int) -> None:
        await asyncio.sleep(0)
        seen.append(2 * x)

    make_worker(broker)
    for x in range(10):
        double.send(x)
    finish(broker)
    assert sorted(seen) == [2 * x for x in range(10)]


def test_async_actors_run_side_by_side_and_are_retried(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    broker.add_middleware(AsyncIO())
    tries: list[str] = []
    both = asyncio.Event()

    @dramatiq.actor(min_backoff=1, max_backoff=1)
    async def meet(name: str) -> None:
        tries.append(name)
        if len(set(tries)) == 2:
            both.set()
        await asyncio.wait_for(both.wait(), 10)
        if tries.count(name) == 1:
            raise RuntimeError("once more")

    make_worker(broker, threads=2)
    meet.send("a")
    meet.send("b")
    finish(broker)
    assert sorted(tries) == ["a", "a", "b", "b"]


def test_an_actor_may_send_to_itself_and_to_others(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    seen: list[str] = []

    @dramatiq.actor
    def end() -> None:
        seen.append("end")

    @dramatiq.actor
    def count_down(n: int) -> None:
        seen.append(str(n))
        if n:
            count_down.send(n - 1)
        else:
            end.send()

    count_down.send(3)
    finish(broker)
    assert seen == ["3", "2", "1", "0", "end"]


def test_an_actor_on_another_broker_than_the_global_one_stays_there(
    make_broker: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    mine, other = make_broker(), make_broker()
    ran = threading.Event()
    f = dramatiq.actor(actor_name="f", broker=mine, queue_name="mine")(ran.set)
    assert "f" not in other.actors
    make_worker(mine)
    f.send()
    finish(mine, "mine")
    assert ran.is_set()


def test_threads_of_one_worker_run_jobs_at_the_same_time(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    together = threading.Barrier(4, timeout=10)
    passed: list[int] = []

    @dramatiq.actor(max_retries=0)
    def meet() -> None:
        passed.append(together.wait())

    for _ in range(4):
        meet.send()
    finish(broker)
    assert sorted(passed) == [0, 1, 2, 3]


def test_an_argument_that_json_cannot_carry_is_an_error_at_the_sender(broker: EchoMQBroker) -> None:
    @dramatiq.actor
    def f(x: Any) -> None: ...

    with pytest.raises(TypeError, match="not JSON serializable"):
        f.send(object())
    assert broker.get_queue_message_counts("default") == (0, 0, 0)


def test_a_worker_started_first_takes_up_actors_declared_later(broker: EchoMQBroker, worker: Worker) -> None:
    ran = threading.Event()
    late = dramatiq.actor(queue_name="late", actor_name="late")(ran.set)
    late.send()
    eventually(ran.is_set, message="the late actor ran")
