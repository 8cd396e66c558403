"""Every error this package raises, under one root.

::

    EchoMQError
    ├── ConfigError (ValueError)          an option or a URL is wrong
    ├── InvalidArgument (ValueError)      a delay, lease, priority, payload, ... out of range or of a wrong type
    │   ├── UnstableKey                   an argument of a cached function that no other process could know again
    │   └── Unencodable                   a value that the cache's codec cannot keep; its caller has it all the same
    ├── InvalidName (ValueError)          a queue, group, dedup or log name the wire does not allow
    ├── InvalidId (ValueError)            not a branded id of the expected kind
    ├── ServerError                       the server cannot serve us
    │   ├── ServerUnavailable             not reachable, or the connection broke (also a ConnectionError)
    │   ├── ServerTooOld                  older than the floor of this package
    │   ├── ServerOutOfMemory             `maxmemory` reached; nothing was written
    │   ├── VersionMismatch               the fence names another wire version
    │   └── EmbeddedUnavailable           no embedded server for this platform, or it did not start
    ├── BatchError                        raised by a batch actor: these members failed, the others are done
    ├── JobCancelled                      raised in a job that was asked to stop; let it through
    ├── UndecodableRecord (ValueError)    a record of a log that its codec cannot read
    ├── Undecodable (ValueError)          a row of the cache that its codec cannot read; for the cache, a miss
    ├── LoadFailed                        a loader raised in another process, what cannot be raised here
    ├── LoadTimeout (TimeoutError)        a cached value was not loaded in time
    ├── ScriptError                       a Lua script failed; names `lua/<file>:<line>`
    └── Refused                           a script refused a transition; nothing was written
        ├── WrongKind     EMQKIND         the id is not a JOB id
        ├── StaleToken    EMQSTALE        another claim holds the job now
        ├── WrongState    EMQSTATE        the job or queue is not in the state the verb needs
        ├── Held          EMQLOCK         a worker holds the job
        └── RateLimited   EMQRATE         a rate or concurrency ceiling is reached
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class EchoMQError(Exception):
    """Root of every error raised by echomq_tasks.

    Attributes:
      admitted: when a call that admits several jobs, or appends several records, failed half-way, the ids of those that
        are in.
      offered: the ids under which such a call offered all of its jobs, in their order: those that are not in
        ``admitted`` may be in too.
    """

    admitted: tuple[str, ...] = ()
    offered: tuple[str, ...] = ()


class ConfigError(EchoMQError, ValueError):
    """A connection URL or an option is unknown or out of range."""


class InvalidArgument(EchoMQError, ValueError):
    """An argument is of a wrong type or out of range; no byte was sent."""


class UnstableKey(InvalidArgument):
    """An argument of a cached function has no form that another process would know again, as a lock or an open file.

    Leave it out of the key with ``ignore=``, or say what identifies the call with ``key=``.
    """


class Unencodable(InvalidArgument):
    """A value that the cache's codec cannot keep, or could not give back as the same type; nothing was stored."""


class InvalidName(EchoMQError, ValueError):
    """A name that the wire does not allow; no byte was sent."""


class InvalidId(EchoMQError, ValueError):
    """Not a branded id of the expected kind; no byte was sent."""


class ServerError(EchoMQError):
    """The server cannot serve this client."""


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


class BatchError(EchoMQError):
    """Raised by the function of a batch actor: some members of the list failed, the others are done.

    Parameters:
      failures: the exception of each member that failed, by its index in the list the function was called with.
      results: when the others have results, a list as long as the function's; what it holds for members that failed is
        not looked at.

    Raises:
      ValueError: when ``failures`` is empty or is no mapping of indexes to exceptions.
    """

    def __init__(self, failures: Mapping[int, BaseException], results: Sequence[Any] | None = None) -> None:
        super().__init__(failures, results)
        if not isinstance(failures, Mapping) or not failures:
            raise ValueError(f"BatchError takes {{index: exception, ...}} with at least one failure, not {failures!r}")
        for index, error in failures.items():
            if isinstance(index, bool) or not isinstance(index, int) or index < 0:
                raise ValueError(f"BatchError names members by their index in the list, from 0 up, not {index!r}")
            if not isinstance(error, BaseException):
                raise ValueError(f"BatchError needs the exception of member {index}, not {error!r}")
        self.failures = dict(failures)
        self.results = results

    def __str__(self) -> str:
        first = min(self.failures)
        error = self.failures[first]
        return f"{len(self.failures)} failed; the first, member {first}: {type(error).__name__}: {error}"


class JobCancelled(EchoMQError):
    """Raised in a job that was asked to stop, or whose lease was lost: let it through, and the job ends for good.

    An actor may raise it by itself too, to end its job without a retry and without leaving it among the dead.
    """


class UndecodableRecord(EchoMQError, ValueError):
    """A record of a log that its codec cannot read; its fields are there as they were written."""


class Undecodable(EchoMQError, ValueError):
    """A row of the cache that its codec cannot read: damaged, foreign, or of another version of the code."""


class LoadFailed(EchoMQError):
    """The loader of a cached value raised in another process, not to be raised here; the text tells what."""


class LoadTimeout(EchoMQError, TimeoutError):
    """A cached value was not loaded in time: within ``wait`` by somebody else, or within a hard ``loader_timeout``."""


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
