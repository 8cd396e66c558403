"""Flights that a test moves on one step at a time, in any order, and caches whose server and messages it holds back."""

from __future__ import annotations

import time
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextvars import Context, copy_context
from typing import Any

from echomq_tasks.cache.coherence import Coherence
from echomq_tasks.cache.drive import Drive, Flying, Leave, ThreadDrive
from echomq_tasks.cache.flight import Flight
from echomq_tasks.cache.freshness import Freshness
from echomq_tasks.cache.l1 import L1
from echomq_tasks.cache.owed import Owed
from echomq_tasks.cache.parts import Parts
from echomq_tasks.cache.reach import Away, Reach, Unanswered
from echomq_tasks.cache.reader import Reader
from echomq_tasks.cache.row import Row
from echomq_tasks.cache.store import Store
from echomq_tasks.cache.values import TypedCodec
from echomq_tasks.connection import Connection
from echomq_tasks.identity import Mint


@types.coroutine
def step() -> Generator[None, None, None]:
    """Let somebody else go on."""
    yield


class Going:
    """One coroutine on its way, in a context of its own as a task has it."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._context: Context = copy_context()
        self.running = self.done = False
        self.value: Any = None
        self.error: Exception | None = None

    def go_on(self) -> None:
        """One step."""
        assert not self.done, repr(self.error)
        self.running = True
        try:
            self._context.run(self._coroutine.send, None)
        except StopIteration as end:
            self.done, self.value = True, end.value
        except Exception as error:
            self.done, self.error = True, error
        finally:
            self.running = False

    def close(self) -> None:
        self._context.run(self._coroutine.close)


class StraightDrive(ThreadDrive):
    """Blocks, and leaves nothing to threads of its own."""

    def give_up(self, function: Callable[[], Any]) -> None:
        function()


class StepDrive:
    """Stops before and after whatever a flight does."""

    blocks = False
    loop = None

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    async def ask(self, function: Callable[[], Any]) -> Any:
        await step()
        answer = function()
        await step()
        return answer

    async def wait(self, future: Future[Any], seconds: float) -> None:
        ended = self._cache.leases_ended
        while not future.done() and self._cache.leases_ended == ended:
            await step()

    async def load(self, loader: Callable[[], Any], hard: float | None, leave: Leave) -> Any:
        await step()
        value = loader()
        await step()
        return value

    def give_up(self, function: Callable[[], Any]) -> None:
        function()

    async def lead(self, flight: Flight, flying: Flying) -> None:
        await flying(self)

    def spawn(self, flight: Flight, flying: Flying) -> None:
        drive: Drive = StepDrive(self._cache)
        self._cache.background.append(Going(flying(drive)))

    def can_follow(self, flight: Flight) -> bool:
        return True

    async def follow(self, flight: Flight, seconds: float | None) -> Row:
        while not flight.done:
            await step()
        return flight.result()


class SkewedStore(Store):
    """A store of a process whose clock goes wrong by so many seconds."""

    def __init__(self, table: str, connection: Connection, skew: float, node: int) -> None:
        super().__init__(table, "ROW", connection)
        self._mint = Mint(lambda: node, clock=lambda: time.time() + skew)

    def mint(self) -> str:
        return self._mint.mint("ROW")


class CutReach(Reach):
    """A way to the server that a test cuts; it hears nothing by itself."""

    def __init__(self, table: str, connection: Connection, store: Store) -> None:
        super().__init__(
            table, "ROW", connection, on_message=lambda *_: None, on_lost=lambda: None, on_back=lambda: None
        )
        self.listening = True
        # Paid by whoever asks next, and by no thread behind the test's back.
        self.owed = Owed()
        self.cut = False
        #: What is asked next is done, and its answer lost; or it is lost itself.
        self.losing = self.missing = False
        self.store = store
        #: Called around each request, to let others come between.
        self.between: Callable[[], None] = lambda: None

    @property
    def shut(self) -> bool:
        return False

    def pay(self) -> bool:
        return not self.owed

    def ask(self, what: Callable[[Store], Any]) -> Any:
        self.between()
        if self.cut:
            raise Away
        missing, self.missing = self.missing, False
        if missing:
            raise Unanswered
        if self.owed:
            self.owed.pay(self.store)
        losing, self.losing = self.losing, False
        answer = what(self.store)
        self.between()
        if losing:
            raise Unanswered
        return answer


class Cache:
    """The table of one process, whose calls go on step by step and whose messages are heard when the test says so."""

    def __init__(
        self,
        table: str,
        connection: Connection,
        store: Store,
        lane: Callable[[bytes], object] | None = None,
        **freshness: Any,
    ) -> None:
        self.reach = CutReach(table, connection, store)
        self.coherence = Coherence(lane)
        fresh = Freshness(**{"ttl": 3600.0, "jitter": 0.0, **freshness})
        self.parts = Parts(table, "ROW", TypedCodec(), fresh, 600.0, None, L1(100), self.reach)
        self.coherence.of(self.parts)
        self.reader = Reader(self.parts)
        self.unheard: deque[tuple[bytes, bytes]] = deque()
        self.background: list[Going] = []
        #: Raised when leases have ended, for who waits for that.
        self.leases_ended = 0

    def drive(self) -> StepDrive:
        return StepDrive(self)

    def said(self, channel: bytes, data: bytes) -> None:
        """Something was published; it is on its way here, unless the connection is cut."""
        if not self.reach.cut:
            self.unheard.append((channel, data))

    def hear(self) -> tuple[bytes, bytes] | None:
        """Hear the oldest message that is on its way."""
        if not self.unheard:
            return None
        message = self.unheard.popleft()
        self.coherence.heard(*message)
        return message

    def cut(self) -> None:
        """Lose the server, and all that is on its way."""
        self.reach.cut = True
        self.unheard.clear()
        self.coherence.lost()

    def heal(self) -> None:
        """Have the server again."""
        self.reach.cut = False
        self.coherence.back()


class Overhearing:
    """What is published for a table, in order: everything that was said until a look is in what the look answers."""

    def __init__(self, connection: Connection, store: Store) -> None:
        self._client: Any = connection.client
        self._mark = store.base + b"mark"
        self._pubsub = self._client.pubsub()
        self._pubsub.subscribe(*store.channels, self._mark)
        # Once all of it is confirmed, nothing is missed.
        for _ in range(3):
            assert self._next()["type"] == "subscribe"

    def look(self) -> list[tuple[bytes, bytes]]:
        """The channel and the data of each message since the last look."""
        self._client.publish(self._mark, "now")
        found = []
        while (message := self._next())["channel"] != self._mark:
            found.append((message["channel"], message["data"]))
        return found

    def _next(self) -> dict[str, Any]:
        message: dict[str, Any] | None = self._pubsub.get_message(timeout=30.0)
        assert message is not None, "what was published is not heard"
        return message

    def close(self) -> None:
        self._pubsub.close()
