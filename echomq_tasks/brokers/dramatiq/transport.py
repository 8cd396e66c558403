"""Trouble on the way to the server, in the words Dramatiq's worker understands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dramatiq.errors import ConnectionClosed

from echomq_tasks.errors import ConfigError, ServerError, ServerUnavailable


@contextmanager
def transport() -> Iterator[None]:
    """Raise :class:`ServerUnavailable` as Dramatiq's ``ConnectionClosed``, on which a worker reconnects or repeats."""
    try:
        yield
    except ServerUnavailable as error:
        raise ConnectionClosed(error) from error


@contextmanager
def settling() -> Iterator[None]:
    """As :func:`transport`, for whatever an operator can mend: rights, the password, the fence, memory.

    The work is done and must be told once the server takes it again; to give up would run it a second time.
    """
    try:
        yield
    except (ServerError, ConfigError) as error:
        raise ConnectionClosed(error) from error
