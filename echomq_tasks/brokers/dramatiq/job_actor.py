"""Dramatiq's actor, typed for what an EchoMQ broker sends."""

from __future__ import annotations

from typing import Any, ParamSpec, TypeVar, cast

from dramatiq import Actor, Message

from echomq_tasks.brokers.dramatiq.sent import SentMessage
from echomq_tasks.brokers.dramatiq.unsent import UnsentMessage

P = ParamSpec("P")
R = TypeVar("R")


class JobActor(Actor[P, R]):
    """An actor whose messages know their jobs; ``actor(...)`` makes it. All else is :class:`dramatiq.Actor`."""

    def message_with_options(
        self, *, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None, **options: Any
    ) -> Message[R]:
        """Build a message; see :meth:`dramatiq.Actor.message_with_options`.

        It has an id when somebody reads it, or when it is sent: then it is that of its job, and the payload needs none.
        """
        if "on_failure" in options or "on_success" in options:
            # Dramatiq checks them, and puts names in the place of actors.
            options = super().message_with_options(**options).options
        return UnsentMessage.make(self.queue_name, self.actor_name, args, kwargs or {}, options)

    def send(self, *args: P.args, **kwargs: P.kwargs) -> SentMessage[R]:
        """Send a message; see :meth:`dramatiq.Actor.send`."""
        return cast("SentMessage[R]", super().send(*args, **kwargs))

    def send_with_options(
        self, *, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None, delay: Any = None, **options: Any
    ) -> SentMessage[R]:
        """Send a message with options of its own; see :meth:`dramatiq.Actor.send_with_options`.

        Parameters:
          args: the positional arguments.
          kwargs: the arguments by name.
          delay: milliseconds, or a timedelta, before it may run.
          **options: any of the actor's options, for this message: ``group``, ``priority``, ``unique``, ...
        """
        sent = super().send_with_options(args=args, kwargs=kwargs, delay=delay, **options)
        return cast("SentMessage[R]", sent)
