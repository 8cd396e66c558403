"""What the server answers about a log, told as ours."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from echomq_tasks.config import Config
from echomq_tasks.connection.failures import typed_errors
from echomq_tasks.errors import EchoMQError, ServerError, WrongState

#: Replies that say "not here, not now": connect again, to where the key is then.
_ELSEWHERE = (MovedError, AskError, TryAgainError, ClusterDownError, ReadOnlyError)
_ELSEWHERE_CODES = ("UNBLOCKED", "LOADING", "MASTERDOWN", "NOREPLICAS")

#: The pauses between two tries to reach the server, in seconds: the first, and the longest.
_PAUSE, _LONGEST_PAUSE = 0.02, 1.0


def backoff(tries: int) -> float:
    """Seconds to wait after so many tries in vain, from 0 up, before the next one."""
    return min(_LONGEST_PAUSE, _PAUSE * float(2 ** min(tries, 10))) * random.uniform(0.5, 1)


@contextmanager
def log_errors(config: Config, key: bytes) -> Iterator[None]:
    """Raise redis-py's errors as ours.

    Raises:
      WrongState: when the key holds no stream.
      ServerUnavailable: also when the key is elsewhere, or the server cannot serve it now.
      ServerError: when the server refuses for a reason that waiting does not mend.
      EchoMQError: as :func:`~echomq_tasks.connection.failures.typed_errors`.
    """
    with typed_errors(config):
        try:
            yield
        except ResponseError as error:
            text = str(error)
            if isinstance(error, _ELSEWHERE) or text.startswith(_ELSEWHERE_CODES):
                raise RedisConnectionError(text) from error
            if isinstance(error, NoPermissionError):
                raise
            if "WRONGTYPE" not in text:
                raise ServerError(f"{config.address} does not serve the log at {key.decode()}: {text}") from error
            raise WrongState(
                f"the key {key.decode()} holds no log: it was written by something else; delete it, or use another name"
            ) from error
        except EchoMQError:
            raise
        except OSError as error:
            raise RedisConnectionError(str(error)) from error
