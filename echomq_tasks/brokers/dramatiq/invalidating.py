"""What a job makes out of date: cached results that are dropped once it has completed."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from inspect import Signature
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


def check_arguments(actor: Actor[..., Any]) -> None:
    """Check that what an actor invalidates can be called with the arguments of its jobs.

    Raises:
      InvalidArgument: when it cannot.
    """
    # A batch is called with the arguments of many jobs at once, which tells nothing of those of one.
    takes = None if "batch" in actor.options else _signature(actor.fn)
    if takes is None:
        return
    for each in check_invalidates(actor.options.get("invalidates")):
        called = _signature(each)
        if called is None:
            continue
        for args, kwargs in _calls(takes):
            try:
                called.bind(*args, **kwargs)
            except TypeError as error:
                name = getattr(each, "__qualname__", None) or repr(each)
                names = ", ".join(takes.parameters)
                raise InvalidArgument(
                    f"invalidates= of the actor {actor.actor_name!r}: {name} is called with the arguments of each job, "
                    f"({names}), and does not take them: {error}. Give a function of these that drops what it wants, "
                    f"with their defaults, as invalidates=lambda {names}: total.invalidate(…)"
                ) from None


def _signature(function: Callable[..., Any]) -> Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        # Written in C, and it does not say what it takes.
        return None


def _calls(signature: Signature) -> list[tuple[list[str], dict[str, str]]]:
    """The shortest call that a signature allows and the longest, but for what it takes any number of."""
    calls = []
    for least in (True, False):
        asked = [each for each in signature.parameters.values() if not (least and each.default is not each.empty)]
        args = [each.name for each in asked if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
        calls.append((args, {each.name: "" for each in asked if each.kind is each.KEYWORD_ONLY}))
    return calls


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
