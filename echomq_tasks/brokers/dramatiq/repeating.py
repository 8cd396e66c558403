"""Actors that repeat: registered by whichever worker serves their queue, once a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dramatiq import Actor, Message, get_encoder

from echomq_tasks.brokers.dramatiq.options import repeat_timing, repeats
from echomq_tasks.brokers.dramatiq.outgoing import group_of, priority_of
from echomq_tasks.brokers.dramatiq.uniqueness import unique_of
from echomq_tasks.errors import ConfigError, EchoMQError, ScriptError, ServerError, ServerUnavailable
from echomq_tasks.queue import Queue

if TYPE_CHECKING:
    from echomq_tasks.brokers.dramatiq.broker import EchoMQBroker


def register_repeats(broker: EchoMQBroker, queue: Queue) -> None:
    """Register the repeats of a queue's actors that this process has not registered yet.

    Only once: registered again when a consumer restarts, a repeat that somebody cancelled would be back, and one that
    newer code has changed would have its old time. What is registered already stays, unless the code says another.

    Raises:
      ServerError, ScriptError, ConfigError: when the server could not take one; the call can be repeated.
    """
    trouble: EchoMQError | None = None
    for actor in list(broker.actors.values()):
        name = actor.actor_name
        # By the actor, not by its name alone: one that is declared anew may say another time.
        if actor.queue_name != queue.name or not repeats(actor) or broker.repeating.get(name) is actor:
            continue
        try:
            _register(broker, queue, actor)
        except ServerUnavailable:
            # The others would wait for the server in vain, too.
            raise
        except (ServerError, ScriptError, ConfigError) as error:
            # Rights, the password, memory: what an operator can mend.
            trouble = error
            continue
        except Exception:
            # A group or a key that its function could not make. The queue is served all the same.
            broker.logger.exception("Actor %r does not repeat: its registration failed.", name)
        broker.repeating[name] = actor
    if trouble is not None:
        raise trouble


def _register(broker: EchoMQBroker, queue: Queue, actor: Actor[..., object]) -> None:
    message: Message[object] = actor.message()
    # Neither id nor timestamp: each run has its own, which a worker fills in from the job (wire §10).
    template = {
        "queue_name": queue.name,
        "actor_name": actor.actor_name,
        "args": [],
        "kwargs": {},
        "options": message.options,
    }
    group = group_of(message, actor)
    changed = queue.repeat(
        actor.actor_name,
        get_encoder().encode(template),
        priority=priority_of(message, actor),
        group=group,
        group_limit=None if group is None else actor.options.get("group_limit"),
        unique=unique_of(message, actor),
        replace=True,
        **repeat_timing(actor),
    )
    if changed:
        broker.logger.info("Actor %r repeats on queue %r.", actor.actor_name, queue.name)
