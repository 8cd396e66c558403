"""A clock that a test moves on."""

from __future__ import annotations

import time

import pytest


class Clock:
    """Moves ``time.monotonic`` on for whoever looks it up at each call; it goes on by itself all the same."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._real = time.monotonic
        self._ahead = 0.0
        patch.setattr(time, "monotonic", lambda: self._real() + self._ahead)

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass at once."""
        self._ahead += seconds
