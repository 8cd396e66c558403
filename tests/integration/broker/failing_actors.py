"""Actors that fail, for the tests of retries."""

from __future__ import annotations

from typing import Any

from dramatiq.middleware import CurrentMessage

#: Backoff that keeps a test short.
QUICK = {"min_backoff": 1, "max_backoff": 2}


class Failing:
    """An actor's function that counts its runs and raises in the first ``times`` of them."""

    def __init__(self, times: int = 1_000_000, error: BaseException | None = None) -> None:
        self.times = times
        self.error = error or RuntimeError("no luck")
        self.runs: list[Any] = []
        self.__name__ = "failing"

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self.runs.append(CurrentMessage.get_current_message())
        if len(self.runs) <= self.times:
            raise self.error
