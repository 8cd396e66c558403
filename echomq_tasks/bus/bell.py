"""The bell of a consumer: rings when its log has an entry that its group was not given."""

from __future__ import annotations

import redis

from echomq_tasks.bus.blocking import BlockingWire
from echomq_tasks.bus.failures import log_errors
from echomq_tasks.bus.log import Log


class Bell:
    """Waits on a connection of its own, of the thread that waits; any other may :meth:`silence` it.

    It only tells that there is something. A blocked XREADGROUP would deliver it, too, but after a burst that is trimmed
    in the same step nobody could tell how much the group has lost (``group_read`` looks and reads in one step); and
    what it delivers into a connection that just broke lies pending until it is claimed. A bell that rings for others
    too costs them a look, and consumers that are at work do not wait for it.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._wire: BlockingWire | None = None
        self._silent = False

    def wait(self, behind: str, timeout: float) -> bool:
        """Wait for up to ``timeout`` seconds for an entry behind this one; False when none came, or when silenced.

        Raises:
          ServerUnavailable: when the connection broke; the next wait opens another.
          WrongState: when the key holds no log.
        """
        with log_errors(self._log.connection.config, self._log.key):
            try:
                if self._wire is None:
                    self._wire = BlockingWire(self._log.connection, self._log.key)
                # After the wire is there for others to see: who silences sets the mark first.
                if self._silent:
                    return False
                block = max(int(timeout * 1000), 1)
                reply = self._wire.ask(timeout, "XREAD", "COUNT", 1, "BLOCK", block, "STREAMS", self._log.key, behind)
                return bool(reply)
            except BaseException as error:
                # Also what was thrown into this thread, maybe in the middle of an answer.
                self.close()
                if self._silent and isinstance(error, (redis.RedisError, OSError)):
                    return False
                raise

    def silence(self) -> None:
        """Let the thread that waits go on, and not wait again."""
        self._silent = True
        wire = self._wire
        if wire is not None:
            wire.interrupt()

    def close(self) -> None:
        """Close the connection; for the thread that waits."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
