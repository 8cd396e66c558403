"""The small process beside an embedded server: it starts the server, and stops it when nobody needs it any more.

Run as a file by :mod:`echomq_tasks.connection.embedded`, isolated and without site-packages, so it imports only what
it needs from the standard library. One keeper per directory (``keeper.lock``), one server per directory
(``server.lock``, whose descriptor the server inherits: the lock holds exactly as long as the server lives).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import Literal, NoReturn

#: Held while a server is being looked for, started or stopped; shared while a client connects.
LOCK = "lock"
KEEPER_LOCK = "keeper.lock"
SERVER_LOCK = "server.lock"
LOG = "server.log"

_START_SECONDS = 60.0
_HANDOVER_SECONDS = 10.0
_LOG_BYTES = 1 << 20


def probe(path: str) -> Literal["up", "loading", "absent"]:
    """Ask the socket at ``path`` whether a server is behind it; a server too busy to answer is up."""
    try:
        with _dial(path, 2.0) as sock:
            sock.sendall(b"PING\r\n")
            reply = sock.recv(128)
    except TimeoutError:
        return "up"
    except BlockingIOError:
        return "up"  # its backlog is full
    except OSError:
        return "absent"
    if not reply:
        return "absent"
    return "loading" if reply.startswith(b"-LOADING") else "up"


def shut_down(path: str, seconds: float = 5.0) -> bool:
    """Stop the server at ``path`` and wait until it is gone; an append-only file is flushed, no snapshot is made."""
    try:
        with _dial(path, seconds) as sock:
            sock.sendall(b"SHUTDOWN NOSAVE\r\n")
            return not sock.recv(128)
    except TimeoutError:
        return False
    except OSError:
        return True


def start_mark(pid: int) -> str | None:
    """Return a mark that tells process ``pid`` from a later one with the same number, None when it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except FileNotFoundError:
        if os.path.exists("/proc/self/stat"):
            return None
    except ProcessLookupError:
        return None
    else:
        # A zombie has ended: only its parent has not looked yet. Field 22 is the start time.
        return None if fields[0] in (b"Z", b"X") else fields[19].decode()
    try:
        os.kill(pid, 0)  # no /proc on macOS: only whether it is there
    except ProcessLookupError:
        return None
    return "-"


@contextlib.contextmanager
def locked(path: str, *, shared: bool = False, seconds: float) -> Iterator[None]:
    """Hold the lock file at ``path``; raise TimeoutError when it stays taken for ``seconds``."""
    descriptor = hold(path, shared=shared, seconds=seconds)
    try:
        yield
    finally:
        # Unlock, not only close: a fork in another thread may have copied the descriptor.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def hold(path: str, *, shared: bool = False, seconds: float) -> int:
    """Take the lock file at ``path`` and return its descriptor; raise TimeoutError when it stays taken."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + seconds
    try:
        while True:
            try:
                # Polled, not waited for: who holds it may be stopped in a debugger.
                fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"{path} stays locked by another process") from None
                time.sleep(0.005)
    except BaseException:
        os.close(descriptor)
        raise


class Keeper:
    """Starts or joins the server of one directory, then watches over it.

    Parameters:
        directory: holds the data and the locks; it is the working directory.
        path: the server's unix socket.
        binary: the server to start.
        idle: seconds without a client after which a shared server is stopped.
        owner: pid and start mark of the process that a private server belongs to; None for a shared one.
    """

    def __init__(self, directory: str, path: str, binary: str, idle: float, owner: tuple[int, str] | None) -> None:
        self.directory = directory
        self.path = path
        self.binary = binary
        self.idle = idle
        self.owner = owner

    def start(self) -> None:
        """Take the keeper's lock and have a server that answers; raise RuntimeError saying why not."""
        try:
            # Never released: it ends with this process. The keeper of a server that was killed needs a moment to go.
            hold(KEEPER_LOCK, seconds=_HANDOVER_SECONDS)
            if probe(self.path) == "absent":
                self._launch(hold(SERVER_LOCK, seconds=_HANDOVER_SECONDS))
        except TimeoutError as error:
            raise RuntimeError(f"{error}, but its server does not answer: end that process") from None

    def _launch(self, lock: int) -> None:
        pid = os.fork()
        if pid == 0:
            self._become_server(lock)
        os.close(lock)
        deadline = time.monotonic() + _START_SECONDS
        while probe(self.path) != "up":
            if os.waitpid(pid, os.WNOHANG)[0]:
                raise RuntimeError(f"the server ended while starting: {last_line(LOG)}")
            if time.monotonic() >= deadline:
                os.kill(pid, signal.SIGKILL)
                raise RuntimeError(f"the server did not answer within {_START_SECONDS:g} s: {last_line(LOG)}")
            time.sleep(0.005)

    def _become_server(self, lock: int) -> NoReturn:
        try:
            os.setsid()
            redirect_to_log()
            os.set_inheritable(lock, True)
            log = "yes" if self.owner is None else "no"
            os.execv(self.binary, [self.binary, *server_options(self.path, appendonly=log)])
        except BaseException as error:
            os.write(2, f"cannot run {self.binary}: {error}\n".encode())
            os._exit(127)

    def watch(self) -> None:
        """Return when the server has ended, by itself or because nobody needs it."""
        with _dial(self.path, 5.0) as sock:
            if self.owner is None:
                self._watch_clients(sock)
            else:
                self._watch_owner(sock, *self.owner)

    def _watch_clients(self, sock: socket.socket) -> None:
        interval = min(1.0, max(0.02, self.idle / 4))
        seen = -1
        since = time.monotonic()
        while not _ended(sock, interval):
            clients, total = _clients(sock)
            if clients > 1 or total != seen:
                seen, since = total, time.monotonic()
            # Somebody cleaned up: no new client can find this server. Clients it still has start another one.
            if not os.path.exists(self.path) or not os.path.exists(LOCK):
                sock.sendall(b"SHUTDOWN NOSAVE\r\n")
            elif time.monotonic() - since >= self.idle and self._stop_idle(sock, seen):
                return

    def _stop_idle(self, sock: socket.socket, seen: int) -> bool:
        try:
            # No waiting: whoever holds it is about to be a client, or waits for this keeper to go.
            with locked(LOCK, seconds=0):
                # Twice: the first reply proves that every connection made before the lock has been accepted.
                _clients(sock)
                if _clients(sock) != (1, seen):
                    return False
                sock.sendall(b"SHUTDOWN NOSAVE\r\n")
                return _ended(sock, _HANDOVER_SECONDS)
        except TimeoutError:
            return False

    def _watch_owner(self, sock: socket.socket, pid: int, mark: str) -> None:
        server = int(_ask(sock, "server")["process_id"])
        while not _ended(sock, 0.2):
            if start_mark(pid) != mark:
                sock.sendall(b"SHUTDOWN NOSAVE\r\n")
                if not _ended(sock, 2.0):
                    os.kill(server, signal.SIGKILL)
                break
        if start_mark(pid) != mark:
            os.chdir("/")
            clear_away(self.directory)


def clear_away(directory: str) -> None:
    """Remove ``directory`` with all it holds, if it is there."""
    # Renamed first: a client that reconnects meanwhile would make its lock file anew between the last unlink and the
    # rmdir, and the directory would stay for good.
    away = f"{directory}.{os.getpid()}"
    with contextlib.suppress(OSError):
        os.rename(directory, away)
        shutil.rmtree(away, ignore_errors=True)


def server_options(path: str, *, appendonly: str) -> list[str]:
    """Return the command line of an embedded server: one unix socket, no TCP, working directory as data directory."""
    options = {
        "port": "0",
        "unixsocket": path,
        "unixsocketperm": "700",
        "appendonly": appendonly,
        "appendfsync": "everysec",
        "save": "",
        "loglevel": "warning",
        "daemonize": "no",
        # A row stays compact with a payload up to this, in two thirds of the memory; a job takes no more time for it.
        "hash-max-listpack-value": "1024",
    }
    return [part for name, value in options.items() for part in (f"--{name}", value)]


def redirect_to_log() -> None:
    """Send this process's output to the log in the working directory, which is started afresh when it is big."""
    big = os.path.exists(LOG) and os.path.getsize(LOG) > _LOG_BYTES
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if big else 0), 0o600)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)


def last_line(path: str) -> str:
    """Return the last line of a log, to say why something failed."""
    with open(path, "rb") as file:
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"nothing in {path}"


def _dial(path: str, seconds: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(seconds)
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


def _ended(sock: socket.socket, seconds: float) -> bool:
    """Wait until the server closes ``sock``; anything it says meanwhile is a refusal to shut down."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if select.select([sock], [], [], left)[0]:
            try:
                if not sock.recv(4096):
                    return True
            except ConnectionError:
                return True
    return False


def _ask(sock: socket.socket, *sections: str) -> dict[str, str]:
    sock.settimeout(None)  # a server busy with a long script is not idle: wait for it
    sock.sendall(f"INFO {' '.join(sections)}\r\n".encode())
    reply = b""
    while not reply.endswith(b"\r\n") or len(reply) < _length(reply):
        part = sock.recv(65536)
        if not part:
            break
        reply += part
    return dict(line.split(":", 1) for line in reply.decode().splitlines() if ":" in line)


def _length(reply: bytes) -> int:
    head, _, _ = reply.partition(b"\r\n")
    return len(head) + 2 + int(head[1:]) + 2 if head.startswith(b"$") else len(head) + 2


def _clients(sock: socket.socket) -> tuple[int, int]:
    """Return how many clients there are, this one included, and how many have ever connected."""
    info = _ask(sock, "clients", "stats")
    return int(info.get("connected_clients", "0")), int(info.get("total_connections_received", "0"))


def main(directory: str, path: str, binary: str, idle: str, pid: str = "", mark: str = "") -> None:
    """Leave the starter's process tree, report on standard output in one line, then watch."""
    if os.fork():
        os._exit(0)  # the starter waits for this one only, so it is left with no child
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(directory)
    keeper = Keeper(directory, path, binary, float(idle), (int(pid), mark) if pid else None)
    try:
        keeper.start()
    except RuntimeError as error:
        sys.exit(str(error))
    os.write(1, b"ready\n")
    redirect_to_log()
    keeper.watch()


if __name__ == "__main__":
    main(*sys.argv[1:])
