"""Options that are settled when a message is sent, and messages that are sent more than once."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from dramatiq import Message, Worker, group, pipeline
from dramatiq.middleware import GroupCallbacks, Middleware
from dramatiq.rate_limits.backends import StubBackend as StubRateLimits

from echomq_tasks import actor, flow
from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.errors import InvalidArgument, InvalidName
from echomq_tasks.identity import group_id
from echomq_tasks.queue import State

TENANT = UUID(int=7)


class Watch(Middleware):
    """Notes the lane of each message that runs."""

    def __init__(self) -> None:
        self.lanes: list[str | None] = []

    def before_process_message(self, broker: Any, message: Any) -> None:
        self.lanes.append(message.job.group)


def work(tenant: Any = None, x: int = 0) -> None: ...


@pytest.fixture
def plain(broker: EchoMQBroker) -> Any:
    return actor(work)


def row_of(broker: EchoMQBroker, message: Any) -> Any:
    row = broker.queue("default").get(message.job_id)
    assert row is not None
    return row


@pytest.mark.parametrize(
    ("group_option", "name"), [(TENANT, str(TENANT)), (42, "42"), (lambda tenant, x: f"t-{tenant}", "t-9"), ("a", "a")]
)
def test_a_lane_given_with_a_message_travels_as_text(
    broker: EchoMQBroker, plain: Any, group_option: Any, name: str
) -> None:
    sent = plain.send_with_options(args=(9, 1), group=group_option)
    row = row_of(broker, sent)
    assert row.group == group_id(name)
    assert sent.options["group"] == name
    assert json.loads(row.payload)["options"] == sent.options


def test_a_delayed_message_has_its_lane_too(broker: EchoMQBroker, plain: Any) -> None:
    message = plain.message_with_options(args=(9, 1), group=TENANT, eta=10**13)
    sent = broker.enqueue(message)
    assert broker.queue("default").state(sent.job_id) is State.SCHEDULED  # type: ignore[attr-defined]
    assert sent.options == {"group": str(TENANT)}


def test_a_lane_of_another_kind_is_refused_by_its_name(broker: EchoMQBroker, plain: Any) -> None:
    for wrong in (2.5, object(), True, b"acme", lambda *args: object()):
        with pytest.raises(InvalidName, match="a group is"):
            plain.send_with_options(args=(1, 1), group=wrong)
    assert list(broker.client.scan_iter("emq:*job:*")) == []


@pytest.mark.parametrize(
    ("key", "text"),
    [(lambda tenant, x: tenant, "acme"), (lambda tenant, x: {"x": x, "a": [TENANT]}, None), (lambda *args: 7, "7")],
)
def test_a_key_given_by_a_function_with_a_message_travels_as_text(
    broker: EchoMQBroker, plain: Any, key: Any, text: str | None
) -> None:
    options = {"args": ("acme", 1), "unique": "until_done"}
    sent = plain.send_with_options(**options, unique_key=key)
    settled = sent.options["unique_key"]
    assert isinstance(settled, str)
    assert text in (None, settled)
    assert json.loads(row_of(broker, sent).payload)["options"] == sent.options
    for same in (key, settled):
        assert plain.send_with_options(**options, unique_key=same).job_id == sent.job_id
    assert not plain.send_with_options(**options, unique_key="other").duplicate


def test_an_actors_function_and_a_message_name_the_same_key(broker: EchoMQBroker) -> None:
    by_id = actor(work, unique="until_done", unique_key=lambda tenant, x=0: tenant)
    first = by_id.send(7)
    assert by_id.send_with_options(args=(9,), unique_key="7").job_id == first.job_id


@pytest.mark.parametrize("answer", [None, ""])
def test_a_function_that_names_no_job_is_refused_before_anything_is_sent(
    broker: EchoMQBroker, plain: Any, answer: Any
) -> None:
    with pytest.raises(InvalidArgument, match="it must name the job"):
        plain.send_with_options(args=(1, 1), unique="until_done", unique_key=lambda *args: answer)
    assert list(broker.client.scan_iter("emq:*job:*")) == []


def test_a_later_step_of_a_pipeline_may_name_its_lane_by_a_uuid_but_not_by_a_function(
    broker: EchoMQBroker, plain: Any, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    watch = Watch()
    broker.add_middleware(watch)
    pipeline([plain.message(1), plain.message_with_options(group=TENANT, pipe_ignore=True)]).run()
    for option in ("group", "unique_key"):
        wrong = plain.message_with_options(**{option: lambda *args: "a"}, unique=60)
        with pytest.raises(InvalidArgument, match=f"{option}= of a later step"):
            pipeline([plain.message(1), plain.message(), wrong]).run()
    assert broker.queue("default").counts().unfinished == 1
    make_worker(broker)
    finish(broker)
    assert watch.lanes == [None, group_id(str(TENANT))]


def test_a_groups_callback_may_name_its_lane_in_any_way(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None], plain: Any
) -> None:
    broker.add_middleware(GroupCallbacks(StubRateLimits()))
    watch, ran = Watch(), []
    broker.add_middleware(watch)
    done = actor(ran.append, actor_name="done")
    jobs = group([plain.message(1)])
    jobs.add_completion_callback(done.message_with_options(args=(1,), group=TENANT))
    jobs.add_completion_callback(done.message_with_options(args=(2,), group=lambda number: f"lane {number}"))
    jobs.run()
    make_worker(broker)
    finish(broker)
    assert sorted(ran) == [1, 2]
    assert set(watch.lanes) == {None, group_id("lane 2"), group_id(str(TENANT))}


# -- sent again --------------------------------------------------------------------------------------------------------


def test_a_message_that_is_sent_again_goes_on_knowing_its_first_job(broker: EchoMQBroker, plain: Any) -> None:
    first = plain.send("acme")
    job_id = first.job_id
    again = broker.enqueue(first)
    (third,) = broker.enqueue_many([first])
    assert first.job_id == job_id
    assert again is not first
    assert len({job_id, again.job_id, third.job_id}) == 3  # type: ignore[attr-defined]
    assert again == first
    assert again.message_id == first.message_id
    first.cancel()
    assert broker.queue("default").counts().pending == 2


def test_a_message_that_is_there_twice_in_one_call_is_two_jobs(broker: EchoMQBroker, plain: Any) -> None:
    message: Message[Any] = plain.message("acme")
    sent: list[Any] = broker.enqueue_many([message, message])
    assert sent[0] is message
    assert sorted(each.job_id for each in sent) == sorted(broker.queue("default").browse())


def test_a_group_that_runs_again_keeps_the_jobs_of_its_first_run(broker: EchoMQBroker, plain: Any) -> None:
    jobs = group([plain.message(1), plain.message(2)]).run()
    ids = [child.job_id for child in jobs.children]
    assert [child.job_id for child in jobs.run().children] == ids
    assert broker.queue("default").counts().pending == 4


def test_a_flow_that_runs_again_knows_its_new_jobs_and_its_old_messages_theirs(
    broker: EchoMQBroker, plain: Any
) -> None:
    parent, child, below = plain.message(1), plain.message(2), plain.message(3)
    tree = flow(parent, [flow(child, [below])]).run()
    before = [message.job_id for message in (parent, child, below)]
    tree.run()
    assert [message.job_id for message in (parent, child, below)] == before
    after = [message.job_id for message in tree]  # type: ignore[attr-defined]
    assert len({*before, *after}) == 6
    assert [row.state for row in broker.queue("default").get_many(after) if row] == [
        State.AWAITING_CHILDREN, State.AWAITING_CHILDREN, State.PENDING,
    ]  # fmt: skip
