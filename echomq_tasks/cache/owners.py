"""Owners: the names of flights, of which no two in the world are alike."""

from __future__ import annotations

import itertools
import secrets
from typing import Final

from echomq_tasks.forks import after_fork


class Owners:
    """Names flights: what the process drew once, and a number."""

    def __init__(self) -> None:
        self._after_fork()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._process = secrets.token_hex(8)
        self._numbers = itertools.count()

    def next(self) -> str:
        """A name that no flight had before."""
        return f"{self._process}.{next(self._numbers)}"


#: Those of the process.
OWNERS: Final = Owners()
