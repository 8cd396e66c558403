"""What a message says of its own admission: when it may run, how early, in which lane, and beside which others."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

from dramatiq import Actor, JSONEncoder, Message, get_encoder

from echomq_tasks.brokers.dramatiq.sent import SentMessage
from echomq_tasks.brokers.dramatiq.uniqueness import is_unique, key_text, unique_of
from echomq_tasks.brokers.dramatiq.unsent import UnsentMessage
from echomq_tasks.errors import InvalidArgument
from echomq_tasks.identity import group_id, minted_at_ms
from echomq_tasks.queue import NewJob

_log = logging.getLogger(__name__)

# As dramatiq.JSONEncoder has it.
_to_json = json.JSONEncoder(separators=(",", ":")).encode
#: Messages that encode themselves as Dramatiq's do.
_KNOWN = frozenset({Message, UnsentMessage, SentMessage})
#: The longest delay, in milliseconds: what the server's schedule takes.
MAX_DELAY = 250_000_000_000_000


def check_delay(delay: float | None) -> None:
    """Check a delay in milliseconds.

    Raises:
      InvalidArgument: when it is no number, or above :data:`MAX_DELAY`. A negative one means now.
    """
    if delay is None:
        return
    if isinstance(delay, bool) or not isinstance(delay, (int, float)) or not delay <= MAX_DELAY:
        raise InvalidArgument(f"delay is a number of milliseconds up to {MAX_DELAY}, not {delay!r}")


def take_eta(message: Message[Any], delay: float | None) -> tuple[Message[Any], float | None, float | None]:
    """When a message may run: the message without its ``eta``, seconds from now, or a unix second.

    An ``eta`` would make a worker hold the message in its memory; the server holds it instead. A ``delay`` wins.
    """
    if "eta" not in message.options:
        return message, (max(delay, 0) / 1000 if delay else None), None
    message = message.copy()
    eta = message.options.pop("eta")
    if delay is not None:
        return message, max(delay, 0) / 1000, None
    if isinstance(eta, bool) or not isinstance(eta, (int, float)) or eta != eta or eta < 0:
        if eta is not None:
            _log.warning("Invalid eta %r of message %r: it may run now.", eta, message.message_id)
        return message, None, None
    return message, None, min(eta, MAX_DELAY) / 1000


def settle_options(message: Message[Any], actors: Mapping[str, Actor[..., Any]]) -> None:
    """Check a message's options, and write into them, in place, what they say by a function, a number or a UUID.

    The options travel with the message, and an encoder takes text. So do the later steps of a pipeline and the
    callbacks of a group.

    Parameters:
      message: the message.
      actors: the actors that this process knows.

    Raises:
      InvalidArgument: when a lane or key is malformed; when a later step names one by a function; and when a message is
        unique that a group's completion callback waits for.
    """
    if not message.options:
        return
    _settle(message.actor_name, message.options, message.args, message.kwargs)
    steps = [(message.actor_name, message.options)]
    for fields in _later_steps(message.options):
        for name in ("group", "unique_key"):
            if callable(fields["options"].get(name)):
                raise InvalidArgument(
                    f"{name}= of a later step of a pipeline ({fields['actor_name']}) is a function, whose arguments "
                    f"are not known yet: give a text, or give the function to the actor"
                )
        _settle(fields["actor_name"], fields["options"], (), {})
        steps.append((fields["actor_name"], fields["options"]))
    if not any("group_completion_uuid" in options for _, options in steps):
        return
    for actor_name, options in steps:
        if is_unique(options, actors.get(actor_name)):
            raise InvalidArgument(
                f"a message of actor {actor_name!r} is unique, and stands in a group with a completion callback: were "
                f"it refused, the callback would wait for ever. Send it with unique=None, or run the group without one"
            )
        for callback in options.get("group_completion_callbacks") or ():
            # As group.add_completion_callback() keeps them.
            _settle(callback["actor_name"], callback["options"], callback["args"], callback["kwargs"])


def _settle(actor_name: str, options: dict[str, Any], args: Any, kwargs: Any) -> None:
    group, key = options.get("group"), options.get("unique_key")
    if group is not None:
        options["group"] = group = _as_text(group(*args, **kwargs) if callable(group) else group)
        if group is not None:
            group_id(group)
    if callable(key):
        options["unique_key"] = key_text(actor_name, key(*args, **kwargs))


def _later_steps(options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The steps of a pipeline behind the one that has these options."""
    while isinstance(fields := options.get("pipe_target"), dict):
        if not isinstance(fields.get("actor_name"), str) or not isinstance(fields.get("options"), dict):
            # Another producer's; whoever runs the step before will say what is wrong with it.
            return
        yield fields
        options = fields["options"]


def encode(message: Message[Any], job_id: str | None = None) -> bytes:
    """The payload of a message: what ``message.encode()`` answers, byte for byte, where all of it is to be sent.

    A server keeps a row compact as long as its payload is short, so what a worker fills in is left out (wire §10): of a
    message that has no id yet, and of one whose id is that of its job. Other encoders than Dramatiq's own are given all
    fields, as they may rely on them.

    Parameters:
      message: the message.
      job_id: the job that has this payload, when it is known already.
    """
    if type(get_encoder()) is not JSONEncoder or type(message) not in _KNOWN:
        return message.encode()
    known = vars(message)
    if "message_id" in known and (job_id is None or known["message_id"] != job_id):
        return _to_json(message.asdict()).encode()
    fields: dict[str, Any] = {"actor_name": message.actor_name, "args": message.args}
    if message.kwargs:
        fields["kwargs"] = message.kwargs
    if message.options:
        fields["options"] = message.options
    timestamp = known.get("message_timestamp")
    if timestamp is not None and (job_id is None or timestamp != minted_at_ms(job_id)):
        fields["message_timestamp"] = timestamp
    return _to_json(fields).encode()


def new_job(message: Message[Any], delay: float | None, at: float | None, actor: Actor[..., Any] | None) -> NewJob:
    """The job that carries ``message``; ``actor`` is the message's own, when this process knows it."""
    group = group_of(message, actor)
    return NewJob(
        payload=encode(message),
        delay=delay,
        at=at,
        priority=priority_of(message, actor),
        group=group,
        group_limit=_group_limit(message, actor) if group is not None else None,
        unique=unique_of(message, actor),
    )


def priority_of(message: Message[Any], actor: Actor[..., Any] | None) -> Any:
    """The priority of a message: its own option, else its actor's."""
    priority = message.options.get("priority")
    if priority is not None:
        return priority
    if (broker_priority := message.options.get("broker_priority")) is not None:
        # RabbitmqBroker's option, where higher runs first.
        return -broker_priority if isinstance(broker_priority, int) else broker_priority
    return actor.priority if actor is not None else 0


def _group_limit(message: Message[Any], actor: Actor[..., Any] | None) -> Any:
    limit = message.options.get("group_limit")
    return actor.options.get("group_limit") if limit is None and actor is not None else limit


def group_of(message: Message[Any], actor: Actor[..., Any] | None) -> Any:
    """The lane of a message: its own option, else its actor's, which may be a function of the arguments."""
    group = message.options.get("group")
    if group is None and actor is not None:
        group = actor.options.get("group")
    if callable(group):
        group = group(*message.args, **message.kwargs)
    return _as_text(group)


def _as_text(group: Any) -> Any:
    """A lane's name; a tenant is often a number or a UUID in the app's own tables."""
    return str(group) if isinstance(group, (int, UUID)) and not isinstance(group, bool) else group
