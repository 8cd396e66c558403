"""Unique messages in groups and pipelines, and what a duplicate says of its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
from chaos.crew import PATIENCE
from dramatiq import Message, Worker, group, pipeline
from dramatiq.middleware import GroupCallbacks
from dramatiq.rate_limits.backends import StubBackend as StubRateLimits
from dramatiq.results import ResultMissing, Results
from support.eventually import eventually

from echomq_tasks import actor
from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.errors import InvalidArgument
from echomq_tasks.results import EchoMQBackend


@pytest.fixture
def callbacks(broker: EchoMQBroker) -> EchoMQBroker:
    """``broker``, whose groups may have completion callbacks."""
    broker.add_middleware(GroupCallbacks(StubRateLimits()))
    return broker


def once(x: int = 0, y: int = 0) -> int:
    return x + y


@pytest.fixture
def unique(broker: EchoMQBroker) -> Any:
    broker.add_middleware(Results(backend=EchoMQBackend(broker=broker)))
    return actor(once, actor_name="once", unique="until_done", store_results=True)


@pytest.fixture
def plain(broker: EchoMQBroker) -> Any:
    return actor(once, actor_name="plain")


def jobs_of(broker: EchoMQBroker) -> list[bytes]:
    return list(broker.client.scan_iter("emq:*job:*"))


@pytest.mark.parametrize(
    "member",
    [
        lambda unique, plain: unique.message(1),
        lambda unique, plain: plain.message_with_options(args=(1,), unique=60),
        lambda unique, plain: plain.message(1) | unique.message(2),
        lambda unique, plain: unique.message(1) | plain.message(2),
        lambda unique, plain: plain.message(1) | unique.message(2) | plain.message(3),
        lambda unique, plain: plain.message(1) | plain.message_with_options(args=(2,), unique="until_start"),
    ],
    ids=["actor", "option", "last step", "first step", "middle step", "option of a step"],
)
def test_a_unique_member_of_a_group_with_a_callback_is_refused_and_nothing_is_sent(
    callbacks: EchoMQBroker, unique: Any, plain: Any, member: Callable[[Any, Any], Any]
) -> None:
    jobs = group([member(unique, plain), plain.message(9)])
    jobs.add_completion_callback(plain.message())
    with pytest.raises(InvalidArgument, match="the callback would wait for ever"):
        jobs.run()
    assert jobs_of(callbacks) == []


def test_a_member_that_is_exempt_and_a_callback_that_is_unique_are_welcome(
    callbacks: EchoMQBroker, worker: Worker, finish: Callable[..., None], unique: Any
) -> None:
    ran: list[str] = []
    done = actor(ran.append, actor_name="done", unique="until_done")
    jobs = group([unique.message_with_options(args=(1,), unique=None) for _ in range(2)])
    jobs.add_completion_callback(done.message("all"))
    jobs.run()
    finish(callbacks)
    assert ran == ["all"]


def test_a_group_without_a_callback_knows_which_of_its_members_was_refused(unique: Any) -> None:
    first, second, third = group([unique.message(1), unique.message(1), unique.message(2)]).run().children
    assert [first.duplicate, second.duplicate, third.duplicate] == [False, True, False]
    assert second.job_id == first.job_id


def test_nothing_behind_a_refused_step_of_a_pipeline_runs(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None], plain: Any
) -> None:
    ran: list[str] = []
    step = actor(lambda result, name: ran.append(name), actor_name="step", unique="until_done", unique_key="one")
    last = actor(lambda result: ran.append("last"), actor_name="last")
    step.send_with_options(args=(0, "holder"), delay=60_000)
    pipeline([plain.message(1), step.message("refused"), last.message()]).run()
    make_worker(broker)
    eventually(lambda: broker.queue("default").counts().completed == 1, PATIENCE)
    counts = broker.queue("default").counts()
    assert (counts.scheduled, counts.unfinished, counts.dead, ran) == (1, 1, 0, [])


def test_a_duplicate_says_at_once_whose_result_there_will_be(broker: EchoMQBroker, unique: Any) -> None:
    first, second = unique.send(1), unique.send(1)
    for options in ({}, {"block": True}, {"block": True, "timeout": 3_600_000}):
        with pytest.raises(ResultMissing, match=f"a duplicate of job {first.job_id}"):
            second.get_result(**options)
    with pytest.raises(ResultMissing) as missing:
        first.get_result()
    assert "duplicate" not in str(missing.value)
    jobs = group([unique.message(2), unique.message(2)]).run()
    assert jobs.completed_count == 0


def test_a_duplicate_that_is_the_holders_own_message_has_its_result(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None], unique: Any
) -> None:
    first = unique.send(3)
    again = broker.enqueue(first)
    assert again.duplicate  # type: ignore[attr-defined]
    assert not first.duplicate
    make_worker(broker)
    assert first.get_result(block=True) == 3
    assert again.get_result() == 3


# -- what a process that does not know the actor may send --------------------------------------------------------------


def stranger(**options: Any) -> Message[Any]:
    return Message("default", "once", (1,), {}, options)


def test_without_the_actor_a_unique_message_needs_a_text_for_its_key(
    broker: EchoMQBroker, make_broker: Callable[..., EchoMQBroker]
) -> None:
    other = make_broker()
    with pytest.raises(InvalidArgument, match=r"does not know the actor 'once'.*unique_key= as a text"):
        other.enqueue(stranger(unique="until_done"))
    assert jobs_of(other) == []


@pytest.mark.parametrize("key", ["shop 7", lambda *args: "shop 7"])
def test_with_a_text_for_the_key_both_sides_exclude_each_other(
    broker: EchoMQBroker, unique: Any, make_broker: Callable[..., EchoMQBroker], key: Any
) -> None:
    known = broker.enqueue(unique.message_with_options(args=(1,), unique_key="shop 7"))
    refused = make_broker().enqueue(stranger(unique="until_done", unique_key=key))
    assert refused.duplicate  # type: ignore[attr-defined]
    assert refused.job_id == known.job_id  # type: ignore[attr-defined]


def test_a_duplicate_is_no_failure_of_dramatiqs_own_actor(broker: EchoMQBroker) -> None:
    own = dramatiq.actor(once, actor_name="own", unique="until_done")
    first, second = own.send(1), own.send(1)
    assert (first.duplicate, second.duplicate) == (False, True)  # type: ignore[attr-defined]
