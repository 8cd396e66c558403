"""Which actors are async, and the coroutine functions that Dramatiq has wrapped for them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from dramatiq import Actor
from dramatiq.asyncio import async_to_sync

from echomq_tasks.brokers.dramatiq.batch_actor import BatchActor

CoroutineFunction = Callable[..., Coroutine[Any, Any, Any]]


async def _nothing() -> None: ...


#: The code of what Dramatiq puts around a coroutine function. Others may leave a ``__wrapped__``, too.
_WRAPPER = async_to_sync(_nothing).__code__
#: Calls that do no more than call the function.
_PLAIN = (Actor.__call__, BatchActor.__call__)


def coroutine_of(actor: Actor[..., Any]) -> CoroutineFunction | None:
    """The coroutine function of an async actor; None for others, and for a class that calls its function itself."""
    function: Any = actor.fn
    if getattr(function, "__code__", None) is not _WRAPPER or type(actor).__call__ not in _PLAIN:
        return None
    wrapped: CoroutineFunction = function.__wrapped__
    return wrapped


class Coroutines:
    """The coroutine functions of a broker's actors, by name.

    Parameters:
      actors: the actors, as they are at each moment.
    """

    def __init__(self, actors: Mapping[str, Actor[..., Any]]) -> None:
        self._actors = actors
        self._known: dict[str, tuple[Actor[..., Any], CoroutineFunction | None]] = {}

    def of(self, actor_name: str) -> CoroutineFunction | None:
        """The function of an async actor; None for others, and for a name that is not known."""
        actor = self._actors.get(actor_name)
        if actor is None:
            return None
        known = self._known.get(actor_name)
        if known is None or known[0] is not actor:
            known = self._known[actor_name] = actor, coroutine_of(actor)
        return known[1]

    def has(self, actor_name: str) -> bool:
        """Whether an actor is async."""
        return self.of(actor_name) is not None
