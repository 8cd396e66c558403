"""Where each channel is subscribed: finds the nodes, connects to them, and again when they went away."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from redis.cluster import RedisCluster
from redis.exceptions import RedisClusterException, RedisError

from echomq_tasks.bus.channel import SHARDED, Channel
from echomq_tasks.bus.link import Link
from echomq_tasks.bus.loop import Loop
from echomq_tasks.connection import Connection
from echomq_tasks.errors import EchoMQError, ServerUnavailable

_logger = logging.getLogger(__name__)

#: Seconds of the first pause before connecting again, and of the longest; each is any part of that, so that many
#: subscribers of one server do not all come back at once.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
#: After so many seconds without a pause, the next trouble is a new one.
_CALM = 5.0


class Placing(Loop):
    """The links, and the channels on them or without one. All of it belongs to the thread."""

    def __init__(self, connection: Connection) -> None:
        super().__init__("echomq-bus")
        self._connection = connection
        self._timeout = connection.config.timeout
        self._links: dict[str, Link] = {}
        self._unplaced: set[Channel] = set()
        # Nodes that are being connected to, and the channels that wait for each.
        self._dialling: dict[str, set[Channel]] = {}
        self._refreshing = False
        #: When the slots were last learnt.
        self.looked_at = time.monotonic()
        self._tries = 0
        self._tried_at = -_CALM
        self.retry_at: float | None = None

    # What the hub does for it.

    def channel_lost(self, channel: Channel, link: Link) -> None:
        """The channel is on this link no more."""
        raise NotImplementedError

    def refuse(self, channels: Iterable[Channel], error: EchoMQError, *, for_good: bool) -> None:
        """There is no place for these channels: now, or ``for_good``."""
        raise NotImplementedError

    def place(self) -> None:
        """Put every channel that has no link on the one of its node, or connect to that."""
        if self._refreshing:
            return
        for channel in list(self._unplaced):
            home = self._home(channel.key())
            link = self._links.get(home)
            if link is not None:
                self._unplaced.discard(channel)
                channel.link = link
                link.channels.add(channel)
                if channel.lost_at is not None:
                    link.settling.add(channel)
                link.ask(channel.verb, channel)
            elif home in self._dialling:
                self._dialling[home].add(channel)
            else:
                self._dialling[home] = {channel}
                self._dial(home, channel.key())
        for link in list(self._links.values()):
            self.flush(link)

    def _home(self, key: bytes) -> str:
        """The node that has the slot of ``key``; none has a name outside of a cluster."""
        if not self._connection.is_cluster:
            return ""
        client = self._connection.client
        assert isinstance(client, RedisCluster)
        try:
            node = client.get_node_from_key(key)
            assert node is not None
        except (RedisClusterException, RedisError, KeyError, AttributeError):
            # Nobody has the slot, or the client is learning who has. Dialling will tell which.
            return f"the owner of {key!r}"
        return f"{node.host}:{node.port}"

    def _dial(self, home: str, key: bytes) -> None:
        made: list[Any] = []

        def work() -> Callable[[], None]:
            try:
                made.append(self._connection.fresh(key, blocking=True))
            except EchoMQError as error:
                return partial(self._not_dialled, home, error)
            except Exception as error:
                # What redis-py raises of a client that somebody closes, or that learns the cluster's shape right now.
                return partial(self._not_dialled, home, self._unavailable(error))
            return partial(self._dialled, home, key, made[0])

        def undo() -> None:
            for connection in made:
                connection.disconnect()

        try:
            self.errand(work, undo)
        except RuntimeError as error:
            self.post(partial(self._not_dialled, home, self._unavailable(error)))

    def _unavailable(self, error: Exception) -> ServerUnavailable:
        return ServerUnavailable(f"cannot use {self._connection.config.address}: {error}")

    def _dialled(self, home: str, key: bytes, connection: Any) -> None:
        self._dialling.pop(home, None)
        # The slots may have been learnt anew on the way, and lead elsewhere than to where this one went.
        name = home if self._home(key) == home else f"{connection.host}:{connection.port}"
        if self.over or name in self._links or not self._unplaced:
            connection.disconnect()
            return self.place()
        link = self._links[name] = Link(connection, name)
        self.watch(link.sock, link, writing=False)
        self.place()
        if not link.channels:
            self.cut(link)

    def _not_dialled(self, home: str, error: EchoMQError) -> None:
        waiting = self._dialling.pop(home, set()) & self._unplaced
        for channel in waiting:
            channel.tries += 1
        self.refuse(waiting, error, for_good=not isinstance(error, ServerUnavailable))
        if self._unplaced:
            self.retry()

    def refresh(self) -> None:
        """Learn anew where the slots are, then place what has no place."""
        client = self._connection.client
        if self._refreshing or not isinstance(client, RedisCluster):
            return
        self._refreshing = True
        self.looked_at = time.monotonic()

        def work() -> Callable[[], None]:
            try:
                client.nodes_manager.initialize()
            except Exception as error:
                _logger.debug("the slots of the cluster cannot be learnt now: %s", error)
            return self._refreshed

        try:
            self.errand(work)
        except RuntimeError:
            self._refreshing = False

    def _refreshed(self) -> None:
        self._refreshing = False
        self.retry()

    def retry(self) -> None:
        """Try again in a while."""
        if self.retry_at is None:
            now = time.monotonic()
            self._tries = 0 if now - self._tried_at > _CALM else self._tries + 1
            self._tried_at = now
            self.retry_at = now + random.uniform(0, min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self._tries, 10)))

    def broken(self, link: Link, error: Exception) -> None:
        """A link is of no more use: its channels get another one."""
        self.cut(link)
        _logger.info("the connection for events to %s broke: %s", self._connection.config.address, error)
        for channel in list(link.channels):
            self.unplace(channel, link)
        if self._unplaced:
            self.retry()

    def unplace(self, channel: Channel, link: Link) -> None:
        """Take a channel off its link, to be placed anew."""
        link.channels.discard(channel)
        link.settling.discard(channel)
        self.channel_lost(channel, link)
        channel.link = None
        channel.confirmed = False
        self._unplaced.add(channel)

    def cut(self, link: Link) -> None:
        """Close a link."""
        self.unwatch(link.sock)
        if self._links.get(link.name) is link:
            del self._links[link.name]
        link.close()

    def flush(self, link: Link) -> None:
        """Send what a link has to send; watch it for as long as something is left."""
        raise NotImplementedError

    def strays(self, link: Link) -> list[Channel]:
        """Channels that are heard here, but belong to another node: this one may be about to leave the cluster."""
        # A sharded one that moves is told so by the server; those that PUBLISH reaches are not.
        return [each for each in link.channels if each.verb != SHARDED and self._home(each.key()) != link.name]
