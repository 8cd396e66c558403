"""The options that an actor may have beyond Dramatiq's, checked when it is declared."""

from __future__ import annotations

import inspect
from typing import Any

from dramatiq import Actor

from echomq_tasks.brokers.dramatiq.invalidating import check_arguments, check_invalidates
from echomq_tasks.brokers.dramatiq.uniqueness import check_unique
from echomq_tasks.errors import InvalidArgument
from echomq_tasks.events import chosen_events
from echomq_tasks.identity import group_id
from echomq_tasks.keyspace import repeat_key
from echomq_tasks.queue import check_repeat

#: What an actor may say; `batch` and `batch_wait` are checked where batches are made.
ACTOR_OPTIONS = frozenset(
    {
        "group", "group_limit", "unique", "unique_key", "unique_ttl", "every", "cron", "tz", "catch_up", "batch",
        "batch_wait", "invalidates",
    }
)  # fmt: skip


def check_options(actor: Actor[..., Any]) -> None:
    """Check an actor's group, uniqueness, repeat and what it invalidates.

    Raises:
      InvalidArgument, InvalidName: when an option is malformed, or makes no sense without another.
    """
    options = actor.options
    group, limit = options.get("group"), options.get("group_limit")
    if group is not None and not callable(group):
        group_id(group)
    if limit is not None:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidArgument(f"group_limit is a whole number from 1 up, not {limit!r}")
        if group is None:
            raise InvalidArgument("group_limit= bounds the lane of a group: give group= too")
    check_invalidates(options.get("invalidates"))
    check_arguments(actor)
    if "events" in options:
        chosen_events(options["events"])
    check_unique(options.get("unique"), options.get("unique_key"), options.get("unique_ttl"))
    if repeats(actor):
        _check_repeat(actor)
    elif (lost := [name for name in ("tz", "catch_up") if name in options]) != []:
        raise InvalidArgument(f"{lost[0]}= belongs to a repeat: give every= or cron= too")


def repeats(actor: Actor[..., Any]) -> bool:
    """Whether an actor is one that repeats."""
    return actor.options.get("every") is not None or actor.options.get("cron") is not None


def _check_repeat(actor: Actor[..., Any]) -> None:
    # Named after the actor, so that a renamed one is another registration.
    repeat_key(actor.queue_name, actor.actor_name)
    check_repeat(**repeat_timing(actor))
    # Its group and key are made of the arguments, of which there are none either.
    for what in (None, "group", "unique_key"):
        function = actor.fn if what is None else actor.options.get(what)
        if not callable(function):
            continue
        called = "it is" if what is None else f"the function given as {what}= is"
        try:
            inspect.signature(function).bind()
        except TypeError as error:
            raise InvalidArgument(
                f"actor {actor.actor_name!r} repeats, so {called} called without arguments, and {error}: give them "
                f"defaults"
            ) from None
        except ValueError:
            # Written in C, and it does not say what it takes.
            continue


def repeat_timing(actor: Actor[..., Any]) -> dict[str, Any]:
    """What of an actor's options says when it repeats, as :meth:`~echomq_tasks.queue.Queue.repeat` takes it."""
    return {name: actor.options[name] for name in ("every", "cron", "tz", "catch_up") if name in actor.options}
