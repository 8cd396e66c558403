"""The hub: one thread that hears the server for all subscriptions of a bus, and hands each its events."""

from __future__ import annotations

import logging
import math
import selectors
import time
from collections.abc import Iterable, Sequence
from typing import Any

import hiredis

from echomq_tasks.bus.channel import ENDS, PATTERN, PLAIN, SHARDED, Channel, queue_of
from echomq_tasks.bus.feed import Feed
from echomq_tasks.bus.link import PING, Link, LinkBroken, Sent
from echomq_tasks.bus.placing import Placing
from echomq_tasks.connection import Connection
from echomq_tasks.errors import ConfigError, EchoMQError, ServerError, ServerUnavailable
from echomq_tasks.events import Event
from echomq_tasks.forks import after_fork

_logger = logging.getLogger(__name__)

#: Seconds of silence after which a link is asked whether it is still there.
_SILENCE = 10.0
#: Seconds after which a silent cluster is asked where the slots are.
_LOOK_AGAIN = 60.0
#: Of so many channels at most it is told that they carry what is no event.
_TOLD = 1000
_MESSAGES = {b"message": PLAIN, b"smessage": SHARDED, b"pmessage": PATTERN}
#: Errors that pass, or that another node does not answer with.
_ELSEWHERE = ("MOVED", "ASK", "CLUSTERDOWN", "TRYAGAIN", "LOADING", "MASTERDOWN", "BUSY", "UNBLOCKED", "READONLY")


class Hub(Placing):
    """Starts with :meth:`start` and ends by itself with its last feed; then make another one.

    Any thread may :meth:`join` and :meth:`leave`; neither waits. The rest is the thread's own.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        after_fork(self.forget)
        self._feeds: set[Feed] = set()
        self._starting: set[Feed] = set()
        self._left: list[Feed] = []
        self._channels: dict[tuple[bytes, bytes], Channel] = {}
        self._odd: set[bytes] = set()
        self._failure: EchoMQError | None = None

    def start(self) -> None:
        """Start the thread; for whoever has joined it.

        Raises:
          RuntimeError: when it cannot be started.
        """
        try:
            self.thread.start()
        except RuntimeError:
            self.forget()
            raise

    def join(self, feed: Feed) -> bool:
        """Let ``feed`` have its events: ``feed.started`` tells when it does. False when this hub has ended."""
        return self.post(lambda: self._join(feed))

    def leave(self, feed: Feed) -> None:
        """Let go of ``feed``: ``feed.ended`` tells when that is done."""
        if not self.post(lambda: self._leave(feed)):
            feed.let_go()

    # Feeds.

    def _join(self, feed: Feed) -> None:
        if self._failure is not None:
            return feed.fail(self._failure)
        if feed.closed:
            # Whoever asked for it has been cancelled.
            return None
        self._feeds.add(feed)
        wanted = [(verb, queue) for queue in sorted(feed.queues) for verb in (PLAIN, SHARDED)]
        wanted += [(PATTERN, pattern) for pattern in feed.patterns]
        for verb, topic in wanted:
            made = Channel(verb, topic)
            channel = self._channels.setdefault((verb, made.name), made)
            if channel is made:
                self._unplaced.add(channel)
            channel.feeds[feed] = None
            feed.channels.append(channel)
            if not channel.confirmed:
                feed.missing.add(channel)
        if feed.missing:
            self._starting.add(feed)
            feed.deadline = time.monotonic() + self._timeout
            self.place()
        else:
            feed.started.set_result(None)

    def _leave(self, feed: Feed) -> None:
        self._remove(feed)
        self._left.append(feed)

    def served(self) -> None:
        """Tell those who have left; the last one only when the sockets are closed, too."""
        while self._left:
            self._left.pop().let_go()

    def _remove(self, feed: Feed) -> None:
        self._feeds.discard(feed)
        self._starting.discard(feed)
        left: set[Link] = set()
        for channel in feed.channels:
            channel.feeds.pop(feed, None)
            if not channel.feeds and self._channels.get((channel.verb, channel.name)) is channel:
                del self._channels[channel.verb, channel.name]
                self._unplaced.discard(channel)
                if channel.link is not None:
                    left.add(channel.link)
                    self._let_go(channel, channel.link)
                    channel.link = None
        feed.channels.clear()
        for link in left:
            self._settle(link)
            self.flush(link)

    def _let_go(self, channel: Channel, link: Link) -> None:
        link.channels.discard(channel)
        link.settling.discard(channel)
        if link.channels:
            link.ask(ENDS[channel.verb], channel)
        else:
            self.cut(link)

    def _end(self, feed: Feed, error: EchoMQError) -> None:
        self._remove(feed)
        feed.fail(error)

    def close(self) -> None:
        """End every feed; for any thread."""

        def close() -> None:
            for feed in list(self._feeds):
                feed.close()

        self.post(close)

    # Links and channels.

    def channel_lost(self, channel: Channel, link: Link) -> None:
        """Note since when events may be missing, and for whom; for nobody when it was never heard here."""
        if not channel.confirmed:
            return
        if channel.lost_at is None:
            # By the wall clock, of which only the age of what was heard last is known.
            channel.lost_at = time.time() - (time.monotonic() - min(link.heard, link.held_at))
            channel.moved = False
        channel.losers |= {feed for feed in channel.feeds if feed not in self._starting}

    def refuse(self, channels: Iterable[Channel], error: EchoMQError, *, for_good: bool) -> None:
        """End the feeds that cannot have these channels; those that had them before wait, unless it is for good."""
        feeds = {feed: None for channel in channels for feed in channel.feeds}
        for feed in feeds:
            if for_good or feed in self._starting:
                self._end(feed, error)

    def _confirm(self, channel: Channel, link: Link) -> None:
        channel.confirmed = True
        channel.tries = 0
        for feed in channel.feeds:
            feed.missing.discard(channel)
            if not feed.missing and feed in self._starting:
                self._starting.discard(feed)
                feed.started.set_result(None)
        if channel in link.settling:
            link.settling.discard(channel)
            link.settled.append(channel)
        self._settle(link)

    def _settle(self, link: Link) -> None:
        """Once all that was lost is heard here again, tell its readers of the gap, and then what came behind it."""
        if link.settling:
            return
        missed: dict[Feed, list[Channel]] = {}
        for channel in link.settled:
            # Who joined meanwhile has missed nothing, and who has left does not care.
            for feed in channel.losers & channel.feeds.keys():
                missed.setdefault(feed, []).append(channel)
        for feed, channels in missed.items():
            feed.miss(channels)
        for channel in link.settled:
            channel.lost_at = None
            channel.losers.clear()
        link.settled.clear()
        held, link.held, link.held_at = link.held, [], math.inf
        for message in held:
            self._deliver(link, message)

    def flush(self, link: Link) -> None:
        """Send what a link has to send; watch it for as long as something is left."""
        if self._links.get(link.name) is not link:
            return
        try:
            self.watch(link.sock, link, writing=link.write())
        except LinkBroken as error:
            self.broken(link, error)

    def ready(self, what: Any, events: int) -> None:
        """A link can be read or written."""
        link: Link = what
        if self._links.get(link.name) is not link:
            return
        try:
            if events & selectors.EVENT_READ:
                while True:
                    for reply in link.read():
                        self._take(link, reply)
                    if not link.unread():
                        break
        except LinkBroken as error:
            self.broken(link, error)
        self.flush(link)

    # What comes from the server.

    def _take(self, link: Link, reply: Any) -> None:
        if isinstance(reply, list) and reply:
            kind = reply[0]
            if kind in _MESSAGES:
                if link.settling:
                    link.held_at = min(link.held_at, time.monotonic())
                    link.held.append(reply)
                else:
                    self._deliver(link, reply)
            elif kind == b"pong":
                link.answered()
            elif link.sent and link.sent[0].verb == kind and _name(link.sent[0]) == reply[1]:
                channel = link.answered().channel
                if channel is not None and channel.link is link and kind == channel.verb:
                    self._confirm(channel, link)
            elif kind == ENDS[SHARDED]:
                self._moved(link, reply[1])
        elif isinstance(reply, hiredis.ReplyError):
            sent = link.answered()
            if sent.channel is not None and sent.channel.link is link and sent.verb == sent.channel.verb:
                self._refused(sent.channel, link, str(reply))
        else:
            link.answered()

    def _refused(self, channel: Channel, link: Link, text: str) -> None:
        code = text.partition(" ")[0]
        if channel.verb == SHARDED and "unknown command" in text:
            # Then nobody can publish that way either.
            self._confirm(channel, link)
        elif code in _ELSEWHERE and (self._connection.is_cluster or code not in ("MOVED", "ASK")):
            self.unplace(channel, link)
            self._settle(link)
            if self._connection.is_cluster:
                self.refresh()
            else:
                self.retry()
        else:
            self.refuse([channel], self._denied(channel, text), for_good=True)

    def _denied(self, channel: Channel, text: str) -> EchoMQError:
        address = self._connection.config.address
        if text.startswith(("NOPERM", "NOAUTH")):
            return ConfigError(
                f"the user of {address} may not subscribe to {channel.name.decode()}: {text}. It needs the channels "
                "&emq:* and the commands +@pubsub, as in the ACL SETUSER line in docs/operations.md"
            )
        if text.startswith(("MOVED", "ASK")):
            return ConfigError(
                f"{address} is one node of a cluster and does not hold this queue: connect with "
                "valkey+cluster://host:port"
            )
        return ServerError(f"{address} refused to {channel.verb.decode()} to {channel.name.decode()}: {text}")

    def _moved(self, link: Link, name: bytes) -> None:
        """The server ended a sharded subscription: its slot has another owner."""
        channel = self._channels.get((SHARDED, name))
        if channel is None or channel.link is not link:
            return
        self.unplace(channel, link)
        channel.moved = True
        self._settle(link)
        self.refresh()
        # A server that is no cluster has no slots to look for.
        if not self._connection.is_cluster:
            self.retry()

    def _deliver(self, link: Link, reply: Sequence[bytes]) -> None:
        channel = self._channels.get((_MESSAGES[reply[0]], reply[1]))
        if channel is None or channel.link is not link:
            return
        pattern = channel.topic if channel.verb == PATTERN else None
        queue = channel.topic if pattern is None else queue_of(reply[2])
        if queue is None:
            return
        event = self._read(reply[-1], queue)
        if event is not None:
            for feed in channel.feeds:
                feed.offer(event, pattern)

    def _read(self, data: bytes, queue: str) -> Event | None:
        try:
            event = Event.read(data, queue)
        except Exception as error:
            # Anybody may publish anything: JSON of a thousand nested lists, for one.
            _logger.debug("not an event on the channel of queue %s: %r", queue, error)
            event = None
        if event is None and queue.encode() not in self._odd and len(self._odd) < _TOLD:
            self._odd.add(queue.encode())
            _logger.warning("the channel of queue %s carries what is no event, as %.100r: it is skipped", queue, data)
        return event

    # Time.

    def idle(self) -> bool:
        """Whether nobody listens any more."""
        return not self._feeds

    def due(self) -> float:
        """When to look again."""
        times = [link.patience() + (self._timeout if link.sent else _SILENCE) for link in self._links.values()]
        times += [feed.deadline for feed in self._starting]
        times += [self.retry_at] if self.retry_at is not None else []
        return min(times, default=time.monotonic() + _SILENCE)

    def tick(self) -> None:
        """Look for what did not come in time."""
        now = time.monotonic()
        for link in list(self._links.values()):
            silence = now - link.patience()
            if link.sent and silence >= self._timeout:
                self.broken(link, LinkBroken(f"no answer for {self._timeout:g} seconds"))
            elif not link.sent and silence >= _SILENCE:
                link.ask(PING)
                self._bring_home(link, now)
                self.flush(link)
        late = [feed for feed in self._starting if now >= feed.deadline]
        for feed in late:
            self._end(
                feed,
                ServerUnavailable(
                    f"{self._connection.config.address} did not confirm the subscription within {self._timeout:g} "
                    "seconds: check that the server is well, and in a cluster that all slots are served (CLUSTER INFO)"
                ),
            )
        if self.retry_at is not None and now >= self.retry_at:
            self.retry_at = None
            self.place()

    def _bring_home(self, link: Link, now: float) -> None:
        """In a silent moment, when nothing can come twice: channels go to the nodes that own their queues."""
        if not self._connection.is_cluster:
            return
        if now - self.looked_at > _LOOK_AGAIN:
            self.refresh()
        for channel in self.strays(link):
            self.unplace(channel, link)
            channel.moved = True
            self._let_go(channel, link)
        if self._unplaced:
            self.retry()

    def ended(self, error: BaseException | None) -> None:
        """Close everything; whoever still listens learns what went wrong."""
        if error is not None:
            _logger.error("the thread that hears the events failed: its subscriptions end", exc_info=error)
        self._failure = EchoMQError(f"the thread that hears the events failed ({error!r}): subscribe again")
        for feed in list(self._feeds):
            feed.fail(self._failure)
        self._feeds.clear()
        for link in list(self._links.values()):
            self.cut(link)

    def forget(self) -> None:
        """In the child of a fork: close what was copied."""
        for link in list(self._links.values()):
            link.close()
        super().forget()


def _name(sent: Sent) -> bytes | None:
    return None if sent.channel is None else sent.channel.name
