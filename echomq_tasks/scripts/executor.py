"""Run scripts: EVALSHA, load and repeat on NOSCRIPT, one round trip for many calls, typed errors."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import hiredis
import redis
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError

from echomq_tasks.connection import Connection
from echomq_tasks.errors import EchoMQError, ServerUnavailable
from echomq_tasks.forks import after_fork
from echomq_tasks.identity import Mint, NodeLease
from echomq_tasks.identity.node import NoLease
from echomq_tasks.keyspace import NODE_PREFIX
from echomq_tasks.scripts.calls import Call, Sent
from echomq_tasks.scripts.cluster import Argument, Nodes, Packed
from echomq_tasks.scripts.courier import Couriers
from echomq_tasks.scripts.faults import error_of
from echomq_tasks.scripts.loader import Script, load_scripts
from echomq_tasks.scripts.streams import Streams
from echomq_tasks.scripts.wire import Looks, Wire

#: How often scripts are loaded for one call: somebody may flush them between the load and the call.
_LOADS = 3
#: A connection idle for longer than this many seconds is checked for a closed peer before it is used.
_CHECK_AFTER = 1.0
#: At most so many connections are kept open for the next calls, and each for so many seconds.
_MOST_IDLE = 64
_IDLE_SECONDS = 60.0


class Scripts:
    """The scripts of one server, and the mint whose node id that server leases.

    Safe to share between threads and across forks. A standalone server is spoken to over connections of our own with
    commands packed here, because the client's general path costs four times the CPU of a call (docs/performance.md);
    a cluster goes through its client, which knows the slots.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._scripts = load_scripts()
        # Idle connections, most recently used last. deque operations are atomic, so no lock is needed.
        self._idle: deque[tuple[float, Wire]] = deque()
        self._looks = Looks()
        self._nodes = Nodes(connection)
        # In a cluster: the scripts that a node is to know before its first calls, and the nodes that do.
        self._early: tuple[str, ...] = ()
        self._informed: dict[str, tuple[str, ...]] = {}
        #: Whether to mint fails when the server does not answer, for who would else wait for it a second time.
        self.hasty = False
        self.mint = Mint(NodeLease(self).current)
        after_fork(self._after_fork)

    @classmethod
    def of(cls, connection: Connection) -> Scripts:
        """The one executor of ``connection``, made on first use and closed with it."""
        return connection.companion(cls)

    def close(self) -> None:
        """Close the idle connections."""
        # Several threads may do so at once, and others take from it: to have looked first would say nothing.
        with suppress(IndexError):
            while True:
                self._idle.pop()[1].close()

    def _after_fork(self) -> None:
        # The sockets are the parent's; redis-py closes only the child's descriptors when these are collected.
        self._idle = deque()

    def lease(self, owner: str, lease_ms: int, held: int | None) -> int | None:
        """Lease a node id from the server (:class:`echomq_tasks.identity.NodeStore`)."""
        start = int(owner, 16) % 1024
        try:
            node = self.call("node_lease", NODE_PREFIX, (owner, lease_ms, -1 if held is None else held, start))
        except ServerUnavailable as error:
            if self.hasty and isinstance(error.__cause__, redis.TimeoutError):
                raise NoLease(str(error)) from error.__cause__
            raise
        return None if node < 0 else int(node)

    def call(
        self,
        name: str,
        key: bytes,
        args: Sequence[Argument] = (),
        events: Sequence[Argument] = (),
        *,
        repeat: bool = True,
    ) -> Any:
        """Run one script.

        Parameters:
          name: the script's name, as in ``job_claim``.
          key: its declared key, which also names the slot.
          args: its arguments.
          events: what it is to announce; see :class:`Call`.
          repeat: run it once more on a fresh connection when the connection drops. A timeout is never repeated: the
            first call may still be on its way.

        Raises:
          Refused: when the script refuses; the subclass names the reason.
          ServerUnavailable: when the connection dropped (twice, with ``repeat``) or no answer came in time.
          ServerOutOfMemory: when the server has no memory for it.
          ScriptError: on any other error.
        """
        call = Call(name, key, args, events)
        commands = [self._command(call)]
        [reply] = self._heeded([call], commands, self._send(commands, repeat), repeat)
        if isinstance(reply, EchoMQError):
            raise reply
        return reply

    def batch(self, calls: Sequence[Call], *, repeat: bool = True) -> list[Any]:
        """Run several calls in one round trip (one a slot in a cluster) and answer their replies in order.

        All calls run, also when an earlier one fails; then the first failure is raised.

        Raises: as :meth:`call`.
        """
        replies = self.attempt(calls, repeat=repeat)
        for reply in replies:
            if isinstance(reply, EchoMQError):
                raise reply
        return replies

    def attempt(self, calls: Sequence[Call], *, repeat: bool = True) -> list[Any]:
        """As :meth:`batch`, with the error of a call that failed in the place of its reply.

        Raises:
          ServerUnavailable: when the connection dropped or no answer came in time.
        """
        commands = [self._command(call) for call in calls]
        return self._heeded(calls, commands, self._send(commands, repeat), repeat)

    def load(self, names: Sequence[str]) -> None:
        """Have the server know these scripts before they are called; what is missing then is loaded all the same.

        A cluster's nodes are told later, each before the first calls that :meth:`send` sends there: one may be away.

        Raises:
          ServerUnavailable, ConfigError: when the server does not do it.
        """
        if self.connection.is_cluster:
            if not set(names).issubset(self._early):
                self._early = (*self._early, *names)
        elif commands := self._loads(names, ()):
            for name, reply in zip(names, self._send(commands, True), strict=True):
                if isinstance(reply, ResponseError):
                    raise self._error(self._scripts[name], reply) from reply

    def send(self, calls: Sequence[Call]) -> Sent:
        """Send several calls, for :meth:`receive` to read their replies: as :meth:`attempt`, in two steps.

        In a cluster a courier does all, so that who has other nodes to talk to need not wait for these. Under TLS, the
        second step does all.

        Raises:
          ServerUnavailable: when there is no connection, or no way to send in time.
        """
        if self.connection.is_cluster:
            return Sent(calls, [], None, Couriers.of(self.connection).send(partial(self._carry, calls)))
        commands = [self._command(call) for call in calls]
        wire = self._take()
        if wire.fileno() is None:
            self._put_back(wire)
            return Sent(calls, commands, None)
        try:
            wire.send(_packed(commands))
        except BaseException as error:
            wire.close()
            if isinstance(error, redis.TimeoutError):
                raise self._broke(error) from error
            if not isinstance(error, (redis.ConnectionError, OSError)):
                raise
            # Those of its age are likely gone too: the second step begins with another one.
            self.close()
            return Sent(calls, commands, None)
        return Sent(calls, commands, wire)

    def receive(self, sent: Sent, *, late: bool = False) -> list[Any]:
        """Wait for the replies to what was sent.

        Parameters:
          sent: what was.
          late: whether they should have come by now, so that there is no more waiting for them.

        Raises: as :meth:`attempt`.
        """
        if sent.errand is not None:
            carried: list[Any] = sent.errand.result()
            return carried
        calls, commands, wire = sent.calls, sent.commands, sent.take()
        if wire is None:
            replies = self._send(commands, True)
        else:
            try:
                replies = self._read(wire, len(commands), partial(wire.receive, late=late))
            except ServerUnavailable as error:
                if isinstance(error.__cause__, redis.TimeoutError):
                    raise
                self.close()
                replies = self._send(commands, False)
        return self._heeded(calls, commands, replies, True)

    def node_of(self, key: bytes) -> str:
        """The name of the node of a cluster that holds this key, as far as is known; waits for nobody."""
        return self._nodes.name(key)

    def _carry(self, calls: Sequence[Call]) -> list[Any]:
        """What a courier does."""
        for node in self._nodes.of(call.key for call in calls):
            early = self._early
            if self._informed.get(node.name, ()) != early:
                self._load_on(node, early)
                self._informed[node.name] = early
        return self.attempt(calls)

    def _command(self, call: Call) -> Packed:
        script = self._scripts[call.name]
        args = (*call.args, *call.events, len(call.events)) if script.announces else call.args
        if self.connection.is_cluster:
            # A second key of the slot, and one that never exists: while the slot moves from node to node, a node that
            # has only part of it answers TRYAGAIN, where it would run a script with one key on that part.
            return ("EVALSHA", script.sha, 2, call.key, call.key + b"slot", *args)
        return ("EVALSHA", script.sha, 1, call.key, *args)

    def _heeded(self, calls: Sequence[Call], commands: list[Packed], replies: list[Any], repeat: bool) -> list[Any]:
        """The replies once those calls were sent again that a refusal did not concern; errors are ours then."""
        if not any(isinstance(reply, ResponseError) for reply in replies):
            return replies
        demoted = [index for index, reply in enumerate(replies) if isinstance(reply, ReadOnlyError)]
        if demoted and not self.connection.is_cluster:
            # The master is another server now. What it refused did not run, so it is sent again, to the new one.
            self.close()
            Streams.of(self.connection).close()
            self.connection.forget_idle()
            for index, reply in zip(demoted, self._send([commands[index] for index in demoted], repeat), strict=True):
                replies[index] = reply
        for _ in range(_LOADS):
            missing = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
            if not missing:
                break
            names = sorted({calls[index].name for index in missing})
            loads = self._loads(names, [calls[index].key for index in missing])
            again = self._send([*loads, *(commands[index] for index in missing)], repeat)
            for name, reply in zip(names, again[: len(loads)], strict=False):
                if isinstance(reply, ResponseError):
                    raise self._error(self._scripts[name], reply) from reply
            for index, reply in zip(missing, again[len(loads) :], strict=True):
                replies[index] = reply
        missing = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if missing:
            # Somebody flushes all the time. With its text a script cannot be missing.
            whole = [("EVAL", self._scripts[calls[index].name].text, *commands[index][2:]) for index in missing]
            for index, reply in zip(missing, self._send(whole, repeat), strict=True):
                replies[index] = reply
        return [
            self._error(self._scripts[call.name], reply) if isinstance(reply, ResponseError) else reply
            for call, reply in zip(calls, replies, strict=True)
        ]

    def _loads(self, names: Sequence[str], keys: Sequence[bytes]) -> list[Packed]:
        """The commands that load scripts; they travel with the calls that need them, so a flush hardly gets between."""
        if not self.connection.is_cluster:
            return [("SCRIPT", "LOAD", self._scripts[name].text) for name in names]
        for node in self._nodes.of(keys):
            self._load_on(node, names)
        return []

    def _load_on(self, node: Any, names: Sequence[str]) -> None:
        for name in names:
            if (refusal := self._nodes.load(node, self._scripts[name].text)) is not None:
                raise self._error(self._scripts[name], refusal) from refusal

    def _send(self, commands: list[Packed], repeat: bool) -> list[Any]:
        if self.connection.is_cluster:
            return self._again(partial(self._exchange_cluster, commands), repeat)
        return self._again(partial(self._exchange, _packed(commands), len(commands)), repeat)

    def read(self, packed: bytes, count: int) -> list[Any]:
        """Send plain commands that only read, packed, in one round trip; not in a cluster.

        Parameters:
          packed: the commands.
          count: how many they are.

        Returns:
          The replies; a refusal is an exception in its place.

        Raises:
          ServerUnavailable: as :meth:`call`.
        """
        return self._again(partial(self._exchange, packed, count), True)

    def _again(self, exchange: Callable[[], list[Any]], repeat: bool) -> list[Any]:
        try:
            return exchange()
        except ServerUnavailable as error:
            if isinstance(error.__cause__, redis.TimeoutError):
                raise
            # One dropped connection means that the others of its age are likely gone too.
            self.close()
            if not repeat:
                raise
            return exchange()

    def _exchange(self, packed: bytes, count: int) -> list[Any]:
        wire = self._take()
        return self._read(wire, count, partial(wire.exchange, packed))

    def _read(self, wire: Wire, count: int, read: Callable[[int], list[Any]]) -> list[Any]:
        try:
            replies = read(count)
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            wire.close()
            raise self._broke(error) from error
        except BaseException:
            # An exception thrown into this thread (a time limit, a shutdown) may leave an answer unread.
            wire.close()
            raise
        self._put_back(wire)
        return replies

    def _broke(self, error: Exception) -> ServerUnavailable:
        return ServerUnavailable(
            f"the connection to {self.connection.config.address} failed before an answer came: {error}"
        )

    def _put_back(self, wire: Wire) -> None:
        now = time.monotonic()
        self._idle.append((now, wire))
        # The longest unused is at the left: a burst of threads must not leave its connections open for ever.
        try:
            if len(self._idle) > _MOST_IDLE or now - self._idle[0][0] > _IDLE_SECONDS:
                self._idle.popleft()[1].close()
        except IndexError:
            pass  # another thread took it

    def _take(self) -> Wire:
        try:
            used, wire = self._idle.pop()
        except IndexError:
            return self._open()
        if time.monotonic() - used > _CHECK_AFTER and wire.closed_by_peer():
            wire.close()
            return self._open()
        return wire

    def _open(self) -> Wire:
        connection = self.connection.fresh(NODE_PREFIX, blocking=False)
        return Wire(connection, self.connection.config.timeout, self._looks)

    def _exchange_cluster(self, commands: list[Packed]) -> list[Any]:
        return self._nodes.exchange(commands)

    def _error(self, script: Script, reply: ResponseError) -> EchoMQError:
        return error_of(script, reply, self.connection.config.address)


def _packed(commands: Sequence[Packed]) -> bytes:
    # hiredis' stub asks for a tuple of one argument.
    return b"".join([hiredis.pack_command(command) for command in commands])  # type: ignore[arg-type]
