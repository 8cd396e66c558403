"""A table's way to its server, which may be away: everything that goes there goes through here."""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from redis.exceptions import MaxConnectionsError, RedisError

from echomq_tasks.cache.beat import Beat, Reports
from echomq_tasks.cache.breaker import Breaker
from echomq_tasks.cache.claims import Hit
from echomq_tasks.cache.ear import Ear
from echomq_tasks.cache.hands import HANDS
from echomq_tasks.cache.leases import Leases
from echomq_tasks.cache.owed import Owed
from echomq_tasks.cache.store import Store
from echomq_tasks.config import Config
from echomq_tasks.connection import Connection
from echomq_tasks.errors import (
    ConfigError,
    EchoMQError,
    InvalidArgument,
    Refused,
    ScriptError,
    ServerError,
    ServerOutOfMemory,
)
from echomq_tasks.forks import after_fork
from echomq_tasks.identity import brand
from echomq_tasks.scripts import Scripts
from echomq_tasks.scripts.streams import Elsewhere

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds that a caller waits for the server at most, before he goes on without it.
PATIENCE: Final = 1.0


class Away(Exception):
    """The server was not asked, or did not serve: go on without it."""


class Unanswered(Away):
    """The server was asked, and may have done it."""


class Full(Away):
    """The server has no memory for it."""


class Shared:
    """What the tables of one server share: their connection, once there is one, the breaker, the leases and the beat.

    The connection is the cache's own, for it has less patience than a queue: nobody waits for a server that hangs for
    longer than :data:`PATIENCE`, or than the timeouts of the connection that was given, when those are shorter.

    Parameters:
      connection: leads to the server; None is where ``connect()`` without arguments leads, once it is needed.
    """

    def __init__(self, connection: Connection | None = None) -> None:
        self._config = None if connection is None else connection.config
        self._connection: Connection | None = None
        self._reaches: weakref.WeakSet[Reach] = weakref.WeakSet()
        #: How often it was tried to connect, in vain or not.
        self._tries = 0
        self._after_fork()
        self.breaker = Breaker("its server" if connection is None else connection.config.address)
        self.leases = Leases()
        self.beat = Beat()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._connecting = threading.Lock()
        self._joining = threading.Lock()
        self._probing = threading.Lock()

    @classmethod
    def of(cls, connection: Connection | None) -> Shared:
        """That of a connection, or the one for all tables that were given none."""
        return _DEFAULT if connection is None else connection.companion(cls)

    def config(self) -> Config | None:
        """What to connect with; None when that was done.

        Raises:
          ConfigError: when ``EMQ_URL`` is wrong.
        """
        return None if self._connection is not None else self._config or Config.parse()

    def connection(self, config: Config | None) -> Connection:
        """The connection; made with ``config`` when there is none yet.

        Raises:
          EchoMQError: as :func:`echomq_tasks.connect` does.
          Away: when another thread has just tried in vain.
        """
        if self._connection is None:
            assert config is not None
            tries = self._tries
            with self._connecting:
                if self._connection is None and self._tries != tries:
                    raise Away  # it was tried while we waited, which may have taken seconds
                if self._connection is None:
                    self.breaker.name = config.address
                    try:
                        made = Connection(_impatient(config))
                        Scripts.of(made).hasty = True
                        self._connection = made
                    finally:
                        self._tries += 1
        return self._connection

    def probe(self, ask: Callable[[], object]) -> None:
        """Let a thread of its own ask the server whether it is back, unless one does, or it is too early.

        Parameters:
          ask: asks it something.
        """
        if self._probing.locked() or not self.breaker.allows():
            return

        def probe() -> None:
            probing = self._probing
            if probing.acquire(blocking=False):
                try:
                    with contextlib.suppress(Away):
                        ask()
                finally:
                    probing.release()

        # Not among the requests of tasks: those may all be waiting for this server.
        HANDS.later(probe)

    def join(self, reach: Reach) -> None:
        """Let a table pay what it owes when the server is back."""
        with self._joining:
            self._reaches.add(reach)

    def passed(self) -> None:
        """The server has served."""
        if self.breaker.passed():
            with self._joining:
                reaches = list(self._reaches)
            for reach in reaches:
                if reach.owed:
                    HANDS.later(reach.pay)

    def close(self) -> None:
        """Report a last time, and close the connection."""
        self.beat.close()
        if self._connection is not None:
            self._connection.close()


def _impatient(config: Config) -> Config:
    return replace(config, timeout=min(config.timeout, PATIENCE), connect_timeout=min(config.connect_timeout, PATIENCE))


_DEFAULT: Final = Shared()

#: What the system says when this process, or this machine, has no more connections to give.
_SHORT: Final = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})


def short_of(error: BaseException | None) -> bool:
    """Whether what was missing is a connection or a thread on our side, which says nothing of the server."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error.errno in _SHORT
        if isinstance(error, MaxConnectionsError) or "can't start new thread" in str(error):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def _probe(store: Store) -> None:
    store.version(brand(store.kind, 0))


class _Payer:
    """Pays at each beat, until it has paid."""

    def __init__(self, pay: Callable[[], object]) -> None:
        self.report = pay


class Reach:
    """One table on its server, as far as that can be reached.

    Parameters:
      table: its name.
      kind: its kind.
      connection: the server; see :class:`Shared`.
      on_message: called with the channel and the data of each message on the table's channels.
      on_lost: called when messages are not heard any more.
      on_back: called when they are heard again, and some may have been missed.
      owed: what the server is still to be told, where others may have dropped it; its own by default.
    """

    def __init__(
        self,
        table: str,
        kind: str,
        connection: Connection | None,
        *,
        on_message: Callable[[bytes, bytes], None],
        on_lost: Callable[[], None],
        on_back: Callable[[], None],
        owed: Owed | None = None,
    ) -> None:
        self._table = table
        self._kind = kind
        self._hearers = on_message, on_lost, on_back
        self._store: Store | None = None
        self._ear: Ear | None = None
        #: Reports what the table counts, as long as its messages are heard; None for nobody.
        self.reporter: Reports | None = None
        self.shared = Shared.of(connection)
        #: What was dropped here while the server was away. Who asks next pays it, or the beat if nobody does.
        self.owed = Owed() if owed is None else owed
        self.owed.on_due(self._due)
        self._payer = _Payer(self.pay)
        self.shared.join(self)
        self._full = False
        self._told: set[str] = set()
        self._after_fork()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._opening = threading.Lock()
        #: Whether the table's messages have been heard in this process.
        self.listening = False

    @property
    def shut(self) -> bool:
        """Whether :meth:`ask` would not even ask."""
        return self.shared.breaker.shut

    @property
    def away(self) -> bool:
        """Whether the server did not serve when it was last asked."""
        return self.shared.breaker.open

    def ask(self, what: Callable[[Store], T]) -> T:
        """Ask the server. One that is away is tried again in the background, and nobody waits for that.

        Parameters:
          what: asks the store that it is given.

        Raises:
          Away: when it was left alone, or did not serve; that is counted, and logged where it is news.
          ConfigError: when ``EMQ_URL`` is wrong.
        """
        breaker = self.shared.breaker
        if breaker.shut:
            raise Away
        # Outside of what is caught: this is a mistake of the program's, and no server is away.
        config = self.shared.config()
        if breaker.open:
            self.shared.probe(lambda: self._asked(_probe, config))
            raise Away
        return self._asked(what, config)

    def _asked(self, what: Callable[[Store], T], config: Config | None) -> T:
        try:
            store = self._open(config)
            if self.owed:
                self.owed.pay(store)
            answer = what(store)
        except ServerOutOfMemory as error:
            self.shared.passed()
            self._note_full(error)
            raise Full from error
        except (ServerError, ConfigError, RedisError, OSError) as error:
            self._missed(error)
            raise Unanswered from error
        except (ScriptError, Refused) as error:
            # The server is well; what stands under this key is none of ours.
            self.shared.passed()
            self._tell(error)
            raise Away from error
        self.shared.passed()
        return answer

    async def look(self, id: str, marks: tuple[str, ...], elsewhere: Elsewhere) -> Hit | None:
        """As ``ask(lambda store: store.look(id, marks))``, for a task, without blocking its event loop.

        Parameters:
          id: the row.
          marks: the ids of its tags.
          elsewhere: runs what would block.

        Returns:
          None when the row is not there, and when something else comes first that blocks, as what is owed.

        Raises:
          Away: when the server did not serve.
        """
        breaker, store, ear = self.shared.breaker, self._store, self._ear
        if store is None or ear is None or not (self.listening and ear.hears) or breaker.open or self.owed:
            return None
        try:
            hit = await store.alook(id, marks, elsewhere)
        except (ServerError, ConfigError, RedisError, OSError) as error:
            self._missed(error)
            raise Unanswered from error
        self.shared.passed()
        return hit

    def tell(self, what: Callable[[Store], object]) -> bool:
        """Ask the server what can as well be left out: for that nothing is opened, and that it fails is no news.

        Parameters:
          what: asks the store that it is given.

        Returns:
          Whether the server has answered.
        """
        store = self._store
        if store is None or self.away:
            return False
        try:
            what(store)
        except (ServerError, ConfigError, RedisError, OSError) as error:
            _log.debug("The cache table %s could not tell its server something: %s", self._table, error)
            return False
        except (ScriptError, Refused) as error:
            self._tell(error)
            return False
        return True

    def listen(self) -> None:
        """Hear what is said of the table from now on. Any :meth:`ask` does that first.

        Raises: as :meth:`ask`.
        """
        self.ask(lambda store: None)

    def pay(self) -> bool:
        """Tell the server what it is owed, if it serves; whether nothing is owed any more."""
        if self.owed:
            with contextlib.suppress(Away):
                # Which comes before anything else.
                self.listen()
        if self.owed:
            return False
        self.shared.beat.remove(self._payer)
        return True

    def _due(self) -> None:
        self.shared.beat.add(self._payer)

    def stored(self) -> None:
        """The server has taken a value."""
        if self._full:
            self._full = False
            _log.warning("The cache table %s can be written again: there is memory", self._table)

    def close(self) -> None:
        """Hear no more."""
        if self.reporter is not None:
            self.shared.beat.remove(self.reporter)
        if self._ear is not None:
            self._ear.close()

    def _open(self, config: Config | None) -> Store:
        store, ear = self._store, self._ear
        if store is None or ear is None:
            connection = self.shared.connection(config)
            with self._opening:
                on_message, on_lost, on_back = self._hearers
                store = self._store = self._store or Store(self._table, self._kind, connection)
                ear = self._ear = self._ear or Ear(connection, store.channels, on_message, on_lost, on_back)
        if not self.listening:
            # Before the first claim, or the wake that it is to wait for could be missed.
            ear.ready()
            # What was loaded until now was loaded deaf.
            self._hearers[2]()
            self.listening = True
            self._begin_reports()
        elif not ear.hears:
            # It tries by itself. Meanwhile a lease tells how long to wait, and what L1 holds is checked afterwards.
            with contextlib.suppress(EchoMQError):
                ear.ready(0)
            # It may have been closed.
            self._begin_reports()
        return store

    def _begin_reports(self) -> None:
        if self.reporter is not None:
            self.shared.beat.add(self.reporter)

    def _missed(self, error: BaseException) -> None:
        if short_of(error):
            self._tell_once(f"there is no further connection to be had here: {error}")
        else:
            self.shared.breaker.failed(error)

    def _note_full(self, error: ServerOutOfMemory) -> None:
        if not self._full:
            self._full = True
            _log.warning("The cache table %s keeps values in its processes alone: %s", self._table, error)

    def _tell(self, error: EchoMQError | InvalidArgument) -> None:
        self._tell_once(str(error))

    def _tell_once(self, text: str) -> None:
        if text not in self._told and len(self._told) < 100:
            self._told.add(text)
            _log.warning("The cache table %s goes on without its server in one case: %s", self._table, text)
