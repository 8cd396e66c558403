"""The client factory: one client per topology, every connection fenced, no command ever repeated by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, cast
from weakref import WeakMethod

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import ConnectionPool, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry
from redis.sentinel import Sentinel

from echomq_tasks.config import Config
from echomq_tasks.connection.failures import typed_errors
from echomq_tasks.connection.fence import FENCE_KEY, WIRE_VERSION, Fence, Server, judge
from echomq_tasks.connection.owner import FenceOwner
from echomq_tasks.connection.tls import check_files
from echomq_tasks.errors import EmbeddedUnavailable
from echomq_tasks.forks import after_fork


def connect(url: str | None = None, **options: Any) -> Connection:
    """Connect to the server that ``url`` names and check that we may use it.

    Parameters:
        url: see :meth:`echomq_tasks.config.Config.parse`; None is ``EMQ_URL``, else the shared embedded server.
        options: the options of :class:`~echomq_tasks.config.Config`, beside the URL.

    Returns:
        A connected :class:`Connection`; close it, or use it in a ``with`` statement.

    Raises:
        ConfigError: the URL, an option, a TLS file, the credentials or the database's number is wrong.
        ServerUnavailable: nothing answers there.
        ServerTooOld: the server is below the floor.
        VersionMismatch: the server's keys follow another wire version.
        EmbeddedUnavailable: the embedded server is not installed or did not start.
    """
    return Connection(Config.parse(url, **options))


class Companion(Protocol):
    """What lives as long as a connection."""

    def close(self) -> None:
        """Let go of what it holds."""


C = TypeVar("C", bound=Companion)


class Connection:
    """One server and the pool of connections to it; safe to share between threads and across a fork.

    Parameters:
        config: where to connect. Connecting happens here; see :func:`connect` for what it raises.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.is_cluster = config.kind == "cluster"
        self._client: redis.Redis | RedisCluster | None = None
        # Weakly, or a connection that nobody refers to any more would stay open until the collector comes by.
        pool = WeakMethod(self._fence_pool)
        self._owner = FenceOwner(lambda: (found := pool()) and found())
        self._fence = Fence(handshake=not self.is_cluster, elsewhere=self._owner.ask)
        self._sentinel: Sentinel | None = None
        self._companions: dict[Any, Companion] = {}
        self._reopening = threading.Lock()
        check_files(config)
        with typed_errors(config):
            self._client = self._open()
            try:
                self._check()
            except BaseException:
                self.close()
                raise
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        # A pool finds out by itself that it is in a child. A cluster's client does not: its locks may be held for ever
        # by threads that the child does not have. It is opened again on its next use, for a fork must do no I/O.
        self._reopening = threading.Lock()
        if self.is_cluster:
            self._client = None

    @property
    def client(self) -> redis.Redis | RedisCluster:
        """The redis-py client, for commands of your own; it never repeats one by itself. Also after :meth:`close`."""
        client = self._client
        if client is None:
            with self._reopening, typed_errors(self.config):
                client = self._client = self._client or self._open()
        return client

    @property
    def server(self) -> Server:
        """The server that answered the newest connection."""
        return self._fence.server

    def fresh(self, key: bytes, *, blocking: bool) -> Any:
        """Return a new connection of its own to the server that holds ``key``, connected and fenced.

        Parameters:
            key: decides the node in a cluster; elsewhere there is one server.
            blocking: True to wait for replies without end (``BLPOP``); else the reply timeout holds.

        Returns:
            A redis-py connection outside the pool. The caller owns it and calls ``disconnect()``. Should it break, ask
            for another one: reconnecting it would not follow a failover.

        Raises:
            ServerUnavailable: the node cannot be reached; and whatever else :func:`connect` raises.
        """
        with typed_errors(self.config):
            try:
                connection = self._dial(key)
            except (RedisConnectionError, RedisTimeoutError):
                if not isinstance(self.client, RedisCluster):
                    raise
                # The slot may have a new owner; nothing was sent, so asking the others and dialling again is harmless.
                self.client.nodes_manager.initialize()
                connection = self._dial(key)
            if blocking:
                # Only now: the handshake with a server that hangs must still time out.
                connection.socket_timeout = None
                connection._get_socket().settimeout(None)  # noqa: SLF001 - redis-py has no public way to the socket
            return connection

    def companion(self, kind: Callable[[Connection], C]) -> C:
        """Return the one object that ``kind(connection)`` made for this connection; it is closed with it."""
        found = self._companions.get(kind)
        if found is None:
            # Two threads may both make one; setdefault lets one of them win.
            found = self._companions.setdefault(kind, kind(self))
        return cast(C, found)

    def forget_idle(self) -> None:
        """Close the client's idle connections, so that its next command opens one, to where the address leads now."""
        if not isinstance(self.client, RedisCluster):
            self.client.connection_pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        """Close every pooled connection and companion. Connections from :meth:`fresh` stay their owners'.

        This frees sockets, it does not forbid: a later use of :attr:`client` or :meth:`fresh` connects again, and then
        wants another ``close()``. Closing twice does no harm.
        """
        for companion in list(self._companions.values()):
            companion.close()
        self._owner.close()
        self.client.close()
        if self._sentinel is not None:
            self._sentinel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Connection to {self.config.address}>"

    def _open(self) -> redis.Redis | RedisCluster:
        options = self._options()
        match self.config.kind:
            case "cluster":
                # Retry(…, 0) stands for "a command is sent once"; MOVED and ASK are still followed.
                nodes = [ClusterNode(host, port) for host, port in self.config.nodes]
                return RedisCluster(startup_nodes=nodes, retry=_never(), **options)
            case "sentinel":
                self._sentinel = Sentinel(self.config.nodes, sentinel_kwargs=self._sentinel_options(options))
                return self._sentinel.master_for(  # type: ignore[no-any-return]
                    self.config.master, db=self.config.db, retry=_never(), **options
                )
            case "unix":
                pool = ConnectionPool(
                    connection_class=UnixDomainSocketConnection,
                    path=self.config.path,
                    db=self.config.db,
                    retry=_never(),
                    **options,
                )
                return redis.Redis.from_pool(pool)
            case "embedded":
                # Here, because it needs what only POSIX has; every other kind of server works without.
                try:
                    from echomq_tasks.connection import embedded
                except ImportError as error:
                    raise EmbeddedUnavailable(
                        f"there is no embedded server on this platform ({error}): set EMQ_URL to a Valkey server"
                    ) from error
                pool = embedded.pool(self.config, db=self.config.db, retry=_never(), **options)
                return redis.Redis.from_pool(pool)
            case _:
                host, port = self.config.nodes[0]
                return redis.Redis(host=host, port=port, db=self.config.db, retry=_never(), **options)

    def _options(self) -> dict[str, Any]:
        config = self.config
        options: dict[str, Any] = {
            "username": config.username,
            "password": config.password,
            "socket_timeout": config.timeout,
            "socket_connect_timeout": config.connect_timeout,
            "max_connections": config.max_connections,
            "protocol": config.protocol,
            "client_name": config.client_name,
            "decode_responses": False,
            # The fence names the library in its own round trip.
            "driver_info": None,
            "maint_notifications_config": MaintNotificationsConfig(enabled=False),
            "redis_connect_func": self._fence,
        }
        return options | self._ssl_options()

    def _ssl_options(self) -> dict[str, Any]:
        if not self.config.ssl:
            return {}
        names = ("ca_certs", "ca_path", "certfile", "keyfile", "cert_reqs", "check_hostname")
        return {"ssl": True} | {f"ssl_{name}": getattr(self.config, f"ssl_{name}") for name in names}

    def _sentinel_options(self, options: dict[str, Any]) -> dict[str, Any]:
        # A Sentinel holds no keys: no fence there, and its own user.
        mine = {name: value for name, value in options.items() if name != "redis_connect_func"}
        return mine | {
            "username": self.config.sentinel_username,
            "password": self.config.sentinel_password,
            "retry": _never(),
        }

    def _check(self) -> None:
        if isinstance(self.client, RedisCluster):
            # Through the client, which finds the slot's owner: another node's hook had to pass.
            found = self.client.get(FENCE_KEY)
            if found is None:
                self.client.set(FENCE_KEY, WIRE_VERSION, nx=True)
                found = self.client.get(FENCE_KEY)
            judge(found)
        else:
            self.client.connection_pool.release(self.client.connection_pool.get_connection())

    def _fence_pool(self) -> ConnectionPool | None:
        """The pool of the cluster node that holds the fence; None while the client is being made."""
        client = self._client
        if not isinstance(client, RedisCluster):
            return None
        return client.get_redis_connection(client.get_node_from_key(FENCE_KEY)).connection_pool

    def _dial(self, key: bytes) -> Any:
        client = self.client
        if isinstance(client, RedisCluster):
            client = client.get_redis_connection(client.get_node_from_key(key))
        pool = client.connection_pool
        connection = pool.connection_class(**pool.connection_kwargs)
        connection.connect()
        return connection


def _never() -> Retry:
    """Return a policy that never repeats a command: a repeated write may have been done twice."""
    return Retry(NoBackoff(), 0)
