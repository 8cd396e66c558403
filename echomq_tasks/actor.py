"""The actor decorator: a function becomes a job, typed, on the EchoMQ broker by default."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, Protocol, TypeVar, overload

import dramatiq
from dramatiq import Actor, Broker

from echomq_tasks.brokers.dramatiq import BatchActor, EchoMQBroker, JobActor
from echomq_tasks.brokers.dramatiq.batches import batch_rule

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

#: What a repeat of a queue may have and that of an actor may not; the nearest option would be a wrong hint.
_OF_QUEUES_ONLY = ("first_in", "limit")


class ActorDecorator(Protocol):
    """What ``actor(...)`` with options returns: a decorator that keeps the function's signature."""

    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]]) -> JobActor[P, R]: ...

    @overload
    def __call__(self, fn: Callable[P, R]) -> JobActor[P, R]: ...

    def __call__(self, fn: Callable[..., Any]) -> JobActor[..., Any]: ...


class BatchDecorator(Protocol):
    """What ``actor(batch=...)`` returns: the function takes a list of what each message carries one of."""

    @overload
    def __call__(self, fn: Callable[[list[T]], Awaitable[None]]) -> BatchActor[T, None, None]: ...

    @overload
    def __call__(self, fn: Callable[[list[T]], Awaitable[list[R]]]) -> BatchActor[T, R, list[R]]: ...

    @overload
    def __call__(self, fn: Callable[[list[T]], None]) -> BatchActor[T, None, None]: ...

    @overload
    def __call__(self, fn: Callable[[list[T]], list[R]]) -> BatchActor[T, R, list[R]]: ...

    @overload
    def __call__(self, fn: Callable[[list[T]], list[R] | None]) -> BatchActor[T, R | None, list[R] | None]: ...

    def __call__(self, fn: Callable[..., Any]) -> BatchActor[Any, Any, Any]: ...


def get_broker() -> Broker:
    """Dramatiq's global broker; an :class:`EchoMQBroker` becomes it when none was set."""
    if dramatiq.broker.global_broker is None:
        dramatiq.set_broker(EchoMQBroker())
    return dramatiq.get_broker()


@overload
def actor(fn: Callable[P, Awaitable[R]]) -> JobActor[P, R]: ...


@overload
def actor(fn: Callable[P, R]) -> JobActor[P, R]: ...


@overload
def actor(
    *,
    batch: int,
    batch_wait: float = ...,
    queue_name: str = "default",
    priority: int = 0,
    actor_name: str | None = None,
    broker: Broker | None = None,
    actor_class: Callable[..., Actor[Any, Any]] = JobActor,
    **options: Any,
) -> BatchDecorator: ...


@overload
def actor(
    *,
    queue_name: str = "default",
    priority: int = 0,
    actor_name: str | None = None,
    broker: Broker | None = None,
    actor_class: Callable[..., Actor[Any, Any]] = JobActor,
    **options: Any,
) -> ActorDecorator: ...


def actor(
    fn: Callable[..., Any] | None = None,
    *,
    queue_name: str = "default",
    priority: int = 0,
    actor_name: str | None = None,
    broker: Broker | None = None,
    actor_class: Callable[..., Actor[Any, Any]] = JobActor,
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
      **options: ``max_retries``, ``min_backoff``, ``time_limit``, ... and whatever the broker's middleware declares.
        Of ours, also for a single message by ``send_with_options``:

        - ``group``: its lane, a name or a function of the arguments; ``group_limit``: how many of a lane run at once.
        - ``unique``: ``"until_done"``, ``"until_start"`` or seconds for which a second one like it is refused;
          ``unique_key``: what makes them alike, a text or a function of the arguments, which are all compared by
          default; ``unique_ttl``: seconds after which the key is free at the latest, a day by default.

        And of the actor alone:

        - ``events``: which events of its jobs are announced on the Bus, ``"all"``, a set of names or None, in place of
          what :class:`~echomq_tasks.middleware.Lifecycle` says.
        - ``every``, seconds, or ``cron``, an expression with ``tz``, its time zone: it runs again and again, once
          whatever the number of workers, and with ``every`` for the first time when one interval has passed;
          ``catch_up``: whether a missed run is made up for (True).
        - ``invalidates``: cached functions whose results for the job's own arguments are dropped once it has completed,
          or a function of those arguments that invalidates what it wants; one or a list.
        - ``batch``: how many messages one call takes at most, as a list; ``batch_wait``: how many seconds the first of
          them waits for more.

    Raises:
      ValueError: when an option is declared by no middleware or malformed, or the queue name is not allowed.
    """
    target = broker or get_broker()
    if isinstance(target, EchoMQBroker):
        target.announce_by_default()
    for name in options:
        if name not in target.actor_options:
            if name in _OF_QUEUES_ONLY:
                raise ValueError(
                    f"The actor option {name!r} is undefined: {name}= is of queue.repeat(...) only. An actor with "
                    f"every= runs first when one interval has passed, and repeats until it is cancelled."
                )
            if name == "events":
                raise ValueError(
                    "The actor option 'events' is undefined: add echomq_tasks.middleware.Lifecycle to the broker."
                )
            nearest = difflib.get_close_matches(name, target.actor_options, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else "add the middleware that declares it to the broker."
            raise ValueError(f"The actor option {name!r} is undefined: {hint}")
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise ValueError(f"A priority is a whole number, not {priority!r}; lower runs first.")

    if batch_rule(options) is not None:
        if actor_class in (Actor, JobActor):
            actor_class = BatchActor
        elif not (isinstance(actor_class, type) and issubclass(actor_class, BatchActor)):
            raise ValueError(
                f"A batch actor cannot be a {getattr(actor_class, '__name__', actor_class)!r}: derive your actor_class "
                f"from echomq_tasks.brokers.dramatiq.BatchActor."
            )

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
