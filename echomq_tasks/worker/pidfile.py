"""The file with the main process's id."""

from __future__ import annotations

import contextlib
import fcntl
import os


class PidFileTaken(Exception):
    """Another process has it, or it is no such file."""


class PidFile:
    """A file that holds the id of this process, and a lock for as long as it lives: none is stale.

    Parameters:
      name: the file.

    Raises:
      PidFileTaken: when a process that runs has it, when it holds anything but a number, or cannot be written.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._owner = os.getpid()
        try:
            self._descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise PidFileTaken(f"the pid file cannot be written: {error}") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write()
        except OSError as error:
            text = self._text()
            os.close(self._descriptor)
            who = f"process {text.decode()}" if text.isdigit() else "another process"
            if isinstance(error, BlockingIOError):
                raise PidFileTaken(f"{who} runs already, as {name} says: stop it, or name another --pid-file") from None
            raise PidFileTaken(f"the pid file cannot be written: {error}") from None
        except PidFileTaken:
            os.close(self._descriptor)
            raise

    def _text(self) -> bytes:
        return os.pread(self._descriptor, 64, 0).strip()

    def _write(self) -> None:
        text = self._text()
        if text and not text.isdigit():
            raise PidFileTaken(f"{self._name} is no pid file: what is in it is left as it is. Name another --pid-file")
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, b"%d\n" % self._owner, 0)

    def close(self) -> None:
        """Remove it; in a child of a fork, only let go of it. May be repeated."""
        if self._descriptor < 0:
            return
        if os.getpid() == self._owner:
            with contextlib.suppress(FileNotFoundError):
                # Whoever has put another file in its place keeps that.
                if os.path.samestat(os.stat(self._name), os.fstat(self._descriptor)):
                    os.unlink(self._name)
        os.close(self._descriptor)
        self._descriptor = -1
