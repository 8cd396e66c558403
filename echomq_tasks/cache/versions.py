"""Versions for what the server has no part in: loads and drops of a process that cannot reach it."""

from __future__ import annotations

import secrets
from typing import Final

from echomq_tasks.cache.frames import newer
from echomq_tasks.forks import after_fork
from echomq_tasks.identity import MAX_SNOWFLAKE, Mint, brand, snowflake
from echomq_tasks.identity.node import NODES

#: So many snowflakes there are in one millisecond.
_SPREAD: Final = 1 << 22


class Versions:
    """Mints without asking anybody for a node id: two equal versions of one row would have to be minted in the same
    microsecond by two processes that are both cut off."""

    def __init__(self) -> None:
        self._after_fork()
        self._mint = Mint(lambda: self._node)
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._node = secrets.randbelow(NODES)

    def mint(self, kind: str, above: str | None = None) -> str:
        """A version that is newer than ``above``, and than all that this process minted before."""
        version = self._mint.mint(kind)
        if above is None or newer(version, above):
            return version
        # The clock that minted it is ahead of ours. Not the very next one, which the server gives in such a case.
        return brand(kind, min(snowflake(above) + 2 + secrets.randbelow(_SPREAD), MAX_SNOWFLAKE))


#: Those of the process.
VERSIONS: Final = Versions()
