"""Error replies of scripts, told as ours: the class by the code, and which line of which Lua file."""

from __future__ import annotations

import re

from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from echomq_tasks.errors import REFUSALS, ConfigError, EchoMQError, ScriptError, ServerOutOfMemory, ServerUnavailable
from echomq_tasks.scripts.loader import Script

_LUA_LINE = re.compile(r"user_script:(\d+)")
#: Replies that say "not me, not now": reconnect, find the master, try again. The client cuts the class off those it
#: knows, so these come as exceptions of their own; the others by name.
_UNAVAILABLE = (ReadOnlyError, ClusterDownError, TryAgainError)
_UNAVAILABLE_CODES = ("UNBLOCKED", "BUSY", "NOREPLICAS", "MISCONF")


def error_of(script: Script, reply: ResponseError, address: str) -> EchoMQError:
    """What a reply of a script means, as the error to raise; ``address`` is the server's."""
    text = str(reply)
    code, _, detail = text.partition(" ")
    if code in REFUSALS:
        return REFUSALS[code](detail or text)
    if isinstance(reply, OutOfMemoryError):
        return ServerOutOfMemory(
            f"{address} has reached its maxmemory and refused {script.name}; nothing was "
            "written. Raise maxmemory or let workers drain the queues"
        )
    if isinstance(reply, NoPermissionError) or "ACL failure" in text:
        return ConfigError(
            f"the user of {address} may not run {script.name}: {text}. It needs ~emq:* "
            "~{emq}:* ~ecc:* &emq:* &ecc:* and the commands of the ACL SETUSER line in docs/operations.md"
        )
    if isinstance(reply, (MovedError, AskError)):
        return ServerUnavailable(
            f"{address} is one node of a cluster and does not hold this queue: connect with valkey+cluster://host:port"
        )
    if isinstance(reply, _UNAVAILABLE) or code in _UNAVAILABLE_CODES:
        return ServerUnavailable(f"{address} cannot take writes now: {text}")
    line = _LUA_LINE.search(text)
    where = script.locate(int(line[1])) if line else f"lua/{script.name}.lua"
    return ScriptError(f"{where}: {text}")
