"""Which key a message excludes others by, from the options `unique`, `unique_key` and `unique_ttl`."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from dramatiq import Actor, Message

from echomq_tasks.errors import InvalidArgument
from echomq_tasks.queue import Unique

#: Seconds after which a key is free at the latest, when the actor names no other time.
DEFAULT_TTL = 86_400.0
_MODES = {"until_done": "done", "until_start": "start"}


def check_unique(unique: Any, unique_key: Any = None, unique_ttl: Any = None) -> None:
    """Check the three options.

    Raises:
      InvalidArgument: when one of them is malformed, or given without ``unique``.
    """
    if unique is None:
        if unique_key is not None or unique_ttl is not None:
            raise InvalidArgument("unique_key= and unique_ttl= say how a job is unique: give unique= too")
        return
    seconds = _seconds(unique)
    if seconds is None and (not isinstance(unique, str) or unique not in _MODES):
        raise InvalidArgument(f"unique is 'until_done', 'until_start' or a number of seconds above 0, not {unique!r}")
    if unique_ttl is not None:
        if seconds is not None:
            raise InvalidArgument("unique= is a number of seconds already: unique_ttl= is for the other two")
        if _seconds(unique_ttl) is None:
            raise InvalidArgument(f"unique_ttl is a number of seconds above 0, not {unique_ttl!r}")
    if unique_key is not None and not callable(unique_key) and (not isinstance(unique_key, str) or not unique_key):
        raise InvalidArgument(f"unique_key is a text, or a function of the arguments, not {unique_key!r}")


def unique_of(message: Message[Any], actor: Actor[..., Any] | None) -> Unique | None:
    """The key of a message; None when others like it are welcome. A message's own options win over its actor's.

    Raises:
      InvalidArgument: when an option is malformed, or the arguments have no stable form to make a key of.
    """
    if not message.options and (actor is None or actor.options.get("unique") is None):
        return None
    unique = message.options.get("unique", None if actor is None else actor.options.get("unique"))
    options = message.options if unique is None or actor is None else {**actor.options, **message.options}
    if _seconds(unique) is not None and "unique_ttl" not in message.options:
        # The actor's was for its own way of being unique.
        options = {**options, "unique_ttl": None}
    check_unique(unique, options.get("unique_key"), options.get("unique_ttl"))
    if unique is None:
        return None
    key = _key(message, actor, options.get("unique_key"))
    seconds = _seconds(unique)
    if seconds is not None:
        return Unique(key, "window", seconds)
    ttl = options.get("unique_ttl")
    return Unique(key, "start" if unique == "until_start" else "done", DEFAULT_TTL if ttl is None else float(ttl))


def _seconds(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.001 <= value <= 10**9:
        return None
    return float(value)


def is_unique(options: Mapping[str, Any], actor: Actor[..., Any] | None) -> bool:
    """Whether a message with these options may be refused; ``actor`` is the message's own."""
    return options.get("unique", None if actor is None else actor.options.get("unique")) is not None


def key_text(actor_name: str, value: Any) -> str:
    """What a function answered as a ``unique_key``, as text.

    Raises:
      InvalidArgument: when it names no job, or has no stable form.
    """
    if value is None or value == "":
        raise InvalidArgument(f"unique_key of actor {actor_name!r} answered {value!r}: it must name the job")
    return value if isinstance(value, str) else _stable_text(value, f"what unique_key of actor {actor_name!r} answered")


def _key(message: Message[Any], actor: Actor[..., Any] | None, unique_key: Any) -> str:
    """The actor's name for people, and a digest of all that makes the job the same one."""
    if callable(unique_key):
        unique_key = key_text(message.actor_name, unique_key(*message.args, **message.kwargs))
    if unique_key is None and actor is None:
        # Others, who know the function, would make another key of the same arguments.
        raise InvalidArgument(
            f"this process does not know the actor {message.actor_name!r}, so it cannot tell which arguments are the "
            f"same to it: import the actor, or give unique_key= as a text"
        )
    same = unique_key if unique_key is not None else _arguments(message, actor)
    text = _stable_text([message.actor_name, same], f"the arguments of actor {message.actor_name!r}")
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    name = re.sub(r"[^A-Za-z0-9._-]", "_", message.actor_name)[:200]
    return f"{name}.{digest}"


def _stable_text(value: Any, what: str) -> str:
    try:
        # Keys sorted, so that f(a=1, b=2) and f(b=2, a=1) are one job.
        return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_stable)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{what} has no stable form ({error}): give unique_key= as a text") from None


def _arguments(message: Message[Any], actor: Actor[..., Any] | None) -> Any:
    """The arguments as the function sees them: f(1), f(x=1) and a default that is spelled out are one job."""
    signature = None if actor is None else _signature(actor.fn)
    if signature is not None:
        try:
            bound = signature.bind(*message.args, **message.kwargs)
        except TypeError:
            # It will fail when it runs, as it does without unique=.
            return [message.args, message.kwargs]
        bound.apply_defaults()
        return dict(bound.arguments)
    return [message.args, message.kwargs]


@lru_cache(maxsize=1024)
def _signature(fn: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):
        return None


def _stable(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, (set, frozenset)):
        return {"set": sorted(json.dumps(each, sort_keys=True, default=_stable) for each in value)}
    # Dates, decimals, UUIDs, dataclasses, enums: what prints as its value.
    text = repr(value)
    if " at 0x" in text:
        raise TypeError(f"a {type(value).__name__} prints as its address")
    return {type(value).__qualname__: text}
