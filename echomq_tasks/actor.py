"""The actor decorator: a function becomes a job, typed, on the EchoMQ broker by default."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, Protocol, TypeVar, overload

import dramatiq
from dramatiq import Actor, Broker

from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.identity import group_id

P = ParamSpec("P")
R = TypeVar("R")


class ActorDecorator(Protocol):
    """What ``actor(...)`` with options returns: a decorator that keeps the function's signature."""

    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]]) -> Actor[P, R]: ...

    @overload
    def __call__(self, fn: Callable[P, R]) -> Actor[P, R]: ...

    def __call__(self, fn: Callable[..., Any]) -> Actor[..., Any]: ...


def get_broker() -> Broker:
    """Dramatiq's global broker; an :class:`EchoMQBroker` becomes it when none was set."""
    if dramatiq.broker.global_broker is None:
        dramatiq.set_broker(EchoMQBroker())
    return dramatiq.get_broker()


@overload
def actor(fn: Callable[P, Awaitable[R]]) -> Actor[P, R]: ...


@overload
def actor(fn: Callable[P, R]) -> Actor[P, R]: ...


@overload
def actor(
    *,
    queue_name: str = "default",
    priority: int = 0,
    actor_name: str | None = None,
    broker: Broker | None = None,
    actor_class: Callable[..., Actor[Any, Any]] = Actor,
    **options: Any,
) -> ActorDecorator: ...


def actor(
    fn: Callable[..., Any] | None = None,
    *,
    queue_name: str = "default",
    priority: int = 0,
    actor_name: str | None = None,
    broker: Broker | None = None,
    actor_class: Callable[..., Actor[Any, Any]] = Actor,
    **options: Any,
) -> Any:
    """Turn a function, plain or async, into an actor: :func:`dramatiq.actor`, typed, with EchoMQ as its broker.

    Examples:

      >>> @actor(max_retries=3)
      ... def add(x: int, y: int) -> int:
      ...     return x + y
      >>> add(1, 2)
      3

    Parameters:
      fn: the function, when the decorator is used without options.
      queue_name: the queue of its messages.
      priority: lower runs first, among all jobs that wait on the server.
      actor_name: how messages name it; the function's name by default.
      broker: the broker; Dramatiq's global one by default, which is an :class:`EchoMQBroker` unless you set another.
      actor_class: what to make; takes the arguments of :class:`dramatiq.Actor`.
      **options: ``max_retries``, ``min_backoff``, ``time_limit``, ... and whatever the broker's middleware declares;
        ``group``, a lane's name or a function of the arguments that answers one.

    Raises:
      ValueError: when an option is declared by no middleware, or the queue name is not allowed.
    """
    target = broker or get_broker()
    for name in options:
        if name not in target.actor_options:
            nearest = difflib.get_close_matches(name, target.actor_options, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else "add the middleware that declares it to the broker."
            raise ValueError(f"The actor option {name!r} is undefined: {hint}")
    group = options.get("group")
    if group is not None and not callable(group):
        group_id(group)
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise ValueError(f"A priority is a whole number, not {priority!r}; lower runs first.")

    def decorate(function: Callable[..., Any]) -> Actor[..., Any]:
        return dramatiq.actor(
            queue_name=queue_name,
            priority=priority,
            actor_name=actor_name,
            broker=target,
            actor_class=actor_class,
            **options,
        )(function)

    return decorate if fn is None else decorate(fn)
