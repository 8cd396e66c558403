"""See when a source file changes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatch

#: Folders in which nobody edits the sources of an app.
_SKIPPED = {"__pycache__", "node_modules"}
#: After so many looks in a row that found a change, nobody waits for the end of it.
_RESTLESS = 10


class Watcher:
    """Compares the files in a directory with how they were; needs no thread, and sees what a mounted folder hides
    from the system's notifications.

    Parameters:
      folder: the directory.
      include: patterns of the names, or of the paths below the directory, of files that count.
      exclude: patterns of those that do not.
    """

    def __init__(self, folder: str, include: Sequence[str] = ("*.py",), exclude: Sequence[str] = ()) -> None:
        self._folder = folder
        self._include = include
        self._exclude = exclude
        self._seen = self._look()
        self._changed: str | None = None
        self._restless = 0

    def settled(self) -> str | None:
        """Look once: the path of a file that changed before the last look, when nothing has changed since then.

        So an editor, or a checkout of many files, is done when it answers. Where something changes all the time, it
        answers now and then.
        """
        now = self._look()
        if now != self._seen:
            differing = {path for path, _ in now.items() ^ self._seen.items()}
            self._changed = min(differing)
            self._seen = now
            self._restless += 1
            if self._restless < _RESTLESS:
                return None
        self._restless = 0
        changed, self._changed = self._changed, None
        return changed

    def _look(self) -> dict[str, tuple[int, int, int]]:
        found: dict[str, tuple[int, int, int]] = {}
        folders = [""]
        while folders:
            below = folders.pop()
            try:
                entries = list(os.scandir(os.path.join(self._folder, below)))
            except OSError:
                # Gone, or not ours to read.
                continue
            if any(entry.name == "pyvenv.cfg" for entry in entries):
                continue
            for entry in entries:
                path = os.path.join(below, entry.name)
                try:
                    if entry.is_dir(follow_symlinks=False):
                        if not entry.name.startswith(".") and entry.name not in _SKIPPED and not self._excluded(path):
                            folders.append(path)
                    elif self._counts(path, entry.name):
                        stat = entry.stat()
                        found[path] = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
                except OSError:
                    continue
        return found

    def _counts(self, path: str, name: str) -> bool:
        return any(fnmatch(name, each) or fnmatch(path, each) for each in self._include) and not self._excluded(path)

    def _excluded(self, path: str) -> bool:
        name = os.path.basename(path)
        return any(fnmatch(name, each) or fnmatch(path, each) for each in self._exclude)
