"""What a consumer may be made with."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

from echomq_tasks.bus.groups import check_group
from echomq_tasks.bus.hands import is_async
from echomq_tasks.errors import InvalidArgument
from echomq_tasks.scripts.arguments import seconds_to_ms, shown, whole

#: Where a group that is made begins: all that the log keeps, or what comes from then on.
Start = Literal["head", "new"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a consumer is made with, beside its log and its handler; see :class:`~echomq_tasks.bus.Consumer`.

    Raises:
      InvalidName, InvalidArgument: when something is wrong.
    """

    group: str
    start: Start
    name: str | None
    batch: int
    concurrency: int
    min_idle: float
    max_deliveries: int
    beat: float
    forget: float
    on_behind: Callable[[int], Any] | None

    def __post_init__(self) -> None:
        check_group(self.group)
        if self.name is not None:
            check_group(self.name, "consumer")
        if self.start not in ("head", "new"):
            raise InvalidArgument(
                'start is "head" (all that the log keeps) or "new" (what comes once the group is made), not '
                f"{shown(self.start)}"
            )
        whole(self.batch, "batch", 1, 1000)
        whole(self.concurrency, "concurrency", 1, 1000)
        whole(self.max_deliveries, "max_deliveries", 1)
        for what, longest in (("min_idle", 86_400), ("beat", 60), ("forget", 8_640_000)):
            seconds = getattr(self, what)
            if not 10 <= seconds_to_ms(seconds, what) <= longest * 1000:
                raise InvalidArgument(f"{what} is a number of seconds from 0.01 to {longest}, not {shown(seconds)}")

        if self.on_behind is not None:
            check_function(self.on_behind, "on_behind is a function", "number")
            if is_async(self.on_behind):
                raise InvalidArgument("on_behind is a plain function: nobody would await an async one")

    @property
    def forget_ms(self) -> int:
        """Milliseconds after which a consumer that was not heard of is gone: never less than two of its beats."""
        return max(seconds_to_ms(self.forget, "forget"), 2 * seconds_to_ms(self.beat, "beat"))

    def options(self) -> dict[str, Any]:
        """All of them by name, as the arguments of a consumer."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def check_handler(handler: object, concurrency: int) -> None:
    """Check a consumer's handler.

    Raises:
      InvalidArgument: when it cannot be called, or cannot run so many at once.
    """
    check_function(handler, "a handler is a function", "delivery")
    if concurrency > 1 and not is_async(handler):
        raise InvalidArgument(
            f"concurrency={concurrency} is for async handlers: make {concurrency} consumers, each with its own thread"
        )


def check_function(function: object, is_one: str, given: str) -> None:
    """Check that something can be called with one argument; a builtin without a signature is taken at its word.

    Parameters:
      is_one: how the error begins.
      given: what the argument is.

    Raises:
      InvalidArgument: when it cannot.
    """
    if not callable(function):
        raise InvalidArgument(f"{is_one} of one {given}, not {shown(function)}")
    try:
        # What a decorator wraps may take more than what it passes on is called with.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(object())
    except TypeError as error:
        raise InvalidArgument(f"{is_one} of one {given}, but {shown(function)} takes {signature}: {error}") from None
