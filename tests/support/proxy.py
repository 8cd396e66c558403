"""A TCP proxy that loses requests and replies on demand, to test what a client does when it cannot know."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass
from typing import Any, Literal

import hiredis

#: Seconds until a connection that waits for replies is given up, loudly.
PATIENCE = 30.0
#: What the parser answers when it has no whole item; its default, False, is also a reply.
_PARTIAL = object()


@dataclass
class Counts:
    """What went through the proxy since it started."""

    connections: int = 0
    refused: int = 0
    commands: int = 0
    replies: int = 0
    dropped_requests: int = 0
    dropped_replies: int = 0
    cut: int = 0


@dataclass
class _Fault:
    kind: Literal["request", "reply"]
    match: bytes
    times: int


class DroppingProxy:
    """Forwards commands and replies between clients and ``127.0.0.1:upstream_port``, except where a fault is armed.

    A fault looks at one command at a time, its arguments joined by spaces, so ``b"EVALSHA"``, a script's sha,
    ``b"CLIENT SETINFO"`` and a job id all match, also inside a pipeline: the commands before the match run and are
    answered, those behind it are never sent. Commands without one reply each (SUBSCRIBE, MONITOR) cannot be matched,
    and within MULTI the command to match is EXEC. Any thread may use it.
    """

    def __init__(self, upstream_port: int) -> None:
        self.counts = Counts()
        self._upstream_port = upstream_port
        self._lock = threading.Lock()  # guards counts, faults and links
        self._faults: list[_Fault] = []
        self._links: set[_Link] = set()
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._accepter = threading.Thread(target=self._accept, name="proxy-accept", daemon=True)
        self._accepter.start()

    @property
    def url(self) -> str:
        """The URL for ``connect``."""
        return f"valkey://127.0.0.1:{self.port}"

    def drop_reply(self, match: bytes, times: int = 1) -> None:
        """Let the next ``times`` commands that contain ``match`` run, then close their connection without a reply."""
        self._arm(_Fault("reply", match, times))

    def drop_request(self, match: bytes, times: int = 1) -> None:
        """Close the connection of the next ``times`` commands that contain ``match`` without sending them on."""
        self._arm(_Fault("request", match, times))

    def _arm(self, fault: _Fault) -> None:
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        """Disarm every fault."""
        with self._lock:
            self._faults.clear()

    def cut_all(self) -> None:
        """Close every open connection; what was under way may or may not have run."""
        with self._lock:
            links = list(self._links)
            self.counts.cut += len(links)
        for link in links:
            link.cut()

    def close(self) -> None:
        """Stop listening, close every connection and wait for the threads."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        # Closing a socket does not wake a thread in accept() everywhere; a visitor does.
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            self._accepter.join()
        self._listener.close()
        with self._lock:
            links = list(self._links)
        for link in links:
            link.cut()
            link.thread.join()

    def __enter__(self) -> DroppingProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def count(self, name: str) -> None:
        with self._lock:
            setattr(self.counts, name, getattr(self.counts, name) + 1)

    def fault_for(self, request: bytes) -> _Fault | None:
        with self._lock:
            for fault in self._faults:
                if fault.match in request:
                    fault.times -= 1
                    if fault.times <= 0:
                        self._faults.remove(fault)
                    return fault
        return None

    def forget(self, link: _Link) -> None:
        with self._lock:
            self._links.discard(link)

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if self._closed:
                client.close()
                return
            try:
                upstream = socket.create_connection(("127.0.0.1", self._upstream_port), timeout=PATIENCE)
            except OSError:
                self.count("refused")
                client.close()
                continue
            upstream.settimeout(None)
            self.count("connections")
            link = _Link(self, client, upstream)
            with self._lock:
                self._links.add(link)
            link.thread.start()


class _Link:
    """One client's connection: its own thread reads requests and closes both sockets, a second one reads replies."""

    def __init__(self, proxy: DroppingProxy, client: socket.socket, upstream: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._upstream = upstream
        for end in (client, upstream):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._change = threading.Condition()  # guards the four fields below
        self._sent = 0
        self._answered = 0
        self._muted = False
        self._gone = False
        self.thread = threading.Thread(target=self._run, name="proxy-requests", daemon=True)

    def cut(self) -> None:
        """Wake both threads, which then close; both peers see the end of the stream at once."""
        with self._change:
            self._gone = True
            self._change.notify_all()
        for end in (self._client, self._upstream):
            # A closed or already shut socket has nobody left to tell.
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        replies = threading.Thread(target=self._read_replies, name="proxy-replies", daemon=True)
        replies.start()
        try:
            self._read_requests()
        finally:
            self.cut()
            replies.join()
            self._client.close()
            self._upstream.close()
            self._proxy.forget(self)

    def _read_requests(self) -> None:
        parser = hiredis.Reader(notEnoughData=_PARTIAL)
        while chunk := _receive(self._client):
            parser.feed(chunk)
            while (command := parser.gets()) is not _PARTIAL:
                if not self._handle(command):
                    return

    def _handle(self, command: Any) -> bool:
        """Send one command on, or play its fault and answer False: the connection is over."""
        fault = self._proxy.fault_for(b" ".join(command))
        if fault is None:
            return self._forward(command)
        # Whatever went before is answered first, so that the fault hits this one command only.
        if not self._all_answered():
            return False
        if fault.kind == "request":
            self._proxy.count("dropped_requests")
            return False
        with self._change:
            self._muted = True
        if self._forward(command) and self._all_answered():
            self._proxy.count("dropped_replies")
        return False

    def _forward(self, command: Any) -> bool:
        with self._change:
            self._sent += 1
        self._proxy.count("commands")
        return _send(self._upstream, hiredis.pack_command(tuple(command)))

    def _all_answered(self) -> bool:
        with self._change:
            if not self._change.wait_for(lambda: self._gone or self._answered >= self._sent, PATIENCE):
                raise TimeoutError(f"the server answered {self._answered} of {self._sent} commands in {PATIENCE:g} s")
            return self._answered >= self._sent

    def _read_replies(self) -> None:
        parser = hiredis.Reader(notEnoughData=_PARTIAL)
        while chunk := _receive(self._upstream):
            if not self._muted and not _send(self._client, chunk):
                break
            parser.feed(chunk)
            while (reply := parser.gets()) is not _PARTIAL:
                if isinstance(reply, hiredis.PushNotification):
                    continue
                self._proxy.count("replies")
                with self._change:
                    self._answered += 1
                    self._change.notify_all()
        self.cut()


def _receive(end: socket.socket) -> bytes:
    try:
        return end.recv(65_536)
    except OSError:
        # Reset by the peer: for a proxy the same as the end of the stream.
        return b""


def _send(end: socket.socket, data: bytes) -> bool:
    try:
        end.sendall(data)
    except OSError:
        return False
    return True
