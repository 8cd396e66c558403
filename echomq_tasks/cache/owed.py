"""What the server is still to be told: rows and tags that were dropped here while it was away."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

from echomq_tasks.cache.frames import EVERYTHING, newer
from echomq_tasks.cache.store import Store
from echomq_tasks.errors import ServerUnavailable
from echomq_tasks.forks import after_fork

#: At most so many are kept one by one; with more, the whole table is to be dropped.
_MOST: Final = 10_000

_Methods = tuple[weakref.WeakMethod[Callable[..., Any]], ...]


class Owed:
    """Drops that did not reach the server, each with the newest version under which it was dropped here.

    Nobody here asks the server for anything before they are paid. The child of a fork knows of them as its parent does,
    and pays too: to drop a row twice does no harm. All tables of one name and kind in a process share them.
    """

    def __init__(self) -> None:
        # Replaced as a whole, so that whoever goes through them needs no lock.
        self._payers: _Methods = ()
        self._told: _Methods = ()
        self._gone: _Methods = ()
        self._rows: dict[str, str] = {}
        self._tags: dict[str, str] = {}
        #: How often it was tried in vain to pay.
        self._failures = 0
        #: Another one each time.
        self._everything: object | None = None
        self._after_fork()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._paying = threading.Lock()

    def on_due(self, method: Callable[[], None]) -> None:
        """Call a method when there is more to pay, as long as its object lives."""
        with self._lock:
            self._payers = _with(self._payers, method)

    def on_gone(self, method: Callable[[str, str | None], None]) -> None:
        """Call a method, as long as its object lives, with the id of what was paid, and the version under which the
        server has dropped it; None of everything. All are called: each holds rows of its own."""
        with self._lock:
            self._gone = _with(self._gone, method)

    def on_paid(self, method: Callable[[str, str], None]) -> None:
        """Call a method, as long as its object lives, with the id of a row or a tag that was paid and the version under
        which the server has dropped it. Of several, one is called: they would tell the same to the same."""
        with self._lock:
            self._told = _with(self._told, method)

    def __bool__(self) -> bool:
        return bool(self._rows or self._tags or self._everything)

    def row(self, id: str, version: str) -> None:
        """A row was dropped."""
        self._note(self._rows, id, version)

    def tag(self, mark: str, version: str) -> None:
        """The rows of a tag, given by its id, were dropped."""
        self._note(self._tags, mark, version)

    def owe_tags_to(self, other: Owed) -> None:
        """Let another one owe too what is owed here of tags."""
        with self._lock:
            tags, everything = dict(self._tags), self._everything is not None
        for mark, version in tags.items():
            other.tag(mark, version)
        if everything:
            # There may have been too many to know them.
            other.everything()

    def everything(self) -> None:
        """All rows were dropped."""
        with self._lock:
            self._all()
        self._is_due()

    def _all(self) -> None:
        self._rows.clear()
        self._tags.clear()
        self._everything = object()

    def _note(self, kept: dict[str, str], name: str, version: str) -> None:
        with self._lock:
            # Also when everything is owed: that may be paid at this moment, and this one have been passed by.
            if newer(version, kept.get(name)):
                kept[name] = version
            if len(self._rows) + len(self._tags) > _MOST:
                self._all()
        self._is_due()

    def _is_due(self) -> None:
        for method in self._payers:
            if (call := method()) is not None:
                call()

    def pay(self, store: Store) -> None:
        """Tell the server all of it. Who comes meanwhile waits, for it must not read what is to be dropped.

        Raises:
          ServerError: when it cannot be told; what it was not told is still owed.
        """
        paid: list[tuple[str, str]] = []
        failures, cleared = self._failures, False
        try:
            with self._paying:
                if self._failures != failures:
                    # Or all who wait here would wait for a server that hangs, one after the other.
                    raise ServerUnavailable("the server has just not taken what it is owed by a cache")
                with self._lock:
                    rows, tags, everything = dict(self._rows), dict(self._tags), self._everything
                if everything is not None:
                    store.clear()
                    cleared = True
                    with self._lock:
                        if self._everything is everything:
                            self._everything = None
                if rows:
                    # One version for all of them, not older than any.
                    given = store.drop_many(list(rows), max(rows.values(), key=lambda version: version[3:]))
                    self._paid(self._rows, rows)
                    paid += zip(rows, given, strict=True)
                for mark, version in tags.items():
                    paid.append((mark, store.drop_mark(mark, version)))
                    self._paid(self._tags, {mark: version})
        except BaseException:
            self._failures += 1
            raise
        finally:
            # Also what was put here meanwhile: it reaches the others as a drop, and nobody is to go on with it alone.
            gone = [call for method in self._gone if (call := method()) is not None]
            for let_go in gone:
                if cleared:
                    let_go(EVERYTHING, None)
                for each in paid:
                    let_go(*each)
            tell = next((call for method in self._told if (call := method()) is not None), None)
            if tell is not None:
                for each in paid:
                    tell(*each)

    def _paid(self, kept: dict[str, str], paid: dict[str, str]) -> None:
        with self._lock:
            for name, version in paid.items():
                # Dropped once more meanwhile: that is owed again.
                if kept.get(name) == version:
                    del kept[name]


def _with(methods: _Methods, method: Callable[..., Any]) -> _Methods:
    return (*[each for each in methods if each() is not None], weakref.WeakMethod(method))
