"""The pulse of a consumer: what it has in hand is renewed, so that others know it for alive."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from echomq_tasks.errors import EchoMQError

_log = logging.getLogger(__name__)


class Pulse:
    """Calls a function every so many seconds from a thread of its own, between start and stop."""

    def __init__(self, beat: Callable[[], None], every: float, name: str) -> None:
        self._beat = beat
        self._every = every
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._every):
            try:
                self._beat()
            except EchoMQError as error:
                # The consumer's own thread meets the same, and tells.
                _log.debug("what is in hand was not renewed: %s", error)
            except Exception:
                _log.exception("what is in hand was not renewed; the next beat tries again")
