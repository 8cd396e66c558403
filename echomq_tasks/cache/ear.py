"""One table's ear: what is said on its channels, and since when something may have been missed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from echomq_tasks.cache.switchboard import Switchboard
from echomq_tasks.connection import Connection


class Ear:
    """Hears channels of a server; all ears of a connection share one thread and one socket.

    It begins with the first :meth:`ready` and ends with :meth:`close`, or when nobody refers to it any more. Messages
    are heard at most once: what is said while the connection is broken is missed, and ``on_back`` says so.

    Parameters:
      connection: the server.
      channels: what to hear.
      on_message: called as ``on_message(channel, data)`` for each message, in order.
      on_lost: called when the connection broke, until it is back nothing is heard.
      on_back: called when it is heard again: something may have been missed.

    All three are called in the thread that all ears share, and should be quick. One that raises is logged.
    """

    def __init__(
        self,
        connection: Connection,
        channels: Iterable[bytes],
        on_message: Callable[[bytes, bytes], None],
        on_lost: Callable[[], None] | None = None,
        on_back: Callable[[], None] | None = None,
    ) -> None:
        self.channels = frozenset(channels)
        self.on_message = on_message
        self.on_lost = on_lost
        self.on_back = on_back
        #: Whether every channel is heard now. Written by the shared thread only.
        self.hears = False
        #: Whether it was heard before, so that something may have been missed when it is heard again.
        self.heard = False
        #: Why it cannot be heard now.
        self.failure: Exception | None = None
        self._switchboard = connection.companion(Switchboard)

    def ready(self, timeout: float | None = None) -> None:
        """Return when every channel is heard: whatever is said from now on reaches ``on_message``.

        Costs one look at an attribute when it is so already. While the server is away it raises at once, and the shared
        thread goes on trying.

        Parameters:
          timeout: seconds to wait for the first connection or the next; the connection's reply timeout by default.

        Raises:
          ServerUnavailable: when the channels cannot be heard now.
          ConfigError: when the user may not hear them.
        """
        if not self.hears:
            self._switchboard.wait(self, timeout)

    def close(self) -> None:
        """Hear no more. Never waits. A later :meth:`ready` begins anew, and tells ``on_back``."""
        self._switchboard.leave(self)

    def __repr__(self) -> str:
        channels = ", ".join(sorted(channel.decode(errors="replace") for channel in self.channels))
        return f"<Ear for {channels}>"
