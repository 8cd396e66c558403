"""What a type checker knows of actors; never run, only checked: see test_actor_signatures.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_type

from dramatiq import Actor, Message

from echomq_tasks.actor import actor
from echomq_tasks.brokers.dramatiq import BatchActor, SentMessage
from echomq_tasks.queue import Cancellation


@actor
def plain(x: int, *, name: str = "") -> str:
    return name * x


@actor(queue_name="other", max_retries=3)
def with_options(x: int) -> list[int]:
    return [x]


@actor
async def coroutine(x: int) -> bytes:
    return bytes(x)


@actor(priority=3)
async def coroutine_with_options(x: int) -> dict[str, int]:
    return {"x": x}


@actor(batch=100, batch_wait=0.5)
def batch(documents: list[str]) -> None: ...


@actor(batch=10, queue_name="other", max_retries=1)
def batch_with_results(numbers: list[int]) -> list[str]:
    return [str(number) for number in numbers]


@actor(batch=10)
async def batch_coroutine(numbers: Sequence[int]) -> list[bytes]:
    return [bytes(number) for number in numbers]


@actor(batch=10)
async def batch_coroutine_without_results(numbers: list[int]) -> None: ...


@actor(batch=10)
def batch_with_results_or_none(numbers: list[int]) -> list[str] | None:
    return None


def undecorated(a: float, b: float) -> float:
    return a + b


# Called directly, an actor is its function; an async one answers what its coroutine returns.
assert_type(plain(1, name="a"), str)
assert_type(with_options(1), list[int])
assert_type(coroutine(1), bytes)
assert_type(coroutine_with_options(1), dict[str, int])

# Sent, it answers a message that knows the type of its result.
assert_type(plain.send(1, name="a"), SentMessage[str])
assert_type(with_options.send(1), SentMessage[list[int]])
assert_type(coroutine.send(1), SentMessage[bytes])
assert_type(coroutine_with_options.message(x=1), Message[dict[str, int]])
assert_type(plain.send(1).get_result(), str)
assert_type(plain.send(1).job_id, str)
assert_type(plain.send(1).cancel(), Cancellation)
assert_type(plain.send_with_options(args=(1,), delay=100), SentMessage[str])

# A batch actor takes a list when called, and one item when sent; each message has a result of its own.
batch(["a", "b"])
assert_type(batch, BatchActor[str, None, None])
assert_type(batch.send("a"), SentMessage[None])
assert_type(batch_with_results([1, 2]), list[str])
assert_type(batch_with_results.send(1), SentMessage[str])
assert_type(batch_with_results.message(1).get_result(), str)
assert_type(batch_coroutine([1]), list[bytes])
assert_type(batch_coroutine.send(1), SentMessage[bytes])
assert_type(batch_coroutine_without_results, BatchActor[int, None, None])
assert_type(batch_with_results_or_none([1]), list[str] | None)
assert_type(batch_with_results_or_none.send(1), SentMessage[str | None])

# As a function, with and without options.
assert_type(actor(undecorated)(1.0, 2.0), float)
assert_type(actor(max_retries=1)(undecorated).send(1.0, b=2.0), SentMessage[float])


def takes_any_actor(given: Actor[Any, Any]) -> str:
    return given.actor_name


takes_any_actor(plain)
takes_any_actor(coroutine)
takes_any_actor(batch)

# Each of these is an error, and an ignore without one is an error too.
plain("1")  # type: ignore[arg-type]
plain.send()  # type: ignore[call-arg]
plain.send("1")  # type: ignore[arg-type]
plain.send(1, nam="a")  # type: ignore[call-arg]
with_options.message()  # type: ignore[call-arg]
with_options.send(1, 2)  # type: ignore[call-arg]
with_options.send(x="1")  # type: ignore[arg-type]
coroutine.send(y=1)  # type: ignore[call-arg]
coroutine_with_options.send(None)  # type: ignore[arg-type]
actor(max_retries=1)(undecorated).send("1.0", 2.0)  # type: ignore[arg-type]
batch("a")  # type: ignore[arg-type]
batch.send(["a"])  # type: ignore[arg-type]
batch.send()  # type: ignore[call-arg]
batch.send("a", "b")  # type: ignore[call-arg]
batch.send(documents="a")  # type: ignore[call-arg]
batch_with_results.send("1")  # type: ignore[arg-type]
actor(batch=2)(undecorated)  # type: ignore[arg-type]
actor(7)  # type: ignore[call-overload]
actor(queue_name=7)  # type: ignore[call-overload]
