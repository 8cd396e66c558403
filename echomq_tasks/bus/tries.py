"""What a consumer knows of the entries that failed in its hands: when the next try is due, and what went wrong."""

from __future__ import annotations

import time

#: Most entries that are remembered; of those that are forgotten nothing is lost but the error.
_MOST = 10_000
#: Characters of an error that are remembered.
_LONGEST = 1000


class Tries:
    """Used by the consumer's own thread. It keeps no exceptions: those hold on to all that their frames do."""

    def __init__(self) -> None:
        self._failed: dict[str, tuple[float, str]] = {}

    def failed(self, entry_id: str, error: str, wait: float) -> None:
        """An entry failed, and may be tried again after ``wait`` seconds."""
        self.forget(entry_id)
        if len(self._failed) >= _MOST:
            del self._failed[next(iter(self._failed))]
        self._failed[entry_id] = (time.monotonic() + wait, error[:_LONGEST])

    def forget(self, entry_id: str) -> None:
        """An entry is finished, or given up."""
        self._failed.pop(entry_id, None)

    def known(self, entry_id: str) -> bool:
        """Whether an entry failed here."""
        return entry_id in self._failed

    def due(self, entry_id: str) -> bool:
        """Whether an entry's next try is due, as far as it failed here."""
        return entry_id not in self._failed or self._failed[entry_id][0] <= time.monotonic()

    def error(self, entry_id: str) -> str | None:
        """What an entry failed with here the last time."""
        return self._failed[entry_id][1] if entry_id in self._failed else None
