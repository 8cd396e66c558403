"""The line: one thread and one socket that hear the server for all ears of a connection, and come back when cut off."""

from __future__ import annotations

import contextlib
import logging
import math
import random
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from echomq_tasks.cache.subscriber import ANSWERS, Broken, Subscriber
from echomq_tasks.errors import ConfigError, EchoMQError, ServerUnavailable

if TYPE_CHECKING:
    from echomq_tasks.cache.ear import Ear
    from echomq_tasks.cache.switchboard import Switchboard

_log = logging.getLogger(__name__)

#: No epoll: a fork would share it with the child.
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)
#: Seconds of the first pause before connecting again, and of the longest; each is any part of that, so that many
#: processes do not all come back at once.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
#: Seconds after which a channel that was refused is asked for again.
_REFUSED = 5.0
#: Seconds of silence after which the server is asked whether it is still there.
_SILENCE = 10.0
#: Seconds of the longest wait.
_LONGEST = 60.0


class Line:
    """Started once; ends when the switchboard has nobody left for it. The thread owns all but the bell."""

    def __init__(self, switchboard: Switchboard) -> None:
        self._switchboard = switchboard
        self._connection = switchboard.connection
        self._bell, self._ringer = socket.socketpair()
        for end in (self._bell, self._ringer):
            end.setblocking(False)
        self._selector = _Selector()
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._subscriber: Subscriber | None = None
        #: Channels that the server refused, and when to ask for them again.
        self._refused: dict[bytes, float] = {}
        self._failure: EchoMQError | None = None
        self._tries = 0
        self._retry_at = 0.0
        self._thread = threading.Thread(target=self._run, name="echomq-cache-ear", daemon=True)

    def start(self) -> None:
        """Start the thread.

        Raises:
          RuntimeError: when it cannot be started.
        """
        self._thread.start()

    def ring(self) -> None:
        """Have it look at the ears again; for any thread, and never waits."""
        # A bell that rings already is loud enough, and one that was taken down needs no ringing.
        with contextlib.suppress(OSError):
            self._ringer.send(b"!")

    def stop(self, patience: float) -> None:
        """Wait so many seconds for its end, when the switchboard has let go of it."""
        self.ring()
        if threading.current_thread() is not self._thread:
            self._thread.join(patience)

    def forget(self) -> None:
        """Close what was copied into the child of a fork, and say no word to the server or the parent."""
        if self._subscriber is not None:
            self._subscriber.close()
        self._selector.close()
        self._bell.close()
        self._ringer.close()

    # The thread.

    def _run(self) -> None:
        try:
            while self._switchboard.serves(self):
                try:
                    self._turn()
                except Exception:
                    _log.exception("hearing for caches failed; it begins anew")
                    self._cut(ServerUnavailable("hearing for caches failed"))
        finally:
            self._switchboard.ended(self)
            self.forget()

    def _turn(self) -> None:
        if self._subscriber is None and time.monotonic() >= self._retry_at:
            self._dial()
        if self._subscriber is not None:
            self._settle(self._subscriber)
        elif self._failure is not None:
            self._fail(self._switchboard.ears(), self._failure)
        unread = self._subscriber is not None and self._subscriber.unread
        self._wait(0.0 if unread else min(max(self._due() - time.monotonic(), 0.0), _LONGEST))

    def _wait(self, seconds: float) -> None:
        subscriber = self._subscriber
        events = self._selector.select(seconds)
        if any(key.fileobj is self._bell for key, _ in events):
            with contextlib.suppress(BlockingIOError):
                self._bell.recv(4096)
        if subscriber is None:
            return
        try:
            if subscriber.unread or any(key.fileobj is subscriber.sock for key, _ in events):
                for reply in subscriber.read():
                    self._take(subscriber, reply)
            subscriber.check(_SILENCE, self._connection.config.timeout)
        except Broken as error:
            self._cut(error)

    def _due(self) -> float:
        if self._subscriber is None:
            return self._retry_at
        refused = min(self._refused.values(), default=math.inf)
        return min(refused, self._subscriber.due(_SILENCE, self._connection.config.timeout))

    # The connection.

    def _dial(self) -> None:
        channels = sorted(channel for ear in self._switchboard.ears() for channel in ear.channels)
        if not channels:
            return
        try:
            # In a cluster what is published anywhere is heard everywhere, so any node will do that answers.
            connection = self._connection.fresh(channels[self._tries % len(channels)], blocking=True)
        except Exception as error:
            # Also what redis-py raises of a cluster that it learns anew just now.
            known = error if isinstance(error, EchoMQError) else None
            self._away(known or ServerUnavailable(f"cannot use {self._connection.config.address}: {error}"))
            return
        self._subscriber = Subscriber(connection)
        self._selector.register(self._subscriber.sock, selectors.EVENT_READ)
        self._refused.clear()
        self._failure = None

    def _away(self, failure: EchoMQError) -> None:
        self._failure = failure
        self._pause()
        self._fail(self._switchboard.ears(), failure)

    def _pause(self) -> None:
        longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self._tries, 10))
        self._tries += 1
        self._retry_at = time.monotonic() + random.uniform(longest / 2, longest)

    def _cut(self, error: Exception) -> None:
        """The connection is of no more use."""
        subscriber, self._subscriber = self._subscriber, None
        if subscriber is not None:
            self._selector.unregister(subscriber.sock)
            subscriber.close()
            _log.info("the connection on which caches hear %s broke: %s", self._connection.config.address, error)
        # Those who wait are told when the next try has failed, too.
        self._failure = None
        self._pause()
        for ear in self._switchboard.ears():
            self._lose(ear)

    def _settle(self, subscriber: Subscriber) -> None:
        """Subscribe to what is wanted, and end what is not."""
        wanted = {channel for ear in self._switchboard.ears() for channel in ear.channels}
        now = time.monotonic()
        self._refused = {channel: at for channel, at in self._refused.items() if at > now and channel in wanted}
        try:
            for channel in sorted(wanted - subscriber.asked - self._refused.keys()):
                subscriber.subscribe(channel)
            for channel in sorted(subscriber.asked - wanted):
                subscriber.unsubscribe(channel)
            writing = subscriber.write()
        except Broken as error:
            return self._cut(error)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)
        if self._selector.get_key(subscriber.sock).events != events:
            self._selector.modify(subscriber.sock, events)
        # One that came for channels that are heard already waits for nothing.
        self._confirm(subscriber)

    # What comes from the server.

    def _take(self, subscriber: Subscriber, reply: Any) -> None:
        if isinstance(reply, list) and reply and reply[0] == b"message":
            _, channel, data = reply
            for ear in self._switchboard.ears():
                if channel in ear.channels:
                    tell(ear.on_message, channel, data)
            return
        if isinstance(reply, list) and (not reply or reply[0] not in ANSWERS):
            # Pushed, and about something else.
            return
        refused = subscriber.answered(reply)
        if refused is not None:
            channel, text = refused
            self._refused[channel] = time.monotonic() + _REFUSED
            failure = self._denied(channel, text)
            self._fail([ear for ear in self._switchboard.ears() if channel in ear.channels], failure)
        self._confirm(subscriber)

    def _denied(self, channel: bytes, text: str) -> EchoMQError:
        address = self._connection.config.address
        if text.startswith(("NOPERM", "NOAUTH")):
            return ConfigError(
                f"the user of {address} may not subscribe to {channel.decode()}: {text}. It needs the channels &ecc:* "
                "and the commands +@pubsub, as in the ACL SETUSER line in docs/operations.md"
            )
        return ServerUnavailable(f"{address} refused to subscribe to {channel.decode()}: {text}")

    # The ears.

    def _confirm(self, subscriber: Subscriber) -> None:
        for ear in self._switchboard.ears():
            if ear.hears or not ear.channels <= subscriber.confirmed:
                continue
            self._tries = 0
            if ear.heard:
                tell(ear.on_back)
            with self._switchboard.change:
                ear.hears = ear.heard = True
                ear.failure = None
                self._switchboard.change.notify_all()

    def _lose(self, ear: Ear) -> None:
        with self._switchboard.change:
            heard, ear.hears = ear.hears, False
        if heard:
            tell(ear.on_lost)

    def _fail(self, ears: list[Ear], failure: EchoMQError) -> None:
        with self._switchboard.change:
            for ear in ears:
                if not ear.hears:
                    ear.failure = failure
            self._switchboard.change.notify_all()


def tell(function: Callable[..., Any] | None, *args: Any) -> None:
    """Call what an ear was given; when it raises, the others are heard all the same."""
    if function is None:
        return
    try:
        function(*args)
    except Exception:
        _log.exception("%r failed; it goes on with the next message", function)
