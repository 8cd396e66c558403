"""Every error this package raises, under one root.

::

    EchoMQError
    ├── ConfigError (ValueError)          an option or a URL is wrong
    ├── InvalidArgument (ValueError)      a delay, lease, priority, payload, ... out of range or of a wrong type
    ├── InvalidName (ValueError)          a queue, group, dedup or log name the wire does not allow
    ├── InvalidId (ValueError)            not a branded id of the expected kind
    ├── ServerError                       the server cannot serve us
    │   ├── ServerUnavailable             not reachable, or the connection broke (also a ConnectionError)
    │   ├── ServerTooOld                  older than the floor of this package
    │   ├── ServerOutOfMemory             `maxmemory` reached; nothing was written
    │   ├── VersionMismatch               the fence names another wire version
    │   └── EmbeddedUnavailable           no embedded server for this platform, or it did not start
    ├── ScriptError                       a Lua script failed; names `lua/<file>:<line>`
    └── Refused                           a script refused a transition; nothing was written
        ├── WrongKind     EMQKIND         the id is not a JOB id
        ├── StaleToken    EMQSTALE        another claim holds the job now
        ├── WrongState    EMQSTATE        the job or queue is not in the state the verb needs
        ├── Held          EMQLOCK         a worker holds the job
        └── RateLimited   EMQRATE         a rate or concurrency ceiling is reached
"""

from __future__ import annotations

from typing import ClassVar


class EchoMQError(Exception):
    """Root of every error raised by echomq_tasks."""


class ConfigError(EchoMQError, ValueError):
    """A connection URL or an option is unknown or out of range."""


class InvalidArgument(EchoMQError, ValueError):
    """An argument is of a wrong type or out of range; no byte was sent."""


class InvalidName(EchoMQError, ValueError):
    """A name that the wire does not allow; no byte was sent."""


class InvalidId(EchoMQError, ValueError):
    """Not a branded id of the expected kind; no byte was sent."""


class ServerError(EchoMQError):
    """The server cannot serve this client.

    Attributes:
      admitted: when a bulk admission failed half-way, the ids of the jobs that had been admitted before.
    """

    admitted: tuple[str, ...] = ()


class ServerUnavailable(ServerError, ConnectionError):
    """The server could not be reached, or the connection broke before its answer came.

    A write that was under way may or may not have been done: every verb can be repeated with the same job id.
    """


class ServerTooOld(ServerError):
    """The server is older than the oldest one this package runs on."""


class ServerOutOfMemory(ServerError):
    """The server's `maxmemory` is reached and it refused the write before it began."""


class VersionMismatch(ServerError):
    """The fence key names another wire version than the one this package speaks."""


class EmbeddedUnavailable(ServerError):
    """The embedded server has no binary for this platform, or did not start."""


class ScriptError(EchoMQError):
    """A Lua script failed in a way its contract does not name; this is a bug or a foreign row."""


class Refused(EchoMQError):
    """A script refused a transition; nothing was written."""

    #: The class that starts the server's reply.
    code: ClassVar[str] = ""


class WrongKind(Refused):
    """The id is not a JOB id."""

    code = "EMQKIND"


class StaleToken(Refused):
    """The token is not the row's: the lease was lost and another claim holds, or held, the job."""

    code = "EMQSTALE"


class WrongState(Refused):
    """The job or the queue is not in the state this verb needs."""

    code = "EMQSTATE"


class Held(Refused):
    """A worker holds the job."""

    code = "EMQLOCK"


class RateLimited(Refused):
    """A rate or concurrency ceiling is reached."""

    code = "EMQRATE"


#: Reply class -> exception. Closed: a class that is not here is a :class:`ScriptError`.
REFUSALS: dict[str, type[Refused]] = {
    kind.code: kind for kind in (WrongKind, StaleToken, WrongState, Held, RateLimited)
}
