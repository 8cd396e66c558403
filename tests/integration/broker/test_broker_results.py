"""Results, on Dramatiq's Redis backend beside the queue and on its stub."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
import redis
from dramatiq import Middleware, Worker
from dramatiq.encoder import PickleEncoder
from dramatiq.middleware import SkipMessage
from dramatiq.results import ResultFailure, ResultMissing, Results, ResultTimeout
from dramatiq.results.backends import RedisBackend, StubBackend
from support.servers import ServerProcess

from echomq_tasks.brokers.dramatiq import EchoMQBroker


@pytest.fixture(params=["redis", "broker's client", "stub"])
def backend(request: pytest.FixtureRequest, broker: EchoMQBroker, server: ServerProcess, worker: Worker) -> Any:
    """A backend that ``broker`` stores results in."""
    kinds: dict[str, Callable[[], Any]] = {
        "redis": lambda: RedisBackend(client=redis.Redis(port=server.port)),
        "broker's client": lambda: RedisBackend(client=broker.client),
        "stub": StubBackend,
    }
    made = kinds[request.param]()
    broker.add_middleware(Results(backend=made))
    return made


def test_a_result_is_stored_and_can_be_waited_for(broker: EchoMQBroker, backend: Any) -> None:
    add = dramatiq.actor(actor_name="add", store_results=True)(lambda x, y: {"sum": x + y})
    message = add.send(1, 2)
    assert message.get_result(block=True) == {"sum": 3}
    assert message.get_result() == {"sum": 3}
    assert backend.get_result(message) == {"sum": 3}
    assert broker.get_results_backend() is backend


def test_none_is_a_result(backend: Any) -> None:
    assert dramatiq.actor(actor_name="f", store_results=True)(lambda: None).send().get_result(block=True) is None


def test_a_result_that_is_not_there_is_missing(backend: Any) -> None:
    f = dramatiq.actor(actor_name="f", store_results=True)(lambda: 1)
    message = f.send_with_options(delay=60_000)
    with pytest.raises(ResultMissing):
        message.get_result()
    # Dramatiq's Redis backend knows whole seconds only: below one it looks once.
    with pytest.raises(ResultTimeout):
        message.get_result(block=True, timeout=100)


def test_an_actor_that_stores_nothing_has_no_result(
    broker: EchoMQBroker, backend: Any, finish: Callable[..., None]
) -> None:
    message = dramatiq.actor(actor_name="f")(lambda: 1).send()
    finish(broker)
    with pytest.raises(ResultMissing):
        message.get_result()


def test_a_message_may_ask_for_its_result_to_be_stored(backend: Any) -> None:
    message = dramatiq.actor(actor_name="f")(lambda: 5).send_with_options(store_results=True)
    assert message.get_result(block=True) == 5


def test_an_exception_is_stored_once_retries_are_exhausted(
    broker: EchoMQBroker, backend: Any, finish: Callable[..., None]
) -> None:
    runs: list[int] = []
    missing: list[bool] = []

    @dramatiq.actor(store_results=True, max_retries=2, min_backoff=1, max_backoff=1)
    def bad() -> None:
        runs.append(1)
        try:
            message.get_result()
        except ResultMissing:
            missing.append(True)
        raise ValueError("the third is the last")

    go = threading.Event()
    hold = dramatiq.actor(actor_name="hold")(lambda: go.wait(10) and None)
    hold.send()
    message = bad.message()
    broker.enqueue(message)
    go.set()
    with pytest.raises(ResultFailure, match="actor raised ValueError: the third is the last") as caught:
        message.get_result(block=True)
    assert caught.value.orig_exc_type == "ValueError"
    assert caught.value.orig_exc_msg == "the third is the last"
    # Nothing was stored between the tries.
    assert (len(runs), len(missing)) == (3, 3)


def test_a_result_after_a_retry_is_the_result(backend: Any) -> None:
    runs: list[int] = []

    @dramatiq.actor(store_results=True, min_backoff=1, max_backoff=1)
    def flaky() -> str:
        runs.append(1)
        if len(runs) == 1:
            raise RuntimeError("once")
        return "at last"

    assert flaky.send().get_result(block=True) == "at last"


def test_an_expected_exception_is_stored_at_once(backend: Any) -> None:
    @dramatiq.actor(store_results=True, throws=KeyError)
    def bad() -> None:
        raise KeyError("known")

    with pytest.raises(ResultFailure, match="KeyError"):
        bad.send().get_result(block=True)


def test_a_message_too_old_fails_its_result(broker: EchoMQBroker, backend: Any) -> None:
    f = dramatiq.actor(actor_name="f", store_results=True, max_age=1000)(lambda: 1)
    message = broker.enqueue(f.message().copy(message_timestamp=0))
    with pytest.raises(ResultFailure, match="age limit"):
        message.get_result(block=True)


def test_a_skipped_message_stores_none(broker: EchoMQBroker, backend: Any) -> None:
    class Skip(Middleware):
        def before_process_message(self, broker: Any, message: Any) -> None:
            raise SkipMessage("not today")

    broker.add_middleware(Skip())
    message = dramatiq.actor(actor_name="f", store_results=True)(lambda: 1).send()
    assert message.get_result(block=True) is None


def test_a_delayed_message_has_its_result_under_the_message_that_was_sent(backend: Any) -> None:
    message = dramatiq.actor(actor_name="f", store_results=True)(lambda: 9).send_with_options(delay=50)
    assert message.get_result(block=True) == 9


def test_a_result_is_found_by_a_message_put_together_by_hand(backend: Any) -> None:
    sent = dramatiq.actor(actor_name="f", store_results=True)(lambda: 4).send()
    twin = dramatiq.Message(**dataclasses.asdict(sent))
    assert twin.get_result(backend=backend, block=True) == 4


def test_results_may_be_pickled(broker: EchoMQBroker, server: ServerProcess, worker: Worker) -> None:
    broker.add_middleware(Results(backend=RedisBackend(client=redis.Redis(port=server.port), encoder=PickleEncoder())))
    message = dramatiq.actor(actor_name="f", store_results=True)(lambda: {1, 2}).send()
    assert message.get_result(block=True) == {1, 2}


def test_results_and_queues_share_a_server_without_touching_each_other(
    broker: EchoMQBroker, backend: Any, finish: Callable[..., None]
) -> None:
    message = dramatiq.actor(actor_name="f", store_results=True)(lambda: 1).send()
    assert message.get_result(block=True) == 1
    finish(broker)
    broker.flush_all()
    assert message.get_result() == 1
