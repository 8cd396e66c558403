"""What a message says of its own admission: when it may run, how early, and in which lane."""

from __future__ import annotations

import json
import logging
from typing import Any
from uuid import UUID

from dramatiq import Actor, JSONEncoder, Message, get_encoder

from echomq_tasks.errors import InvalidArgument
from echomq_tasks.queue import NewJob

_log = logging.getLogger(__name__)

# As dramatiq.JSONEncoder has it.
_to_json = json.JSONEncoder(separators=(",", ":")).encode
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


def encode(message: Message[Any]) -> bytes:
    """What ``message.encode()`` answers, byte for byte, without making a JSON encoder for each message."""
    if type(get_encoder()) is not JSONEncoder or type(message) is not Message:
        return message.encode()
    fields = {
        "queue_name": message.queue_name,
        "actor_name": message.actor_name,
        "args": message.args,
        "kwargs": message.kwargs,
        "options": message.options,
        "message_id": message.message_id,
        "message_timestamp": message.message_timestamp,
    }
    return _to_json(fields).encode()


def new_job(message: Message[Any], delay: float | None, at: float | None, actor: Actor[..., Any] | None) -> NewJob:
    """The job that carries ``message``; ``actor`` is the message's own, when this process knows it."""
    return NewJob(
        payload=encode(message),
        delay=delay,
        at=at,
        priority=_priority(message, actor),
        group=_group(message, actor),
    )


def _priority(message: Message[Any], actor: Actor[..., Any] | None) -> Any:
    priority = message.options.get("priority")
    if priority is not None:
        return priority
    if (broker_priority := message.options.get("broker_priority")) is not None:
        # RabbitmqBroker's option, where higher runs first.
        return -broker_priority if isinstance(broker_priority, int) else broker_priority
    return actor.priority if actor is not None else 0


def _group(message: Message[Any], actor: Actor[..., Any] | None) -> Any:
    group = message.options.get("group")
    if group is None and actor is not None:
        group = actor.options.get("group")
    if callable(group):
        group = group(*message.args, **message.kwargs)
    # A tenant is often a number or a UUID in the app's own tables.
    return str(group) if isinstance(group, (int, UUID)) and not isinstance(group, bool) else group
