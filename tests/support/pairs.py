"""Two processes with one table, each of which goes on when the test says so: who holds a value, and who writes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

from echomq_tasks.cache.call import Call
from echomq_tasks.cache.drive import run
from echomq_tasks.cache.frames import tag_id
from echomq_tasks.connection import Connection
from echomq_tasks.identity import brand
from support.stepping import Cache, Going, Overhearing, SkewedStore, StraightDrive

KEY = brand("ROW", 1)
TAG = "tag"
HOUR = 3600.0
#: What the clock of who holds the value is ahead, and that of who writes.
CLOCKS = {"agree": (0.0, 0.0), "holder-ahead": (HOUR, -HOUR), "writer-ahead": (-HOUR, HOUR)}
#: A claim, a load and a fill are each before one step and after another, unless their request is lost.
STEPS = {"claimed": 2, "loaded": 4, "stored": 6}


def call(value: Any) -> Call:
    """For the row; ``value`` is what its loader returns."""
    return Call(KEY, b"", lambda: value, None, (TAG,), (tag_id(TAG),))


class Pair:
    """The holder and the writer, or a and b where each does both; nothing is heard before :meth:`hear`."""

    def __init__(self, connection: Connection, clocks: Sequence[float] = CLOCKS["holder-ahead"]) -> None:
        self.name = f"pair-{secrets.token_hex(6)}"
        self.connection = connection
        self.client: Any = connection.client
        self.lane: list[bytes] = []
        self.holder, self.writer = (
            Cache(self.name, connection, SkewedStore(self.name, connection, skew, node), self.lane.append)
            for node, skew in enumerate(clocks)
        )
        self.a, self.b = self.holder, self.writer
        self.base = self.holder.reach.store.base
        self.overhearing = Overhearing(connection, self.holder.reach.store)

    def close(self) -> None:
        self.overhearing.close()

    def fetch(self, cache: Cache, value: Any) -> Any:
        """Ask, and get an answer at once; ``value`` is what the loader returns."""
        return self.end(self.begin(cache, value, 0))

    def look(self, cache: Cache, value: Any) -> Any:
        """As :meth:`fetch`, by the short way: rows are likely there, and are looked for first."""
        for _ in range(2):
            cache.reach.store._looking.note(True)  # noqa: SLF001 - as if it had found others
        return cache.reader.fetch(call(value), StraightDrive())

    def begin(self, cache: Cache, value: Any, until: str | int, *, refresh: bool = False) -> Going:
        """Ask, and stop after so many steps, or once the call has its claim answered, has loaded, or has stored."""
        drive = cache.drive()
        going = Going(cache.reader.refresh(call(value), drive) if refresh else cache.reader.value(call(value), drive))
        for _ in range(STEPS[until] if isinstance(until, str) else until):
            if not going.done:  # it has found what another one put there
                going.go_on()
        return going

    def end(self, going: Going) -> Any:
        for _ in range(50):
            if not going.done:
                going.go_on()
        assert going.done, "it waits for another call"
        if going.error is not None:
            raise going.error
        return going.value

    def hear(self, *caches: Cache) -> None:
        """Let these hear all that was said until now, or both; who is not among them has it on its way."""
        for message in self.overhearing.look():
            for cache in (self.holder, self.writer):
                cache.said(*message)
        for cache in caches or (self.holder, self.writer):
            while cache.hear():
                pass

    def between(self, cache: Cache, do: Callable[[], Any], *, when: str = "before") -> None:
        """Once before the next request of a process is sent, or after it was answered, do something."""
        looks = iter(("before", "after"))

        def between() -> None:
            if next(looks) == when:
                cache.reach.between = lambda: None
                do()

        cache.reach.between = between

    def forget(self, what: str = "*") -> None:
        """The server knows no more of this."""
        keys = self.client.keys(self.base + what.encode())
        if keys:
            self.client.delete(*keys)


def lose(cache: Cache, what: str, request: int = 1) -> None:
    """Lose the n-th of the next requests, "missing", or its answer, "losing"."""
    # Each has two: before it and after.
    left = 2 * request - 1

    def between() -> None:
        nonlocal left
        left -= 1
        if not left:
            cache.reach.between = lambda: None
            setattr(cache.reach, what, True)

    cache.reach.between = between


def refresh(cache: Cache, value: Any) -> None:
    """Load the row anew at once, and tell of it as a table does."""
    row, _ = run(cache.reader.refresh(call(value), StraightDrive()))
    cache.coherence.announce(row)


def put(cache: Cache, value: Any) -> bool:
    return cache.coherence.put(KEY, b"", value, None, (TAG,))


#: How a process tells that there is something new.
WRITES: dict[str, Callable[[Cache], Any]] = {
    "drop": lambda cache: cache.coherence.drop(KEY),
    "put": lambda cache: put(cache, "new"),
    "tag": lambda cache: cache.coherence.drop_tag(TAG),
    "clear": lambda cache: cache.coherence.clear(),
}
