"""A thread that waits for sockets, timers and requests of other threads, and for nothing else."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

#: No epoll: a fork would share it with the child.
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)
#: Seconds of the longest wait.
_LONGEST = 60.0


class Loop:
    """The thread and how others reach it; a subclass says what it does. It ends once it is :meth:`idle`, for good."""

    def __init__(self, name: str) -> None:
        # Reentrant: a signal handler may close what its thread is just opening.
        self._gate = threading.RLock()  # guards the two below, and the sending end of the bell
        self._requests: deque[Callable[[], None]] = deque()
        #: It takes no more requests.
        self.over = False
        # Made and closed by the thread, so that whoever is interrupted while starting it leaves no socket behind.
        self._bell: socket.socket | None = None
        self._ringer: socket.socket | None = None
        self._selector = _Selector()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def post(self, request: Callable[[], None]) -> bool:
        """Have ``request`` called in the thread; False when that has ended. Never waits."""
        with self._gate:
            if self.over:
                return False
            self._requests.append(request)
            if self._ringer is not None:
                # A bell that rings already is loud enough.
                with contextlib.suppress(BlockingIOError):
                    self._ringer.send(b"!")
            return True

    def errand(self, work: Callable[[], Callable[[], None]], undo: Callable[[], None] = lambda: None) -> None:
        """Do what may wait for the network in a thread of its own, which then has what ``work`` returned called here.

        ``undo`` is called instead when this thread has ended meanwhile.

        Raises:
          RuntimeError: when no thread can be started.
        """

        def run() -> None:
            if not self.post(work()):
                undo()

        threading.Thread(target=run, name=f"{self.thread.name}-errand", daemon=True).start()

    # For the subclass; all of it is called in the thread.

    def idle(self) -> bool:
        """Whether nothing is left to do."""
        raise NotImplementedError

    def due(self) -> float:
        """When :meth:`tick` has to be called, on the monotonic clock."""
        raise NotImplementedError

    def tick(self) -> None:
        """The time has come."""
        raise NotImplementedError

    def ready(self, what: Any, events: int) -> None:
        """The socket that was watched with ``what`` can be read or written."""
        raise NotImplementedError

    def served(self) -> None:
        """All requests so far are done, and whether the thread goes on is decided."""
        raise NotImplementedError

    def ended(self, error: BaseException | None) -> None:
        """The thread ends; ``error`` is what it failed with."""
        raise NotImplementedError

    def watch(self, sock: Any, what: Any, *, writing: bool) -> None:
        """Call :meth:`ready` with ``what`` when ``sock`` can be read, or, with ``writing``, be written too."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)
        known = self._selector.get_map().get(sock)
        if known is None:
            self._selector.register(sock, events, what)
        elif known.events != events:
            self._selector.modify(sock, events, what)

    def unwatch(self, sock: Any) -> None:
        """Watch it no more."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(sock)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            bell, ringer = socket.socketpair()
            bell.setblocking(False)
            ringer.setblocking(False)
            with self._gate:
                self._bell, self._ringer = bell, ringer
            self._selector.register(bell, selectors.EVENT_READ)
            while self._turn(bell):
                pass
        except BaseException as failure:
            error = failure
        with self._gate:
            self.over = True
            left, self._requests = self._requests, deque()
        try:
            self.ended(error)
        finally:
            # Those that came after a failure still get what they wait for.
            for request in left:
                request()
            self._shut()
            self.served()

    def _turn(self, bell: socket.socket) -> bool:
        while self._requests:
            self._requests.popleft()()
        if self.idle():
            with self._gate:
                # In one step, or somebody's request could still come in and be lost.
                if not self._requests:
                    self.over = True
                    return False
            return True
        self.served()
        wait = min(max(self.due() - time.monotonic(), 0.0), _LONGEST)
        for key, events in self._selector.select(wait):
            if key.fileobj is bell:
                with contextlib.suppress(BlockingIOError):
                    bell.recv(4096)
            elif key.data is not None:
                self.ready(key.data, events)
        if time.monotonic() >= self.due():
            self.tick()
        return True

    def _shut(self) -> None:
        self._selector.close()
        for end in (self._bell, self._ringer):
            if end is not None:
                end.close()

    def forget(self) -> None:
        """In the child of a fork: close what was copied, and say no word to the server or the parent."""
        self.over = True
        self._shut()
