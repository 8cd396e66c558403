"""The server that is measured on: started for a run on a free port of the loopback, with nothing on disk by default."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis


class Server:
    """A server process, and what it tells about itself."""

    def __init__(self, binary: Path, folder: Path, *, append_only: bool = False) -> None:
        """Start it.

        Args:
          binary: a `valkey-server` or `redis-server`.
          folder: where it may write.
          append_only: keep an append-only file, synced every second.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.binary = binary
        self.port = _free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        options = {
            "port": self.port,
            "bind": "127.0.0.1",
            "save": "",
            "appendonly": "yes" if append_only else "no",
            "dir": str(folder),
            "loglevel": "warning",
        }
        command = [str(binary)]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        self._log = folder / "server.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self.client = redis.Redis(port=self.port, socket_timeout=60)
        self._wait()
        info = self.client.info("server")
        name = "Valkey" if "valkey_version" in info else "Redis"
        self.version = f"{name} {info.get('valkey_version', info['redis_version'])}"

    def _wait(self) -> None:
        deadline = time.monotonic() + 10
        while True:
            try:
                self.client.ping()
                return
            except redis.ConnectionError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    raise RuntimeError(f"the server did not start: {self._log.read_text()[-300:]}") from None
                time.sleep(0.01)

    def stop(self) -> None:
        """End it, and wait until it has."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def clear(self) -> None:
        """Throw everything away, and not behind the back of what is measured next."""
        self.client.execute_command("FLUSHALL", "SYNC")

    def lacks(self, probes: Sequence[Sequence[str]]) -> str | None:
        """The first of the commands that it refuses, with its words; None when it takes them all."""
        for probe in probes:
            try:
                self.client.execute_command(*probe)
            except redis.ResponseError as refusal:
                return f"{' '.join(probe[:3])} ...: {refusal}"
        self.client.delete("probe")
        return None

    def used(self) -> tuple[float, int]:
        """Seconds of CPU that it has used, and commands that it has run, those inside of scripts included."""
        info: dict[str, Any] = self.client.info("cpu", "stats")
        return float(info["used_cpu_sys"]) + float(info["used_cpu_user"]), int(info["total_commands_processed"])

    def memory(self) -> int:
        """Bytes that it has allocated."""
        return int(self.client.info("memory")["used_memory"])

    def setting(self, name: str) -> str:
        """How it is configured."""
        return str(self.client.config_get(name)[name])

    def set(self, name: str, value: str) -> None:
        """Configure it."""
        self.client.config_set(name, value)

    def left(self, keys: Sequence[str]) -> int:
        """How many jobs are not done with: the sum of the sizes of the keys (see `Adapter.left`)."""
        return sum(self._size(*key.split("@")) for key in keys)

    def _size(self, key: str, group: str | None = None) -> int:
        kind = self.client.type(key)
        if kind == b"stream" and group is not None:
            for found in self.client.xinfo_groups(key):
                if found["name"] == group.encode():
                    waiting = found.get("lag")
                    return int(found["pending"]) + (self.client.xlen(key) if waiting is None else int(waiting))
        commands = {b"list": "LLEN", b"zset": "ZCARD", b"hash": "HLEN", b"set": "SCARD", b"stream": "XLEN"}
        return int(self.client.execute_command(commands[kind], key)) if kind in commands else 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
