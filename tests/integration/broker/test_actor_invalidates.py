"""``@actor(invalidates=...)``: what a job makes out of date is dropped once the server has its verdict."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
from dramatiq import Worker
from failing_actors import QUICK

from echomq_tasks import JobCancelled, actor, cached
from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.errors import BatchError, InvalidArgument

Finish = Callable[..., None]


@pytest.fixture
def run(make_worker: Callable[..., Worker], finish: Finish) -> Callable[[EchoMQBroker], None]:
    """Run what was sent, and stop."""

    def work(broker: EchoMQBroker) -> None:
        worker = make_worker(broker)
        finish(broker)
        worker.stop()

    return work


Run = Callable[[EchoMQBroker], None]


def prices() -> Any:
    """A function whose result for a and b is cached."""

    @cached
    def price(sku: str, currency: str = "EUR") -> str:
        return sku

    for sku in ("a", "b"):
        price(sku)
    return price


def kept(price: Any) -> list[str]:
    return [sku for sku in ("a", "b") if price.peek(sku) is not None]


def test_the_result_for_the_jobs_own_arguments_is_dropped(broker: EchoMQBroker, run: Run) -> None:
    price, other = prices(), prices()
    seen: list[Any] = []

    @actor(invalidates=[price, other])
    def change(sku: str, currency: str = "EUR") -> None:
        seen.append(kept(price))

    change.send(sku="a")
    run(broker)
    # Not before the job has done its work.
    assert seen == [["a", "b"]]
    assert (kept(price), kept(other)) == (["b"], ["b"])


def test_it_is_dropped_when_the_server_has_the_verdict(broker: EchoMQBroker, run: Run) -> None:
    states: list[Any] = []

    @actor(invalidates=lambda: states.append(broker.queue("default").counts().active))
    def work() -> None:
        states.append(broker.queue("default").counts().active)

    work.send()
    run(broker)
    assert states == [1, 0]


def test_a_function_of_the_arguments_says_what_to_drop(broker: EchoMQBroker, run: Run) -> None:
    price = prices()

    @dramatiq.actor(invalidates=lambda order: [price.invalidate(sku) for sku in order["skus"]])
    def buy(order: dict[str, Any]) -> None: ...

    buy.send({"skus": ["b"]})
    run(broker)
    assert kept(price) == ["a"]


def test_tags_and_async_functions_are_dropped_too(broker: EchoMQBroker, run: Run) -> None:
    loads: list[int] = []

    @cached(tags=lambda user: [f"user:{user}"])
    def page(user: int) -> int:
        loads.append(user)
        return user

    @cached
    async def profile(user: int) -> int:
        return user

    page(7), page(8)
    for user in (7, 8, 9):
        profile.table.put(profile.key_for(user), user)

    async def dropped(user: int) -> None:
        await profile.invalidate(9)

    @actor(invalidates=[lambda user: page.invalidate_tags(f"user:{user}"), profile, dropped])
    def change(user: int) -> None: ...

    change.send(7)
    run(broker)
    assert (page(7), page(8), loads) == (7, 8, [7, 8, 7])
    assert [profile.table.peek(profile.key_for(user)) for user in (7, 8, 9)] == [None, 8, None]


def test_a_job_that_fails_or_is_cancelled_drops_nothing_until_it_completes(broker: EchoMQBroker, run: Run) -> None:
    price = prices()
    seen: list[Any] = []

    @actor(invalidates=price, max_retries=1, **QUICK)
    def change(sku: str) -> None:
        seen.append(kept(price))
        if len(seen) == 1:
            raise ValueError("not yet")

    @actor(invalidates=price, max_retries=0)
    def fail(sku: str) -> None:
        raise ValueError("never")

    @actor(invalidates=price)
    def stop(sku: str) -> None:
        raise JobCancelled("no more")

    fail.send("b")
    stop.send("b")
    change.send("a")
    run(broker)
    assert seen == [["a", "b"], ["a", "b"]]
    assert kept(price) == ["b"]


def test_each_member_of_a_batch_drops_its_own_if_it_is_done(broker: EchoMQBroker, run: Run) -> None:
    price = prices()

    @actor(batch=2, batch_wait=5.0, invalidates=price, max_retries=0)
    def change(skus: list[str]) -> None:
        raise BatchError({skus.index("a"): ValueError("not this one")})

    change.send("a")
    change.send("b")
    run(broker)
    assert kept(price) == ["a"]


def test_what_fails_is_logged_and_the_job_is_done_all_the_same(
    broker: EchoMQBroker, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    price = prices()

    def broken(sku: str) -> None:
        raise RuntimeError("no")

    @actor(invalidates=(broken, price))
    def change(sku: str) -> None: ...

    message = change.send("a")
    with caplog.at_level(logging.ERROR, "echomq_tasks.brokers"):
        run(broker)
    assert broker.queue("default").get(message.job_id) is None
    assert broker.queue("default").counts().dead == 0
    assert kept(price) == ["b"]
    (record,) = [each for each in caplog.records if "out of date" in each.message]
    assert message.job_id in record.message
    assert record.exc_info is not None


@pytest.mark.parametrize("given", ["price", 7, [7], ("user:7",), {"a": 1}])
def test_what_cannot_be_invalidated_is_refused_when_the_actor_is_declared(broker: EchoMQBroker, given: object) -> None:
    with pytest.raises(InvalidArgument, match="invalidates= names cached functions"):
        actor(invalidates=given)(lambda: None)


@pytest.mark.parametrize(
    "given",
    [lambda customer: None, lambda customer, item: None, lambda customer, item, note, more: None, lambda: None],
    ids=["too few", "not the one with a default", "too many", "none"],
)
def test_what_does_not_take_the_arguments_of_the_job_is_refused_when_the_actor_is_declared(
    broker: EchoMQBroker, given: Callable[..., None]
) -> None:
    def place(customer: int, item: str, note: str = "") -> None: ...

    for each in (given, cached(l2=False, name="each")(given)):
        with pytest.raises(InvalidArgument, match=r"'place'.*\(customer, item, note\).*lambda customer, item, note:"):
            actor(invalidates=[each])(place)


def test_what_takes_them_in_its_own_way_is_not_refused(broker: EchoMQBroker) -> None:
    takes = [
        lambda *args, **kwargs: None,
        lambda c, i, n="": None,
        lambda customer, item, note="", *more, other=None: None,
        dict,  # it does not say what it takes
    ]
    actor(invalidates=takes)(lambda customer, item, note="": None)
    actor(invalidates=lambda x, *, y: None, actor_name="named")(lambda x, *, y: None)
