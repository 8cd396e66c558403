"""Cancelled actors: the function is told, and the job ends without a retry, a corpse or a traceback."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dramatiq
import pytest
from chaos.crew import PATIENCE
from dramatiq import Worker, group
from dramatiq import middleware as stock
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import AsyncIO, CurrentMessage
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend
from dramatiq.results.errors import ResultFailure, ResultMissing
from failing_actors import QUICK
from support.eventually import eventually

from echomq_tasks import JobCancelled, actor, current_job, flow
from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.brokers.dramatiq.sent import SentMessage
from echomq_tasks.errors import BatchError
from echomq_tasks.middleware import Retries
from echomq_tasks.queue import Cancellation, JobInfo, Queue, State
from echomq_tasks.results import EchoMQBackend


class Steps:
    """A job that goes on until its checkpoint raises."""

    def __init__(self) -> None:
        self.runs = 0
        self.started = threading.Event()
        self._nobody = threading.Event()

    def body(self) -> None:
        self.runs += 1
        self.started.set()
        for _ in range(4000):
            current_job().checkpoint()
            self._nobody.wait(0.005)


@pytest.fixture
def steps() -> Steps:
    return Steps()


@pytest.fixture
def loud(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """What was logged at ERROR and above, and whatever has a traceback."""
    with caplog.at_level(logging.INFO):
        yield lambda: [
            record.getMessage() for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR
        ]


def assert_it_left_nothing(broker: EchoMQBroker, job_id: str) -> None:
    queue = broker.queue("default")
    assert queue.state(job_id) is State.ABSENT
    counts = queue.counts()
    assert (counts.unfinished, counts.dead, counts.completed, counts.failed) == (0, 0, 0, 0)
    assert list(queue.connection.client.scan_iter(f"*{job_id}*")) == []


def test_a_running_job_that_is_cancelled_ends_at_its_checkpoint_under_either_retry_middleware(
    retrying: Callable[..., EchoMQBroker],
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    steps: Steps,
    loud: Callable[[], list[str]],
) -> None:
    broker = retrying(max_retries=10)
    message = actor(steps.body).send()
    make_worker(broker)
    assert steps.started.wait(PATIENCE)
    assert message.cancel() is Cancellation.REQUESTED
    finish(broker)
    assert_it_left_nothing(broker, message.job_id)
    assert steps.runs == 1
    assert loud() == []


def test_an_async_job_is_told_too(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None], loud: Callable[[], list[str]]
) -> None:
    broker.add_middleware(AsyncIO())
    started = threading.Event()

    @actor
    async def work() -> None:
        started.set()
        for _ in range(4000):
            current_job().checkpoint()
            await asyncio.sleep(0.005)

    message = work.send()
    make_worker(broker)
    assert started.wait(PATIENCE)
    message.cancel()
    finish(broker)
    assert_it_left_nothing(broker, message.job_id)
    assert loud() == []


def test_the_renewal_of_its_lease_tells_a_job_without_a_question_of_its_own(
    make_broker: Callable[..., EchoMQBroker],
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    steps: Steps,
) -> None:
    # Renewed soon, and not lost when the machine is busy with something else for a moment.
    broker = make_broker(lease=1.5)
    monkeypatch.setattr(Queue, "is_cancelled", lambda queue, job_id: False)
    message = actor(steps.body).send()
    make_worker(broker)
    assert steps.started.wait(PATIENCE)
    message.cancel()
    finish(broker)
    assert_it_left_nothing(broker, message.job_id)


def test_a_job_that_goes_on_all_the_same_has_completed(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None], gate: threading.Event
) -> None:
    started = threading.Event()

    @actor
    def deaf() -> None:
        started.set()
        gate.wait(PATIENCE)

    message = deaf.send()
    assert started.wait(PATIENCE)
    assert message.cancel() is Cancellation.REQUESTED
    assert message.cancel() is Cancellation.REQUESTED
    gate.set()
    finish(broker)
    assert broker.queue("default").counts().completed == 1
    assert message.cancel() is Cancellation.GONE


def test_a_cancelled_job_that_fails_in_another_way_is_not_retried_either(
    retrying: Callable[..., EchoMQBroker],
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    gate: threading.Event,
) -> None:
    broker, runs, started = retrying(max_retries=10), [], threading.Event()

    @actor
    def deaf() -> None:
        runs.append(1)
        started.set()
        gate.wait(PATIENCE)
        raise RuntimeError("no luck")

    message = deaf.send()
    make_worker(broker)
    assert started.wait(PATIENCE)
    message.cancel()
    gate.set()
    finish(broker)
    assert len(runs) == 1
    assert_it_left_nothing(broker, message.job_id)


def test_raising_it_by_hand_ends_a_job_for_good(
    retrying: Callable[..., EchoMQBroker],
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    loud: Callable[[], list[str]],
) -> None:
    broker, runs = retrying(max_retries=10, retry_when=lambda retries, error: True), []

    class Enough(JobCancelled):
        pass

    @actor
    def work(kind: str) -> None:
        runs.append(kind)
        raise Enough("that is it") if kind == "own" else JobCancelled("that is it")

    sent = [work.send(kind) for kind in ("own", "ours")]
    make_worker(broker)
    finish(broker)
    assert sorted(runs) == ["ours", "own"]
    for message in sent:
        assert_it_left_nothing(broker, message.job_id)
    assert loud() == []


@pytest.mark.parametrize("throws", [None, KeyError])
def test_without_any_middleware_for_retries_it_ends_the_job_too(
    make_broker: Callable[..., EchoMQBroker],
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    throws: Any,
) -> None:
    broker = make_broker(middleware=[] if throws is None else [Retries(**QUICK)])

    @actor(**({} if throws is None else {"throws": throws}))
    def work() -> None:
        raise JobCancelled("that is it")

    message = work.send()
    make_worker(broker)
    finish(broker)
    assert_it_left_nothing(broker, message.job_id)


def test_the_limits_of_age_and_time_mean_what_they_did(
    make_broker: Callable[..., EchoMQBroker],
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    dead_jobs: Callable[..., list[JobInfo]],
    steps: Steps,
) -> None:
    broker = make_broker(
        middleware=[stock.AgeLimit(), stock.TimeLimit(interval=20), stock.Callbacks(), CurrentMessage(), Retries()]
    )
    broker.emit_after("process_boot")  # starts the clock of TimeLimit

    @actor(time_limit=200, max_retries=0)
    def slow() -> None:
        steps.body()

    @actor(max_age=1)
    def old() -> None:
        raise AssertionError("it is too old to run")

    late = old.message()
    broker.enqueue(late.copy(message_timestamp=late.message_timestamp - 60_000))
    slow.send()
    stopped = slow.send_with_options(time_limit=20_000)
    make_worker(broker)
    eventually(lambda: steps.runs == 2, PATIENCE)
    stopped.cancel()
    finish(broker)
    errors = {json.loads(job.payload)["actor_name"]: job.last_error for job in dead_jobs(broker)}
    assert set(errors) == {"slow", "old"}
    assert str(errors["slow"]).startswith("TimeLimitExceeded")


def test_a_cancelled_job_that_runs_out_of_time_is_gone(
    make_broker: Callable[..., EchoMQBroker],
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
) -> None:
    broker = make_broker(middleware=[stock.TimeLimit(interval=20), Retries(**QUICK)])
    broker.emit_after("process_boot")
    started, nobody = threading.Event(), threading.Event()

    @actor(time_limit=500)
    def deaf() -> None:
        started.set()
        for _ in range(4000):
            nobody.wait(0.005)

    message = deaf.send()
    make_worker(broker)
    assert started.wait(PATIENCE)
    message.cancel()
    finish(broker)
    assert_it_left_nothing(broker, message.job_id)


def test_a_job_whose_lease_was_lost_stops_at_its_checkpoint_and_leaves_the_job_to_its_new_worker(
    make_broker: Callable[..., EchoMQBroker],
    make_worker: Callable[..., Worker],
    steps: Steps,
    loud: Callable[[], list[str]],
) -> None:
    broker = make_broker(lease=0.6)
    ended: list[BaseException] = []

    @actor
    def work() -> None:
        try:
            steps.body()
        except JobCancelled as error:
            ended.append(error)
            raise

    message = work.send()
    worker = make_worker(broker, threads=1)
    assert steps.started.wait(PATIENCE)
    queue = Queue("default", broker.connection)
    queue.connection.client.zadd("emq:{default}:active", {message.job_id: 1}, xx=True)

    def taken_over() -> Any:
        queue.reap()
        return queue.claim(lease=60).jobs

    (job,) = eventually(taken_over, PATIENCE)
    eventually(lambda: ended, PATIENCE)
    assert "the lease was lost" in str(ended[0])
    worker.join()
    assert queue.state(job.id) is State.ACTIVE
    assert not queue.is_cancelled(job.id)
    queue.complete(job)
    assert steps.runs == 1
    assert loud() == []


def test_an_on_failure_callback_hears_of_it(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None], loud: Callable[[], list[str]]
) -> None:
    heard: list[Any] = []

    @actor
    def told(message: dict[str, Any], error: dict[str, Any]) -> None:
        heard.append((message["actor_name"], message["args"], error))

    @actor(on_failure="told")
    def work(number: int) -> None:
        raise JobCancelled("that is it")

    work.send(7)
    finish(broker)
    assert heard == [("work", [7], {"type": "JobCancelled", "message": "that is it"})]
    assert loud() == []


def test_who_waits_for_its_result_is_told(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    backend = StubBackend()
    broker.add_middleware(Results(backend=backend, store_results=True))

    @actor
    def work() -> int:
        raise JobCancelled("that is it")

    message = work.send()
    make_worker(broker)
    with pytest.raises(ResultFailure, match="JobCancelled"):
        message.get_result(backend=backend, block=True, timeout=10_000)


# -- message.cancel() --------------------------------------------------------------------------------------------------


def test_a_message_that_waits_is_removed(broker: EchoMQBroker) -> None:
    @actor
    def work() -> None: ...

    for options in ({}, {"delay": 60_000}, {"group": "acme"}, {"priority": 3}):
        message = work.send_with_options(**options)
        assert isinstance(message, SentMessage)
        assert message.cancel() is Cancellation.REMOVED
        assert message.cancel() is Cancellation.GONE
        assert_it_left_nothing(broker, message.job_id)


def test_a_dead_message_has_ended_and_a_completed_one_is_gone(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    @actor(max_retries=0)
    def work(fails: bool) -> None:
        if fails:
            raise RuntimeError("no luck")

    dead, done = work.send(True), work.send(False)
    finish(broker)
    assert dead.cancel() is Cancellation.ENDED
    assert done.cancel() is Cancellation.GONE


def test_a_message_between_two_tries_is_removed(broker: EchoMQBroker, worker: Worker) -> None:
    runs: list[int] = []

    @actor(min_backoff=60_000)
    def work() -> None:
        runs.append(1)
        raise RuntimeError("no luck")

    message = work.send()
    eventually(lambda: broker.queue("default").counts().scheduled == 1, PATIENCE)
    assert message.cancel() is Cancellation.REMOVED
    assert_it_left_nothing(broker, message.job_id)


@pytest.mark.parametrize("copied", [lambda message: pickle.loads(pickle.dumps(message)), copy.deepcopy])
def test_a_pickled_message_knows_its_job_but_no_broker(broker: EchoMQBroker, copied: Callable[[Any], Any]) -> None:
    @actor
    def work(number: int) -> None: ...

    message = work.send(7)
    other = copied(message)
    assert other == message
    assert other.job_id == message.job_id
    assert not other.duplicate
    with pytest.raises(ValueError, match=r"use broker\.queue"):
        other.cancel()
    assert broker.queue("default").state(message.job_id) is State.PENDING


def test_the_children_of_a_group_can_be_cancelled_one_by_one(broker: EchoMQBroker) -> None:
    @actor
    def work(number: int) -> None: ...

    running = group([work.message(number) for number in range(3)]).run()
    first, second, third = running.children
    assert second.cancel() is Cancellation.REMOVED
    waiting = broker.queue("default").browse()
    assert sorted(waiting) == sorted([first.job_id, third.job_id])


def test_messages_of_plain_dramatiq_actors_and_of_enqueue_can_be_cancelled(broker: EchoMQBroker) -> None:
    @dramatiq.actor
    def work(number: int) -> None: ...

    for message in (work.send(1), broker.enqueue(work.message(2)), *broker.enqueue_many([work.message(3)])):
        assert message.cancel() is Cancellation.REMOVED  # type: ignore[attr-defined]
    assert broker.queue("default").counts().pending == 0


def test_a_parent_of_messages_is_told_of_a_cancelled_child(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    ignored: list[Any] = []

    @actor
    def child() -> int:
        return 1

    @actor
    def parent() -> None:
        ignored.append(current_job().children())

    kept, gone = child.message(), child.message()
    flow(parent.message(), [kept, gone], ignore_failures=True).run()
    assert gone.cancel() is Cancellation.REMOVED  # type: ignore[attr-defined]
    make_worker(broker)
    finish(broker)
    eventually(lambda: ignored, PATIENCE)
    assert list(ignored[0].ignored.values()) == ["cancelled"]
    assert list(ignored[0].results.values()) == [1]


def test_a_race_of_cancellations_with_workers_leaves_nothing(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    runs: list[int] = []

    @actor(max_retries=3, min_backoff=1, max_backoff=2)
    def work(number: int) -> None:
        runs.append(number)
        if number % 3 == 0:
            current_job().checkpoint()
        if number % 5 == 0:
            raise RuntimeError("no luck")

    sent = [work.send(number) for number in range(300)]
    make_worker(broker, threads=8)
    answers = [message.cancel() for message in sent]
    finish(broker)
    queue = broker.queue("default")
    counts = queue.counts()
    removed = answers.count(Cancellation.REMOVED)
    assert removed + counts.completed + counts.dead <= 300
    assert counts.dead == counts.failed
    keys = set(queue.connection.client.scan_iter("emq:{default}:job:*"))
    assert len(keys) == counts.dead
    for number, answer in enumerate(answers):
        if answer is Cancellation.REMOVED and number % 5:
            # It waited, so it had not run; one that fails may have waited for its next try.
            assert number not in runs


# -- what others are told ----------------------------------------------------------------------------------------------


@pytest.fixture
def kept(broker: EchoMQBroker) -> EchoMQBroker:
    """``broker``, which keeps results."""
    broker.add_middleware(Results(backend=EchoMQBackend(broker=broker)))
    return broker


def test_who_waits_for_the_result_of_a_message_that_is_removed_is_told(kept: EchoMQBroker) -> None:
    @actor(store_results=True)
    def work(number: int) -> int:
        return number

    with ThreadPoolExecutor() as pool:
        for options in ({}, {"delay": 60_000}, {"group": "acme"}):
            message = work.send_with_options(args=(1,), **options)
            waiting = pool.submit(message.get_result, block=True, timeout=3_600_000)
            assert message.cancel() is Cancellation.REMOVED
            with pytest.raises(ResultFailure, match=r"JobCancelled.*was cancelled before it ran"):
                waiting.result(PATIENCE)


def test_a_duplicate_that_is_cancelled_tells_who_waits_for_the_holder(kept: EchoMQBroker) -> None:
    @actor(store_results=True, unique="until_done")
    def work() -> None: ...

    first, second = work.send(), work.send()
    assert second.cancel() is Cancellation.REMOVED
    with pytest.raises(ResultFailure, match="JobCancelled"):
        first.get_result()
    with pytest.raises(ResultMissing, match="duplicate"):
        second.get_result()


def test_nothing_is_kept_for_an_actor_whose_results_are_not(kept: EchoMQBroker) -> None:
    @actor
    def work() -> None: ...

    message = work.send()
    assert message.cancel() is Cancellation.REMOVED
    assert_it_left_nothing(kept, message.job_id)
    with pytest.raises(ResultMissing):
        message.get_result()


def test_a_backend_that_fails_leaves_the_message_cancelled(
    broker: EchoMQBroker, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(StubBackend):
        def store_exception(self, message: Any, exception: Any, ttl: Any) -> None:
            raise OSError("the disk is full")

    broker.add_middleware(Results(backend=Broken(), store_results=True))

    @actor
    def work() -> None: ...

    message = work.send()
    assert message.cancel() is Cancellation.REMOVED
    assert_it_left_nothing(broker, message.job_id)
    assert "is not told" in caplog.text
    assert "the disk is full" in caplog.text


class Encodes(dramatiq.Middleware):
    """Encodes and copies each message whose end it is told of, as middleware that ships messages elsewhere does."""

    def __init__(self) -> None:
        self.options: list[dict[str, Any]] = []
        self.failed: list[bool] = []

    def after_process_message(self, broker: Any, message: Any, *, result: Any = None, exception: Any = None) -> None:
        self.options.append(json.loads(message.encode())["options"])
        assert message.copy(options={"x": 1}).encode()
        assert "throws" not in message.options

    def before_nack(self, broker: Any, message: Any) -> None:
        self.options.append(json.loads(message.encode())["options"])
        self.failed.append(message.failed)

    after_nack = before_nack


@pytest.mark.parametrize("batch", [False, True])
def test_the_options_of_a_cancelled_message_can_be_encoded_by_every_hook(
    retrying: Callable[..., EchoMQBroker],
    make_worker: Callable[..., Worker],
    finish: Callable[..., None],
    loud: Callable[[], list[str]],
    batch: bool,
) -> None:
    broker, before, after = retrying(max_retries=10), Encodes(), Encodes()
    broker.middleware.insert(0, before)
    broker.add_middleware(after)

    def body(*args: Any) -> None:
        if batch:
            raise BatchError({0: JobCancelled("that is it")}, [None])
        raise JobCancelled("that is it")

    declared = actor(body, **({"batch": 1} if batch else {}))
    declared.send_with_options(args=(1,), mark="m")
    make_worker(broker)
    finish(broker)
    eventually(lambda: len(before.options) == len(after.options) == 3, PATIENCE)
    assert before.options == after.options == [{"mark": "m"}] * 3
    assert before.failed == after.failed == [True, True]
    assert broker.queue("default").counts().dead == 0
    if not batch:
        assert loud() == []


def test_stock_retries_take_a_cancelled_message_for_no_failure_of_theirs(
    make_broker: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    broker = make_broker(middleware=[stock.Retries(max_retries=0)])
    exhausted: list[Any] = []
    actor(lambda message, retries: exhausted.append(message), actor_name="exhausted")

    @actor(on_retry_exhausted="exhausted")
    def work() -> None:
        raise JobCancelled("that is it")

    message = work.send()
    make_worker(broker)
    finish(broker)
    assert_it_left_nothing(broker, message.job_id)
    assert exhausted == []


def test_a_retry_middleware_of_ones_own_cannot_bring_a_cancelled_message_back(
    make_broker: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    sent: list[Any] = []

    class Again(dramatiq.Middleware):
        def before_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
            sent.append(message)

        def after_process_message(
            self, broker: Any, message: Any, *, result: Any = None, exception: Any = None
        ) -> None:
            if exception is not None:
                broker.enqueue(message, delay=1)

    broker = make_broker(middleware=[Again()])

    @actor
    def work() -> None:
        raise JobCancelled("that is it")

    message = work.send()
    make_worker(broker)
    finish(broker)
    assert_it_left_nothing(broker, message.job_id)
    assert len(sent) == 1, "no hook hears of a retry that is none"


def test_our_retries_do_not_retry_it_on_another_broker() -> None:
    broker = StubBroker(middleware=[Retries(**QUICK)])
    runs: list[int] = []

    @dramatiq.actor(broker=broker)
    def work() -> None:
        runs.append(1)
        raise JobCancelled("that is it")

    work.send()
    worker = Worker(broker, worker_threads=1, worker_timeout=50)
    worker.start()
    with pytest.raises(JobCancelled):
        broker.join("default", timeout=10_000, fail_fast=True)
    worker.stop()
    assert runs == [1]
