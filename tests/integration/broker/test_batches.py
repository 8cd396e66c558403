"""Batch actors: messages gathered into one call, and what each of them becomes of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
from dramatiq import Actor, Worker
from dramatiq import middleware as stock
from dramatiq.common import current_millis
from dramatiq.middleware import (
    AsyncIO,
    CurrentMessage,
    GroupCallbacks,
    Shutdown,
    ShutdownNotifications,
    TimeLimit,
    TimeLimitExceeded,
)
from dramatiq.rate_limits.backends import StubBackend as StubLimits
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend
from failing_actors import QUICK
from support.eventually import eventually

from echomq_tasks import actor
from echomq_tasks.brokers.dramatiq import BatchActor, EchoMQBroker
from echomq_tasks.errors import BatchError
from echomq_tasks.middleware import Retries
from echomq_tasks.queue import JobInfo

#: Seconds that no test lasts: whoever is called earlier did not wait for more.
FOREVER = 60.0


def test_messages_that_wait_together_run_in_one_call_in_order(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    calls: list[list[int]] = []
    index = actor(actor_name="index", batch=5, batch_wait=FOREVER)(lambda numbers: calls.append(numbers))
    for number in range(10):
        index.send(number)
    # More threads than batches, and fewer than members: neither splits a batch that fills.
    make_worker(broker, threads=3)
    finish(broker)
    assert sorted(calls) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert broker.queue("default").counts().completed == 10


@pytest.mark.parametrize("wait", [0, 0.05])
def test_a_batch_that_nobody_fills_starts_when_its_time_has_come(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None], wait: float
) -> None:
    calls: list[list[int]] = []
    index = actor(actor_name="index", batch=100, batch_wait=wait)(lambda numbers: calls.append(numbers))
    for number in range(250):
        index.send(number)
    # One place at a time: also without a wait, what is there is gathered.
    make_worker(broker, threads=1)
    finish(broker)
    assert [len(call) for call in calls] == [100, 100, 50]
    assert [number for call in calls for number in call] == list(range(250))


def test_a_message_sent_later_joins_an_open_batch(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    calls: list[list[str]] = []
    index = actor(actor_name="index", batch=2, batch_wait=FOREVER)(lambda words: calls.append(words))
    index.send("first")
    eventually(lambda: broker.queue("default").counts().active == 1)
    assert calls == []
    index.send("second")
    finish(broker)
    assert calls == [["first", "second"]]


def test_each_member_has_its_own_result(broker: EchoMQBroker, worker: Worker) -> None:
    broker.add_middleware(Results(backend=StubBackend(), store_results=True))
    square = actor(actor_name="square", batch=4, batch_wait=0.05)(lambda numbers: tuple(n * n for n in numbers))
    nothing = actor(actor_name="nothing", batch=4, batch_wait=0.05)(lambda numbers: None)
    squares = [square.send(number) for number in range(6)]
    nothings = [nothing.send(number) for number in range(3)]
    assert [message.get_result(block=True) for message in squares] == [0, 1, 4, 9, 16, 25]
    assert [message.get_result(block=True) for message in nothings] == [None] * 3


def test_a_batch_actor_is_a_step_of_a_pipeline(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []
    double = actor(actor_name="double", batch=10, batch_wait=0.05)(lambda numbers: [2 * n for n in numbers])
    note = actor(actor_name="note")(seen.append)
    for number in range(5):
        (double.message(number) | double.message_with_options() | note.message_with_options()).run()
    finish(broker)
    assert sorted(seen) == [0, 4, 8, 12, 16]
    assert "discarded" not in caplog.text


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda numbers: numbers[1:], "ValueError: the batch actor 'bad' returned 2 results for 3 members"),
        (lambda numbers: "abc", "TypeError: the batch actor 'bad' returned a str"),
        (lambda numbers: dict.fromkeys(numbers), "TypeError: the batch actor 'bad' returned a dict"),
    ],
)
def test_results_that_do_not_fit_fail_all_members(
    broker: EchoMQBroker,
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    dead_jobs: Callable[..., list[JobInfo]],
    answer: Callable[[list[int]], Any],
    text: str,
) -> None:
    bad = actor(actor_name="bad", batch=3, batch_wait=FOREVER, max_retries=0)(answer)
    for number in range(3):
        bad.send(number)
    make_worker(broker)
    finish(broker)
    dead = dead_jobs(broker)
    assert len(dead) == 3
    assert all((job.last_error or "").startswith(text) for job in dead)


def test_members_that_fail_run_alone_and_the_others_are_done(
    broker: EchoMQBroker,
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    dead_jobs: Callable[..., list[JobInfo]],
) -> None:
    backend = StubBackend()
    broker.add_middleware(Results(backend=backend, store_results=True))
    calls: list[list[str]] = []

    @actor(batch=5, batch_wait=FOREVER, max_retries=2, **QUICK)
    def index(words: list[str]) -> list[str]:
        calls.append(words)
        failures: dict[int, BaseException] = {}
        for number, word in enumerate(words):
            try:
                if word == "bad" or (word == "once" and len(calls) == 1):
                    raise LookupError(f"no place for {word}")
            except LookupError as error:
                failures[number] = error
        if failures:
            raise BatchError(failures, [word.upper() for word in words])
        return [word.upper() for word in words]

    messages = {word: index.send(word) for word in ["a", "bad", "b", "once", "c"]}
    make_worker(broker)
    finish(broker)
    assert calls[0] == ["a", "bad", "b", "once", "c"]
    assert sorted(calls[1:]) == [["bad"], ["bad"], ["once"]]
    assert [messages[word].get_result() for word in ["a", "b", "c", "once"]] == ["A", "B", "C", "ONCE"]
    (dead,) = dead_jobs(broker)
    assert (dead.id, dead.failures) == (messages["bad"].job_id, 3)
    assert dead.last_error is not None
    # The member's own exception, with its own traceback, not the BatchError that carried it.
    assert dead.last_error.startswith("LookupError: no place for bad")
    assert "in index" in dead.last_error
    assert "BatchError" not in dead.last_error
    options = broker.queue("default").get(dead.id)
    assert options is not None
    assert b"LookupError: no place for bad" in options.payload
    assert b"BatchError" not in options.payload
    with pytest.raises(dramatiq.results.ResultFailure, match="no place for bad"):
        # Stored after it has gone to dead.
        messages["bad"].get_result(block=True)


def test_one_bad_member_costs_its_companions_one_retry_and_no_more(
    broker: EchoMQBroker,
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    dead_jobs: Callable[..., list[JobInfo]],
) -> None:
    calls: list[list[int]] = []

    @actor(batch=8, batch_wait=FOREVER, max_retries=3, **QUICK)
    def index(numbers: list[int]) -> None:
        calls.append(numbers)
        if 5 in numbers:
            raise RuntimeError("five")

    for number in range(8):
        index.send(number)
    make_worker(broker)
    finish(broker)
    assert calls[0] == list(range(8))
    assert sorted(calls[1:]) == [[0], [1], [2], [3], [4], [5], [5], [5], [6], [7]]
    (dead,) = dead_jobs(broker)
    assert (dead.failures, (dead.last_error or "")[:18]) == (4, "RuntimeError: five")


def test_a_batch_error_for_a_member_that_is_not_there_fails_all(
    broker: EchoMQBroker,
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    dead_jobs: Callable[..., list[JobInfo]],
) -> None:
    def index(numbers: list[int]) -> None:
        raise BatchError({0: ValueError("bad"), 2: ValueError("bad")})

    index_actor = actor(batch=2, batch_wait=FOREVER, max_retries=0)(index)
    index_actor.send(1)
    index_actor.send(2)
    make_worker(broker)
    finish(broker)
    texts = [job.last_error or "" for job in dead_jobs(broker)]
    assert len(texts) == 2
    assert all("raised BatchError for member 2, and there are 2" in text for text in texts)


def test_a_retry_of_a_member_has_the_delay_it_asked_for(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    calls: list[list[int]] = []

    # The default backoff of 15 seconds would outlast the wait below.
    @actor(batch=2, batch_wait=FOREVER)
    def index(numbers: list[int]) -> None:
        calls.append(numbers)
        if len(numbers) == 2:
            raise BatchError({1: dramatiq.Retry("later", delay=1)})

    index.send(1)
    index.send(2)
    make_worker(broker)
    broker.join("default", timeout=10_000)
    assert calls == [[1, 2], [2]]


def test_an_async_function_takes_a_batch(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    broker.add_middleware(AsyncIO())
    broker.add_middleware(Results(backend=StubBackend(), store_results=True))

    @actor(batch=3, batch_wait=FOREVER)
    async def add(numbers: list[int]) -> list[int]:
        await asyncio.sleep(0)
        return [number + 1 for number in numbers]

    messages = [add.send(number) for number in range(3)]
    make_worker(broker)
    assert [message.get_result(block=True) for message in messages] == [1, 2, 3]


def test_called_directly_it_is_its_function(broker: EchoMQBroker) -> None:
    @actor(batch=3)
    def total(numbers: list[int]) -> list[int]:
        return [sum(numbers)] * len(numbers)

    assert total([1, 2, 3, 4]) == [10] * 4
    assert isinstance(total, BatchActor)


def test_an_actor_of_dramatiqs_own_decorator_takes_batches_and_what_does_not_fit_goes_to_dead(
    broker: EchoMQBroker,
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    dead_jobs: Callable[..., list[JobInfo]],
) -> None:
    calls: list[list[int]] = []
    index = dramatiq.actor(actor_name="index", batch=3, batch_wait=FOREVER)(lambda numbers: calls.append(numbers))
    index.send(1)
    wrong = [index.send(), index.send(2, 3), index.send(number=4), index.send(5, also=6)]
    index.send(7)
    index.send(8)
    make_worker(broker)
    finish(broker)
    assert calls == [[1, 7, 8]]
    dead = dead_jobs(broker)
    assert {job.id for job in dead} == {message.job_id for message in wrong}
    text = "TypeError: a message of the batch actor 'index' carries exactly one positional argument"
    assert all((job.last_error or "").startswith(text) for job in dead)


def test_sending_anything_but_one_argument_is_refused_before_it_is_written(broker: EchoMQBroker) -> None:
    index: Any = actor(actor_name="index", batch=3)(lambda numbers: None)
    for send in (
        lambda: index.send(),
        lambda: index.send(1, 2),
        lambda: index.send(number=1),
        lambda: index.send(1, also=2),
        lambda: index.send_with_options(),
        lambda: index.send_with_options(args=(1, 2), delay=10),
        lambda: index.message(1, 2),
        lambda: index.message_with_options(args=(1,), kwargs={"also": 2}),
    ):
        with pytest.raises(TypeError, match="index is a batch actor: a message takes exactly one positional argument"):
            send()
    assert broker.queue("default").counts().unfinished == 0
    assert index.send_with_options(args=([1, 2],), delay=60_000).args == ([1, 2],)


@pytest.mark.parametrize("decorate", [actor, dramatiq.actor], ids=["ours", "dramatiq's"])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch": 0}, "batch is a whole number from 1 to 1000, not 0"),
        ({"batch": 1001}, "not 1001"),
        ({"batch": True}, "not True"),
        ({"batch": 2.0}, "not 2.0"),
        ({"batch": "10"}, "not '10'"),
        ({"batch": None}, "not None"),
        ({"batch": 2, "batch_wait": -0.1}, "batch_wait is a number of seconds from 0 to 60, not -0.1"),
        ({"batch": 2, "batch_wait": 60.1}, "not 60.1"),
        ({"batch": 2, "batch_wait": float("nan")}, "not nan"),
        ({"batch": 2, "batch_wait": True}, "not True"),
        ({"batch": 2, "batch_wait": "1"}, "not '1'"),
        ({"batch": 2, "batch_wait": None}, "not None"),
        ({"batch_wait": 1}, "batch_wait needs batch"),
        ({"batch": 2, "every": 60}, "does not repeat"),
    ],
)
def test_options_out_of_range_are_refused_and_nothing_is_declared(
    broker: EchoMQBroker, decorate: Callable[..., Any], options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        decorate(actor_name="index", **options)(lambda numbers=(): None)
    assert broker.actors == {}
    assert broker.batches == {}


def test_an_actor_class_of_ones_own_must_know_batches(broker: EchoMQBroker) -> None:
    class Plain(Actor[Any, Any]): ...

    class Special(BatchActor[Any, Any, Any]): ...

    with pytest.raises(ValueError, match=r"cannot be a 'Plain': derive your actor_class from .*BatchActor"):
        actor(actor_name="index", batch=2, actor_class=Plain)
    with pytest.raises(ValueError, match="derive your actor_class"):
        actor(actor_name="index", batch=2, actor_class=lambda fn, **options: Plain(fn, **options))
    assert isinstance(actor(actor_name="index", batch=2, actor_class=Special)(lambda numbers: None), Special)


def test_callbacks_are_called_for_each_member(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    good: list[Any] = []
    bad: list[Any] = []
    actor(actor_name="good")(lambda message, result: good.append((message["args"], result)))
    actor(actor_name="bad")(lambda message, error: bad.append((message["args"], error["type"], error["message"])))

    @actor(batch=3, batch_wait=FOREVER, max_retries=0, on_success="good", on_failure="bad")
    def index(numbers: list[int]) -> None:
        raise BatchError({1: KeyError("one")}, [number * 10 for number in numbers])

    for number in range(3):
        index.send(number)
    make_worker(broker)
    finish(broker)
    assert sorted(good) == [([0], 0), ([2], 20)]
    assert bad == [([1], "KeyError", "'one'")]


def test_the_callback_of_a_group_comes_when_all_its_members_are_done(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    broker.add_middleware(GroupCallbacks(StubLimits()))
    events: list[str] = []

    @actor(batch=4, batch_wait=FOREVER, **QUICK)
    def index(numbers: list[int]) -> None:
        events.append(f"ran {numbers}")
        if len(numbers) == 4:
            raise BatchError({2: RuntimeError("again")})

    told = actor(actor_name="told")(lambda: events.append("told"))
    group = dramatiq.group(index.message(number) for number in range(4))
    group.add_completion_callback(told.message())
    group.run()
    make_worker(broker)
    finish(broker)
    assert events == ["ran [0, 1, 2, 3]", "ran [2]", "told"]


def test_a_time_limit_in_the_function_fails_all_members_and_each_runs_alone(
    make_broker: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    broker = make_broker(middleware=[stock.AgeLimit(), TimeLimit(interval=20), Retries(**QUICK)])
    # The dramatiq command emits this in each of its processes.
    broker.emit_after("process_boot")
    calls: list[list[int]] = []
    stopped: list[int] = []

    @actor(batch=4, batch_wait=FOREVER, time_limit=100)
    def index(numbers: list[int]) -> None:
        calls.append(numbers)
        if len(numbers) == 1:
            return
        try:
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                time.sleep(0.005)
        except TimeLimitExceeded:
            stopped.append(len(numbers))
            raise

    for number in range(3):
        index.send(number)
    # The last member is skipped: the hooks that follow must not lift the limit of the others.
    old = index.send_with_options(args=(3,), max_age=1)
    eventually(lambda: current_millis() > old.message_timestamp)
    make_worker(broker)
    finish(broker)
    assert stopped == [3]
    assert calls[0] == [0, 1, 2]
    assert sorted(calls[1:]) == [[0], [1], [2]]
    assert broker.get_queue_message_counts("default") == (0, 0, 1)


def test_a_shutdown_interrupts_a_batch_that_asked_for_it_and_its_members_run_again(
    make_broker: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    broker = make_broker(middleware=[ShutdownNotifications(), Retries(**QUICK)])
    calls: list[list[int]] = []
    started, interrupted = threading.Event(), threading.Event()

    @actor(batch=3, batch_wait=FOREVER, notify_shutdown=True)
    def index(numbers: list[int]) -> None:
        calls.append(numbers)
        if len(numbers) == 1:
            return
        try:
            started.set()
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                time.sleep(0.005)
        except Shutdown:
            interrupted.set()
            raise

    for number in range(3):
        index.send(number)
    worker = make_worker(broker)
    assert started.wait(10)
    worker.stop()
    assert interrupted.is_set()
    make_worker(broker)
    finish(broker)
    assert calls[0] == [0, 1, 2]
    assert sorted(calls[1:]) == [[0], [1], [2]]
    assert broker.queue("default").counts().completed == 3


def test_the_current_message_in_a_batch_is_one_of_its_members_and_none_after(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    broker.add_middleware(CurrentMessage())
    seen: list[Any] = []
    index = actor(actor_name="index", batch=2, batch_wait=FOREVER)(
        lambda numbers: seen.append(CurrentMessage.get_current_message())
    )
    sent = [index.send(1).message_id, index.send(2).message_id]
    make_worker(broker)
    finish(broker)
    assert seen[0].message_id == sent[-1]
