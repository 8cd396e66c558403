"""What a job makes out of date: cached results that are dropped once it has completed."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from dramatiq import Actor

from echomq_tasks.brokers.dramatiq.delivery import Delivery
from echomq_tasks.errors import InvalidArgument
from echomq_tasks.queue import Verdict
from echomq_tasks.scripts.arguments import shown

_log = logging.getLogger(__name__)


def check_invalidates(given: object) -> tuple[Callable[..., Any], ...]:
    """The functions that ``invalidates=`` names.

    Raises:
      InvalidArgument: when it names something else.
    """
    if given is None:
        return ()
    several = tuple(given) if isinstance(given, (list, tuple, set, frozenset)) else (given,)
    for each in several:
        if not callable(each):
            raise InvalidArgument(
                "invalidates= names cached functions, whose results for the job's own arguments are dropped, or a "
                f"function of those arguments that invalidates what it wants, one or a list of them, not {shown(each)}"
            )
    return several


def invalidate_after(actors: Mapping[str, Actor[..., Any]], delivery: Delivery, verdict: Verdict | None) -> None:
    """Drop what a job has made out of date, if it is the one that completed. What fails is logged: the job is done.

    Parameters:
      actors: those that this process knows, by name.
      delivery: the job's.
      verdict: the server's; GONE is that of a completion that was repeated, because its first answer was lost.
    """
    actor = actors.get(delivery.actor_name)
    if actor is None or "invalidates" not in actor.options or not _completed(delivery, verdict):
        return
    for each in check_invalidates(actor.options["invalidates"]):
        try:
            if hasattr(each, "key_for") and hasattr(each, "table"):
                # A cached function; from here an async one too is asked in the way that blocks.
                each.table.invalidate(each.key_for(*delivery.args, **delivery.kwargs))
            else:
                _wait_for(each(*delivery.args, **delivery.kwargs))
        except Exception:
            _log.exception("Job %s is done, but what it made out of date is not dropped: %r", delivery.job_id, each)


def _completed(delivery: Delivery, verdict: Verdict | None) -> bool:
    if verdict not in (Verdict.OK, Verdict.GONE) or delivery.raised is not None or delivery.intent is not None:
        return False
    # Of a member of a batch.
    return getattr(delivery, "error", None) is None and not getattr(delivery, "skipped", False)


def _wait_for(answer: object) -> None:
    """Wait for what the verbs of async cached functions answer."""
    several = answer if isinstance(answer, (list, tuple)) else (answer,)
    waiting = [each for each in several if inspect.isawaitable(each)]
    if waiting:
        asyncio.run(_all(waiting))


async def _all(waiting: list[Awaitable[Any]]) -> None:
    for each in waiting:
        await each
