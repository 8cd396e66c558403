"""Flows of actors: parents run after their children and read what they returned, in one queue and over several."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import dramatiq
import pytest
from chaos.crew import PATIENCE
from dramatiq import Message, Worker, group, pipeline
from dramatiq import middleware as stock
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import AsyncIO
from dramatiq.results import ResultFailure, Results
from support.eventually import eventually
from support.servers import ServerProcess
from support.workers import WORKERS

from echomq_tasks import actor, current_job, flow
from echomq_tasks.brokers.dramatiq import EchoMQBroker, job_id, run_flows
from echomq_tasks.brokers.dramatiq import consumer as consumers
from echomq_tasks.errors import BatchError, InvalidArgument, InvalidName
from echomq_tasks.middleware import Retries
from echomq_tasks.queue import Cancellation, State
from echomq_tasks.results import EchoMQBackend
from echomq_tasks.worker import line

Start = Callable[..., Worker]


@pytest.fixture
def broker(server: ServerProcess) -> Iterator[EchoMQBroker]:
    """Dramatiq's global broker on the emptied shared server."""
    server.flush()
    before = dramatiq.broker.global_broker
    made = EchoMQBroker(server.url)
    dramatiq.set_broker(made)
    yield made
    dramatiq.broker.global_broker = before
    made.close()


@pytest.fixture
def start(broker: EchoMQBroker, worker_kind: str) -> Iterator[Start]:
    """Start a worker of four threads; it stops before the broker closes."""
    with ExitStack() as stack:

        def begin(**options: Any) -> Worker:
            worker: Worker = WORKERS[worker_kind](broker, worker_threads=4, worker_timeout=50, **options)
            worker.start()
            stack.callback(worker.stop)
            return worker

        yield begin


@pytest.fixture
def double(broker: EchoMQBroker) -> Any:
    return dramatiq.actor(lambda number: 2 * number, actor_name="double")


class Gather:
    """A parent's function: keeps what its children came to, and returns the sum of what they returned."""

    __name__ = "gather"

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, *args: Any) -> Any:
        children = current_job().children()
        self.seen.append(children)
        return sum(result for result in children.results.values() if isinstance(result, int))


@pytest.fixture
def gathered() -> Gather:
    return Gather()


@pytest.fixture
def gather(broker: EchoMQBroker, gathered: Gather) -> Any:
    return dramatiq.actor(gathered, actor_name="gather")


def boom(broker: EchoMQBroker, **options: Any) -> Any:
    def fail() -> None:
        raise ValueError("no luck")

    return dramatiq.actor(fail, actor_name="boom", **({"max_retries": 0} | options))


def state(broker: EchoMQBroker, message: Message[Any]) -> State:
    return broker.queue(message.queue_name).state(job_id(message))


def ended(broker: EchoMQBroker, *messages: Message[Any]) -> None:
    """Wait until these have ended, one way or the other."""
    over = (State.ABSENT, State.DEAD)
    eventually(lambda: all(state(broker, message) in over for message in messages), PATIENCE)


# -- what runs, and what it reads ---------------------------------------------------------------------------------


def test_a_parent_reads_what_its_children_returned(
    broker: EchoMQBroker, start: Start, double: Any, gather: Any, gathered: Gather
) -> None:
    children = [double.message(number) for number in range(5)]
    parent = gather.message()
    run = flow(parent, children).run()
    assert state(broker, parent) is State.AWAITING_CHILDREN
    start()
    ended(broker, parent)
    (seen,) = gathered.seen
    assert seen.results == {job_id(child): 2 * number for number, child in enumerate(children)}
    assert seen.ignored == {}
    assert run.parent is parent


def test_a_message_on_its_own_and_a_generator_of_children_make_flows(
    broker: EchoMQBroker, start: Start, double: Any, gather: Any, gathered: Gather
) -> None:
    alone = gather.message()
    flow(alone).run()
    many = gather.message()
    flow(many, (double.message(number) for number in range(3))).run()
    start()
    ended(broker, alone, many)
    assert sorted(len(seen.results) for seen in gathered.seen) == [0, 3]


def test_flows_nest_over_queues_and_results_go_up_level_by_level(
    broker: EchoMQBroker, start: Start, double: Any, gather: Any, gathered: Gather
) -> None:
    away = dramatiq.actor(lambda number: 10 * number, actor_name="away", queue_name="away")
    middle = dramatiq.actor(gathered, actor_name="middle", queue_name="middle")
    tops = [gather.message() for _ in range(3)]
    inner = [flow(middle.message(), [away.message(1), double.message(2), middle.message()]) for _ in tops]
    flows = [flow(top, [below, double.message(3)]) for top, below in zip(tops, inner, strict=True)]
    run_flows(flows)
    assert len({job_id(message) for each in flows for message in each}) == 18
    start()
    ended(broker, *tops)
    last = [seen for seen in gathered.seen if sorted(seen.results.values()) == [6, 14]]
    assert len(last) == 3
    for name in ("default", "away", "middle"):
        counts = broker.queue(name).counts()
        assert (counts.unfinished, counts.dead, broker.queue(name).deliver()) == (0, 0, 0)


def test_a_flow_of_eight_levels_runs_and_one_of_nine_is_refused(
    broker: EchoMQBroker, start: Start, gather: Any, gathered: Gather
) -> None:
    def tower(levels: int) -> flow:
        return flow(gather.message(), [tower(levels - 1)] if levels > 1 else [])

    with pytest.raises(InvalidArgument, match="8 levels"):
        tower(9).run()
    assert broker.queue("default").counts().unfinished == 0
    eight = tower(8).run()
    start()
    ended(broker, eight.parent)
    assert len(gathered.seen) == 8


def test_the_children_of_an_async_parent_may_be_async_too(
    server: ServerProcess, broker: EchoMQBroker, start: Start
) -> None:
    broker.add_middleware(AsyncIO())
    seen: list[dict[str, Any]] = []

    async def child(number: int) -> dict[str, int]:
        return {"number": number, "attempt": current_job().attempt}

    async def parent() -> None:
        seen.append(current_job().children().results)

    child_actor, parent_actor = dramatiq.actor(child), dramatiq.actor(parent)
    messages = [child_actor.message(number) for number in range(3)]
    top = parent_actor.message()
    flow(top, messages).run()
    start()
    ended(broker, top)
    assert seen == [{job_id(message): {"number": n, "attempt": 1} for n, message in enumerate(messages)}]


def test_children_may_be_delayed_prioritised_and_in_lanes_and_parents_too(
    broker: EchoMQBroker, start: Start, gathered: Gather
) -> None:
    laned = actor(actor_name="laned", group=lambda number: f"tenant {number % 2}", group_limit=1)(lambda number: number)
    parent = actor(actor_name="parent", group="reports", priority=5)(gathered)
    late = laned.message_with_options(args=(4,), eta=1)
    top = parent.message()
    flow(top, [late, *(laned.message(number) for number in range(4))]).run()
    start()
    ended(broker, top)
    assert sorted(gathered.seen[0].results.values()) == [0, 1, 2, 3, 4]
    with pytest.raises(InvalidArgument, match="children"):
        flow(parent.message_with_options(eta=4_000_000_000_000), [laned.message(1)]).run()


def test_a_retried_child_counts_when_it_succeeds(
    broker: EchoMQBroker, start: Start, gather: Any, gathered: Gather
) -> None:
    runs: list[int] = []

    @dramatiq.actor(min_backoff=1, max_backoff=1, max_retries=5)
    def flaky() -> int:
        runs.append(current_job().attempt)
        if len(runs) < 3:
            raise RuntimeError("not yet")
        return 7

    child, top = flaky.message(), gather.message()
    flow(top, [child]).run()
    start()
    ended(broker, top)
    assert runs == [1, 2, 3]
    assert gathered.seen[0].results == {job_id(child): 7}


def test_children_that_run_as_a_batch_each_return_and_fail_for_themselves(
    broker: EchoMQBroker, start: Start, gather: Any, gathered: Gather
) -> None:
    @actor(batch=10, batch_wait=0.2, max_retries=0)
    def squares(numbers: list[int]) -> list[int]:
        failures = {index: ValueError(f"no {number}") for index, number in enumerate(numbers) if number == 3}
        results = [number * number for number in numbers]
        if failures:
            raise BatchError(failures, results)
        return results

    children = [squares.message(number) for number in range(6)]
    top = gather.message()
    flow(top, children, ignore_failures=True).run()
    start()
    ended(broker, top)
    (seen,) = gathered.seen
    assert seen.results == {job_id(child): n * n for n, child in enumerate(children) if n != 3}
    assert list(seen.ignored) == [job_id(children[3])]
    assert seen.ignored[job_id(children[3])].startswith("ValueError: no 3")


# -- children that fail -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queue_name", ["default", "away"])
def test_a_child_that_fails_for_good_takes_its_parent_along(
    broker: EchoMQBroker, start: Start, gather: Any, gathered: Gather, double: Any, queue_name: str
) -> None:
    bad, fine, top = boom(broker, queue_name=queue_name).message(), double.message(1), gather.message()
    flow(top, [bad, fine]).run()
    start()
    ended(broker, top, fine)
    info = broker.queue("default").get(job_id(top))
    assert info is not None
    assert info.state is State.DEAD
    assert info.last_error is not None
    assert info.last_error.startswith(f"child {job_id(bad)} failed: ValueError: no luck")
    assert gathered.seen == []


@pytest.mark.parametrize("queue_name", ["default", "away"])
def test_a_parent_that_ignores_failures_runs_and_reads_the_errors(
    broker: EchoMQBroker, start: Start, gather: Any, gathered: Gather, double: Any, queue_name: str
) -> None:
    bad, fine, top = boom(broker, queue_name=queue_name).message(), double.message(1), gather.message()
    flow(top, [bad, fine], ignore_failures=True).run()
    start()
    ended(broker, top)
    (seen,) = gathered.seen
    assert seen.results == {job_id(fine): 2}
    assert list(seen.ignored) == [job_id(bad)]
    assert seen.ignored[job_id(bad)].startswith("ValueError: no luck")
    assert state(broker, top) is State.ABSENT


def test_a_failure_goes_up_until_a_parent_ignores_it(
    broker: EchoMQBroker, start: Start, gather: Any, gathered: Gather
) -> None:
    bad, middle, top = boom(broker).message(), gather.message(), gather.message()
    flow(top, [flow(middle, [bad])], ignore_failures=True).run()
    start()
    ended(broker, top)
    (seen,) = gathered.seen
    assert list(seen.ignored) == [job_id(middle)]
    assert "no luck" in seen.ignored[job_id(middle)]
    assert state(broker, middle) is State.DEAD


@pytest.mark.parametrize("ignore", [False, True])
def test_a_result_that_cannot_be_encoded_is_a_failure_that_says_so(
    broker: EchoMQBroker, start: Start, gather: Any, gathered: Gather, ignore: bool
) -> None:
    runs: list[int] = []

    @dramatiq.actor
    def child() -> object:
        runs.append(1)
        return object()

    message, top = child.message(), gather.message()
    flow(top, [message], ignore_failures=ignore).run()
    start()
    ended(broker, top)
    info = broker.queue("default").get(job_id(message))
    assert info is not None
    assert info.state is State.DEAD
    assert info.last_error is not None
    assert "what the encoder can encode, not object" in info.last_error
    assert runs == [1], "another run would return the same"
    assert state(broker, top) is (State.ABSENT if ignore else State.DEAD)
    assert len(gathered.seen) == int(ignore)


@pytest.mark.parametrize("kind", [Retries, stock.Retries], ids=["ours", "stock"])
def test_the_hooks_of_a_child_whose_result_cannot_be_encoded_are_told_that_it_failed(
    broker: EchoMQBroker, start: Start, gather: Any, kind: type[stock.Retries], caplog: pytest.LogCaptureFixture
) -> None:
    broker.middleware[:] = [kind(min_backoff=1) if isinstance(m, stock.Retries) else m for m in broker.middleware]
    broker.add_middleware(Results(backend=EchoMQBackend(broker=broker), store_results=True))
    told: list[Any] = []

    class Watch(dramatiq.Middleware):
        def after_process_message(
            self, broker: Any, message: Any, *, result: Any = None, exception: Any = None
        ) -> None:
            told.append((message.actor_name, result, type(exception)))

        def after_ack(self, broker: Any, message: Any) -> None:
            told.append(("ack", message.actor_name))

        def after_nack(self, broker: Any, message: Any) -> None:
            told.append(("nack", message.actor_name))

    broker.middleware.insert(0, Watch())
    callbacks: list[str] = []
    actor(lambda *args: callbacks.append("success"), actor_name="succeeded")
    actor(lambda message, error: callbacks.append(error["type"]), actor_name="failed")

    @dramatiq.actor(on_success="succeeded", on_failure="failed")
    def child() -> object:
        return object()

    message, top = child.message(), gather.message()
    flow(top, [message]).run()
    with caplog.at_level(logging.ERROR):
        start()
        ended(broker, top)
        # The last of the hooks, which the callback's job may overtake.
        eventually(lambda: callbacks and ("nack", "child") in told, PATIENCE)
    assert callbacks == ["InvalidArgument"]
    assert [each for each in told if "child" in each] == [("child", None, InvalidArgument), ("nack", "child")]
    with pytest.raises(ResultFailure, match=r"InvalidArgument.*what the encoder can encode"):
        message.get_result()
    assert state(broker, message) is State.DEAD
    assert "what the encoder can encode, not object" in caplog.text


def test_a_member_of_a_batch_whose_result_cannot_be_encoded_fails_for_itself(
    broker: EchoMQBroker, start: Start, gather: Any, gathered: Gather
) -> None:
    @actor(batch=10, batch_wait=0.2)
    def children(numbers: list[int]) -> list[Any]:
        return [object() if number == 1 else number for number in numbers]

    messages, top = [children.message(number) for number in range(3)], gather.message()
    flow(top, messages, ignore_failures=True).run()
    start()
    ended(broker, top)
    assert sorted(gathered.seen[0].results.values()) == [0, 2]
    assert [state(broker, message) for message in messages] == [State.ABSENT, State.DEAD, State.ABSENT]


def test_a_cancelled_child_fails_its_parent(broker: EchoMQBroker, double: Any, gather: Any) -> None:
    child, top = double.message(1), gather.message()
    flow(top, [child, double.message(2)]).run()
    assert child.cancel() is Cancellation.REMOVED
    assert state(broker, top) is State.DEAD


def test_a_dead_parent_runs_when_its_child_and_then_itself_are_brought_back(
    broker: EchoMQBroker, start: Start, gather: Any, gathered: Gather
) -> None:
    lucky = threading.Event()

    @dramatiq.actor(max_retries=0)
    def child() -> int:
        if not lucky.is_set():
            raise ValueError("no luck")
        return 1

    message, top = child.message(), gather.message()
    flow(top, [message]).run()
    start()
    ended(broker, top)
    lucky.set()
    broker.reprocess("default", job_id(message))
    eventually(lambda: state(broker, message) is State.ABSENT, PATIENCE)
    broker.reprocess("default", job_id(top))
    eventually(lambda: state(broker, top) is State.ABSENT, PATIENCE)
    assert gathered.seen[0].results == {job_id(message): 1}


# -- sending ------------------------------------------------------------------------------------------------------


def test_every_message_knows_its_job_after_it_was_sent(broker: EchoMQBroker, double: Any, gather: Any) -> None:
    tree = flow(gather.message(), [double.message(1), flow(gather.message(), [double.message(2)])])
    for message in tree:
        with pytest.raises(ValueError, match="no job id"):
            job_id(message)
    tree.run()
    messages = list(tree)
    assert len({job_id(message) for message in messages}) == 4
    rows = broker.queue("default").get_many([job_id(message) for message in messages])
    assert [Message.decode(row.payload) for row in rows if row] == messages
    assert not any(message.duplicate for message in messages)  # type: ignore[attr-defined]


def test_hooks_run_for_each_message_before_and_after_it_is_sent(broker: EchoMQBroker, double: Any, gather: Any) -> None:
    calls: list[tuple[str, Message[Any], bool]] = []

    class Watch(dramatiq.Middleware):
        def before_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
            message.options["trace"] = "1"
            calls.append(("before", message, hasattr(message, "job_id")))

        def after_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
            assert delay is None
            calls.append(("after", message, hasattr(message, "job_id")))

    broker.add_middleware(Watch())
    tree = flow(gather.message(), [double.message(1), double.message(2)]).run()
    messages = list(tree)
    assert [call for call in calls if call[0] == "before"] == [("before", message, False) for message in messages]
    assert [call for call in calls if call[0] == "after"] == [("after", message, True) for message in messages]
    assert [call[0] for call in calls] == ["before"] * 3 + ["after"] * 3
    row = broker.queue("default").get(job_id(messages[1]))
    assert row is not None
    assert Message.decode(row.payload).options["trace"] == "1", "what a hook adds is sent"


def test_a_message_stands_in_a_flow_once(broker: EchoMQBroker, double: Any, gather: Any) -> None:
    twice, top = double.message(1), gather.message()
    for wrong in (
        [flow(top, [twice, twice])],
        [flow(top, [twice]), flow(gather.message(), [twice])],
        [flow(top, [top])],
    ):
        with pytest.raises(InvalidArgument, match="twice"):
            run_flows(wrong)
    assert broker.queue("default").counts().unfinished == 0


@pytest.mark.parametrize("parent", [True, False])
def test_an_actor_that_is_unique_is_refused_in_a_flow(
    broker: EchoMQBroker, double: Any, gather: Any, parent: bool
) -> None:
    unique = actor(actor_name="unique", unique="until_done")(lambda: None)
    tree = flow(unique.message(), [double.message(1)]) if parent else flow(gather.message(), [unique.message()])
    with pytest.raises(InvalidArgument, match="unique"):
        tree.run()
    assert list(broker.client.scan_iter("emq:*job:*")) == []


def test_what_is_no_flow_is_refused(broker: EchoMQBroker, double: Any, gather: Any) -> None:
    with pytest.raises(InvalidArgument, match="message"):
        flow("gather", [])  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="child"):
        flow(gather.message(), [3])  # type: ignore[list-item]
    with pytest.raises(InvalidArgument, match="flows"):
        run_flows([gather.message()])
    with pytest.raises(InvalidName, match="a b"):
        flow(gather.message(), [double.message(1).copy(queue_name="a b")]).run()
    with pytest.raises(InvalidArgument, match="delay queue"):
        flow(gather.message(), [double.message(1).copy(queue_name="default.DQ")]).run()
    run_flows([])
    assert list(broker.client.scan_iter("emq:*job:*")) == []


def test_another_broker_is_told_apart(double: Any, gather: Any, broker: EchoMQBroker) -> None:
    tree = flow(gather.message(), [double.message(1)])
    with pytest.raises(InvalidArgument, match="StubBroker"):
        tree.run(broker=StubBroker())
    tree.run(broker=broker)
    assert state(broker, tree.parent) is State.AWAITING_CHILDREN


# -- beside the rest of Dramatiq ----------------------------------------------------------------------------------


@pytest.fixture
def results(broker: EchoMQBroker) -> None:
    broker.add_middleware(Results(backend=EchoMQBackend(broker=broker), store_results=True))


def test_with_the_results_middleware_parents_and_children_have_results_too(
    broker: EchoMQBroker, results: None, start: Start, double: Any, gather: Any, caplog: pytest.LogCaptureFixture
) -> None:
    children = [double.message(number) for number in range(4)]
    tree = flow(gather.message(), children).run()
    with caplog.at_level(logging.WARNING):
        start()
        assert tree.get_result(block=True, timeout=int(PATIENCE * 1000)) == 12
    assert [child.get_result() for child in children] == [0, 2, 4, 6]
    assert [record for record in caplog.records if "discarded" in record.getMessage()] == []


def test_groups_and_pipelines_work_beside_flows(
    broker: EchoMQBroker, results: None, start: Start, double: Any, gather: Any
) -> None:
    start()
    tree = flow(gather.message(), [double.message(number) for number in range(4)]).run()
    jobs = group([double.message(number) for number in range(4)]).run()
    pipe = pipeline([double.message(1), double.message(), double.message()]).run()
    timeout = int(PATIENCE * 1000)
    assert list(jobs.get_results(block=True, timeout=timeout)) == [0, 2, 4, 6]
    assert pipe.get_result(block=True, timeout=timeout) == 8
    assert tree.get_result(block=True, timeout=timeout) == 12


class Pickles(dramatiq.Encoder):
    """An encoder that takes what JSON does not."""

    def encode(self, data: Any) -> bytes:
        return pickle.dumps(data)

    def decode(self, data: bytes) -> Any:
        return pickle.loads(data)


@pytest.fixture
def pickles() -> Iterator[None]:
    before = dramatiq.get_encoder()
    dramatiq.set_encoder(Pickles())
    yield
    dramatiq.set_encoder(before)


def test_results_travel_in_the_encoding_of_messages(
    pickles: None, broker: EchoMQBroker, start: Start, gather: Any, gathered: Gather
) -> None:
    odd = {"bytes": b"\x00\xff", "set": {1, 2}, "nothing": None}

    @dramatiq.actor(queue_name="away")
    def child() -> Any:
        return odd

    message, top = child.message(), gather.message()
    flow(top, [message]).run()
    start()
    ended(broker, top)
    assert gathered.seen[0].results == {job_id(message): odd}


def test_a_result_that_another_runtime_wrote_is_named_when_it_cannot_be_read(
    broker: EchoMQBroker, start: Start, double: Any
) -> None:
    errors: list[Exception] = []
    raw: list[Any] = []

    @dramatiq.actor
    def parent() -> None:
        try:
            current_job().children()
        except Exception as error:
            errors.append(error)
        raw.append(current_job().queue.children(current_job().id))

    child, top = double.message(1), parent.message()
    flow(top, [child]).run()
    queue = broker.queue("default")
    queue.complete(queue.claim().jobs[0], b"\xff not ours")
    start()
    ended(broker, top)
    assert job_id(child) in str(errors[0])
    assert raw[0].results == {job_id(child): b"\xff not ours"}


def test_a_child_completed_without_a_result_reads_as_none(
    broker: EchoMQBroker, start: Start, double: Any, gather: Any, gathered: Gather
) -> None:
    child, top = double.message(1), gather.message()
    flow(top, [child]).run()
    queue = broker.queue("default")
    queue.complete(queue.claim().jobs[0])
    start()
    ended(broker, top)
    assert gathered.seen[0].results == {job_id(child): None}


# -- promptly -----------------------------------------------------------------------------------------------------


def test_an_idle_parents_worker_is_woken_and_waits_for_no_beat(
    own_server: ServerProcess, monkeypatch: pytest.MonkeyPatch, worker_kind: str
) -> None:
    # With the beat an hour away nothing but a wake token lets either worker move.
    monkeypatch.setattr(consumers, "_BEAT", 3600.0)
    monkeypatch.setattr(line, "BEAT", 3600.0)
    brokers = [EchoMQBroker(own_server.url, lease=7200.0) for _ in range(2)]
    gathered, gate = Gather(), threading.Event()
    with ExitStack() as stack:
        for broker in brokers:
            stack.callback(broker.close)
        parent = dramatiq.actor(gathered, broker=brokers[0], actor_name="parent", queue_name="parents")

        def held(number: int) -> int:
            gate.wait(PATIENCE)
            return number

        child = dramatiq.actor(held, broker=brokers[1], actor_name="child", queue_name="children")
        for broker in brokers:
            worker = WORKERS[worker_kind](broker, worker_threads=1, worker_timeout=50)
            worker.start()
            stack.callback(worker.stop)
        stack.callback(gate.set)

        def parked() -> int:
            return sum("b" in client["flags"] for client in own_server.client().client_list())

        eventually(lambda: parked() == 2, PATIENCE, "both workers are idle")
        for _ in range(2):
            run_flows([flow(parent.message(), [child.message(1), child.message(2)])], broker=brokers[0])
            eventually(lambda: brokers[1].queue("children").counts().active == 1, PATIENCE)
            eventually(lambda: parked() == 1, PATIENCE, "the parents' worker is idle, the other busy")
            ran = len(gathered.seen)
            gate.set()
            eventually(lambda ran=ran: len(gathered.seen) == ran + 1, PATIENCE, "the parent ran")
            gate.clear()
        assert brokers[1].queue("children").deliver() == 0
