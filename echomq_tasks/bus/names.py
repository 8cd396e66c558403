"""Names of events that look like a slip of the pen: an app has its own, so none can be refused."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable

from echomq_tasks.events import EVENTS

_log = logging.getLogger(__name__)

#: How like an event of the library's a name has to be, from 0 to 1: `complted` is, `order.completed` is not.
_LIKENESS = 0.8
#: Names that were told already; no more than so many are remembered, or told.
_told: set[str] = set()
_MOST_TOLD = 1000


def near_event(name: str, likeness: float = _LIKENESS) -> str | None:
    """The event of the library's that ``name`` was probably meant to be; None when it is one, or is like none."""
    if name in EVENTS:
        return None
    return next(iter(difflib.get_close_matches(name, sorted(EVENTS), 1, likeness)), None)


def warn_of_odd_events(names: Iterable[str]) -> None:
    """Log a warning for each name that is almost an event of the library's, once in a process."""
    for name in sorted(set(names) - EVENTS - _told):
        if len(_told) < _MOST_TOLD and (near := near_event(name)) is not None:
            forget_to_warn(name)
            _log.warning(
                "somebody listens to the event %r, which the library does not have (did you mean %r?): only an app "
                "that publishes it itself is heard",
                name,
                near,
            )


def forget_to_warn(name: str) -> None:
    """Whoever asked for this name has been told."""
    _told.add(name)
