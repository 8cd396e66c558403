"""The actor of a batch: its function takes a list, its messages carry one item each."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from dramatiq import Message

from echomq_tasks.brokers.dramatiq.job_actor import JobActor
from echomq_tasks.brokers.dramatiq.sent import SentMessage

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C")


class BatchActor(JobActor[[T], R], Generic[T, R, C]):
    """An actor whose function takes a list of what its messages carry; ``actor(batch=...)`` makes it.

    Called directly, it is its function and takes a list. Everything that sends takes one item.
    """

    def __call__(self, items: list[T]) -> C:  # type: ignore[override]  # a message takes one item, the function a list
        """Call the function."""
        answer: C = super().__call__(items)  # type: ignore[arg-type, assignment]
        return answer

    def message_with_options(
        self, *, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None, **options: Any
    ) -> Message[R]:
        """Build a message; without an argument it is for a pipeline, where the step before gives it.

        Raises:
          TypeError: when there is more than one argument, or one by name.
        """
        if kwargs or len(args) > 1:
            raise self._wrong(args, kwargs)
        return super().message_with_options(args=args, kwargs=kwargs, **options)

    def send_with_options(
        self, *, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None, delay: Any = None, **options: Any
    ) -> SentMessage[R]:
        """Send one item; see :meth:`dramatiq.Actor.send_with_options`.

        Raises:
          TypeError: when there is not exactly one positional argument; nothing was sent.
        """
        if kwargs or len(args) != 1:
            raise self._wrong(args, kwargs)
        return super().send_with_options(args=args, kwargs=kwargs, delay=delay, **options)

    def _wrong(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> TypeError:
        return TypeError(
            f"{self.actor_name} is a batch actor: a message takes exactly one positional argument, not {len(args)} and "
            f"{len(kwargs or ())} by name; put several values into one tuple or dict"
        )
