"""The hooks of a batch: each member has all of its own, in order, and trouble in one stays with its member."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dramatiq import Broker, Middleware, Worker
from dramatiq import middleware as stock
from dramatiq.middleware import MiddlewareError, SkipMessage
from dramatiq.results import ResultFailure, Results
from dramatiq.results.backends import StubBackend
from failing_actors import QUICK

from echomq_tasks import actor
from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.current import current_job
from echomq_tasks.errors import BatchError
from echomq_tasks.middleware import Retries
from echomq_tasks.queue import JobInfo

FOREVER = 60.0

Run = Callable[..., None]


class Recorder(Middleware):
    """Notes each hook about a message with the message's argument; ``before`` may do more."""

    def __init__(self, before: Callable[[Any], None] = lambda message: None) -> None:
        self.events: list[str] = []
        self.before = before

    def before_process_message(self, broker: Broker, message: Any) -> None:
        self.events.append(f"before {message.args[0]}")
        self.before(message)

    def after_process_message(self, broker: Broker, message: Any, *, result: Any = None, exception: Any = None) -> None:
        self.events.append(f"after {message.args[0]} {result!r} {exception!r}")

    def after_skip_message(self, broker: Broker, message: Any) -> None:
        self.events.append(f"skip {message.args[0]}")

    def before_ack(self, broker: Broker, message: Any) -> None:
        self.events.append(f"before_ack {message.args[0]}")

    def after_ack(self, broker: Broker, message: Any) -> None:
        self.events.append(f"after_ack {message.args[0]}")

    def before_nack(self, broker: Broker, message: Any) -> None:
        self.events.append(f"before_nack {message.args[0]}")

    def after_nack(self, broker: Broker, message: Any) -> None:
        self.events.append(f"after_nack {message.args[0]}")


@pytest.fixture
def run(make_worker: Callable[..., Worker]) -> Run:
    """Run so many messages in one batch on a worker of one thread, as ``run(broker, recorder, body, count)``."""

    def run(broker: Broker, recorder: Recorder, body: Callable[[list[int]], Any], count: int, **options: Any) -> None:
        def index(numbers: list[int]) -> Any:
            recorder.events.append(f"call {numbers}")
            return body(numbers)

        index_actor = actor(batch=count, batch_wait=FOREVER, broker=broker, **{"max_retries": 0, **options})(index)
        for number in range(count):
            index_actor.send(number)
        worker = make_worker(broker, threads=1)
        broker.join("default", timeout=20_000)
        # Stopped, all hooks have been called.
        worker.stop()

    return run


def test_each_member_has_its_own_hooks_in_order(broker: EchoMQBroker, run: Run) -> None:
    recorder = Recorder()
    broker.add_middleware(recorder)

    def body(numbers: list[int]) -> None:
        raise BatchError({1: KeyError("one")}, [0, None, 20])

    run(broker, recorder, body, 3)
    assert recorder.events == [
        "before 0",
        "before 1",
        "before 2",
        "call [0, 1, 2]",
        "after 0 0 None",
        "after 1 None KeyError('one')",
        "after 2 20 None",
        "before_ack 0",
        "before_nack 1",
        "before_ack 2",
        "after_ack 0",
        "after_nack 1",
        "after_ack 2",
    ]


def test_the_current_job_is_the_members_in_its_hooks_and_nobodys_in_the_function(
    broker: EchoMQBroker, run: Run
) -> None:
    class Hooks(Middleware):
        def before_process_message(self, broker: Broker, message: Any) -> None:
            seen.append(current_job().id == message.job_id)

        def after_process_message(self, broker: Broker, message: Any, **outcome: Any) -> None:
            seen.append(current_job().id == message.job_id)

    def body(numbers: list[int]) -> None:
        with pytest.raises(RuntimeError, match="no job runs here"):
            current_job()
        seen.append(True)

    seen: list[bool] = []
    broker.add_middleware(Hooks())
    run(broker, Recorder(), body, 3)
    assert seen == [True] * 7
    with pytest.raises(RuntimeError, match="no job runs here"):
        current_job()


def test_members_that_a_middleware_skips_or_fails_are_not_in_the_list(
    broker: EchoMQBroker, dead_jobs: Callable[..., list[JobInfo]], run: Run
) -> None:
    def before(message: Any) -> None:
        if message.args[0] == 1:
            raise SkipMessage("not today")
        if message.args[0] == 2:
            message.fail()
            raise SkipMessage("never")
        if message.args[0] == 3:
            message.fail()
        if message.args[0] == 4:
            raise MiddlewareError("broken")

    recorder = Recorder(before)
    backend = StubBackend()
    broker.add_middleware(Results(backend=backend, store_results=True))
    broker.add_middleware(recorder)
    run(broker, recorder, lambda numbers: None, 6)
    called = recorder.events.index("call [0, 5]")
    assert recorder.events[called + 1 :] == [
        "after 0 None None",
        "skip 1",
        "skip 2",
        "after 3 None None",
        "after 4 None MiddlewareError('broken')",
        "after 5 None None",
        *(f"before_{end} {number}" for number, end in enumerate(["ack", "ack", "nack", "nack", "nack", "ack"])),
        *(f"after_{end} {number}" for number, end in enumerate(["ack", "ack", "nack", "nack", "nack", "ack"])),
    ]
    # The newest first.
    texts = [job.last_error or "" for job in sorted(dead_jobs(broker), key=lambda job: job.id)]
    assert [text.splitlines()[0] for text in texts] == [
        "SkipMessage: never",
        "rejected without an exception",
        "MiddlewareError: broken",
    ]
    assert broker.queue("default").counts().completed == 3


@pytest.mark.parametrize("failed", [False, True])
def test_nothing_is_called_when_all_members_are_skipped(broker: EchoMQBroker, failed: bool, run: Run) -> None:
    def before(message: Any) -> None:
        if failed:
            message.fail()
        raise SkipMessage("not today")

    recorder = Recorder(before)
    broker.add_middleware(recorder)
    run(broker, recorder, lambda numbers: None, 2)
    end = "nack" if failed else "ack"
    assert recorder.events == [
        "before 0",
        "before 1",
        "skip 0",
        "skip 1",
        *(f"before_{end} {number}" for number in range(2)),
        *(f"after_{end} {number}" for number in range(2)),
    ]
    assert broker.get_queue_message_counts("default") == (0, 0, 2 * failed)


def test_a_batch_of_an_actor_that_is_not_there_goes_to_dead_with_the_reason(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], dead_jobs: Callable[..., list[JobInfo]]
) -> None:
    recorder = Recorder()
    backend = StubBackend()
    broker.add_middleware(recorder)
    index = actor(actor_name="index", batch=2, batch_wait=FOREVER)(lambda numbers: None)
    index.send(0)
    index.send(1)
    del broker.actors["index"]
    worker = make_worker(broker)
    broker.add_middleware(Results(backend=backend, store_results=True))
    broker.join("default", timeout=20_000)
    worker.stop()
    texts = [job.last_error or "" for job in dead_jobs(broker)]
    assert len(texts) == 2
    assert all(text.startswith("ActorNotFound: index") for text in texts)
    assert recorder.events == ["before_nack 0", "before_nack 1", "after_nack 0", "after_nack 1"]


class Thrown(BaseException):
    """What a time limit or a shutdown throws into a thread, wherever it is."""


class Thrower(Middleware):
    """Raises in a hook of the member with this argument, the first time."""

    def __init__(self, hook: str, argument: int, times: int = 1) -> None:
        self.argument = argument
        self.left = times
        setattr(self, hook, self.throw)

    def throw(self, broker: Broker, message: Any, **options: Any) -> None:
        if message.args[0] == self.argument and self.left:
            self.left -= 1
            raise Thrown(f"in the middle of {self.argument}")


def test_what_is_thrown_into_the_hooks_before_the_run_fails_all_members(
    make_broker: Callable[..., EchoMQBroker], dead_jobs: Callable[..., list[JobInfo]], run: Run
) -> None:
    recorder = Recorder()
    broker = make_broker(middleware=[recorder, Retries(**QUICK), Thrower("before_process_message", 1)])
    run(broker, recorder, lambda numbers: None, 3)
    assert "call" not in " ".join(recorder.events)
    texts = [job.last_error or "" for job in dead_jobs(broker)]
    assert len(texts) == 3
    assert all(text.startswith("Thrown: in the middle of 1") for text in texts)


def test_what_is_thrown_into_the_hooks_of_one_member_is_not_the_others_failure(
    make_broker: Callable[..., EchoMQBroker], run: Run
) -> None:
    recorder = Recorder()
    backend = StubBackend()
    # Hooks that follow a run are called from the last to the first: the recorder's before the one that is torn.
    broker = make_broker(
        middleware=[
            Results(backend=backend, store_results=True),
            Retries(**QUICK),
            Thrower("after_process_message", 1),
            recorder,
        ]
    )
    run(broker, recorder, lambda numbers: [number * 10 for number in numbers], 4, max_retries=1)
    assert [event for event in recorder.events if event.startswith(("call", "after "))] == [
        "call [0, 1, 2, 3]",
        "after 0 0 None",
        "after 1 10 None",
        "after 1 None Thrown('in the middle of 1')",
        "after 2 20 None",
        "after 3 30 None",
        "call [1]",
        "after 1 10 None",
    ]
    assert broker.queue("default").counts().completed == 4


def test_members_whose_hooks_never_ran_are_given_back(broker: EchoMQBroker) -> None:
    """A second exception, thrown while the first is handled, takes the thread along; no member is lost with it."""
    consumer_broker = broker
    index = actor(actor_name="index", batch=3, batch_wait=FOREVER)(lambda numbers: None)
    for number in range(3):
        index.send(number)
    consumer = consumer_broker.consume("default", prefetch=1, timeout=1000)
    batch = next(consumer)
    broker.add_middleware(Thrower("after_process_message", 1))
    broker.emit_before("process_message", batch)
    with pytest.raises(Thrown):
        broker.emit_after("process_message", batch, result=None)
    broker.emit_before("ack", batch)
    consumer.ack(batch)
    counts = broker.queue("default").counts()
    assert (counts.completed, counts.pending, counts.active, counts.dead) == (1, 2, 0, 0)
    consumer.close()


def test_an_exception_of_a_member_is_left_as_it_was(broker: EchoMQBroker, run: Run) -> None:
    cause = RuntimeError("cause")
    bare = ValueError("bare")
    try:
        try:
            raise cause
        except RuntimeError:
            raise KeyError("full") from None
    except KeyError as error:
        full = error
    before = [(error.__traceback__, error.__context__, error.__cause__) for error in (bare, full)]
    recorder = Recorder()
    backend = StubBackend()
    broker.add_middleware(Results(backend=backend, store_results=True))
    broker.add_middleware(recorder)

    def body(numbers: list[int]) -> None:
        raise BatchError({0: bare, 1: full})

    run(broker, recorder, body, 2)
    assert [(error.__traceback__, error.__context__, error.__cause__) for error in (bare, full)] == before


@pytest.mark.parametrize("retries", [stock.Retries, Retries], ids=["stock", "ours"])
def test_each_member_counts_its_own_retries(
    make_broker: Callable[..., EchoMQBroker],
    dead_jobs: Callable[..., list[JobInfo]],
    retries: type[stock.Retries],
    run: Run,
) -> None:
    recorder = Recorder()
    backend = StubBackend()
    broker = make_broker(middleware=[retries(**QUICK), Results(backend=backend, store_results=True), recorder])

    def body(numbers: list[int]) -> None:
        raise BatchError({index: RuntimeError(str(number)) for index, number in enumerate(numbers) if number != 1})

    run(broker, recorder, body, 3, max_retries=2)
    calls = [event for event in recorder.events if event.startswith("call")]
    assert calls[0] == "call [0, 1, 2]"
    assert sorted(calls[1:]) == ["call [0]", "call [0]", "call [2]", "call [2]"]
    assert sorted((job.failures, (job.last_error or "").splitlines()[0]) for job in dead_jobs(broker)) == [
        (3, "RuntimeError: 0"),
        (3, "RuntimeError: 2"),
    ]


def test_a_failed_member_stores_its_own_exception(broker: EchoMQBroker, make_worker: Callable[..., Worker]) -> None:
    broker.add_middleware(Results(backend=StubBackend(), store_results=True))

    @actor(batch=2, batch_wait=FOREVER, max_retries=0)
    def index(numbers: list[int]) -> None:
        raise BatchError({0: KeyError("zero"), 1: ValueError("one")})

    messages = [index.send(number) for number in range(2)]
    make_worker(broker)
    with pytest.raises(ResultFailure, match="KeyError: 'zero'"):
        messages[0].get_result(block=True)
    with pytest.raises(ResultFailure, match="ValueError: one"):
        messages[1].get_result(block=True)
