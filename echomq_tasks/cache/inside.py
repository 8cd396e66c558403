"""Who waits for whom: the loaders that a thread or a task is in, so that no two of them wait for each other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import Context, ContextVar, copy_context

from echomq_tasks.cache.flight import PROCESS, Flight

#: The flights whose loaders the current thread or task is in, the innermost last.
_inside: ContextVar[tuple[Flight, ...]] = ContextVar("echomq_cache_inside", default=())


@contextlib.contextmanager
def inside(flight: Flight) -> Iterator[None]:
    """Run the loader of a flight."""
    # Those that have ended are left over from what was thrown into this thread.
    token = _inside.set((*[each for each in _inside.get() if not each.done], flight))
    try:
        yield
    finally:
        # A task that its loop has left behind is closed by the collector, which is in no context of ours.
        with contextlib.suppress(ValueError):
            _inside.reset(token)


def leads(owner: str) -> bool:
    """Whether the current thread or task is in the loader of the flight that is led under ``owner`` on the server."""
    return any(each.owner == owner and not each.done for each in _inside.get())


def is_inside() -> bool:
    """Whether the current thread or task is in a loader at all."""
    return any(not each.done for each in _inside.get())


def outside() -> Context:
    """The current context, but in no loader: for what is done in the background, and that no loader waits for."""
    context = copy_context()
    context.run(_inside.set, ())
    return context


def _leads_back(flight: Flight, mine: tuple[Flight, ...], seen: set[Flight]) -> bool:
    if flight in mine:
        return True
    seen.add(flight)
    return any(each not in seen and _leads_back(each, mine, seen) for each in flight.waits_for)


@contextlib.contextmanager
def waiting_for(flight: Flight) -> Iterator[bool]:
    """Wait for a flight inside of the block, if it answers True: else the flight waits, in the end, for its waiter."""
    mine = tuple(each for each in _inside.get() if not each.done)
    if not mine:
        yield True
        return
    with PROCESS.lock:
        free = not _leads_back(flight, mine, set())
        if free:
            mine[-1].waits_for.add(flight)
    try:
        yield free
    finally:
        with PROCESS.lock:
            mine[-1].waits_for.discard(flight)
