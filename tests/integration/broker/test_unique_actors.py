"""Unique actors: which messages are alike, which one is refused, and what its sender learns."""

from __future__ import annotations

import dataclasses
import enum
import functools
import threading
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

import dramatiq
import pytest
from chaos.crew import PATIENCE
from dramatiq import Worker
from support.eventually import eventually

from echomq_tasks import actor
from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.errors import InvalidArgument


def key_of(broker: EchoMQBroker, queue: str = "default") -> str:
    """The one uniqueness key there is."""
    (key,) = broker.client.scan_iter(f"emq:{{{queue}}}:de:*")
    return str(key.decode().split(":de:", 1)[1])


def ttl_of(broker: EchoMQBroker) -> float:
    """How many seconds the one key has left."""
    return float(broker.client.pttl(f"emq:{{default}}:de:{key_of(broker)}")) / 1000  # type: ignore[arg-type]


@pytest.fixture
def pickled() -> Iterator[None]:
    """Messages are pickled, so that arguments may be anything."""
    before = dramatiq.get_encoder()
    dramatiq.set_encoder(dramatiq.PickleEncoder())
    yield
    dramatiq.set_encoder(before)


class Gated:
    """A body that runs until the gate opens."""

    def __init__(self, gate: threading.Event) -> None:
        self.gate = gate
        self.runs: list[Any] = []

    def __call__(self, *args: Any) -> None:
        self.runs.append(args)
        assert self.gate.wait(PATIENCE)


def test_a_second_message_is_refused_until_the_first_is_done(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None], gate: threading.Event
) -> None:
    body = Gated(gate)

    @actor(unique="until_done")
    def work(number: int) -> None:
        body(number)

    first = work.send(1)
    assert not first.duplicate
    eventually(lambda: body.runs, PATIENCE)
    second, other = work.send(1), work.send(2)
    assert (second.duplicate, second.job_id) == (True, first.job_id)
    assert second.message_id != first.message_id
    assert not other.duplicate
    gate.set()
    finish(broker)
    assert sorted(body.runs) == [(1,), (2,)]
    assert not work.send(1).duplicate


def test_until_it_starts_one_may_wait_while_another_runs(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None], gate: threading.Event
) -> None:
    body = Gated(gate)

    @actor(unique="until_start")
    def work() -> None:
        body()

    first = work.send()
    assert work.send().job_id == first.job_id
    make_worker(broker, threads=1)
    eventually(lambda: body.runs, PATIENCE)
    second = work.send()
    assert not second.duplicate
    assert work.send().job_id == second.job_id
    gate.set()
    finish(broker)
    assert len(body.runs) == 2


def test_for_seconds_it_stays_refused_though_the_first_is_done(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    runs: list[int] = []

    @actor(unique=600)
    def work() -> None:
        runs.append(1)

    first = work.send()
    finish(broker)
    second = work.send()
    assert (second.duplicate, second.job_id) == (True, first.job_id)
    assert 500 < ttl_of(broker) <= 600
    # As when the time is over.
    broker.client.delete(f"emq:{{default}}:de:{key_of(broker)}")
    assert not work.send().duplicate
    finish(broker)
    assert runs == [1, 1]


def test_a_message_that_failed_for_good_or_was_cancelled_makes_room(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    @actor(unique="until_done", max_retries=0)
    def work() -> None:
        raise RuntimeError("no luck")

    assert not work.send().duplicate
    finish(broker)
    later = work.send_with_options(delay=600_000)
    assert not later.duplicate
    assert work.send().job_id == later.job_id
    later.cancel()
    assert not work.send().duplicate


def test_a_message_that_is_retried_keeps_others_out(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    runs: list[int] = []

    @actor(unique="until_done", min_backoff=60_000)
    def work() -> None:
        runs.append(1)
        raise RuntimeError("no luck")

    first = work.send()
    eventually(lambda: broker.queue("default").counts().scheduled == 1, PATIENCE)
    assert work.send().job_id == first.job_id
    assert len(runs) == 1


# -- alike -------------------------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass(frozen=True)
class Point:
    x: int


ALIKE: list[tuple[Any, Any]] = [
    (((1,), {}), ((), {"x": 1})),
    (((1,), {}), ((1, 2), {})),
    (((1,), {}), ((), {"y": 2, "x": 1})),
    ((([1, 2],), {}), (((1, 2),), {})),
    ((({"a": 1, "b": 2},), {}), (({"b": 2, "a": 1},), {})),
    (((1,), {"z": 3, "w": 4}), ((1,), {"w": 4, "z": 3})),
]
DIFFERENT: list[tuple[Any, Any]] = [
    (((1,), {}), ((2,), {})),
    (((1,), {}), (("1",), {})),
    (((1,), {}), ((True,), {})),
    (((None,), {}), (("None",), {})),
    (((1,), {"y": 3}), ((1,), {})),
    (((1,), {"z": 3}), ((1,), {})),
    ((([],), {}), (({},), {})),
    (((["a", "b"],), {}), ((["a,b"],), {})),
]


@pytest.mark.parametrize(("one", "two", "alike"), [(*pair, True) for pair in ALIKE] + [(*p, False) for p in DIFFERENT])
def test_messages_are_alike_when_the_function_would_see_the_same(
    broker: EchoMQBroker, one: Any, two: Any, alike: bool
) -> None:
    @actor(unique="until_done")
    def work(x: Any, y: int = 2, **more: Any) -> None: ...

    first = work.send_with_options(args=one[0], kwargs=one[1])
    second = work.send_with_options(args=two[0], kwargs=two[1])
    assert second.duplicate is alike
    assert (second.job_id == first.job_id) is alike


@pytest.mark.parametrize(
    ("value", "same", "other"),
    [
        (b"a", bytearray(b"a"), b"b"),
        ({1, 2}, {2, 1}, {1, 3}),
        (date(2024, 1, 1), date(2024, 1, 1), date(2024, 1, 2)),
        (Decimal("1.0"), Decimal("1.0"), Decimal("1.00")),
        (UUID(int=1), UUID(int=1), UUID(int=2)),
        (Colour.RED, Colour.RED, "<Colour.RED: 1>"),
        (Point(1), Point(1), Point(2)),
    ],
    ids=repr,
)
def test_arguments_beyond_json_are_compared_by_their_value(
    broker: EchoMQBroker, pickled: None, value: Any, same: Any, other: Any
) -> None:
    @actor(unique="until_done")
    def work(x: Any) -> None: ...

    first = work.send(value)
    assert work.send(same).job_id == first.job_id
    assert not work.send(other).duplicate


@pytest.mark.parametrize("value", [object(), key_of, {1: 2, "a": 3}], ids=["object", "function", "mixed keys"])
def test_arguments_without_a_stable_form_are_refused_and_nothing_is_sent(
    broker: EchoMQBroker, pickled: None, value: Any
) -> None:
    @actor(unique="until_done")
    def work(x: Any) -> None: ...

    with pytest.raises(InvalidArgument, match=r"no stable form.*give unique_key="):
        work.send(value)
    assert broker.queue("default").counts().pending == 0


def test_two_actors_of_one_queue_do_not_exclude_each_other(broker: EchoMQBroker) -> None:
    @actor(unique="until_done")
    def one(x: int) -> None: ...

    @actor(unique="until_done")
    def two(x: int) -> None: ...

    assert not one.send(1).duplicate
    assert not two.send(1).duplicate


def test_the_key_shows_the_actor_and_hides_the_arguments(broker: EchoMQBroker) -> None:
    @actor(unique="until_done", actor_name="shop: send/mail")
    def work(secret: str) -> None: ...

    work.send("hunter2")
    name, digest = key_of(broker).rsplit(".", 1)
    assert name == "shop__send_mail"
    assert len(digest) == 32
    assert "hunter2" not in key_of(broker)


def test_wrong_arguments_are_still_the_functions_to_refuse(broker: EchoMQBroker) -> None:
    @actor(unique="until_done")
    def work(x: int) -> None: ...

    first = work.send_with_options(args=(1, 2, 3))
    assert work.send_with_options(args=(1, 2, 3)).job_id == first.job_id


# -- unique_key --------------------------------------------------------------------------------------------------------


def test_a_text_makes_all_messages_of_the_actor_alike(broker: EchoMQBroker) -> None:
    @actor(unique="until_done", unique_key="one at a time, é")
    def work(x: int) -> None: ...

    first = work.send(1)
    assert work.send(2).job_id == first.job_id


def test_a_function_of_the_arguments_says_what_makes_them_alike(broker: EchoMQBroker) -> None:
    @actor(unique="until_done", unique_key=lambda user, text="": user["id"])
    def work(user: dict[str, Any], text: str = "") -> None: ...

    first = work.send({"id": 1, "name": "Ada"}, text="hello")
    assert work.send({"id": 1, "name": "Countess"}, "bye").job_id == first.job_id
    assert not work.send({"id": 2}).duplicate


def test_a_function_that_names_no_job_is_refused(broker: EchoMQBroker) -> None:
    @actor(unique="until_done", unique_key=lambda x: None)
    def work(x: int) -> None: ...

    with pytest.raises(InvalidArgument, match="answered None"):
        work.send(1)
    assert broker.queue("default").counts().pending == 0


def test_what_the_function_raises_reaches_the_sender(broker: EchoMQBroker) -> None:
    @actor(unique="until_done", unique_key=lambda x: x["id"])
    def work(x: dict[str, Any]) -> None: ...

    with pytest.raises(KeyError, match="id"):
        work.send({})
    assert broker.queue("default").counts().pending == 0


# -- for one message ---------------------------------------------------------------------------------------------------


def test_a_message_can_be_unique_by_its_own_options(broker: EchoMQBroker) -> None:
    @actor
    def work(x: int) -> None: ...

    assert work.send(1).job_id != work.send(1).job_id
    first = work.send_with_options(args=(1,), unique="until_done", unique_ttl=30)
    assert 20 < ttl_of(broker) <= 30
    assert work.send_with_options(args=(1,), unique="until_done").job_id == first.job_id
    assert work.send_with_options(args=(2,), unique="until_done", unique_key="k").job_id != first.job_id
    assert not work.send(1).duplicate


def test_a_message_can_be_exempt_from_its_actors_uniqueness(broker: EchoMQBroker) -> None:
    @actor(unique="until_done", unique_key="k")
    def work() -> None: ...

    work.send()
    assert work.send().duplicate
    assert not work.send_with_options(unique=None).duplicate


def test_a_message_for_seconds_does_not_trip_over_its_actors_ttl(broker: EchoMQBroker) -> None:
    @actor(unique="until_done", unique_ttl=60)
    def work() -> None: ...

    assert not work.send_with_options(unique=600).duplicate
    assert 500 < ttl_of(broker) <= 600


def test_the_ttl_is_a_day_or_what_the_actor_says_and_a_delay_comes_on_top(broker: EchoMQBroker) -> None:
    @actor(unique="until_done")
    def work(x: int) -> None: ...

    @actor(unique="until_start", unique_ttl=50.5)
    def short(delay: int) -> None: ...

    sends: list[tuple[Callable[[], Any], float]] = [
        (lambda: work.send(1), 86_400),
        (lambda: short.send(1), 50.5),
        (lambda: short.send_with_options(args=(2,), delay=1_000_000), 1050.5),
    ]
    for send, most in sends:
        message = send()
        assert most - 40 < ttl_of(broker) <= most
        message.cancel()


@pytest.mark.parametrize("options", [{"unique_key": "k"}, {"unique_ttl": 9}, {"unique": "until_dawn"}, {"unique": 0}])
def test_a_malformed_option_of_a_message_is_refused_and_nothing_is_sent(
    broker: EchoMQBroker, options: dict[str, Any]
) -> None:
    @actor
    def work() -> None: ...

    with pytest.raises(InvalidArgument):
        work.send_with_options(**options)
    assert broker.queue("default").counts().pending == 0


@pytest.mark.parametrize("decorate", [actor, dramatiq.actor], ids=["ours", "dramatiq's"])
def test_plain_dramatiq_actors_are_unique_too(broker: EchoMQBroker, decorate: Any) -> None:
    @decorate(unique="until_done")
    def work(x: int) -> None: ...

    first = work.send(1)
    assert work.send(1).duplicate
    assert [each.duplicate for each in broker.enqueue_many([work.message(1), work.message(2), work.message(2)])] == [
        True,
        False,
        True,
    ]
    assert broker.enqueue(work.message(1)).job_id == first.job_id


BAD: list[dict[str, Any]] = [
    *({"unique": bad} for bad in ("", "until", "UNTIL_DONE", True, False, 0, -1, 0.0001, 10**10)),
    *({"unique": bad} for bad in (float("nan"), float("inf"), [], {}, b"until_done", ("until_done",))),
    *({"unique": "until_done", "unique_ttl": bad} for bad in (0, -1, True, "60", float("nan"), float("inf"), [])),
    *({"unique": "until_done", "unique_key": bad} for bad in ("", 7, b"k", ["k"], True)),
    {"unique": 5, "unique_ttl": 5},
    {"unique_key": "k"},
    {"unique_ttl": 5},
]


@pytest.mark.parametrize("options", BAD, ids=repr)
@pytest.mark.parametrize("decorate", [actor, dramatiq.actor], ids=["ours", "dramatiq's"])
def test_a_malformed_option_is_refused_at_decoration_and_the_actor_is_not_there(
    broker: EchoMQBroker, decorate: Any, options: dict[str, Any]
) -> None:
    def work() -> None: ...

    with pytest.raises(InvalidArgument):
        decorate(**options)(work)
    assert broker.get_declared_actors() == set()


def test_a_callable_without_a_signature_is_compared_by_its_arguments(broker: EchoMQBroker) -> None:
    work = functools.partial(lambda prefix, x: None, "p")
    named = dramatiq.actor(work, actor_name="partial", unique="until_done")
    first = named.send(1)
    assert named.send(1).job_id == first.job_id
    assert not named.send(2).duplicate


def test_racing_senders_get_one_message_in(broker: EchoMQBroker) -> None:
    @actor(unique="until_done")
    def work(x: int) -> None: ...

    start, sent = threading.Barrier(16), []

    def race() -> None:
        start.wait(PATIENCE)
        sent.append(work.send(1))

    threads = [threading.Thread(target=race) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len({message.job_id for message in sent}) == 1
    assert [message.duplicate for message in sent].count(False) == 1
